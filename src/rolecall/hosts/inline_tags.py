"""What a user's message asks for at once: `[d]` a decision, `[m]` a lesson, `[rule]` a rule, `[m:gc]` a look at memory.

This module does it and reports it to the model, with the vocabulary's guidance. A decision applies to the issue that it
names, else to the first pending one; a lesson goes into the note on its subject, if there is one. If that is impossible
(no text, no letters for a name, a secret), the model gets the tool to call with the user's own words. Nothing is ever
deleted here, and handling a message twice has the same effect as once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rolecall.errors import RolecallError, UsageError
from rolecall.hosts.hook_context import Kit
from rolecall.hosts.project_summary import Standing, number
from rolecall.nexus import knowledge_files, tools
from rolecall.nexus.tags import NO_PLAN, Action
from rolecall.settings.capabilities import FILES, check_allowed, check_lead

if TYPE_CHECKING:
    from rolecall.nexus.memory_access import Access

_ISSUE = re.compile(r"(?:issue\s+#?|#)(\d+)\b[\s:.),-]*|(\d+)\s*(?:[:.)]|\s-)\s+", re.IGNORECASE)
"""`#2 …`, `issue 2 …`, `2: …`; `3 replicas` begins with a number and names no issue."""
_NAMED = re.compile(r"([a-z0-9][a-z0-9-]*-[a-z0-9-]+)(?:\.md)?:\s+(?=\S)")
"""`retry-limits: the text`."""
_MOST_COMPARED = 200
"""Memory notes with which a new one is compared here."""
_LISTED_NOTES = 15
_LONGEST_QUOTE = 300

Done = Callable[[str, Action, Kit], str]


def done(project: str, actions: Iterable[Action], kit: Kit, aimed: Iterable[float] = ()) -> list[str]:
    """Carry out the actions and return the report on each for the model. `aimed` are the issues for decisions that name
    none, in their order."""
    handlers: dict[str, Done] = {**_HANDLERS, "nx_plan_decide": partial(_decide, iter(aimed))}
    return [
        _refusal(action, kit)
        or f"{handlers.get(action.handler, _other)(project, action, kit)}{_guidance(action, kit)}"
        for action in actions
    ]


def _guidance(action: Action, kit: Kit) -> str:
    """The vocabulary's guidance for a tag, such as what may be kept at all."""
    tag = kit.tags.get(action.tag)
    words = " ".join(tag.prose_guidance.split()) if tag else ""
    return f"\nGuidance for [{action.tag}]: {words}" if words else ""


def _refusal(action: Action, kit: Kit) -> str:
    """Why the role in whose name the host runs may not have it done; empty: it may."""
    tool = _TOOLS.get(action.handler, action.handler)
    try:
        if tool in _FOR_LEAD:
            check_lead(kit.restrictions, tool)
        check_allowed(kit.restrictions, tool, FILES if tool == "memory_add" else ())
    except UsageError as exc:
        return f"[{action.tag}] was not carried out: {exc.message}. {exc.hint}"
    return ""


def done_before(actions: Iterable[Action]) -> list[str]:
    """The same where the message was acted upon when it came first."""
    return [
        f"[{action.tag}] was handled when this message came first. Only if the user wrote it once more: call"
        f" {_TOOLS.get(action.handler, action.handler)}."
        for action in actions
    ]


def _other(_project: str, action: Action, _kit: Kit) -> str:
    """A tag of another catalogue, whose handler the host may have."""
    return f"The user wrote [{action.tag}]: call {action.handler} at once with their words: {_quoted(action.text)}"


# -- [d] --


def _decide(aimed: Iterator[float], project: str, action: Action, kit: Kit) -> str:
    now = Standing(project)
    if now.plan_problem:
        return f"[d] was not recorded, because the plan cannot be read: {now.plan_problem}. Tell the user."
    if not now.plan.get("active"):
        return f"{NO_PLAN} Nothing was recorded; tell the user."
    issue, text = _issue_and_text(now, kit.mask().text(action.text), aimed)
    if text and any(one.get("decision") == text for one in now.plan["issues"] if issue in (None, one)):
        return f"The user's decision is on record: {_quoted(text)}"  # this very event came before
    if issue is None or not text:
        return _asked_to_decide(now, action.text)
    reply = tools.plan_decide(project, issue_id=issue["id"], decision=text)
    left = ", ".join(number(one["id"]) for one in reply.get("remaining", ()))
    rest = f"Still pending: {left}." if left else "Every issue is decided."
    on = f"issue {number(issue['id'])} ({issue['title'][:80]})"
    is_first = left and not _ISSUE.match(action.text)
    taken = (
        " The message names no issue, so this is the next pending one; if the user meant another, reopen it and"
        " decide that one."
        if is_first
        else ""
    )
    return f"The user's decision on {on} was recorded: {_quoted(text)} {rest}{taken}"


def _issue_and_text(now: Standing, text: str, aimed: Iterator[float]) -> tuple[Mapping[str, Any] | None, str]:
    """The issue and the text of a decision: the issue that it names, else the next one that was pending, because issues
    are decided in order."""
    issues = {issue["id"]: issue for issue in now.plan["issues"]}
    if text.strip().isdecimal():
        return None, text.strip()  # an issue without a decision, or the number of an option
    if named := _ISSUE.match(text):
        return issues.get(int(named[1] or named[2])), text[named.end() :].strip()
    return issues.get(next(aimed, 0)) if text.strip() else None, text.strip()


def _asked_to_decide(now: Standing, text: str) -> str:
    listed = "; ".join(f"{number(issue['id'])} {issue['title'][:80]}" for issue in now.pending_issues()[:10])
    what = f"The user decided: {_quoted(text)} " if text.strip() else "The user wrote [d] and no decision. "
    return (
        f"{what}Call nx_plan_decide at once with these words as `decision` and the issue they are on; ask the user if"
        f" that is not clear. Pending: {listed or 'none'}."
    )


# -- [m] and [rule] --


def _remember(project: str, action: Action, kit: Kit) -> str:
    from rolecall.nexus import memory

    name, text = _name_and_text(action.text)
    call = "memory_add with a name of 2 to 4 words"
    if kept := _kept_before(project, "memory", text):  # this very event came before
        return f"The user's words were kept in {kept}."
    # Whether a note on the subject exists is found by comparing with all of them, for which a hook has no time.
    if not name or knowledge_files.counts(project)["memory"] > _MOST_COMPARED:
        return _asked_to_keep("a lesson", call, action.text)
    thresholds = kit.thresholds() if kit.thresholds else memory.THRESHOLDS

    def add() -> str:
        into = name if os.path.isfile(os.path.join(project, ".nexus", "memory", f"{name}.md")) else None
        try:
            reply = memory.add(project, name, text, mask=kit.mask(), into=into, thresholds=thresholds)
        except memory.Overlap as overlap:
            reply = memory.add(project, name, text, mask=kit.mask(), into=overlap.matches[0].name)
        return str(reply["path"])

    return _kept(project, name, text, call, add)


def _rule(project: str, action: Action, kit: Kit) -> str:
    from rolecall.nexus import rule

    name, text = _name_and_text(action.text)
    tags = [action.variant] if action.variant else []
    call = f"rule_add with a name{f' and tags {tags}' if tags else ''}"
    if kept := _kept_before(project, "rules", text):
        return f"The user's words were kept in {kept}."
    if not name:
        return _asked_to_keep("a rule", call, action.text)
    return _kept(
        project, name, text, call, lambda: rule.add(project, name, text, mask=kit.mask(), tags=tags)["path"]
    )


def _name_and_text(text: str) -> tuple[str, str]:
    """The name before a colon, else one made of the first words."""
    if named := _NAMED.match(text):
        return named[1], text[named.end() :].strip()
    from rolecall.nexus import note_name

    return note_name.from_text(text), text.strip()


def _kept(project: str, name: str, text: str, call: str, add: Callable[[], str]) -> str:
    try:
        path = os.path.relpath(add(), os.path.abspath(project))
    except RolecallError as exc:
        said = f"{exc.message}. {exc.hint}".strip()
        return f"{_asked_to_keep('this', call, text)} It was not kept under the name {name}: {said}"
    return f"The user's words were kept in {path}."


def _kept_before(project: str, kind: str, text: str) -> str:
    """The file that already contains this text; empty if there is none."""
    files = knowledge_files.index(project, _MOST_COMPARED)[kind] if text else []
    return next((path for path in files if _holds(os.path.join(project, path), text)), "")


def _holds(path: str, text: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            return f"\n{text}\n" in f"\n{file.read()}\n"
    except (OSError, UnicodeDecodeError):
        return False


def _asked_to_keep(what: str, call: str, text: str) -> str:
    if not text.strip():
        return f"The user wants {what} of this conversation kept. Say in one or two sentences which, and call {call}."
    return (
        f"The user wants {what} kept: {_quoted(text)} Call {call} at once with these words as `text`. Where a note"
        " on the subject exists, put it into that one."
    )


# -- [m:gc] --


def _look_at_memory(project: str, _action: Action, _kit: Kit) -> str:
    from rolecall.nexus import memory_access, note

    notes, log = note.listed(project, "memory"), memory_access.read(project)
    if not notes:
        return "There are no memory notes to go through. Tell the user."
    reads = {each.name: log.get(memory_access.key(project, each.name)) for each in notes}
    notes.sort(key=lambda each: (_last_read(reads[each.name]), each.changed))
    lines = [
        f"- {each.name}: {_reads(reads[each.name])}, {each.size:,} bytes" for each in notes[:_LISTED_NOTES]
    ]
    more = [f"- and {len(notes) - _LISTED_NOTES} more"] if len(notes) > _LISTED_NOTES else []
    return "\n".join(
        [
            "The user wants memory notes looked through, those first that were not read for longest:",
            *lines,
            *more,
            "Call memory_gc for what speaks against each, show it to the user, and call memory_delete only for notes"
            " the user names. Nothing was deleted.",
        ]
    )


def _last_read(access: Access | None) -> str:
    return access.last_accessed_ts if access else ""


def _reads(access: Access | None) -> str:
    if access is None:
        return "never read"
    return f"read {access.access_count} times, last on {access.last_accessed_ts[:10]}"


def _quoted(text: str) -> str:
    """What the user said, which stands in full in their message."""
    line = " ".join(text.split())
    return f'"{line}"' if len(line) <= _LONGEST_QUOTE else f'"{line[:_LONGEST_QUOTE]}…"'


_TOOLS = {"memory_store": "memory_add", "memory_gc": "memory_gc", "rule_store": "rule_add"}
_FOR_LEAD = ("nx_plan_decide", "rule_add")
_HANDLERS: Mapping[str, Done] = {
    "memory_store": _remember,
    "memory_gc": _look_at_memory,
    "rule_store": _rule,
}

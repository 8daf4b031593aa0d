"""Carries out inline tags in a user's message: `[d]` decision, `[m]` lesson, `[rule]` rule, `[m:gc]` memory report.

The results are reported to the model, with the vocabulary's guidance. A decision applies to the issue that it names, or
otherwise to the first pending issue; a lesson is added to the note on its subject, if there is one. If a tag cannot be
carried out (no text, no letters for a name, a secret), the report names the tool to call with the user's own words.
Nothing is deleted here, and handling a message twice has the same effect as handling it once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from rolecall.errors import RolecallError, UsageError
from rolecall.hosts.gate import FOR_LEAD
from rolecall.hosts.hook_context import HookContext
from rolecall.hosts.project_summary import ProjectState, format_id
from rolecall.nexus import knowledge_files, tools
from rolecall.nexus.tags import NO_PLAN, InlineAction
from rolecall.settings.capabilities import FILES, check_allowed, check_lead
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.nexus import memory, memory_access, note, note_name, rule
    from rolecall.nexus.reply import PlanIssue
else:
    memory = Module("rolecall.nexus.memory")  # slow to import, and only lessons need it
    memory_access = Module("rolecall.nexus.memory_access")
    note = Module("rolecall.nexus.note")  # few messages ask for the memory report
    note_name = Module("rolecall.nexus.note_name")  # a decision needs no name
    rule = Module("rolecall.nexus.rule")  # slow to import, and only rules need it

_ISSUE = re.compile(r"(?:issue\s+#?|#)(\d+)\b[\s:.),-]*|(\d+)\s*(?:[:.)]|\s-)\s+", re.IGNORECASE)
"""The number of an issue at the start: `#2 …`, `issue 2 …`, `2: …`. In `3 replicas`, no issue is named."""
_NAMED = re.compile(r"([a-z0-9][a-z0-9-]*-[a-z0-9-]+)(?:\.md)?:\s+(?=\S)")
"""A note's name before its text, as in `retry-limits: the text`."""
_MOST_COMPARED = 200
"""The maximum number of memory notes with which a new note is compared here."""
_LISTED_NOTES = 15
_LONGEST_QUOTE = 300
_TOOLS = {"memory_store": "memory_add", "memory_gc": "memory_gc", "rule_store": "rule_add"}


def carry_out(
    project: str, actions: Iterable[InlineAction], hooks: HookContext, aimed: Iterable[float] = ()
) -> list[str]:
    """Carry out the actions, and report on each. Decisions that name no issue apply to those in `aimed`, in order."""
    handlers: dict[str, Callable[[str, InlineAction, HookContext], str]] = {
        "nx_plan_decide": partial(_decide, iter(aimed)),
        "memory_store": _remember,
        "memory_gc": _look_at_memory,
        "rule_store": _add_rule,
    }
    reports = []
    for action in actions:
        tool = _TOOLS.get(action.handler, action.handler)
        try:
            if tool in FOR_LEAD:
                check_lead(hooks.restrictions, tool)
            check_allowed(hooks.restrictions, tool, FILES if tool == "memory_add" else ())
        except UsageError as exc:
            reports.append(f"[{action.tag}] was not carried out: {exc.explain()}")
            continue
        if handler := handlers.get(action.handler):
            report = handler(project, action, hooks)
        else:  # the tag is from another catalogue, and the host might have a tool for it
            words = _quote(action.text)
            report = f"The user wrote [{action.tag}]: call {action.handler} at once with their words: {words}"
        tag = hooks.tags.get(action.tag)
        guidance = " ".join(tag.prose_guidance.split()) if tag else ""
        reports.append(f"{report}\nGuidance for [{action.tag}]: {guidance}" if guidance else report)
    return reports


def report_repeated(actions: Iterable[InlineAction]) -> list[str]:
    """Return the reports for a message that has already been handled."""
    return [
        f"[{action.tag}] was handled when this message came first. Only if the user wrote it once more: call"
        f" {_TOOLS.get(action.handler, action.handler)}."
        for action in actions
    ]


def _decide(aimed: Iterator[float], project: str, action: InlineAction, hooks: HookContext) -> str:
    state = ProjectState(project)
    if state.plan_problem:
        return f"[d] was not recorded, because the plan cannot be read: {state.plan_problem}. Tell the user."
    if not state.plan["active"]:
        return f"{NO_PLAN} Nothing was recorded; tell the user."
    issues = {issue["id"]: issue for issue in state.plan["issues"]}
    text = hooks.mask().text(action.text).strip()
    issue: PlanIssue | None = None
    if named := _ISSUE.match(text):
        issue, text = issues.get(int(named[1] or named[2])), text[named.end() :].strip()
    elif text and not text.isdecimal():  # a number alone is an issue without a decision, or an option
        issue = issues.get(next(aimed, 0))
    if text and any(one.get("decision") == text for one in state.plan["issues"] if issue in (None, one)):
        return f"The user's decision is on record: {_quote(text)}"  # the same event has arrived before
    if issue is None or not text:
        pending = state.pending_issues()[:10]
        titles = "; ".join(f"{format_id(issue['id'])} {issue['title'][:80]}" for issue in pending)
        what = f"The user decided: {_quote(action.text)}" if action.text.strip() else ""
        return (
            f"{what or 'The user wrote [d] and no decision.'} Call nx_plan_decide at once with these words as"
            " `decision` and the issue they are on; ask the user if that is not clear."
            f" Pending: {titles or 'none'}."
        )
    reply = tools.plan_decide(project, issue_id=issue["id"], decision=text)
    left = ", ".join(format_id(one["id"]) for one in reply.get("remaining", ()))
    rest = f"Still pending: {left}." if left else "Every issue is decided."
    if left and not named:
        rest += (
            " The message names no issue, so this is the next pending one; if the user meant another, reopen it and"
            " decide that one."
        )
    on = f"issue {format_id(issue['id'])} ({issue['title'][:80]})"
    return f"The user's decision on {on} was recorded: {_quote(text)} {rest}"


def _remember(project: str, action: InlineAction, hooks: HookContext) -> str:
    thresholds = hooks.thresholds() if hooks.thresholds else memory.THRESHOLDS

    def add(name: str, text: str) -> str:
        into = name if os.path.isfile(os.path.join(project, ".nexus", "memory", f"{name}.md")) else None
        try:
            reply = memory.add(project, name, text, mask=hooks.mask(), into=into, thresholds=thresholds)
        except memory.NoteOverlap as overlap:
            reply = memory.add(project, name, text, mask=hooks.mask(), into=overlap.matches[0].name)
        return reply["path"]

    # Finding a note on the same subject requires comparing all notes, which could take too long for a hook.
    is_possible = knowledge_files.counts(project)["memory"] <= _MOST_COMPARED
    call = "memory_add with a name of 2 to 4 words"
    return _keep(project, action, "a lesson", "memory", call, add if is_possible else None)


def _add_rule(project: str, action: InlineAction, hooks: HookContext) -> str:
    tags = [action.variant] if action.variant else []

    def add(name: str, text: str) -> str:
        return rule.add(project, name, text, mask=hooks.mask(), tags=tags)["path"]

    call = f"rule_add with a name{f' and tags {tags}' if tags else ''}"
    return _keep(project, action, "a rule", "rules", call, add)


def _keep(
    project: str, action: InlineAction, what: str, kind: str, call: str, add: Callable[[str, str], str] | None
) -> str:
    """Store the user's words once with `add`, or tell the model to `call` a tool."""
    named = _NAMED.match(action.text)
    name = named[1] if named else note_name.from_text(action.text)
    text = (action.text[named.end() :] if named else action.text).strip()
    for path in knowledge_files.index(project, _MOST_COMPARED)[kind] if text else ():
        with suppress(OSError, UnicodeDecodeError), open(f"{project}/{path}", encoding="utf-8") as file:
            if f"\n{text}\n" in f"\n{file.read()}\n":
                return f"The user's words were kept in {path}."
    if not text:
        return f"The user wants {what} of this conversation kept. Say in one or two sentences which, and call {call}."
    request = f"Call {call} at once with these words as `text`; if a note on the subject exists, add them to that note."
    if not name or add is None:
        return f"The user wants {what} kept: {_quote(action.text)} {request}"
    try:
        path = os.path.relpath(add(name, text), os.path.abspath(project))
    except RolecallError as exc:
        why = f"It was not kept under the name {name}: {exc.explain()}"
        return f"The user wants this kept: {_quote(text)} {request} {why}"
    return f"The user's words were kept in {path}."


def _look_at_memory(project: str, _action: InlineAction, _hooks: HookContext) -> str:
    notes, log = note.list_notes(project, "memory"), memory_access.read(project)
    if not notes:
        return "There are no memory notes to go through. Tell the user."
    reads = {each.name: log.get(memory_access.key(project, each.name)) for each in notes}
    notes.sort(key=lambda each: (one.last_accessed_ts if (one := reads[each.name]) else "", each.changed))
    lines = ["The user wants memory notes looked through, those first that were not read for longest:"]
    for each in notes[:_LISTED_NOTES]:
        access = reads[each.name]
        times = f"read {access.access_count} times, last on {access.last_accessed_ts[:10]}" if access else ""
        lines.append(f"- {each.name}: {times or 'never read'}, {each.size:,} bytes")
    if len(notes) > _LISTED_NOTES:
        lines.append(f"- and {len(notes) - _LISTED_NOTES} more")
    lines.append(
        "Call memory_gc for what speaks against each, show it to the user, and call memory_delete only for notes the"
        " user names. Nothing was deleted."
    )
    return "\n".join(lines)


def _quote(text: str) -> str:
    """Return the beginning of the user's words; the model finds the full text in the user's message."""
    line = " ".join(text.split())
    return f'"{line}"' if len(line) <= _LONGEST_QUOTE else f'"{line[:_LONGEST_QUOTE]}…"'

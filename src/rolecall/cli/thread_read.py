"""The verbs of `rolecall thread` that read: show, list, steps, read, step-details, diff, why.

People and scripts call these verbs often, so this module imports very little.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from time import sleep
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from rolecall.api import Rolecall, reader
from rolecall.cli import CommandResult, argument, flag, hints, verb
from rolecall.cli.arguments import THREAD, TIMES, find_thread, in_this_store, open_thread, parse_time
from rolecall.cli.output import (
    STORE,
    between,
    color_diff,
    color_status,
    format_of,
    plural,
    printable,
    say,
    short,
    show_record,
    table,
    tell,
    under_this_name,
    word_value,
)
from rolecall.errors import Hint, UsageError
from rolecall.settings import repository
from rolecall.threads import report
from rolecall.threads.state import ENDED, GROUP, Status

if TYPE_CHECKING:
    from rolecall.threads.view_types import (
        ChangedFiles,
        GroupCounts,
        MemberStatus,
        PlayedGroup,
        SummaryFacts,
        ThreadEntry,
        ThreadFacts,
    )

    OnwardCommand = TypedDict("OnwardCommand", {"continue": str | None})

    class PrintedThread(ThreadFacts, OnwardCommand):
        """A thread in the form that `thread list --json` prints."""

    class ShownParts(TypedDict, total=False):
        """What `thread show` adds to the summary of a thread."""

        groups: list[PlayedGroup]
        files: list[ChangedFiles]

    class PrintedSummary(SummaryFacts, ShownParts, OnwardCommand):
        """A thread in the form that `thread show --json` prints."""


_PAGE = 50
_FILES_OF = 20
"""The number of newest steps whose files `thread show` lists, so that long threads are shown as quickly as short
ones."""
_CHECK_LINES = 10
"""How many of the last output lines of a failed check `thread show` repeats."""
_AGES = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1_000}
_ACTIVE = frozenset(set(Status) - set(ENDED))


@verb(
    "thread show",
    "print a thread's status and usage",
    "rolecall thread show 01M7F72S\nrolecall thread show 01M7F72S --members",
    THREAD,
    flag("--members", "also every member of its groups"),
    STORE,
)
def show_thread(options: Namespace) -> CommandResult:
    with open_thread(options) as thread:
        summary = thread.summary()
        parts: ShownParts = {}
        groups: list[PlayedGroup] = []
        if options.members:
            groups = parts["groups"] = thread.groups()
        if summary["status"] != Status.DAMAGED:
            parts["files"] = thread.file_changes(newest=_FILES_OF)
            groups = groups or thread.groups(newest=_FILES_OF)
    card: PrintedSummary = {**summary, "continue": _word_onward(options, summary["continue"]), **parts}
    if card["status"] == Status.DAMAGED:
        text = f"thread {card['thread']} is {color_status(Status.DAMAGED)}: {card['reason']}"
        return CommandResult(card, text, code=4)
    return CommandResult(card, _word_card(card, groups))


def _word_onward(options: Namespace, onward: Hint | None) -> str | None:
    """Return the command that continues a thread in the store of the current command."""
    return in_this_store(options, onward) if onward else None


def _word_card(card: PrintedSummary, groups: Iterable[PlayedGroup]) -> Iterator[str]:
    players: dict[str, list[str]] = {}
    for role, agent in card["agents"].items():
        players.setdefault(agent, []).append(role)
    pending = card["pending"]
    facts = [
        ("thread", card["thread"]),
        ("title", card["title"]),
        ("workflow", f"{card['name']} ({card['workflow']})"),
        ("status", ": ".join(filter(None, (color_status(card["status"]), card["reason"])))),
        ("waits until", report.local_time(card["until"]) if "until" in card else ""),
        ("next role", card["currentRole"]),
        ("steps", card["steps"]),
        ("reused", report.reuse_total(card["usage"].get("saved"))),
        ("head", card["head"]),
        ("limits", ", ".join(f"{key} {report.amount(value)}" for key, value in card["limits"].items())),
        ("agents", f"\n{'':13}".join(f"{', '.join(roles)}: {name}" for name, roles in players.items())),
        ("asked now", f"{pending['agent']} as {pending['role']}" if pending else ""),
        ("members", _group_text(card["group"]) if "group" in card else ""),
        ("run by", card["lease"]["holder"] if card["lease"] else ""),
        ("forked from", card["forkedFrom"]),
        ("member", f"{card['member']} of the group of {card['parent']}" if "member" in card else ""),
        ("work folder", card["cwd"]),
        *report.own_folders(card),
    ]
    yield from (f"{name:12} {value}" for name, value in facts if value not in (None, ""))
    if used := report.usage_table(card["usage"]):
        headings, rows = used
        yield f"\n{table(rows, headings)}"
    if card["files"]:
        files = []
        for step in card["files"]:
            first, *others = report.changes_text(step, report.BRIEF_CHANGES)
            files += [(step["number"], step["role"], first), *(("", "", line) for line in others)]
        yield f"\n{table(files, ('', 'role', 'files'))}"
    for one in reversed(card["attempts"]):  # oldest first
        yield f"failed attempt of {one['role']}: {short(one['error'], 200)}"
    yield from _word_groups(card.get("groups", ()), groups)
    if card["continue"]:
        yield f"\ncontinue: {card['continue']}"


def _word_groups(shown: Iterable[PlayedGroup], groups: Iterable[PlayedGroup]) -> Iterator[str]:
    """Yield the members of the groups `shown` and, for all `groups`, the reasons why members' work was not merged."""
    for group in shown:
        if group["step"] is None:
            started = f"{len(group['members']):,} of {group['count']:,} members have been started"
            yield f"\n{group['role']}: {started}"
        else:
            yield f"\n{group['role']} (step {group['step']}): {report.describe_join(group)}"
        rows = []
        for member in group["members"]:
            title = member.get("title") or report.member_title(member).partition(" ")[2]
            about = " · ".join(filter(None, (title, member.get("reason"))))
            rows.append((member["number"], member["status"], member["id"], about))
        if rows:
            yield table(rows, ("", "status", "thread", "title"))
    for group in groups:
        for member in group["members"]:
            if member["status"] != "set_aside":
                continue
            name = f"{group['role']} {member['number']} ({member['id']})"
            yield f"\nset aside: {name}: {member.get('reason') or ''}"
            conflict = member.get("conflict") or {}
            for file in conflict.get("files") or ():
                yield f"  {file['path']}: {file.get('message') or file.get('kind') or ''}"
            if check := conflict.get("check"):
                yield f"  $ {shlex.join(check['command'])}"
                yield from (f"  {line}" for line in check["output"].rstrip().split("\n")[-_CHECK_LINES:])


def _group_text(group: GroupCounts) -> str:
    words: dict[MemberStatus, str] = {"waiting": "waiting for a person", "open": "not running"}
    statuses: tuple[MemberStatus, ...] = ("done", "failed", "stopped", "running", "waiting", "open")
    counts = [f"{group[key]:,} {words.get(key, key)}" for key in statuses if group.get(key)]
    text = f"{group['role']}: " + ", ".join([*counts, f"of {group['count']:,}"] if counts else ["none yet"])
    return text + (f"; the first limit ends {report.local_time(group['until'])}" if "until" in group else "")


class ThreadListing(NamedTuple):
    entries: list[PrintedThread]
    now: int = 0
    """The current time according to the store's clock."""
    id_length: int = 26
    """How many characters at the end of each id are shown."""

    def text(self) -> str:
        rows = []
        for entry in _below_parents(self.entries):
            reason = entry["reason"] if entry["status"] in (Status.DAMAGED, "suspended", "waiting") else ""
            waits = f"until {report.local_time(entry['until'])}" if "until" in entry else ""
            title = " · ".join(filter(None, (waits, entry["title"], reason)))
            ms = self.now - (entry["updated"] or 0)
            ago = next((f"{ms // size} {unit} ago" for unit, size in _AGES.items() if ms >= size), "now")
            rows.append(
                (
                    entry["thread"][-self.id_length :],
                    entry["name"] or "",
                    entry["status"],
                    entry["currentRole"] or "",
                    entry["steps"],
                    ago if entry["updated"] else "",
                    f"↳ {title}" if entry.get("member") else title,
                )
            )
        headings = ("thread", "workflow", "status", "next", "steps", "updated", "title")
        lines = [table(rows, headings, spared=("updated", "steps"))]
        if crashed := [entry["continue"] for entry in self.entries if entry["status"] == "crashed"]:
            lines += ["", "crashed; continue with:", *(f"  {command}" for command in crashed)]
        return "\n".join(lines)


def _below_parents(entries: list[PrintedThread]) -> Iterator[PrintedThread]:
    """Yield the entries, with the members of a listed thread below that thread, in the order of their numbers."""
    listed = {entry["thread"] for entry in entries}
    below: dict[str | None, list[PrintedThread]] = {}
    for entry in reversed(entries):
        if entry.get("member"):
            below.setdefault(entry["parent"], []).append(entry)

    def family(entry: PrintedThread) -> Iterator[PrintedThread]:
        yield entry
        for member in below.get(entry["thread"], ()):
            yield from family(member)

    for entry in entries:
        if entry.get("parent") not in listed:
            yield from family(entry)


@verb(
    "thread list",
    "list threads, the newest first",
    "rolecall thread list\nrolecall thread list --status suspended",
    argument(
        "--status", "S,S", "only threads with this status; active means all that have not ended (default)"
    ),
    flag("--all", "also those that have ended"),
    argument("--workflow", "NAME", "only threads of this workflow, by name or id"),
    argument("--since --after", "TIME", f"started since: {TIMES}", type=parse_time),
    argument("--before", "TIME", "started before that time", type=parse_time),
    argument("--text", "WORDS", "only threads with all these words in title, workflow or reason"),
    argument("--max --take", "N", f"at most N (default {_PAGE})", type=between(0), default=_PAGE),
    argument("--skip", "N", "leave out the first N", type=between(0), default=0),
    argument("--page", "THREAD", "continue after this thread, the last one of the previous page"),
    flag("--members", "also the members of groups, below their threads"),
    flag("--watch", "follow the list until Ctrl-C"),
    STORE,
)
def list_threads(options: Namespace) -> CommandResult | None:
    if options.watch:  # on a terminal the list is redrawn; otherwise it is printed again whenever it changes
        is_drawn = sys.stdout.isatty() and format_of(options) == "text"
        before = None
        with suppress(KeyboardInterrupt):
            while True:
                found, text = _look(options)
                shown = found.entries[: options.max]
                if is_drawn:
                    lines = text.split("\n")[: os.get_terminal_size(1).lines - 1]
                    sys.stdout.write("\033[H\033[J")
                    say("\n".join(lines))
                elif shown != before:
                    show_record(options, {"threads": shown}, f"{text}\n")
                before = shown
                sleep(1)
        return None
    found, text = _look(options)
    shown = found.entries[: options.max]
    if shown and len(found.entries) > options.max:
        tell(f"there are more: --page {shown[-1]['thread']}")
    return CommandResult(shown, text)


def _look(options: Namespace) -> tuple[ThreadListing, str]:
    """Return the requested threads, with one more if there are more than the list shows, and the list as text."""
    words = [word.strip() for word in (options.status or "").split(",") if word.strip()]
    wanted: set[str] = set() if words else set(_ACTIVE)
    for word in words:
        active = _ACTIVE - {Status.DAMAGED}
        wanted |= active if word == "active" else {"killed" if word == "cancelled" else word}
    with reader(options.store) as rolecall:
        found = rolecall.entries(
            status=None if options.all else sorted(wanted),
            workflow=options.workflow,
            text=options.text or "",
            since=options.since or 0,
            before=options.before,
            after=options.page,
            members=options.members,
        )
        page = islice(found, options.skip, options.skip + options.max + 1)
        listing = _make_listing(options, rolecall, page)
        if not listing.entries:
            if next(rolecall.entries(), None):
                is_filtered = options.status or options.workflow or options.text or options.all
                what = "no such threads" if is_filtered else "no thread is open"
                return listing, f"{what} (--all includes those that have ended)"
            return listing, under_this_name(f"no threads yet; start with: {first_command(rolecall)}")
    return listing, listing._replace(entries=listing.entries[: options.max]).text()


def _make_listing(options: Namespace, rolecall: Rolecall, found: Iterable[ThreadEntry]) -> ThreadListing:
    entries: list[PrintedThread] = [
        {**entry, "continue": _word_onward(options, entry["continue"])} for entry in found
    ]
    if not entries or format_of(options) != "text":
        return ThreadListing(entries)
    return ThreadListing(entries, rolecall.store.now(), rolecall.short_id_length())


def active_threads(options: Namespace, rolecall: Rolecall) -> ThreadListing:
    """Return all threads that have not ended, newest first."""
    return _make_listing(options, rolecall, rolecall.entries(status=sorted(_ACTIVE)))


def first_command(rolecall: Rolecall, preferred: str = "") -> str:
    """Return the command that starts a thread of the workflow `preferred` or, if that workflow does not exist here, of
    the first workflow whose agents are all available."""
    if name := preferred if preferred in rolecall.workflows() else rolecall.first_ready_workflow():
        return f"rolecall run {name} -p 'What to do'"
    if rolecall.workflows():
        return "rolecall doctor"
    return "rolecall new" if repository.nearest("rolecall.yaml", rolecall.folder) else "rolecall init"


@verb("thread steps", "list a thread's steps", "rolecall thread steps 01M7F72S", THREAD, STORE)
def list_steps(options: Namespace) -> CommandResult:
    with open_thread(options) as thread:
        entries = thread.step_entries()
    workflow = next(entry["workflow"] for entry in entries if "number" not in entry)
    # In this reply, as in uwf's, an id is called `hash`.
    renamed = [{"hash" if key == "id" else key: value for key, value in entry.items()} for entry in entries]
    shown = {"thread": thread.id, "workflow": workflow, "steps": renamed}

    def text() -> str:
        headings = ("", "step", "role", "agent", "status", "time", "files", "output")
        rows: list[tuple[int | str, ...]] = []
        for step in entries:
            if "number" not in step:
                rows.append((0, step["id"], "(start)", "", "", "", "", step["prompt"]))
                continue
            time = "reused" if "reused" in step else report.duration(step["durationMs"])
            output = step["output"]
            if step["agent"] == GROUP:
                words = report.describe_join(output)
            elif isinstance(output, Mapping):  # without the status, which has its own column
                fields = {name: output[name] for name in output if name not in ("status", "$status")}
                words = ", ".join(f"{name}: {word_value(value)}" for name, value in fields.items())
            else:
                words = json.dumps(output, ensure_ascii=False)
            known = (step["number"], step["id"], step["role"], step["agent"], step["status"] or "")
            rows.append((*known, time, report.changes_total(step), short(words, 200)))
        return table(rows, headings, spared=("files", "time", "agent"))

    return CommandResult(shown, text)


@verb(
    "thread read",
    "print a thread as Markdown, with the newest steps that fit",
    "rolecall thread read 01M7F72S\nrolecall thread read 01M7F72S --quota 20000",
    THREAD,
    argument("--quota", "N", "characters (default 4000)", type=between(0), default=4000),
    argument("--before", "STEP", "only steps before this one, by id or number"),
    flag("--start", "with --before: show the task as well"),
    flag("--members", "show the members of groups in full"),
    STORE,
)
def read_thread(options: Namespace) -> CommandResult | int:
    with open_thread(options) as thread:
        found = thread.read_page(
            max_chars=options.quota,
            before=options.before,
            with_start=options.start,
            with_members=options.members,
            phrase=hints.phrase,
        )
    code = 4 if found["problem"] else 0
    if options.format in ("json", "yaml"):
        return CommandResult(found, code=code)
    print(printable(found["text"]) if sys.stdout.isatty() else found["text"])
    return code


@verb(
    "thread step-details",
    "print all details of a step",
    "rolecall thread step-details 8M0Q8N9CMRCR1",
    argument(
        "step",
        "STEP",
        "the id of a step or an attempt, THREAD#N, or THREAD for its last (default: this folder's latest thread)",
        nargs="?",
    ),
    flag("--prompt", "show the agent's prompt"),
    flag("--full", "do not shorten long texts"),
    STORE,
)
def show_step(options: Namespace) -> CommandResult:
    with Rolecall(options.store, create=False) as rolecall:
        found = rolecall.step(find_thread(rolecall, None).id if options.step is None else options.step)
    limit = None if options.full else report.SHORT
    render = report.detail_markdown if "number" in found else report.attempt_markdown
    return CommandResult(found, lambda: render(found, with_prompt=options.prompt, limit=limit))


@verb(
    "thread diff",
    "show what a thread changed in files, or where two threads diverge",
    "rolecall thread diff\nrolecall thread diff 01M7F72S --at 2..5\nrolecall thread diff 01M7F72S 01M7F80A",
    argument("one", "THREAD", "a thread (default: the latest of this folder)", nargs="?"),
    argument("other", "THREAD", "another thread: show where they diverge", nargs="?"),
    flag("--files", "with two threads: how their files differ"),
    argument("--at", "STEP|A..B", "what one step or attempt changed, or what changed after A up to B"),
    argument("--role", "ROLE", "what each step of this role changed"),
    STORE,
)
def compare_threads(options: Namespace) -> CommandResult:
    if options.other and not options.files and (options.at or options.role):
        raise UsageError("--at and --role select steps whose files are compared", hint="Add --files.")
    with Rolecall(options.store, create=False) as rolecall:
        one = find_thread(rolecall, options.one)
        other = rolecall.thread(options.other) if options.other else None
        if options.files or other is None:
            parts = one.diff_files(other, at=options.at, role=options.role)
            threads = [thread.id for thread in (one, other) if thread]
            patches = []
            for part in parts:  # programs that apply patches skip the headings
                if part["changes"]:
                    heading = [f"step {part['number']}: {part['role']}"] if part["step"] else []
                    if "attempt" in part:
                        heading = [f"failed attempt {part['attempt']}: {part['role']}"]
                    patches.append("\n".join([*heading, part["diff"].rstrip("\n")]))
            text = color_diff("\n\n".join(patches) or "no file changed")
            return CommandResult({"threads": threads, "parts": parts}, text)
        found = one.diff(other)
    if found["common"] is None:
        lines = ["the threads share nothing"]
    else:
        lines = [f"the same up to {found['common']} ({plural(found['commonSteps'], 'step')})"]
    if found["prompt"]:
        lines += ["", "prompt", *found["prompt"]]
    for pair in found["steps"]:
        roles = " / ".join(dict.fromkeys(step["role"] if step else "(none)" for step in pair["steps"]))
        numbers = " / ".join(dict.fromkeys(str(step["number"]) for step in pair["steps"] if step))
        lines += ["", f"step {numbers}: {roles}", *pair["output"], *pair["body"]]
        if not pair["output"] and not pair["body"]:
            lines.append("the same output")
    if not found["steps"] and not found["prompt"]:
        lines.append("and no further")
    return CommandResult(found, color_diff("\n".join(lines)))


@verb(
    "thread why",
    "explain why a step was reused, or how it differs from the nearest earlier step",
    "rolecall thread why 01M7F72S\nrolecall thread why 01M7F72S --at 3",
    THREAD,
    argument("--at", "STEP", "a step's id or number (default: the last)"),
    STORE,
)
def explain_key(options: Namespace) -> CommandResult:
    with open_thread(options) as thread:
        found = thread.why(options.at)
    return CommandResult(found, f"step {found['number']} {found['role']} · {found['text']}")

"""Report the outcome of a thread: its state, its result, an exit code, and the command that continues the thread.

There are further exit codes beyond those of every command: 6 for a failed thread, 7 suspended or waiting, 8 killed, 9
discarded, 130 interrupted.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from shlex import quote
from typing import TYPE_CHECKING, Any

from rolecall.api import Thread
from rolecall.cli import hints
from rolecall.cli.arguments import in_this_store, omit_latest
from rolecall.cli.group_view import duration
from rolecall.cli.output import color_status, format_of, plural, short, show, tell, word_value
from rolecall.errors import Hint, RolecallError
from rolecall.threads.report import describe_join, local_time, money, reuse_total
from rolecall.threads.state import ENDED

if TYPE_CHECKING:
    from rolecall.threads.view_types import ThreadResult

    class PrintedResult(ThreadResult):
        """The result of a thread, with the commands that show and merge it."""

        read: str
        merge: str | None


CODES = {"failed": 6, "suspended": 7, "waiting": 7, "killed": 8, "discarded": 9}
"""Exit codes by the final status of a thread. A status that is not listed has the exit code 0."""
CRASHED = 5
INTERRUPTED = 130
INTERRUPTION = "interrupted"

_MOST_LINES = 6
_MOST_FILES = 10
_MOST_STEPS = 20
"""How many of the newest steps are searched for changed files."""
_LINE = 76


def show_state(
    options: Namespace,
    thread: Thread,
    *,
    step: str | None = None,
    reason: str = "",
    is_after_events: bool = False,
    is_brief: bool = False,
) -> None:
    """Print the state of a thread, and its result if the thread has ended. With `is_brief`, text output omits the
    result."""
    state, status = thread.state, thread.status
    has_ended = status in ENDED
    shown: dict[str, Any] = {
        "workflow": state.workflow,
        "thread": thread.id,
        "title": state.title,
        "head": thread.head,
        "status": status,
        "currentRole": thread.role,
        "done": has_ended,
        "background": None,
        "reason": reason or state.reason,
        **({"until": state.until} if state.until is not None else {}),
        "step": step,
        "result": _result(options, thread) if has_ended else None,
    }

    def text() -> str:
        next_role = f", next: {shown['currentRole']}" if shown["currentRole"] else ""
        line = f"{thread.id} is {color_status(status)}"
        if shown["reason"] == INTERRUPTION:
            line = f"{thread.id} was interrupted{next_role}"
        elif status in ("suspended", "waiting"):
            line += f": {state.title}\n  {shown['reason']}"
        else:
            line += next_role if status == "idle" else ""
            line += f": {shown['reason']}" if shown["reason"] else ""
        if state.until is not None:
            line += f"\n  it waits until {local_time(state.until)}, because its agent has reached a limit"
        if shown["result"] and not is_brief:
            line += "\n\n" + "\n".join(_word_result(options, thread, shown["result"]))
        return line

    if is_after_events and format_of(options) == "yaml":
        print("---")
    show(options, shown, text)
    sys.stdout.flush()


def _result(options: Namespace, thread: Thread) -> PrintedResult | None:
    """Return the result of an ended thread, with the commands that show and merge it."""
    found = thread.result()
    if found is None:
        return None
    folders = thread.state.folders
    if folders and (changed := thread.changed_files()) is not None:
        found["files"] = changed
    read = in_this_store(options, f"rolecall thread read {thread.id}")
    has_branch = any(folder.branch and not folder.is_removed for folder in folders.values())
    merge = in_this_store(options, f"rolecall thread folder merge {thread.id}")
    return {**found, "read": read, "merge": merge if found["files"] and has_branch else None}


def _word_result(options: Namespace, thread: Thread, result: PrintedResult) -> Iterator[str]:
    yield f"{result['role']}: {result['status']}" if result["status"] else result["role"]
    output = result["output"] if isinstance(result["output"], Mapping) else {}
    if {"members", "count", "set_aside"} <= output.keys():  # the output the output of a group
        yield f"  {describe_join(output)}"
        output = {}
    for name, value in output.items():
        if name not in ("status", "$status") and value not in (None, "", [], {}):
            yield "  " + short(f"{name}: {word_value(value)}", _LINE)
    body = [line for line in result["text"].splitlines() if line.strip()]
    yield from (f"  {short(line, 2 * _LINE)}" for line in body[:_MOST_LINES])
    if body[_MOST_LINES:]:
        yield f"  … {len(body) - _MOST_LINES} more lines"
    yield ""

    usage, changes = result["usage"], _count_lines(thread)
    # For a thread with its own folders, the difference at the end is known. A fork lists what changed since the fork.
    files = result["files"] if thread.state.folders or not changes else list(changes)
    if not thread.state.forked_from:
        files = [f"{path}{changes.get(path, '')}" for path in files]
    more = f", and {len(files) - _MOST_FILES} more" if files[_MOST_FILES:] else ""
    used = [plural(usage["steps"], "step")] if usage.get("steps") else []
    used += [f"{usage['tokens']:,} tokens"] if usage.get("tokens") else []
    used += [money(usage["cost"])] if usage.get("cost") else []
    used += [duration(usage["minutes"] * 60)] if usage.get("minutes") else []
    commands = {"read it all": result["read"]}
    if changes:
        commands["see the changes"] = in_this_store(options, f"rolecall thread diff {thread.id}")
    if thread.state.status == "failed":
        fork = f"rolecall thread fork {thread.id} --at STEP"
        commands["continue from a step"] = in_this_store(options, fork)
    facts = {
        "files changed": ", ".join(files[:_MOST_FILES]).replace("\n", "\\n") + more,
        "used": ", ".join(used),
        "reused": reuse_total(usage.get("saved")),
        **{name: omit_latest(thread.rolecall, command) for name, command in commands.items()},
        "merge it": result["merge"] or "",  # with the id, because another thread might be the latest by then
    }
    yield from (f"{name}: {value}" for name, value in facts.items() if value)


def _count_lines(thread: Thread) -> dict[str, str]:
    """Return the files that the thread changed, with the numbers of lines that it added and removed in total."""
    if not thread.file_changes(newest=_MOST_STEPS):
        return {}
    try:
        (whole,) = thread.diff_files(lines=0)
    except RolecallError:  # the files are not recorded, or not on this machine
        return {}
    # A file whose lines cannot be counted, such as a binary file, is listed without numbers.
    return {
        change["path"]: f" +{change['added']:,} -{change['removed']:,}" if change["added"] is not None else ""
        for change in whole["changes"]
    }


def tell_continuation(
    options: Namespace,
    thread: Thread,
    *,
    agent: str | None = None,
    instead: str | None = None,
    is_served: bool = False,
) -> None:
    """Print the last line: the exact command that continues the thread or, if the service is running the thread,
    follows it. If members of a group wait for a person, the commands that answer them are printed first."""
    onward = Hint("Follow it", "watch_thread", thread=thread.id) if is_served else thread.continuation
    command = instead or hints.command(onward or "")
    if not command:
        above = thread.state.parent if thread.state.member else None
        if above and (parent := thread.rolecall.thread(above)).state.status == "waiting":
            command = in_this_store(options, hints.command(parent.continuation or ""))
            tell(f"continue its group: {command}")
        return
    runs = command.startswith("rolecall thread run ") or command.endswith(" --run")
    if agent and runs and agent != thread.state.agent:
        command += f" --agent {quote(agent)}"
    if thread.state.status == "waiting":
        group = thread.current_group() or {"members": ()}
        waiting = [member for member in group["members"] if member["status"] == "waiting"]
        for member in waiting[:_MOST_LINES]:
            answer = in_this_store(options, f"rolecall thread answer {member['id']} --run")
            tell(f"answer {short(member['title'], 40)}: {answer}")
        if more := waiting[_MOST_LINES:]:
            show = in_this_store(options, f"rolecall thread show {thread.id} --members")
            tell(f"and {plural(len(more), 'more member')}: {show}")
    label = "watch" if onward and onward.code == "watch_thread" else "continue"
    command = omit_latest(thread.rolecall, in_this_store(options, command))
    tell(f"{label}: {command}")

"""Reports a thread's outcome: its state, its result, an exit code, and the command that continues it.

Exit codes beyond those of every command: 6 failed, 7 suspended or waiting, 8 killed, 9 discarded, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from shlex import quote
from typing import Any

from rolecall.cli import hints
from rolecall.cli.arguments import in_this_store
from rolecall.cli.output import colored_status, format_of, plural, printable, short, show
from rolecall.errors import RolecallError
from rolecall.store import holder
from rolecall.store.store import Store
from rolecall.threads import thread, views
from rolecall.threads.report import joined_text, money
from rolecall.threads.state import ThreadRef

CODES = {"failed": 6, "suspended": 7, "waiting": 7, "killed": 8, "discarded": 9}
"""Exit codes by a thread's final status; 0 for all others."""
CRASHED = 5
INTERRUPTED = 130
INTERRUPTION = "interrupted"

_MOST_LINES = 6
_MOST_FILES = 10
_LINE = 76


def show_state(
    options: Namespace,
    store: Store,
    ref: ThreadRef,
    *,
    step: str | None = None,
    reason: str = "",
    is_after_events: bool = False,
    is_brief: bool = False,
) -> None:
    """Print the state of a thread, and its result if it has ended. `is_brief` omits the result from text output."""
    status = views.status_of(store, ref)
    has_ended = status in thread.ENDED
    shown: dict[str, Any] = {
        "workflow": ref.state.workflow,
        "thread": thread.id_of(ref),
        "title": ref.state.title,
        "head": ref.head,
        "status": status.value,
        "currentRole": views.role_of(store, ref),
        "done": has_ended,
        "background": None,
        "reason": reason or ref.state.reason,
        "step": step,
        "result": _result(options, store, ref) if has_ended else None,
    }
    if is_after_events and format_of(options) == "yaml":
        print("---")
    show(options, shown, lambda: _state_text(shown) + ("" if is_brief else _result_text(shown["result"])))
    sys.stdout.flush()


def _state_text(shown: Mapping[str, Any]) -> str:
    next_role = f", next: {shown['currentRole']}" if shown["currentRole"] else ""
    if shown["reason"] == INTERRUPTION:
        return f"{shown['thread']} was interrupted{next_role}"
    line = f"{shown['thread']} is {colored_status(shown['status'])}"
    if shown["status"] == "idle":
        line += next_role
    if shown["status"] in ("suspended", "waiting"):
        return f"{line}: {shown['title']}\n  {shown['reason']}"
    return line + (f": {shown['reason']}" if shown["reason"] else "")


def _result(options: Namespace, store: Store, ref: ThreadRef) -> dict[str, Any] | None:
    """Return the result of an ended thread, with the commands that read and merge it."""
    found = views.result(store, ref)
    if found is None:
        return None
    ident, folders = thread.id_of(ref), ref.state.folders
    changed: list[list[str] | None] = []
    if folders:
        from rolecall.threads import handover  # runs git, which most threads do not need

        with suppress(RolecallError):  # the repository is gone or broken, but the agents' reports remain
            changed = [handover.changed_files(kind, folder) for kind, folder in folders.items()]
    if any(files is not None for files in changed):
        found["files"] = list(dict.fromkeys(file for files in changed for file in files or ()))
    can_merge = found["files"] and "worktree" in folders and "removed" not in folders["worktree"]
    return {
        **found,
        "read": in_this_store(options, f"rolecall thread read {ident}"),
        "merge": in_this_store(options, f"rolecall thread folder merge {ident}") if can_merge else None,
    }


def _result_text(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return ""
    lines = [f"{result['role']}: {result['status']}" if result["status"] else result["role"]]
    output = result["output"] if isinstance(result["output"], Mapping) else {}
    is_group = {"members", "count", "set_aside"} <= output.keys()
    if is_group:
        lines.append(f"  {joined_text(output)}")
    for name, value in output.items() if not is_group else ():
        if name not in ("status", "$status") and value not in (None, "", [], {}):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines.append("  " + short(f"{name}: {text}", _LINE))
    body = [line for line in result["text"].splitlines() if line.strip()]
    lines += [f"  {short(line, 2 * _LINE)}" for line in body[:_MOST_LINES]]
    lines += [f"  … {len(body) - _MOST_LINES} more lines"] if body[_MOST_LINES:] else []

    files, usage = result["files"], result["usage"]
    more = f", and {len(files) - _MOST_FILES} more" if files[_MOST_FILES:] else ""
    used = [plural(usage["steps"], "step")] if usage.get("steps") else []
    used += [f"{usage['tokens']:,} tokens"] if usage.get("tokens") else []
    used += [money(usage["cost"])] if usage.get("cost") else []
    facts = {
        "files changed": ", ".join(files[:_MOST_FILES]) + more,
        "used": ", ".join(used),
        "read it all": result["read"],
        "merge it": result["merge"],
    }
    return "\n".join(["", "", *lines, "", *(f"{name}: {value}" for name, value in facts.items() if value)])


def _tell_answers(options: Namespace, store: Store, ref: ThreadRef) -> None:
    """Print the commands that answer the members of a group who wait for a person."""
    group = views.current_group(store, ref) or {"members": ()}
    waiting = [member for member in group["members"] if member["status"] == "waiting"]
    for member in waiting[:_MOST_LINES]:
        command = in_this_store(options, f"rolecall thread answer {member['id']} --run")
        print(printable(f"answer {short(member['title'], 40)}: {command}"), file=sys.stderr)
    if more := len(waiting) - _MOST_LINES if waiting[_MOST_LINES:] else 0:
        command = in_this_store(options, f"rolecall thread show {ref.id} --members")
        print(printable(f"and {plural(more, 'more member')}: {command}"), file=sys.stderr)


def tell_continuation(
    options: Namespace, store: Store, ref: ThreadRef, *, agent: str | None = None, instead: str | None = None
) -> None:
    """Print the last line: the exact command that continues the thread."""
    # If this process could not release its lease, for example on a full disk, no process runs the thread.
    is_ours = holder.process(os.getpid()).items() <= ref.state.lease.items()
    is_held = not is_ours and views.status_of(store, ref) == "running"
    command = hints.command(instead or thread.continuation(ref, is_held=is_held) or "")
    if not command:
        return
    runs = command.startswith("rolecall thread run ") or command.endswith(" --run")
    if agent and runs and agent != ref.state.agent:
        command += f" --agent {quote(agent)}"
    sys.stdout.flush()
    if ref.state.status == "waiting":
        _tell_answers(options, store, ref)
    label = "watch" if is_held or ref.state.status == "queued" else "continue"
    print(f"{label}: {printable(in_this_store(options, command))}", file=sys.stderr, flush=True)

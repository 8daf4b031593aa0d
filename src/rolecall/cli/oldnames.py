"""uwf's command names and the commands that replace them, for unknown commands."""

from __future__ import annotations

_NEW_NAMES = {
    "workflow add": "`rolecall workflow put FILE` does this.",
    "thread exec": "`rolecall thread step THREAD` takes one step, `rolecall thread run THREAD` takes all of them, "
    "`rolecall run WORKFLOW -p TEXT --detach` leaves them to the service.",
    "thread stop": "Ctrl-C stops `rolecall thread run` cleanly, `rolecall serve stop` stops the service; threads can "
    "continue later. `rolecall thread kill THREAD` ends one for good.",
    "thread cancel": "`rolecall thread kill THREAD` does this.",
    "thread running": "`rolecall thread list --status running` does this.",
    "step list": "`rolecall thread steps THREAD` does this.",
    "step show": "`rolecall thread step-details STEP` does this.",
    "step read": "`rolecall thread step-details STEP` does this.",
    "step fork": "`rolecall thread fork STEP` does this.",
    "step": "`rolecall thread steps THREAD` and `rolecall thread step-details STEP` show steps.",
    "log": "`rolecall thread watch THREAD` shows the events of a thread, `rolecall serve logs` the log of the service.",
}


def new_name(args: list[str]) -> str | None:
    """Return the hint for a uwf command, or None if uwf has no such command."""
    return _NEW_NAMES.get(" ".join(args[:2])) or _NEW_NAMES.get(" ".join(args[:1]))

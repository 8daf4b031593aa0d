"""Notifications for people, as configured in the section `notify`.

After committing a change, a process starts `cli/notify.py` as a separate program, and does not wait for it. So a
notification never delays a step or makes it fail. Each notification is sent at most once: it is lost if the process
dies right after the commit. This module is imported when a thread ends or is suspended.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from time import strftime
from typing import TYPE_CHECKING

from rolecall.errors import UsageError
from rolecall.settings import config
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import subprocess

    from rolecall.settings.settings import Settings
    from rolecall.store.canonical import JsonObject
else:
    subprocess = Module("subprocess")  # needed only if notifications are configured

_SENDER = "rolecall.cli.notify"
_IN_BACKGROUND = 'exec 3<&0; "$@" <&3 3<&- >/dev/null 2>&1 &'
_RUN = "ROLECALL_RUN"
"""The variable that marks the processes of a step, which are ended with the step."""
_LINES = 100

start_for_us: Callable[[JsonObject], None] | None = None
"""A function to call instead of `start` where another process must start the sender, because the service ends
everything that a worker has started."""


def settings() -> Settings:
    """Return how people are notified, or an empty mapping if the configuration does not say."""
    path = config.config_path()
    text = config.read_text(path)
    # Most configurations have no such section, and parsing YAML would take longer than everything else here.
    found = config.parse(text, path).get("notify") if "notify" in text else None
    return found if isinstance(found, Mapping) else {}


def tell(messages: Iterable[JsonObject]) -> None:
    """Start the program that sends these messages, if the configuration asks for them. If that fails, only log the
    problem, because the change itself is already committed."""
    try:
        wanted = settings()
        for message in messages if wanted else ():
            if message["event"] in wanted.get("on", (message["event"],)):
                (start_for_us or start)(message)
    except Exception as error:
        log(f"no notification could be sent: {error!r}")


def start(message: JsonObject) -> None:
    """Start the program that sends a notification."""
    environment = config.child_environment()
    environment.pop(_RUN, None)
    # The shell ends at once, so no process has to wait for the sender.
    words = ["/bin/sh", "-c", _IN_BACKGROUND, "sh", sys.executable, "-P", "-m", _SENDER]
    given = json.dumps(message).encode()
    subprocess.run(words, input=given, env=environment, start_new_session=True, check=True)


def log(problem: str) -> None:
    """Log why a notification failed, in a file that keeps only the newest lines."""
    try:
        path = os.path.join(config.home(), "notify.log")
        line = f"{strftime('%Y-%m-%d %H:%M:%S')} {' '.join(config.mask().text(problem).split())}\n"
        kept = config.read_text(path).splitlines(keepends=True)[1 - _LINES :]
        with open(path, "w", encoding="utf-8") as file:
            file.writelines([*kept, line])
    except (OSError, UsageError):  # a full disk must not end the step
        pass

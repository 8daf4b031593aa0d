"""`rolecall notify`: send a test notification. Run with `python -m`, this module sends the notification on standard
input."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib import error as urlerror
from urllib import request

from rolecall.cli import CommandResult, hints, verb
from rolecall.errors import Hint, UsageError
from rolecall.service import control
from rolecall.settings import config
from rolecall.settings import notify as notifications
from rolecall.settings.direct_http import open_address
from rolecall.threads.report import local_time

_SECONDS = 30.0
"""How long a command or a webhook's reply is allowed to take."""
_PAUSES = (1.0, 5.0)
"""Seconds to wait before each further attempt to reach a webhook."""
_LINE = 200


@verb("notify", "send a test notification in every way configured under `notify`", "rolecall notify")
def notify(_options: Namespace) -> CommandResult:
    settings = notifications.settings()
    if not any(settings.get(key) for key in ("command", "webhook", "desktop")):
        raise UsageError(
            "the configuration does not say how to notify you",
            hint=Hint("Name a command", "set_setting", key="notify.command", value='["program", "{text}"]'),
        )
    trial: dict[str, Any] = {
        "event": "waits",
        "thread": "",
        "title": "A trial",
        "workflow": "",
        "status": "suspended",
        "role": "",
        "reason": "this is only a trial",
        "at": int(time.time() * 1000),
    }
    sent = dict(send(settings, trial))
    lines = [f"{way}: {problem or 'sent'}" for way, problem in sent.items()]
    problems = {way: problem for way, problem in sent.items() if problem}
    return CommandResult({"sent": [*sent], "problems": problems}, lines, code=1 if problems else 0)


def main() -> None:
    """Send the notification that is on standard input, and log what goes wrong."""
    message = json.load(sys.stdin)
    for way, problem in send(notifications.settings(), message):
        if problem:
            notifications.log(f"{message['thread']} {message['event']}: {way}: {problem}")


def send(settings: Mapping[str, Any], message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Send a notification in every way that the configuration names. Yield the name of each way with its problem, which
    is empty if there was none. Commands and webhooks get three more fields: a line of text, the address of the thread's
    page (if a page is running), and the next command."""
    thread, onward = str(message.get("thread", "")), message.get("onward") or {}
    code = onward.get("code") or ("answer_thread" if message["event"] == "waits" else "show_thread")
    hint = Hint("", code, thread=thread, limit=onward.get("limit", ""))
    page = settings.get("page") or control.find_running_page(config.home())
    reason = " ".join(str(message.get("reason") or "").split())
    until = local_time(message.get("until") or 0)
    phrases = {"waits": "waits for you", "limited": f"waits until {until}", "discarded": "was discarded"}
    text = phrases.get(message["event"], message["event"]) + (f": {reason}" if reason else "")
    full = {
        **{key: value for key, value in message.items() if key != "onward"},
        "text": text if len(text) <= _LINE else f"{text[: _LINE - 1]}…",
        "page": f"{str(page).rstrip('/')}/threads/{thread}" if page and thread else page,
        "command": hints.command(hint) if thread else "",
    }
    if words := settings.get("command"):
        fields = {**full, "address": full["page"] or full["command"]}

        def fill(found: re.Match[str]) -> str:
            value = fields.get(found[1], found[0])
            return "" if value is None else str(value)

        # Fields in braces are replaced in one pass, because a value can contain braces.
        yield "command", _run([re.sub(r"\{(\w+)\}", fill, str(word)) for word in words], json.dumps(full))
    if address := settings.get("webhook"):
        yield "webhook", _post(str(address), json.dumps(full))
    if settings.get("desktop"):
        yield "desktop", _show(str(full["title"] or full["thread"]), str(full["text"]))


def _run(words: Sequence[str], text: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 -- running the user's command is the purpose; no shell is involved
            words, input=text, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, ValueError) as error:
        return f"cannot be run: {error}"
    except subprocess.TimeoutExpired:
        return f"did not end within {_SECONDS:g} s and was killed"
    return "" if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr.strip()[-_LINE:]}"


def _post(address: str, text: str) -> str:
    """Send a message to a webhook, and return the problem. The problem does not repeat the address, which can be a
    secret."""
    if not address.startswith(("https://", "http://")):
        return "does not begin with http:// or https://"
    asked = request.Request(  # noqa: S310 -- checked above
        address, text.encode(), {"Content-Type": "application/json", "User-Agent": "rolecall"}
    )
    problem = ""
    for pause in (0.0, *_PAUSES):
        time.sleep(pause)
        try:
            with open_address(asked, timeout=_SECONDS):
                return ""
        except urlerror.HTTPError as error:
            problem = f"HTTP {error.code}"
            if error.code < 500 and error.code != 429:
                break
        except (OSError, ValueError) as error:
            problem = f"cannot be reached: {getattr(error, 'reason', None) or type(error).__name__}"
    return problem


def _show(title: str, text: str) -> str:
    if sys.platform == "darwin":
        notification = "display notification (item 2 of argv) with title (item 1 of argv)"
        lines = ("on run argv", notification, "end run")
        return _run(["osascript", *(word for line in lines for word in ("-e", line)), "--", title, text], "")
    if shutil.which("notify-send") is None or not config.has_display():
        return "this machine has no desktop, or lacks notify-send"
    return _run(["notify-send", "--app-name=rolecall", "--", title, text], "")


if __name__ == "__main__":
    main()

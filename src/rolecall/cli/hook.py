"""`rolecall hook HOST EVENT`: answer an event of a host. Hosts run the command with JSON on standard input and read the
answer.

An error must not block the host. The hook therefore exits with 1 and reports the error on standard error, and the next
session or message repeats the report. An error never leads to exit code 2, which hosts interpret as a refusal.
Arguments are parsed without argparse, and `hook_answer` is imported only inside a project, because hosts run this
command at every tool call in every folder.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import NamedTuple

from rolecall.cli import argument, verb
from rolecall.errors import UsageError
from rolecall.settings import config
from rolecall.settings.repository import root_around
from rolecall.store.lazy import Module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator
    from typing import NoReturn

    from rolecall.cli import hook_answer
    from rolecall.hosts.payload import Payload
else:
    hook_answer = Module("rolecall.cli.hook_answer")

_BEGINNINGS = frozenset((
    "session_start", "user_message", "SessionStart", "UserPromptSubmit", "session.created", "chat.message",
))  # fmt: skip
"""Host events that can turn a repository into a project: the start of a session, or a message with a tag."""
_USAGE = "usage: rolecall hook HOST EVENT [--project DIR] [--harness NAME] [--host-key FILE] < event.json"
_OPTIONS = {"--project": "project", "--harness": "harness", "--host-key": "key"}


class _Words(NamedTuple):
    """The command's arguments."""

    host: str
    event: str
    project: str = ""
    harness: str = ""
    key: str = ""


@verb(
    "hook",
    "handle an event from a host, and answer in the host's format",
    "rolecall hook claude PreToolUse --project . < event.json\n"
    """echo '{"session": "s", "text": "[plan] go"}' | rolecall hook rolecall user_message --project .""",
    argument("host", "HOST", "claude, codex, opencode, or rolecall for Rolecall's own format"),
    argument("event", "EVENT", "the event, as the host calls it"),
    argument("--project", "DIR", "the project (default: the repository around this folder)"),
    argument("--harness", "NAME", "the name under which hooks keep their files (default: rolecall)"),
    argument("--host-key", "FILE", "the host key that `install` writes", default=""),
    has_reply=False,
)
def hook(options: Namespace) -> int:
    given = [("--project", options.project), ("--harness", options.harness), ("--host-key", options.host_key)]
    run_directly([options.host, options.event, *(word for pair in given if pair[1] for word in pair)])


def run_directly(args: list[str]) -> NoReturn:
    """Run the command without argparse, and exit at once. All data has been written by then, and the interpreter's own
    cleanup takes longer than most gates need to decide."""
    code = _run(args)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # nobody reads the output any more
            code = 1
    os._exit(code)


def _run(args: list[str]) -> int:
    words = _parse(args)
    if words is None:
        print(f"rolecall hook: {_USAGE}", file=sys.stderr)
        return 1
    project = words.project if os.path.isdir(words.project) else ""
    try:
        data = sys.stdin.buffer.read()
        try:
            payload = json.loads(data)
            if b"\\ud" in data.lower():  # a lone surrogate is replaced: an error would let the tool call pass
                text = json.dumps(payload, ensure_ascii=False)
                payload = json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
        except (ValueError, RecursionError) as exc:
            raise UsageError(f"the input is not JSON: {exc}", hint=_USAGE) from exc
        if not isinstance(payload, dict):
            raise UsageError("the input is not a JSON object", hint=_USAGE)
        if words.project and not project:  # without this error, every edit would pass unchecked
            raise UsageError(
                f"the folder {words.project!r} does not exist, so nothing is checked",
                hint="If the project was moved, run `rolecall install` where it is now.",
            )
        if not project:
            around = _repositories(words.host, payload)
            project = next((one for one in around if os.path.isdir(os.path.join(one, ".nexus"))), "")
        if not project and words.event not in _BEGINNINGS:
            return 0
        answer = hook_answer.answer if project else hook_answer.answer_outside
        place = project or next(_repositories(words.host, payload), "")
        return answer(words.host, words.event, payload, place, harness=words.harness, key=words.key)
    except Exception as exc:  # the host must be able to continue
        hook_answer.report_failure(words.host, words.event, exc, project=project, harness=words.harness)
        return 1


def _parse(args: list[str]) -> _Words | None:
    named: dict[str, str] = {}
    rest: list[str] = []
    at = 0
    while at < len(args):
        option, equals, value = args[at].partition("=")
        if option in _OPTIONS:
            at += not equals
            named[_OPTIONS[option]] = value if equals else "".join(args[at : at + 1])
        else:
            rest.append(args[at])
        at += 1
    return _Words(*rest, **named) if len(rest) == 2 and all(named.values()) else None


def _repositories(host: str, payload: Payload) -> Iterator[str]:
    """Yield the repositories around the folders in which the session might run, except the user's home.

    Hosts start hooks in the session's folder, and the `cwd` that they send can be the folder of a single command.
    Claude Code instead starts hooks in the folder of the last command, perhaps in a nested repository, and names the
    session's folder in an environment variable.
    """
    sent = payload.get("cwd")
    folders = [sent] if isinstance(sent, str) and os.path.isabs(sent) else []
    with suppress(FileNotFoundError):  # the current folder no longer exists
        folders.insert(0, os.getcwd())
    if host == "claude" and os.path.isabs(config.session_folder()):
        folders.insert(0, config.session_folder())
    for folder in folders:
        root = root_around(os.path.normpath(folder))
        if root and os.path.realpath(root) != os.path.realpath(os.path.expanduser("~")):
            yield root

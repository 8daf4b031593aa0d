"""`rolecall hook HOST EVENT`: what a host runs at its events, with JSON on the input; it answers in the host's words.

Whatever goes wrong here must not hold up the host: it goes on, is told on the error output, and the next start of a
session or message says it once more. So this never ends with 2, which hosts take for a refusal. Arguments are read by
hand and modules imported when an event needs them, because hosts do this at every call of a tool.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from rolecall.cli import Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Mapping
    from typing import Any, NoReturn

    from rolecall.hosts.event import Event
    from rolecall.hosts.hook_context import Kit
    from rolecall.hosts.names import Output
    from rolecall.nexus.memory import Thresholds

_LONGEST_WAIT = 5.0
"""Seconds for the lock: hosts give a hook 10."""
_BEGINNINGS = frozenset((
    "session_start", "user_message", "SessionStart", "UserPromptSubmit", "session.created", "chat.message",
))  # fmt: skip
"""Events of hosts that can make a repository a project: a session begins, or a user writes a tag."""
_USAGE = "usage: rolecall hook HOST EVENT [--project DIR] [--harness NAME] [--host-key FILE] < event.json"
_OPTIONS = {"--project": "project", "--harness": "harness", "--host-key": "key"}


class Words(NamedTuple):
    """What the command was given."""

    host: str
    event: str
    project: str = ""
    harness: str = ""
    key: str = ""


def run_directly(args: list[str]) -> NoReturn:
    """The command without a parser. What was done is on the disk and in the pipe by now, so the process just ends:
    clearing up after itself would take the interpreter longer than most gates take to decide."""
    code = _run_words(args)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # nobody reads it any more
            code = 1
    os._exit(code)


def _run_words(args: list[str]) -> int:
    """0 and 1 are all it gives, unless the host's module says otherwise."""
    words = _words(args)
    if words is None:
        print(f"rolecall hook: {_USAGE}", file=sys.stderr)
        return 1
    project = words.project if os.path.isdir(words.project) else ""
    try:
        payload = _payload()
        _refuse_gone(words.project)
        project = project or _project_around(words.host, payload)
        if project:
            return _answered(words, payload, project)
        return _answered_outside(words, payload) if words.event in _BEGINNINGS else 0
    except Exception as exc:  # a front door, and behind it a host that has to go on
        _failed(words, project, exc)
        return 1


def _words(args: list[str]) -> Words | None:
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
    has_values = all(named.values())
    return Words(*rest, **named) if len(rest) == 2 and has_values else None


def _payload() -> Mapping[str, Any]:
    import json

    from rolecall.errors import UsageError

    data = sys.stdin.buffer.read()
    try:
        payload = json.loads(data)
        if (
            b"\\ud" in data.lower()
        ):  # half a pair is no letter; a hook that fails on it would let the tool pass
            text = json.dumps(payload, ensure_ascii=False)
            payload = json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"the input is not JSON: {exc}", hint=_USAGE) from exc
    if not isinstance(payload, dict):
        raise UsageError("the input is no JSON object", hint=_USAGE)
    return payload


def _refuse_gone(project: str) -> None:
    """A project that the command names and that is gone: nothing that is edited lies in it, so that to go on would be
    to let everything pass without a word."""
    if project and not os.path.isdir(project):
        from rolecall.errors import UsageError

        raise UsageError(
            f"there is no folder {project!r}, so nothing is checked",
            hint="If the project was moved, run `rolecall install` where it is now.",
        )


def _project_around(host: str, payload: Mapping[str, Any]) -> str:
    """The repository that the session works in, if it is a project of ours; empty: hooks have no business there.
    Hosts start hooks in the folder of the session; what they tell may be the folder of a single command. Claude Code
    starts them where the last command went to, which may be a repository within the project, and tells the folder of
    the session in a variable."""
    return next(
        (one for one in _repositories(host, payload) if os.path.isdir(os.path.join(one, ".nexus"))), ""
    )


def _repositories(host: str, payload: Mapping[str, Any]) -> Iterator[str]:
    """The repositories around the folders that the session may be in, without the home."""
    from contextlib import suppress

    from rolecall.settings import config
    from rolecall.settings.repository import root_around

    told = payload.get("cwd")
    folders = [told] if isinstance(told, str) and os.path.isabs(told) else []
    with suppress(FileNotFoundError):  # the folder we were started in is gone
        folders.insert(0, os.getcwd())
    if host == "claude" and os.path.isabs(config.session_folder()):
        folders.insert(0, config.session_folder())
    for folder in folders:
        root = root_around(os.path.normpath(folder))
        if root and os.path.realpath(root) != os.path.realpath(os.path.expanduser("~")):
            yield root


def _answered_outside(words: Words, payload: Mapping[str, Any]) -> int:
    """Make the repository around a project when a session begins in it or a message has a tag. Outside of a repository,
    answer a tag with what is missing."""
    from rolecall.hosts.event import Answer, SessionStart, UserMessage
    from rolecall.settings import config

    host = _host(words.host)
    event = host.event(words.event, payload)
    has_tag = isinstance(event, UserMessage) and _has_tag(words.host, event.text)
    if not has_tag and not isinstance(event, SessionStart):
        return 0
    project = next(_repositories(words.host, payload), "")
    if project and os.access(project, os.W_OK):
        return _answered(words, payload, project)
    if not has_tag or config.run():
        return 0
    told = (
        "The tag in this message had no effect: a Rolecall project is a git repository, and the session is in no"
        " git repository that can be written. `git init` makes one here. Tell the user."
    )
    return _written(host.output(words.event, Answer(context=told, notice=told)))


def _has_tag(host: str, text: str) -> bool:
    from rolecall.hosts import hook_context as kit
    from rolecall.hosts.on_message import may_ask

    if not may_ask(text):
        return False
    from rolecall.nexus import skills, tags

    found = kit.load(host)
    return bool(tags.detect(text, found.tags).found or skills.slash(text, found.skills, found.tags))


def _host(name: str) -> Any:
    from importlib import import_module

    from rolecall.errors import NotFound
    from rolecall.hosts.names import HOSTS

    known = (*HOSTS, "rolecall")
    if name not in known:
        raise NotFound(f"there is no host {name!r}", hint=f"There are {', '.join(known)}.")
    return import_module(f"rolecall.hosts.{name}.events")


def _answered(words: Words, payload: Mapping[str, Any], project: str) -> int:
    host = _host(words.host)
    event = host.event(words.event, payload)
    if event is None:
        return 0
    from rolecall.hosts import lifecycle
    from rolecall.hosts.event import PreToolUse
    from rolecall.nexus import project_paths

    kit = _kit(words, event)
    # Before a tool call nothing is written, so there is no lock to wait for.
    if not isinstance(event, PreToolUse):
        _check_host(words, kit)
        _limit_patience()
    answer = lifecycle.handle(project, event, kit, project_paths.now())
    return _written(host.output(words.event, answer))


def _written(output: Output) -> int:
    sys.stdout.write(output.stdout)
    sys.stderr.write(output.stderr)
    sys.stdout.flush()
    return int(output.code)


def _check_host(words: Words, kit: Kit) -> None:
    """Refuse events that an agent invents in its own shell."""
    if kit.restrictions:
        from rolecall.settings import capabilities, config

        is_host = config.is_host_key(words.key)
        capabilities.check_host(
            kit.restrictions, f"rolecall hook {words.host} {words.event}", is_host=is_host
        )


def _limit_patience() -> None:
    """Wait for whoever writes to this project, but not for ever: a host would end us at some time, and nobody would
    know why."""
    import time

    from rolecall.nexus import state_file

    state_file.patience_ends.set(time.monotonic() + _LONGEST_WAIT)


def _kit(words: Words, event: Event) -> Kit:
    """As much of the kit as an event needs."""
    from rolecall.hosts import hook_context as kit
    from rolecall.hosts.event import PostToolUse, PreToolUse, SubagentComplete
    from rolecall.nexus.project_paths import HARNESS
    from rolecall.settings import config

    found = kit.Kit() if _is_easy(event) else kit.load(words.host, with_tags=_may_have_tags(event))
    found = found._replace(
        run=config.run(),
        restrictions=config.restrictions(),
        harness=words.harness or HARNESS,
        mask=lambda: config.mask(found.secrets),
        thresholds=_thresholds,
    )
    if isinstance(event, (PreToolUse, PostToolUse, SubagentComplete)):  # they write nothing of the session
        return found
    from rolecall.hosts import sessions

    return found._replace(process=sessions.host_process())


def _is_easy(event: Event) -> bool:
    """Whether nothing of the configuration or the catalogue bears on it."""
    from rolecall.hosts.event import PostToolUse, PreToolUse

    if not isinstance(event, PreToolUse):
        return isinstance(event, PostToolUse) and not event.deed.skill
    from rolecall.hosts import gate

    return not gate.concerns(event.deed)


def _may_have_tags(event: Event) -> bool:
    from rolecall.hosts.event import PostToolUse, UserMessage

    if not isinstance(event, UserMessage):
        return isinstance(event, PostToolUse)  # a skill that was called, perhaps in a mode
    from rolecall.hosts.on_message import may_ask

    return may_ask(event.text)


def _thresholds() -> Thresholds:
    from rolecall.nexus.memory import configured_thresholds

    return configured_thresholds()


def _failed(words: Words, project: str, exc: Exception) -> None:
    """Say what went wrong, and leave it to be said again where a person sees it."""
    from rolecall.errors import RolecallError
    from rolecall.nexus import project_paths

    told = f"{exc.message} {exc.hint}" if isinstance(exc, RolecallError) else f"{type(exc).__name__}: {exc}"
    line = f"rolecall hook {words.host} {words.event}: {told.strip()}"
    print(line, file=sys.stderr)
    if not isinstance(exc, RolecallError):
        import traceback

        traceback.print_exception(exc, file=sys.stderr)
    if not project:
        return
    try:
        from contextlib import suppress

        from rolecall.hosts import tool_log

        with suppress(RolecallError):  # the name of the harness may be the very error
            project_paths.use_harness(words.harness or project_paths.HARNESS)
        tool_log.note_error(project, f"{project_paths.now()} {line}")
    except Exception as again:  # the disk perhaps, which is what went wrong before
        print(f"rolecall hook: this could not be kept either: {again}", file=sys.stderr)


# -- for the help --


def _run(options: Namespace) -> int:
    given = [("--project", options.project), ("--harness", options.harness), ("--host-key", options.host_key)]
    return run_directly([options.host, options.event, *(word for pair in given if pair[1] for word in pair)])


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("host", metavar="HOST", help="claude, codex, opencode, or rolecall for our own words")
    parser.add_argument("event", metavar="EVENT", help="the event, as the host calls it")
    parser.add_argument(
        "--project", metavar="DIR", help="the project (default: the repository around this folder)"
    )
    parser.add_argument(
        "--harness", metavar="NAME", help="the name under which hooks keep their files (default: rolecall)"
    )
    parser.add_argument("--host-key", default="", metavar="FILE", help="the host key that `install` writes")


VERBS = {
    "": Verb(
        _run,
        "do what an event of a host calls for, and answer it in the host's words",
        "rolecall hook claude PreToolUse --project . < event.json\n"
        """echo '{"session": "s", "text": "[plan] go"}' | rolecall hook rolecall user_message --project .""",
        _arguments,
    )
}

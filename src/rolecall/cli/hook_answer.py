"""Answer events for `rolecall hook`, in a project or where a project can be created.

Most modules are imported only for the events that need them: hosts run a hook at every tool call, so each hook must be
fast.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rolecall.errors import NotFound, RolecallError
from rolecall.hosts import hook_context, lifecycle
from rolecall.hosts.event import (
    Event,
    HostAnswer,
    PostToolUse,
    PreToolUse,
    SessionStart,
    SubagentComplete,
    UserMessage,
)
from rolecall.hosts.hook_context import HookContext
from rolecall.hosts.names import HOSTS, THREAD_END, Output
from rolecall.nexus import project_paths
from rolecall.nexus.project_paths import HARNESS
from rolecall.settings import config
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import traceback

    from rolecall.cli import hints
    from rolecall.hosts import gate, on_message, sessions, thread_news, tool_log
    from rolecall.hosts.payload import Payload
    from rolecall.nexus import memory, state_file, tags
    from rolecall.settings import capabilities
else:
    capabilities = Module("rolecall.settings.capabilities")
    gate = Module("rolecall.hosts.gate")
    hints = Module("rolecall.cli.hints")
    memory = Module("rolecall.nexus.memory")
    on_message = Module("rolecall.hosts.on_message")
    sessions = Module("rolecall.hosts.sessions")
    state_file = Module("rolecall.nexus.state_file")
    tags = Module("rolecall.nexus.tags")
    thread_news = Module("rolecall.hosts.thread_news")
    tool_log = Module("rolecall.hosts.tool_log")
    traceback = Module("traceback")

_LONGEST_WAIT = 5.0
"""Seconds to wait for a lock. Hosts stop a hook after 10 seconds."""


def answer(host: str, name: str, payload: Payload, project: str, *, harness: str, key: str) -> int:
    """Handle the event that the host calls `name`, and print the answer in the form that the host expects."""
    command = f"rolecall hook {host} {name}"
    if name == THREAD_END:  # wait for threads that a tool call handed over
        if config.run():
            return 0
        capabilities.check_host(config.restrictions(), command, is_host=config.is_host_key(key))
        news = thread_news.wait(project, str(payload.get("tool_response")))
        code = 2 if news else 0  # exit code 2 makes the host wake the model with the text
        return _write(Output(stderr=news, code=code))
    events = _events_of(host)
    event = events.event(name, payload)
    if event is None:
        return 0
    hooks = _load_hooks(host, harness, event)
    if not isinstance(event, PreToolUse):  # PreToolUse writes nothing, so it needs no lock
        if hooks.restrictions:  # an agent must not be able to invent events in its own shell
            capabilities.check_host(hooks.restrictions, command, is_host=config.is_host_key(key))
        # The wait is limited, because the host would eventually kill this process without an explanation.
        state_file.patience_ends.set(time.monotonic() + _LONGEST_WAIT)
    return _write(events.output(name, lifecycle.handle(project, event, hooks, project_paths.now())))


def answer_outside(host: str, name: str, payload: Payload, repository: str, *, harness: str, key: str) -> int:
    """Turn the repository into a project if a session begins in it or a message has a tag. If that is not possible,
    answer a tag by saying what is missing."""
    events = _events_of(host)
    event = events.event(name, payload)
    has_tag = False
    if isinstance(event, UserMessage) and on_message.may_ask(event.text):
        hooks = hook_context.load(host)
        found = tags.detect(event.text, hooks.tags).found
        has_tag = bool(found or tags.slash(event.text, hooks.skills, hooks.tags))
    if not has_tag and not isinstance(event, SessionStart):
        return 0
    if repository and os.access(repository, os.W_OK):
        return answer(host, name, payload, repository, harness=harness, key=key)
    if not has_tag or config.run():
        return 0
    text = (
        "The tag in this message had no effect: a Rolecall project is a git repository, and the session is not in a"
        " git repository that can be written. `git init` makes one here. Tell the user."
    )
    return _write(events.output(name, HostAnswer(context=text, notice=text)))


def _events_of(name: str) -> Any:
    known = (*HOSTS, "rolecall")
    if name not in known:
        raise NotFound(f"unknown host {name!r}", hint=f"There are {', '.join(known)}.")
    return import_module(f"rolecall.hosts.{name}.events")


def _load_hooks(host: str, harness: str, event: Event) -> HookContext:
    """Load the parts of the configuration and the catalogue that an event needs."""
    if isinstance(event, PreToolUse):
        needs_hooks, has_tags = gate.concerns(event.call), False
    elif isinstance(event, UserMessage):
        needs_hooks, has_tags = True, on_message.may_ask(event.text)
    elif isinstance(event, PostToolUse):
        needs_hooks, has_tags = bool(event.call.skill), True  # a skill that was called can set a mode
    else:
        needs_hooks, has_tags = True, False
    hooks = hook_context.load(host, with_tags=has_tags) if needs_hooks else HookContext()
    hooks = hooks._replace(
        run=config.run(),
        restrictions=config.restrictions(),
        harness=harness or HARNESS,
        mask=lambda: config.mask(hooks.secrets),
        thresholds=lambda: memory.load_thresholds(),
    )
    if isinstance(event, (PreToolUse, PostToolUse, SubagentComplete)):  # events that do not record a session
        return hooks
    return hooks._replace(process=sessions.host_process())


def _write(output: Output) -> int:
    sys.stdout.write(output.stdout)
    sys.stderr.write(output.stderr)
    sys.stdout.flush()
    return int(output.code)


def report_failure(host: str, name: str, exc: Exception, *, project: str, harness: str) -> None:
    """Print an error, and record it so that it is repeated in a place where a person sees it."""
    text = f"{type(exc).__name__}: {exc}"
    if isinstance(exc, RolecallError):
        text = f"{exc.message} {hints.word(exc.hint)}"
    line = f"rolecall hook {host} {name}: {text.strip()}"
    print(line, file=sys.stderr)
    if not isinstance(exc, RolecallError):
        traceback.print_exception(exc, file=sys.stderr)
    if not project:
        return
    try:
        with suppress(RolecallError):  # the harness name may itself be the error
            project_paths.use_harness(harness or HARNESS)
        tool_log.note_error(project, f"{project_paths.now()} {line}")
    except Exception as again:  # perhaps caused by the disk, like the first error
        print(f"rolecall hook: this could not be kept either: {again}", file=sys.stderr)

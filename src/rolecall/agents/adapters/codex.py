"""Codex without a terminal: `codex exec --json`, the prompt on stdin; `exec resume` and `exec fork` continue.

All settings are passed as `-c` overrides, because Codex reads the user's own folder, to which we never write. Codex has
no list of forbidden tools; a restriction is a sandbox level or a disabled feature. Tool servers run outside its
sandbox, so for a restricted role, every tool server in Codex's settings files is disabled. Its usage figures cover the
whole session and contain no costs.

Codex's own sandbox needs mounts, so it cannot be set up inside ours. There it is switched off, because ours is enough.
"""

from __future__ import annotations

import json
import os
import pwd
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolecall.agents.process import Exit
from rolecall.agents.program import Json, McpServer, Program, ProgramCall, Reader, parse_object, write_file
from rolecall.agents.protocol import Context, Reply, Usage
from rolecall.errors import UsageError
from rolecall.settings import capabilities
from rolecall.workflow.reply import render

UNCONFINED = "danger-full-access"
SANDBOXES = ("read-only", "workspace-write", UNCONFINED)

DENIES: Mapping[str, Mapping[str, str]] = {
    **{name: {"sandbox_mode": '"read-only"'} for name in (*capabilities.FILES, *capabilities.SHELL_WRITES)},
    **{name: {"features.shell_tool": "false"} for name in capabilities.SHELL},
}
"""The settings that deny each class of actions, no matter which tool is used."""

_ALWAYS: Mapping[str, str] = {
    "approval_policy": '"never"',  # there is nobody to ask
    "features.plugins": "false",  # looking for new plugins delays every run by seconds
    "features.apps": "false",
    "features.unbounded_connection_retries": "false",  # an unreachable endpoint must end the run
}
_SYSTEM = Path("/etc/codex")
_MANAGED = "managed_config.toml"


def _toml(value: str) -> str:
    # A JSON string is a TOML string unless it contains surrogate pairs.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def servers_off(env: Mapping[str, str], folder: Path, ours: Collection[str]) -> str:
    """Return the `mcp_servers` setting that disables every tool server in Codex's settings files except those in
    `ours`."""
    # Consider every file that can name servers, even those that Codex reads only in a trusted folder or for a profile:
    # disabling one server too many does no harm.
    user = Path(env.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)
    own = folder / (env.get("CODEX_HOME") or user / ".codex")
    files: list[Path] = []
    for place in (own, _SYSTEM):
        files += (place / "config.toml", place / _MANAGED, *sorted(place.glob("*.config.toml")))
    work = folder.resolve()
    files += (place / ".codex" / "config.toml" for place in (work, *work.parents))

    found: dict[str, Json] = {}
    for path in files:
        try:
            servers = Json(tomllib.loads(path.read_text(encoding="utf-8"))).part("mcp_servers")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:
            raise UsageError(
                f"the tool servers that {str(path)!r} gives codex cannot be switched off for a role with"
                f" restrictions: the file cannot be read: {error}",
                hint="Correct the file, or remove the restriction.",
            ) from error
        if servers and path.name == _MANAGED:  # this file overrides all settings passed to a call
            raise UsageError(
                f"codex cannot be held to the role's restrictions here: {str(path)!r} prescribes tool servers",
                hint="Give the role another agent, or remove the servers from that file.",
            )
        found = {**{name: servers.part(name) for name in servers}, **found}

    tables = []
    for name, server in found.items():
        # The command or URL is needed: in an untrusted folder, Codex knows nothing else about the server, and a server
        # with neither is an error.
        kept = [f"{key} = {_toml(str(server[key]))}" for key in ("command", "url") if key in server]
        if name not in ours:
            tables.append(f"{_toml(name)} = {{{', '.join([*kept, 'enabled = false'])}}}")
    return f"{{{', '.join(tables)}}}"


_TOOLS: Mapping[str, tuple[str, ...]] = {
    "command_execution": ("command",),
    "file_change": ("changes",),
    "mcp_tool_call": ("arguments",),
    "web_search": ("query", "action"),
    "todo_list": ("items",),
    "collab_tool_call": ("prompt",),
}
"""The items that are tool calls, with the keys of their arguments."""


class CodexReader(Reader):
    """A reader of Codex's events: thread.started, turn.started, item.started|updated|completed, turn.completed|failed,
    error."""

    no_session = ("no rollout found",)
    is_typed = False
    _total: Usage | None = None
    _failure = ""
    _complaint = ""

    def event(self, event: Json) -> None:
        kind = event.get("type")
        if kind == "thread.started":
            self.transcript.in_session(event.text("thread_id"))
        elif kind == "turn.completed":
            used = event.part("usage")
            self._total = used.usage(["input_tokens"], ["output_tokens"], ["cached_input_tokens"])
            self.transcript.uses(self.usage() or Usage())
        elif kind == "turn.failed":
            self._failure = event.part("error").text("message") or "the turn failed"
        elif kind == "error":  # most are retries; turn.failed repeats the error that ends a turn
            self._complaint = event.text("message")
        if kind not in ("item.started", "item.updated", "item.completed"):
            return

        item, is_done = event.part("item"), kind == "item.completed"
        kind, ident = item.text("type"), item.text("id")
        if kind == "agent_message" and is_done:
            self.transcript.says(item.text("text"))
        if kind not in _TOOLS:
            return
        if not self.transcript.is_running(ident):
            name: str = kind
            arguments: Any = {key: item[key] for key in _TOOLS[kind] if item.get(key) is not None}
            if kind == "mcp_tool_call":
                name, arguments = f"mcp__{item.text('server')}__{item.text('tool')}", item.get("arguments")
            elif kind == "collab_tool_call":
                name = item.text("tool") or kind
            self.transcript.calls(ident, name, arguments)
        if is_done:
            result, code = item.text("error", "result", "aggregated_output"), item.get("exit_code")
            if isinstance(code, int) and code:
                result = f"{result}\n(exit status {code})".lstrip()
            self.transcript.returns(ident, result or item.text("status"))
        if is_done and kind == "file_change" and item.get("status") == "completed":
            for change in item.parts("changes"):
                self.transcript.touches(change.text("path"))

    def total(self) -> Usage | None:
        return self._total

    def finish(self, exit: Exit) -> Reply:
        if self._failure:
            return self.answer("api_failure", self._failure)
        if self._total is None:
            self.noise = self.noise or self._complaint
            return self.no_answer(exit)
        output = parse_object(self.transcript.answer) if self.is_typed else None
        return self.answer(text="" if output is None else render(output))


@dataclass(frozen=True, kw_only=True)
class Codex(Program):
    name = program = "codex"
    reads = CodexReader
    install = "npm install -g @openai/codex"
    needed_flags = (
        "--json", "--skip-git-repo-check", "--config", "--model", "--output-schema", "resume", "fork",
    )  # fmt: skip
    help_arguments = ("exec", "--help")
    can_fork = True
    deniable = frozenset(DENIES)
    signed_in = (
        "CODEX_API_KEY", "OPENAI_API_KEY", "~/.codex/auth.json", "~/.codex/config.toml?", "CODEX_HOME?",
    )  # fmt: skip

    sandbox: str = "workspace-write"
    """What commands are allowed to change: `read-only`, `workspace-write` or `danger-full-access`."""
    system: str = ""
    """Text added to the instructions."""
    mcp: tuple[McpServer, ...] = ()
    """Tool servers for the agent, by name: {command, args, env}."""
    is_typed: bool = False
    """Whether Codex enforces the role's schema with its own option; the endpoint must accept the schema unchanged."""

    def __post_init__(self) -> None:
        if self.sandbox not in SANDBOXES:
            raise UsageError(
                f"codex has no sandbox {self.sandbox!r}", hint=f"Its levels: {', '.join(SANDBOXES)}."
            )

    def call(self, prompt: str, context: Context, folder: Path) -> ProgramCall:
        verb = ["fork" if context.is_fork else "resume"] if context.session else []
        argv = [self.command, "exec", *verb, "--json", "--skip-git-repo-check"]
        if self.is_typed and context.schema:
            argv += ["--output-schema", write_file(folder, "schema.json", json.dumps(dict(context.schema)))]
        argv += self.last_arguments  # before the settings, so that these arguments cannot lift a restriction
        for key, value in self.settings(context).items():
            argv += ["-c", f"{key}={value}"]
        argv += [context.session] if context.session else []
        return ProgramCall([*argv, "-"], stdin=prompt, env=self.env)

    def settings(self, context: Context) -> dict[str, str]:
        """Return the settings for a run: TOML values by dotted key."""
        settings = {**_ALWAYS, "sandbox_mode": _toml(self.sandbox)}
        classes = capabilities.denied_classes(context.capabilities, sandboxed=context.is_confined)
        if self.system:
            settings["developer_instructions"] = _toml(self.system)
        denials = [DENIES[name] for name in classes if name in DENIES]
        if denials:  # disable the other servers first, then add our own
            ours = [server.name for server in self.mcp]
            settings["mcp_servers"] = servers_off({**context.env, **self.env}, context.workdir, ours)
        for server in self.mcp:
            env = ", ".join(f"{_toml(name)} = {_toml(value)}" for name, value in server.env.items())
            table = {
                "command": _toml(server.command),
                "args": f"[{', '.join(map(_toml, server.args))}]",
                "required": "true",  # otherwise the first turn starts before the tools are available
                "default_tools_approval_mode": '"approve"',
                "env": f"{{{env}}}",
            }
            settings |= {f"mcp_servers.{server.name}.{key}": value for key, value in table.items()}
        for denial in denials:
            settings |= denial
        if context.is_confined:
            settings["sandbox_mode"] = _toml(UNCONFINED)
        return settings

    def reader(self, context: Context) -> CodexReader:
        reader = CodexReader(context)
        reader.is_typed = self.is_typed and bool(context.schema)
        return reader


codex = Codex

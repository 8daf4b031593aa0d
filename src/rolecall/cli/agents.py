"""`rolecall agents`: list the agents Rolecall can run, and try one."""

from __future__ import annotations

import asyncio
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, fields
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import rolecall.agents as agents
from rolecall.agents.presence import adapter_of, check_present, program_of
from rolecall.agents.protocol import Context, Reply, ask
from rolecall.api import reader
from rolecall.checks.choose import can_be_held_to
from rolecall.checks.doctor import AgentFinding, known_agents, preset_agents
from rolecall.cli import CommandResult, argument, flag, hints, verb
from rolecall.cli.asking import confirm
from rolecall.cli.group_view import gist
from rolecall.cli.output import format_of, table, tell
from rolecall.cli.thread_play import View, attend
from rolecall.errors import AgentError, UsageError
from rolecall.settings import config
from rolecall.settings.capabilities import RESTRICTIONS
from rolecall.settings.mask import Mask
from rolecall.store.canonical import JsonObject
from rolecall.threads import casting
from rolecall.threads.setup import HUMAN, Cast

PROMPT = "This is a test of the connection. Answer with the one word: ready"
FAILED = 6

_NOT_ALONE = {
    "run": "It only runs a command and answers no question: run the command yourself.",
    "workflow": "To try a workflow, start a thread: `rolecall thread start NAME -p TASK`.",
    "external": "It adds a step to a thread. To try it, start a thread: `rolecall thread start NAME -p TASK`.",
}
"""Adapters that can be used only within a thread, with what to do instead."""


def agents_table(findings: Iterable[AgentFinding]) -> str:
    """Format the state of each agent, and what a person has to do before the agent can be used."""
    rows = []
    for found in findings:
        fix = hints.word(found.troubles[0].fix) if found.troubles else ""
        rows.append((found.agent, found.version or "–", found.state, fix))
    return table(rows, ("agent", "version", "state", "to do"))


@verb(
    "agents list",
    "list the agents Rolecall can run and whether they are installed",
    "rolecall agents list\nrolecall agents list claude --options\nrolecall agents list --restrictions",
    argument("agents", "NAME", "only these adapters (default: all)", nargs="*"),
    flag("--options", "show each agent's options, with their types"),
    flag("--restrictions", "show which restrictions can be enforced for each agent"),
)
def list_agents(options: Namespace) -> CommandResult:
    known: dict[str, Any] = {cast.name: cast.agent for cast in (*known_agents(), *preset_agents())}
    # These adapters need the name of a program or a script.
    known |= dict.fromkeys(sorted(agents.WITH_ARGUMENT))
    for name in options.agents:
        if name not in known:
            agents.resolve(name)  # raises an error that lists the adapters
            raise UsageError(f"{name} is an agent with options", hint="Name the adapter alone.")
    wanted = {name: agent for name, agent in known.items() if not options.agents or name in options.agents}
    checkable = [name for name, agent in wanted.items() if agent is not None]
    found = reader().agents(checkable) if checkable else {}
    rows = [_row(name, agent, found.get(name)) for name, agent in wanted.items()]
    if options.restrictions:
        cells = []
        for row in rows:
            if held := row["restrictions"]:
                enforced = [word for word in held if held[word]]
                missing = [word for word in held if not held[word]]
                text = f"all but {', '.join(missing)}" if missing else "all"
                if len(missing) > len(enforced):
                    text = ", ".join(enforced) or "none"
                cells.append((row["agent"], text))
        return CommandResult(rows, table(cells, ("agent", "enforces"), folds=True))
    if options.options:
        lines = []
        for row in rows:
            lines += ["", row["agent"]]
            for option in row["options"]:
                default = f" = {option['default']}" if option["default"] not in (None, "", []) else ""
                lines.append(f"  {option['name']}: {option['type']}{default}")
        return CommandResult(rows, lines[1:])
    shown = []
    for row in rows:
        installed = "–" if row["installed"] is None else row["installed"] and (row["version"] or "yes")
        shown.append((row["agent"], installed or "no", row["about"]))
    return CommandResult(rows, table(shown, ("agent", "installed", "what it is"), folds=True))


def _row(name: str, agent: Any, finding: AgentFinding | None) -> dict[str, Any]:
    adapter, _, preset = name.partition(":")
    module = import_module(agents.ADAPTERS[adapter])
    if agent is None:  # the class of the adapter's agents; None if they are plain functions
        made = get_type_hints(module.from_argument)["return"]
        agent = made if hasattr(made, "deniable") else None
    about = f"{preset} over the Agent Client Protocol"
    if not preset:
        about = " ".join((module.__doc__ or "").partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    options = []
    for field in fields(agent) if agent is not None else ():
        is_argument = field.default is MISSING and field.default_factory is MISSING
        if field.init and not is_argument:
            default = None if field.default is MISSING else field.default
            default = list(default) if isinstance(default, tuple) else default
            options.append({"name": field.name, "type": str(field.type), "default": default})
    return {
        "agent": name,
        "about": about,
        "installed": finding.state != "not installed" if finding else None,
        "path": finding.path if finding else None,
        "version": finding.version if finding else None,
        "install": getattr(agent, "install", "") or None,
        "options": options,
        "restrictions": None
        if agent is None
        else {word: can_be_held_to(agent, word) for word in RESTRICTIONS},
    }


@verb(
    "agents test",
    "ask an agent one short question; this costs money if its model does",
    "rolecall agents test claude\nrolecall agents test claude:haiku --yes",
    argument("agent", "NAME", "an adapter, a spec such as claude:opus, or an alias"),
    flag("--yes", "do not ask first; this may cost money"),
)
def test(options: Namespace) -> CommandResult | int:
    env = config.environment()
    cast = casting.cast_alone(config.load(), options.agent, environment=env)
    program, hint = program_of(cast.agent), _NOT_ALONE.get(adapter_of(cast.agent), "")
    if cast.name == HUMAN:
        hint = "It stands for a person."
    elif "/" in program and not program.startswith("/"):
        hint = f"{program} is a path in the work folder, but a test runs in an empty folder: give the whole path."
    if hint:
        raise UsageError(f"{cast.name} cannot be tried alone", hint=hint)
    check_present(cast.agent, env=env, folder=Path.cwd())
    if not options.yes:
        question = f"This asks {cast.name} one short question, which costs money if its model does. Continue?"
        if not confirm(question, "Add --yes to continue without being asked."):
            tell("nothing was asked")
            return 1
    mask = config.mask()
    found, is_stopped = asyncio.run(_try(options, cast, env, mask))
    if is_stopped:
        raise KeyboardInterrupt
    shown = mask.value(found)
    usage = shown["usage"] or {}
    cost = usage.get("cost")
    lines = {
        "answer": " ".join(shown["answer"].split()) or "(none)",
        "ending": f"{shown['ending']}{': ' if shown['reason'] else ''}{shown['reason']}",
        "to do": shown["hint"] if not shown["ok"] else "",
        "session": shown["session"],
        "tokens": f"{usage.get('input_tokens', 0):,} in, {usage.get('output_tokens', 0):,} out"
        if usage
        else "",
        "cost": f"${cost:.4f}" if cost is not None else "not reported",
        "time": f"{shown['seconds']} s",
    }
    text = [f"{name:8} {value}" for name, value in lines.items() if value]
    return CommandResult(shown, text, code=0 if shown["ok"] else FAILED)


async def _try(
    options: Namespace, cast: Cast, env: Mapping[str, str], mask: Mask
) -> tuple[dict[str, Any], bool]:
    """Return the agent's reply or failure, both in the same form, and whether a signal stopped the agent."""

    class Live(View):
        """A view of the agent's messages and actions while the agent runs."""

        def event(self, kind: str, body: JsonObject) -> None:
            shown = str(body.get("text", "")).strip() if kind == "text" else gist(kind, body)
            if shown and kind in ("text", "tool_call", "permission"):
                tell(f"… {mask.text(shown)}")

    start = time.monotonic()
    found: Reply | AgentError
    with tempfile.TemporaryDirectory(prefix="rolecall-") as folder:
        async with attend(Live() if format_of(options) == "text" else View()) as stopped:
            context = Context(
                thread="try",
                role="try",
                start=PROMPT,
                workdir=Path(folder),
                cancel=stopped.cancel,
                emit=stopped.watch,
                env=env,
            )
            try:
                found = await ask(cast.agent, PROMPT, context=context)
                reason, hint = found.reason, found.hint
            except AgentError as error:
                found, reason, hint = error, error.message, error.hint
            finally:
                if hasattr(cast.agent, "aclose"):
                    await cast.agent.aclose()
    shown = {
        "agent": cast.name,
        "ok": found.ending == "completed" and bool(found.text.strip()),
        "ending": found.ending,
        "reason": reason,
        "hint": hints.word(hint),
        "answer": found.text,
        "session": found.session,
        "usage": asdict(found.usage) if found.usage else None,
        "seconds": round(time.monotonic() - start, 2),
    }
    return shown, stopped.cancel.is_set()

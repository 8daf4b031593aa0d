"""`rolecall agents`: the agents there are adapters for, and a try of one of them."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolecall.cli import Verb, hints
from rolecall.cli.output import add_format, format_of, printable, show, table
from rolecall.errors import AgentError, UsageError

if TYPE_CHECKING:
    from rolecall.agents.protocol import Context, Reply
    from rolecall.checks.doctor import Finding
    from rolecall.settings.mask import Mask
    from rolecall.threads.engine import Cast

PROMPT = "This is a test of the connection. Answer with the one word: ready"
FAILED = 6

_NOT_ALONE = {
    "workflow": "A workflow is tried by a thread: `rolecall thread start NAME -p TASK`.",
    "external": "It puts a step of a thread, so it is tried by one: `rolecall thread start NAME -p TASK`.",
}
"""Adapters that need a thread around them."""


def named_agent(settings: Mapping[str, Any], name: str, env: Mapping[str, str]) -> Cast:
    """The agent that an alias or a spec names, for a role without restrictions."""
    from rolecall.threads import workspace
    from rolecall.workflow.model import Role, Workflow
    from rolecall.workflow.playbook import Playbook

    book = Playbook(Workflow("try", roles={"try": Role()}))
    return workspace.cast(settings, book, "try", override=name, environment=env)


# -- list --


def _list(options: Namespace) -> None:
    from rolecall.checks.doctor import Place, examine
    from rolecall.settings import config
    from rolecall.threads.engine import Cast

    known = _known(options.agents)
    place = Place(config.environment(), Path.cwd())
    casts = [Cast(name, agent) for name, agent in known.items() if agent is not None]
    findings = asyncio.run(examine(casts, place, has_flags=False))
    found = {cast.name: finding for cast, finding in zip(casts, findings, strict=True)}
    rows = [_listed(name, agent, found.get(name)) for name, agent in known.items()]
    show(options, rows, lambda: _list_text(options, rows))


def _known(names: list[str]) -> dict[str, Any]:
    """The agents there are by name; an adapter that is no agent before it is told which has none."""
    from rolecall import agents
    from rolecall.checks.doctor import known_agents, preset_agents

    known: dict[str, Any] = {cast.name: cast.agent for cast in (*known_agents(), *preset_agents())}
    known |= dict.fromkeys(sorted(agents.SPOKEN))
    for name in names:
        if name not in known:
            agents.resolve(name)  # says which adapters there are
            raise UsageError(f"{name} is an agent with options", hint="Name the adapter alone.")
    return {name: agent for name, agent in known.items() if not names or name in names}


def _listed(name: str, agent: Any, finding: Finding | None) -> dict[str, Any]:
    kind = agent if agent is not None else _kind(name)
    return {
        "agent": name,
        "about": _about(name),
        "installed": finding.state != "not installed" if finding else None,
        "path": finding.path if finding else None,
        "version": finding.version if finding else None,
        "install": getattr(kind, "install", "") or None,
        "options": _options(kind),
        "restrictions": _restrictions(kind),
    }


def _kind(adapter: str) -> Any:
    """The class of the agents that an adapter makes of a text; None where they are plain functions."""
    from importlib import import_module
    from typing import get_type_hints

    from rolecall.agents import ADAPTERS

    kind = get_type_hints(import_module(ADAPTERS[adapter]).from_argument)["return"]
    return kind if hasattr(kind, "deniable") else None


def _about(name: str) -> str:
    """The first sentence about the adapter's module."""
    from importlib import import_module

    from rolecall.agents import ADAPTERS

    adapter, _, preset = name.partition(":")
    if preset:
        return f"{preset} over the Agent Client Protocol"
    paragraph = (import_module(ADAPTERS[adapter]).__doc__ or "").partition("\n\n")[0]
    return " ".join(paragraph.split()).partition(". ")[0].rstrip(".")


def _options(kind: Any) -> list[dict[str, Any]]:
    """What may be set: the fields with a default; one without is the argument itself."""
    from dataclasses import MISSING, fields

    found = []
    for field in fields(kind) if kind is not None else ():
        is_argument = field.default is MISSING and field.default_factory is MISSING
        if is_argument or not field.init:
            continue
        default = None if field.default is MISSING else field.default
        default = list(default) if isinstance(default, tuple) else default
        found.append({"name": field.name, "type": str(field.type), "default": default})
    return found


def _restrictions(kind: Any) -> dict[str, bool] | None:
    """Which restrictions a role played by it can be held to; None where it is told and nobody checks."""
    from rolecall.settings.capabilities import RESTRICTIONS, check_supported

    def is_supported(word: str) -> bool:
        try:
            check_supported("", [word], kind.deniable)
        except UsageError:
            return False
        return True

    return {word: is_supported(word) for word in RESTRICTIONS} if kind is not None else None


def _list_text(options: Namespace, rows: list[dict[str, Any]]) -> str:
    if options.restrictions:
        held = [
            (row["agent"], _enforced(row["restrictions"])) for row in rows if row["restrictions"] is not None
        ]
        return table(held, ("agent", "enforces"))
    if options.options:
        return "\n".join(
            f"{row['agent']}\n" + "".join(f"  {_option_text(option)}\n" for option in row["options"])
            for row in rows
        ).rstrip()
    cells = [(row["agent"], _presence(row), row["about"]) for row in rows]
    return table(cells, ("agent", "installed", "what it is"))


def _enforced(restrictions: Mapping[str, bool]) -> str:
    held = [word for word in restrictions if restrictions[word]]
    missing = [word for word in restrictions if not restrictions[word]]
    if len(missing) > len(held):
        return ", ".join(held) or "none"
    return f"all but {', '.join(missing)}" if missing else "all"


def _option_text(option: Mapping[str, Any]) -> str:
    default = f" = {option['default']}" if option["default"] not in (None, "", []) else ""
    return f"{option['name']}: {option['type']}{default}"


def _presence(row: Mapping[str, Any]) -> str:
    if row["installed"] is None:
        return "–"
    return str(row["version"] or "yes") if row["installed"] else "no"


# -- test --


def _test(options: Namespace) -> int:
    from rolecall.agents.presence import check_present
    from rolecall.settings import config
    from rolecall.threads import workspace

    env = config.environment()
    cast = named_agent(config.load(), options.agent, env)
    _refuse_untestable(cast)
    check_present(cast.agent, env=env, folder=Path.cwd())
    if not options.yes and not _is_confirmed(cast.name):
        print("nothing was asked", file=sys.stderr)
        return 1
    mask = workspace.mask()
    found, is_stopped = asyncio.run(_tried(options, cast, env, mask))
    if is_stopped:
        raise KeyboardInterrupt
    shown = mask.value(found)
    show(options, shown, lambda: _tried_text(shown))
    return 0 if shown["ok"] else FAILED


def _refuse_untestable(cast: Cast) -> None:
    from rolecall.agents.presence import adapter_of, program_of
    from rolecall.threads.engine import HUMAN

    program, hint = program_of(cast.agent), _NOT_ALONE.get(adapter_of(cast.agent), "")
    if cast.name == HUMAN:
        hint = "It stands for a person."
    elif "/" in program and not program.startswith("/"):
        hint = f"{program} is named from the work folder, and a test has an empty one: give the whole path."
    if hint:
        raise UsageError(f"{cast.name} cannot be tried alone", hint=hint)


def _is_confirmed(name: str) -> bool:
    warning = f"This asks {printable(name)} one short question, which costs money where its model does."
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        raise UsageError(warning, hint="Say --yes to go on without being asked.")
    sys.stderr.write(f"{warning} Go on? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


async def _tried(
    options: Namespace, cast: Cast, env: Mapping[str, str], mask: Mask
) -> tuple[dict[str, Any], bool]:
    """What came of it, and whether a signal stopped it."""
    import tempfile
    import time

    from rolecall.agents.protocol import Context
    from rolecall.cli.thread_live import Silence, attended, gist

    class Live(Silence):
        """Shows what the agent says and does while it does it."""

        def event(self, kind: str, body: Mapping[str, Any]) -> None:
            shown = str(body.get("text", "")).strip() if kind == "text" else gist(kind, body)
            if shown and kind in ("text", "tool_call", "permission"):
                print(f"… {printable(mask.text(shown))}", file=sys.stderr, flush=True)

    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rolecall-") as folder:
        async with attended(Live() if format_of(options) == "text" else Silence()) as stopped:
            context = Context(
                thread="try",
                role="try",
                start=PROMPT,
                workdir=Path(folder),
                cancel=stopped.cancel,
                emit=stopped.watch,
                env=env,
            )
            found = await _asked(cast, context)
    shown = {"agent": cast.name, **found, "seconds": round(time.monotonic() - begun, 2)}
    return shown, stopped.cancel.is_set()


async def _asked(cast: Cast, context: Context) -> dict[str, Any]:
    """How it ended and everything that came of it, in words that are the same after a failure."""
    from dataclasses import asdict

    from rolecall.agents.protocol import ask

    found: Reply | AgentError
    try:
        found = await ask(cast.agent, PROMPT, context=context)
        reason, hint = found.reason, found.hint
    except AgentError as error:
        found, reason, hint = error, error.message, error.hint
    finally:
        if hasattr(cast.agent, "aclose"):
            await cast.agent.aclose()
    return {
        "ok": found.ending == "completed" and bool(found.text.strip()),
        "ending": found.ending,
        "reason": reason,
        "hint": hints.word(hint),
        "answer": found.text,
        "session": found.session,
        "usage": asdict(found.usage) if found.usage else None,
    }


def _tried_text(shown: Mapping[str, Any]) -> str:
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
        "cost": f"${cost:.4f}" if cost is not None else "not told",
        "time": f"{shown['seconds']} s",
    }
    return "\n".join(f"{name:8} {value}" for name, value in lines.items() if value)


# -- the table --


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("agents", metavar="NAME", nargs="*", help="only these adapters (default: all)")
    parser.add_argument("--options", action="store_true", help="show the options of each, with their types")
    parser.add_argument(
        "--restrictions", action="store_true", help="show which restrictions each can be held to"
    )
    add_format(parser)


def _test_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("agent", metavar="NAME", help="an adapter, a spec such as claude:opus, or an alias")
    parser.add_argument("--yes", action="store_true", help="do not ask first; this may cost money")
    add_format(parser)


VERBS = {
    "list": Verb(
        _list,
        "list the agents there are adapters for: installed or not, options, restrictions",
        "rolecall agents list\nrolecall agents list claude --options\nrolecall agents list --restrictions",
        _list_arguments,
    ),
    "test": Verb(
        _test,
        "ask an agent one short question, which costs money where its model does",
        "rolecall agents test claude\nrolecall agents test claude:haiku --yes",
        _test_arguments,
    ),
}

"""`rolecall mcp`: the project's tools over the Model Context Protocol, on a pipe or over HTTP.

Hosts start one for each agent, so up to the first call next to nothing is imported.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import TYPE_CHECKING

from rolecall.cli import Verb
from rolecall.cli.output import add_store
from rolecall.errors import UsageError

if TYPE_CHECKING:
    from rolecall.mcp.tools import Toolbox

_HTTP_ONLY = ("host", "port", "token_env", "allow_host")
LOOPBACK = "127.0.0.1"
_INSTRUCTIONS = (
    "Plans, decisions and tasks of the project {}, kept in its .nexus folder: they outlast this conversation. "
    "Look with nx_context and nx_plan_status before you plan or begin work."
)
"""What a model is told about the tools as a whole."""


def _mcp(options: Namespace) -> None:
    from rolecall.mcp.tools import Place, Toolbox, chosen
    from rolecall.settings import capabilities, config

    is_host = config.is_host_key(options.host_key)
    capabilities.check_host(config.restrictions(), "rolecall mcp", is_host=is_host)
    project = _project(options.project)
    may_start_threads = not config.run() or config.may_start_threads()
    place = Place(project, options.store, _restrictions(options.agent), options.agent, may_start_threads)
    groups = chosen(only=options.only, without=options.without)
    toolbox, instructions = Toolbox(place, groups), _INSTRUCTIONS.format(project) if "nexus" in groups else ""
    if options.http:
        _serve_http(options, toolbox, instructions)
        return
    for name in _HTTP_ONLY:
        if getattr(options, name) not in (None, []):
            raise UsageError(f"--{name.replace('_', '-')} is for the HTTP door", hint="Add --http.")
    from rolecall.mcp.protocol import Session
    from rolecall.mcp.stdio import serve

    if sys.stdin is not None and sys.stdin.isatty():
        print("waiting for an MCP host on standard input; Ctrl-C ends it", file=sys.stderr)
    session = Session(listed=toolbox.listed, find=toolbox.find, instructions=instructions)
    serve(session, toolbox.carry_out)


def _serve_http(options: Namespace, toolbox: Toolbox, instructions: str) -> None:
    from rolecall.mcp.http import serve

    serve(
        toolbox,
        host=LOOPBACK if options.host is None else options.host,
        port=options.port or 0,
        token=token_in(options.token_env),
        names=options.allow_host,
        instructions=instructions,
        tell=lambda address: print(address, flush=True),
    )


def _project(folder: str | None) -> str:
    """The folder that is named, or the git repository around the one we are in."""
    if folder is None:
        from rolecall.nexus.project_paths import find

        return find(os.getcwd())
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder!r}", hint="--project names the folder of a project.")
    return os.path.abspath(folder)


def _restrictions(agent: str | None) -> tuple[str, ...]:
    """What whoever calls may not do: by its entry in the catalogue, and by the role it plays in a thread."""
    from rolecall.settings import config

    return tuple(dict.fromkeys((*config.restrictions(), *_of_agent(agent))))


def _of_agent(agent: str | None) -> tuple[str, ...]:
    if agent is None:
        return ()
    from rolecall.nexus import catalog
    from rolecall.settings import config

    return catalog.effective(catalog.load(config.catalog_folder()).agent(agent))


def token_in(variable: str | None) -> str | None:
    """The token that a variable holds; None when none is named."""
    if variable is None:
        return None
    from rolecall.settings import config

    token = config.environment().get(variable, "").strip()
    if not token:
        raise UsageError(f"the variable {variable} holds no token", hint=f"Set it: export {variable}=…")
    return token


# -- arguments --


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ArgumentTypeError(f"{text!r} is not a list of names")
    return names


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--project", metavar="DIR", help="the project (default: the git repository around here)"
    )
    parser.add_argument(
        "--agent", metavar="ID", help="the agent of the catalogue that calls: it is held to its limits"
    )
    parser.add_argument("--host-key", default="", metavar="FILE", help="the host key that `install` writes")
    parser.add_argument(
        "--only", type=_names, default=[], metavar="GROUP,…", help="only these groups of tools"
    )
    parser.add_argument("--without", type=_names, default=[], metavar="GROUP,…", help="all groups but these")
    add_store(parser)
    parser.add_argument(
        "--http", action="store_true", help="serve HTTP instead of the pipe (needs rolecall[mcp])"
    )
    add_door(parser)


def add_door(parser: ArgumentParser) -> None:
    """Where a server of ours listens, and who is let in."""
    parser.add_argument("--host", metavar="ADDRESS", help="listen here (default: 127.0.0.1)")
    parser.add_argument("--port", type=_port, metavar="N", help="listen on this port (default: a free one)")
    parser.add_argument(
        "--token-env", metavar="NAME", help="the variable that holds the token clients must give"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another name clients may call this machine by",
    )


VERBS = {
    "": Verb(
        _mcp,
        "serve the project's tools to an MCP host",
        "rolecall mcp\nrolecall mcp --agent engineer --without threads\nrolecall mcp --http --port 8765",
        _arguments,
    )
}

"""`rolecall mcp`: the project's tools over the Model Context Protocol, on a pipe or over HTTP.

The CLI lists this module in its table of commands. Hosts start a server for each agent, so almost nothing is imported
before the first call.
"""

from __future__ import annotations

import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from typing import TYPE_CHECKING

from rolecall.errors import UsageError, explain_missing
from rolecall.mcp.tools import McpToolbox, ToolContext, choose_groups
from rolecall.nexus import project_paths
from rolecall.settings import capabilities, config
from rolecall.settings.server_options import add_server_options, add_store_option
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.hosts import hook_context, names
    from rolecall.mcp import http, stdio
    from rolecall.nexus import catalog
else:
    catalog = Module("rolecall.nexus.catalog")
    hook_context = Module("rolecall.hosts.hook_context")
    http = Module("rolecall.mcp.http")
    names = Module("rolecall.hosts.names")
    stdio = Module("rolecall.mcp.stdio")

HELP = "serve the project's tools to an MCP host"
EXAMPLE = "rolecall mcp\nrolecall mcp --as engineer --without threads\nrolecall mcp --http --port 8765"
_HTTP_ONLY = ("host", "port", "token_env", "allow_host")
_INSTRUCTIONS = (
    "Plans, decisions and tasks of the project {}, kept in its .nexus folder: they outlast this conversation. "
    "Look with nx_context and nx_plan_status before you plan or begin work."
)


def run(options: Namespace) -> None:
    is_host = config.is_host_key(options.host_key)
    capabilities.check_host(config.restrictions(), "rolecall mcp", is_host=is_host)
    if options.old_agent is not None:
        print("note: `--agent` is now `--as`", file=sys.stderr)
    agent = options.as_agent if options.as_agent is not None else options.old_agent
    restrictions = config.restrictions()
    if agent is not None:
        # Reading the catalogue takes longer than the rest of the start, so use the cache of the hooks if possible.
        hooks = hook_context.load(names.LEAD, with_tags=False)
        is_cached = agent in hooks.agents and not hooks.problem
        known = hooks.agents[agent] if is_cached else catalog.load(config.catalog_folder()).agent(agent)
        restrictions = (*restrictions, *known.capabilities)
    place = ToolContext(
        project_paths.choose(options.project),
        options.store,
        tuple(dict.fromkeys(restrictions)),
        agent,
        may_start_threads=not config.run() or config.may_start_threads(),
    )
    groups = choose_groups(only=options.only, without=options.without)
    instructions = _INSTRUCTIONS.format(place.project) if "nexus" in groups else ""
    if options.http:
        with explain_missing("mcp", "the HTTP door", advice="Without --http nothing more is needed."):
            serve = http.serve
        serve(McpToolbox(place, groups), options, instructions)
        return
    for name in _HTTP_ONLY:
        if getattr(options, name) not in (None, []):
            raise UsageError(f"--{name.replace('_', '-')} is for the HTTP door", hint="Add --http.")
    if sys.stdin is not None and sys.stdin.isatty():
        print("waiting for an MCP host on standard input; Ctrl-C ends it", file=sys.stderr)
    stdio.serve(McpToolbox(place, groups), instructions)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--project",
        metavar="DIR",
        help="the project (default: the git repository that contains the current directory)",
    )
    parser.add_argument(
        "--as",
        dest="as_agent",
        metavar="ID",
        help="the agent of the catalogue that calls: it is held to its limits",
    )
    parser.add_argument("--agent", dest="old_agent", help=SUPPRESS)
    parser.add_argument("--host-key", default="", metavar="FILE", help="the host key that `install` writes")
    parser.add_argument(
        "--only", type=_names, default=[], metavar="GROUP,…", help="only these groups of tools"
    )
    parser.add_argument("--without", type=_names, default=[], metavar="GROUP,…", help="all groups but these")
    add_store_option(parser)
    parser.add_argument(
        "--http", action="store_true", help="serve HTTP instead of the pipe (needs rolecall[mcp])"
    )
    add_server_options(parser)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ArgumentTypeError(f"{text!r} is not a list of names")
    return names

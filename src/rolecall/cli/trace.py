"""`rolecall trace`: export threads as OpenTelemetry traces."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError, Namespace

from rolecall.api import Rolecall
from rolecall.cli import CommandResult, argument, flag, verb
from rolecall.cli.arguments import TIMES, find_thread, parse_time
from rolecall.cli.output import STORE, plural
from rolecall.errors import Hint, UsageError
from rolecall.settings.settings import value_from


def _parse_address(text: str) -> str:
    try:
        return str(value_from(text, ("traces", "otlp")))
    except UsageError:  # the message of this error is about the configuration
        raise ArgumentTypeError("the address must begin with http:// or https://") from None


@verb(
    "trace export",
    "send threads as traces to an OpenTelemetry collector, or print them",
    "rolecall trace export --otlp http://localhost:4318\n"
    "rolecall trace export 01M7F72S 01M7F8AB --content\n"
    "rolecall trace export --since 30d --as json > traces.jsonl",
    argument(
        "threads", "THREAD", "threads, by id or a part of it (default: the latest of this folder)", nargs="*"
    ),
    argument("--since", "TIME", f"all threads that began since: {TIMES}", type=parse_time),
    argument(
        "--otlp",
        "URL",
        "the collector's address (default: `traces.otlp` in the configuration)",
        type=_parse_address,
    ),
    argument(
        "--as", None, "print the requests, one per line, and send nothing", choices=("json",), dest="kind"
    ),
    flag("--content", "include prompts, answers, tool arguments and results"),
    STORE,
)
def export(options: Namespace) -> CommandResult | int:
    with Rolecall(options.store, create=False) as rolecall:
        if options.since is not None and options.threads:
            raise UsageError("name threads or give --since, not both")
        if options.since is None:
            threads = [find_thread(rolecall, name) for name in options.threads or [None]]
        else:  # a thread that plays a role of another thread is part of that thread's trace
            threads = [one for one in rolecall.threads(since=options.since) if not one.state.parent]
        if options.kind:
            for request in rolecall.encode_traces(threads, content=options.content):
                print(json.dumps(request, ensure_ascii=False))
            return 0
        collector = rolecall.collector(options.otlp, content=options.content or None)
        if collector is None:
            advice, setting = "Name one with --otlp, or configure it", "traces.otlp"
            hint = Hint(advice, "set_setting", key=setting, value="http://localhost:4318")
            raise UsageError("no collector is named", hint=hint)
        sent = rolecall.export_traces(threads, collector)
    shown = {"threads": len(threads), **sent._asdict()}
    text = f"sent {plural(sent.spans, 'span')} of {plural(len(threads), 'thread')}"
    text += f"; {sent.rejected:,} were not accepted: {sent.reason}" if sent.rejected else ""
    return CommandResult(shown, text, code=1 if sent.rejected else 0)

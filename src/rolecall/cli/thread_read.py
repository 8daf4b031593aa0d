"""`rolecall thread`, the verbs that read: show, list, steps, read, step-details, fork, diff, export, import.

Show, list, steps and read are what people and scripts call all the time, so this module imports next to
nothing; what a verb needs besides is imported in it.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from rolecall.cli import hints, under_this_name
from rolecall.cli.output import (
    colored_diff,
    colored_status,
    format_of,
    printable,
    say,
    short,
    show,
    show_record,
    table,
)
from rolecall.cli.thread_arguments import agent_option, common, count, in_this_store, one_thread
from rolecall.errors import RolecallError, UsageError
from rolecall.store.store import Store
from rolecall.threads import report, thread, views
from rolecall.threads.thread import Chain
from rolecall.threads.workspace import open_store, store_if_any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rolecall.threads.listing import Filter
    from rolecall.workflow.registry import Entry

_PAGE = 50
_GLANCE = 1.0
"""Seconds between two updates of a watched list."""


# -- show --


def run_show(options: Namespace) -> int:
    with _reading(options) as store:
        card = _onward(options, views.card(store, thread.find(store, options.thread)))
    show(options, card, lambda: _card_text(card))
    return 4 if card["status"] == "damaged" else 0


def _onward(options: Namespace, entry: dict[str, Any]) -> dict[str, Any]:
    """An entry whose command that goes on names the store as this one did."""
    command = entry["continue"]
    return {**entry, "continue": in_this_store(options, command)} if command else entry


def _card_text(card: Mapping[str, Any]) -> str:
    if card["status"] == "damaged":
        return f"thread {card['thread']} is {colored_status('damaged')}: {card['reason']}"
    lines = [f"{name:12} {value}" for name, value in _card_lines(card)]
    if used := report.usage_table(card["usage"]):
        headings, rows = used
        lines += ["", table(rows, headings)]
    # The card has the newest first; a person reads them in the order in which they were made.
    failed = reversed(card["attempts"])
    lines += [f"failed attempt of {a['role']}: {short(a['error'], 200)}" for a in failed]
    if card["continue"]:
        lines += ["", card["continue"]]
    return "\n".join(lines)


def _card_lines(card: Mapping[str, Any]) -> list[tuple[str, Any]]:
    pending = card["pending"]
    lines = [
        ("thread", card["thread"]),
        ("title", card["title"]),
        ("workflow", f"{card['name']} ({card['workflow']})"),
        ("status", ": ".join(filter(None, (colored_status(card["status"]), card["reason"])))),
        ("next role", card["currentRole"]),
        ("steps", card["steps"]),
        ("head", card["head"]),
        ("limits", ", ".join(f"{key} {report.amount(value)}" for key, value in card["limits"].items())),
        ("agents", _agents_text(card["agents"])),
        ("asked now", f"{pending['agent']} as {pending['role']}" if pending else ""),
        ("run by", card["lease"]["holder"] if card["lease"] else ""),
        ("forked from", card["forkedFrom"]),
        ("work folder", card["cwd"]),
        *report.own_folders(card),
    ]
    return [(name, value) for name, value in lines if value not in (None, "")]


def _agents_text(agents: Mapping[str, str]) -> str:
    played: dict[str, list[str]] = {}
    for role, agent in agents.items():
        played.setdefault(agent, []).append(role)
    return "; ".join(f"{', '.join(roles)}: {short(agent, 60)}" for agent, roles in played.items())


# -- list --


class Listing(NamedTuple):
    entries: list[dict[str, Any]]
    now: int = 0
    """The time of the store's clock."""
    id_length: int = 26
    """How much of the end of an id is shown."""


def run_list(options: Namespace) -> None:
    if options.watch:
        _watch_list(options)
        return
    found, text = _look(options)
    shown = found.entries[: options.limit]
    show(options, shown, lambda: text)
    if shown and len(found.entries) > options.limit:
        print(f"there are more: --page {shown[-1]['thread']}", file=sys.stderr)


def _look(options: Namespace) -> tuple[Listing, str]:
    """The requested threads (one more than is shown if there are more), and the list as text."""
    from itertools import islice

    from rolecall.threads.listing import listed

    asked = _filter(options)
    store = store_if_any(options.store)
    if store is None:
        return Listing([]), _no_threads(None)
    with store:
        last = options.skip + options.limit
        found = islice(listed(store, asked, page=options.page), options.skip, last + 1)
        entries = [_onward(options, entry) for entry in found]
        if not entries:
            return Listing([]), _no_threads(store)
        if format_of(options) != "text":
            return Listing(entries), ""
        listing = Listing(entries, store.now(), thread.short_id_length(store))
    return listing, list_text(listing._replace(entries=entries[: options.limit]))


def _watch_list(options: Namespace) -> None:
    """Show the list until Ctrl-C: redraw it on a terminal; elsewhere print it again when it changes."""
    from time import sleep

    is_drawn = sys.stdout.isatty() and format_of(options) == "text"
    before = None
    try:
        while True:
            found, text = _look(options)
            shown = found.entries[: options.limit]
            if is_drawn:
                lines = text.split("\n")[: os.get_terminal_size(1).lines - 1]
                sys.stdout.write("\033[H\033[J")
                say("\n".join(lines))
            elif shown != before:
                show_record(options, {"threads": shown}, lambda text=text: f"{text}\n")  # type: ignore[misc]
            before = shown
            sleep(_GLANCE)
    except KeyboardInterrupt:
        return


def active_threads(options: Namespace, store: Store) -> Listing:
    """All threads that have not ended, newest first."""
    from rolecall.threads.listing import Filter, listed

    statuses = frozenset({*thread.STATUSES, "crashed", "damaged"} - set(thread.ENDED))
    entries = [_onward(options, entry) for entry in listed(store, Filter(statuses, None, 0, None, ()))]
    return Listing(entries, store.now(), thread.short_id_length(store))


def _no_threads(store: Store | None) -> str:
    """Why the list is empty, and what to do."""
    if store is not None and store.backend.names("thread/", limit=1):
        return "no such threads (--all includes ended ones)"
    return under_this_name(f"no threads yet; start with: {first_command(store)}")


def first_command(store: Store | None) -> str:
    """The first command to type if there is no thread: run the first workflow whose agents are all here."""
    from rolecall.workflow import registry

    entries = registry.listed(store, folder=os.getcwd())
    for entry in entries:
        with suppress(RolecallError):
            if _is_ready(store, entry):
                return f"rolecall run {entry.name} -p 'What to do'"
    return "rolecall doctor" if entries else "rolecall init"


def _is_ready(store: Store | None, entry: Entry) -> bool:
    """Whether its agents are here. Checking a workflow in Python would run its code, so it counts as ready."""
    from rolecall.threads import workspace
    from rolecall.workflow import registry

    if entry.path is not None:
        return entry.path.endswith(".py") or not workspace.miscast(registry.load_file(entry.path), None)
    if store is None or entry.node is None:
        return False
    is_python = "python" in registry.workflow_node(store, entry.node).payload
    return is_python or not workspace.miscast(registry.load_node(store, entry.node), None)


def _filter(options: Namespace) -> Filter:
    from rolecall.threads.listing import Filter

    active = [status for status in thread.STATUSES if status not in thread.ENDED]
    known = {*thread.STATUSES, "crashed", "damaged"}
    named = [word.strip() for word in (options.status or "").split(",") if word.strip()]
    wanted: set[str] = {*active, "crashed", "damaged"} if not named else set()
    for word in named:
        wanted.update(
            (*active, "crashed") if word == "active" else ["killed" if word == "cancelled" else word]
        )
    if wanted - known:
        raise UsageError(
            f"{sorted(wanted - known)[0]!r} is no status",
            hint=f"Statuses are {', '.join(sorted(known))}; active stands for those that have not ended.",
        )
    statuses = frozenset(known if options.all else wanted)
    words = tuple((options.text or "").lower().split())
    return Filter(statuses, options.workflow, options.since or 0, options.before, words)


def _subject(entry: Mapping[str, Any]) -> str:
    """What a thread is about, and what it waits for."""
    has_reason = entry["status"] in ("damaged", "suspended")
    return " · ".join(filter(None, (entry["title"], entry["reason"] if has_reason else "")))


def list_text(listing: Listing) -> str:
    entries, now, id_length = listing
    rows = [
        (
            entry["thread"][-id_length:],
            entry["name"] or "",
            entry["status"],
            entry["currentRole"] or "",
            entry["steps"],
            _ago(now - entry["updated"]) if entry["updated"] else "",
            _subject(entry),
        )
        for entry in entries
    ]
    lines = [
        table(
            rows, ("thread", "workflow", "status", "next", "steps", "updated", "title"), ("updated", "steps")
        )
    ]
    if crashed := [entry["continue"] for entry in entries if entry["status"] == "crashed"]:
        lines += ["", "crashed, go on with:", *(f"  {command}" for command in crashed)]
    return "\n".join(lines)


def _ago(ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= size:
            return f"{ms // size} {unit} ago"
    return "now"


# -- steps --


def run_steps(options: Namespace) -> None:
    with _reading(options) as store:
        ref = thread.find(store, options.thread)
        chain = Chain(store, ref.head)
        steps = [views.step_entry(step, number) for step, number in views.numbered(ref, chain)]
        first = views.start_entry(store, chain.start)
    shown = {"thread": thread.id_of(ref), "workflow": first["workflow"], "steps": [first, *reversed(steps)]}
    show(options, shown, lambda: _steps_text(shown["steps"]))


def _steps_text(steps: list[dict[str, Any]]) -> str:
    rows = [(0, steps[0]["hash"], "(start)", "", "", "", steps[0]["prompt"])]
    for step in steps[1:]:
        said = _fields_text(step["output"])
        spent = report.duration(step["durationMs"])
        rows.append(
            (
                step["number"],
                step["hash"],
                step["role"],
                short(step["agent"], 24),
                step["status"] or "",
                spent,
                said,
            )
        )
    return table(rows, ("", "step", "role", "agent", "status", "time", "output"))


def _fields_text(output: Any) -> str:
    """An output in a line; its status has a column of its own."""
    if not isinstance(output, Mapping):
        return json.dumps(output, ensure_ascii=False)
    return ", ".join(
        f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in output.items()
        if name not in ("status", "$status")
    )


# -- read --


def run_read(options: Namespace) -> int:
    with _reading(options) as store:
        ref = thread.find(store, options.thread)
        found = views.read(
            store,
            ref,
            quota=options.quota,
            before=options.before,
            with_start=options.start or options.before is None,
            phrase=hints.phrase,
        )
    if options.format in ("json", "yaml"):
        show(options, found)
    else:
        print(printable(found["text"]) if sys.stdout.isatty() else found["text"])
    return 4 if found["problem"] else 0


# -- step-details --


def run_step_details(options: Namespace) -> None:
    with _reading(options) as store:
        found = views.details_named(store, options.step)
    limit = None if options.full else report.SHORT
    render = report.detail_markdown if "number" in found else report.attempt_markdown
    show(options, found, lambda: render(found, with_prompt=options.prompt, limit=limit))


# -- fork --


def run_fork(options: Namespace) -> None:
    from rolecall.cli.output import read_input
    from rolecall.cli.thread_run import show_new_thread, tell_omitted
    from rolecall.settings import config
    from rolecall.threads import lifecycle
    from rolecall.threads.workspace import binder, mask, refuse_miscast
    from rolecall.workflow import registry

    prompt = None if options.prompt is None else read_input(options.prompt)
    with open_store(options.store) as store:
        at, source = views.step_named(store, options.thread, options.at)
        workflow: Any = None
        if options.workflow is not None:
            found = registry.find(store, options.workflow, folder=os.getcwd())
            workflow = found.node or registry.load_file(found.path or "")
        if options.agent:
            node = workflow or Chain(store, at).start.workflow
            refuse_miscast(registry.load_node(store, node) if isinstance(node, str) else node, options.agent)
        ref = lifecycle.fork(
            store,
            at,
            mask=mask(),
            source=source,
            workflow=workflow,
            prompt=prompt,
            agent=options.agent,
            bind=binder(options.agent or (source.state.agent if source else None)),
            work=config.work_folder(),
        )
    tell_omitted(ref)
    ident = thread.id_of(ref)
    onward = in_this_store(options, thread.continuation(ref) or "")
    shown = {"thread": ident, "forkedFrom": {"step": at}, "continue": onward}
    show_new_thread(options, shown, f"continue: {onward}" if onward else "")


# -- diff --


def run_diff(options: Namespace) -> None:
    with _reading(options) as store:
        one, other = (thread.find(store, name) for name in (options.one, options.other))
        found = views.difference(store, one, other)
    show(options, found, lambda: colored_diff(_diff_text(found)))


def _diff_text(found: Mapping[str, Any]) -> str:
    if found["common"] is None:
        lines = ["the threads share nothing"]
    else:
        lines = [
            f"the same up to {found['common']} ({found['commonSteps']} step{'' if found['commonSteps'] == 1 else 's'})"
        ]
    if found["prompt"]:
        lines += ["", "prompt", *found["prompt"]]
    for pair in found["steps"]:
        roles = " / ".join(dict.fromkeys(step["role"] if step else "(none)" for step in pair["steps"]))
        numbers = " / ".join(dict.fromkeys(str(step["number"]) for step in pair["steps"] if step))
        lines += ["", f"step {numbers}: {roles}", *pair["output"], *pair["body"]]
        if not pair["output"] and not pair["body"]:
            lines.append("the same output")
    return "\n".join(lines if found["steps"] or found["prompt"] else [*lines, "and no further"])


# -- export --


def run_export(options: Namespace) -> None:
    from rolecall.threads import html_report

    kind = os.path.splitext(options.file)[1].lower()
    if kind not in (".html", ".htm", ".md"):
        raise UsageError(
            f"{options.file!r} is neither a .html nor a .md file",
            hint="Markdown on standard output: `rolecall thread read`.",
        )
    if os.path.lexists(options.file) and not options.force:
        raise UsageError(f"{options.file} exists", hint="Name a new file, or overwrite it with --force.")
    limit = None if options.full else report.SHORT
    with _reading(options) as store:
        ref = thread.find(store, options.thread)
        card, steps = views.gather(store, ref)
        card = _onward(options, card)
        page = (
            report.markdown(card, steps, limit=limit)
            if kind == ".md"
            else html_report.page(store, ref, card, steps, limit=limit, warn=_warn)
        )
    data = page.encode("utf-8", "backslashreplace")
    _write_file(options.file, data, overwrite=options.force)
    shown = {"thread": card["thread"], "file": options.file, "steps": len(steps), "bytes": len(data)}
    show(
        options,
        shown,
        lambda: f"{options.file}: {len(steps)} step{'' if len(steps) == 1 else 's'}, {len(data):,} bytes",
    )


def _warn(text: str) -> None:
    print(f"warning: {printable(text)}", file=sys.stderr)


def _write_file(path: str, data: bytes, *, overwrite: bool) -> None:
    """Whole or not at all; a link, unlike a rename, never takes the place of a file."""
    scratch = f"{path}.{os.getpid()}.part"
    try:
        with open(scratch, "xb") as file:
            file.write(data)
        if overwrite:
            os.replace(scratch, path)
        else:
            os.link(scratch, path)
    except FileExistsError as error:
        raise UsageError(f"{path} exists", hint="Name a new file, or overwrite it with --force.") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        if os.path.exists(scratch):
            os.unlink(scratch)


# -- import --


def run_import(options: Namespace) -> int:
    from rolecall.cli.output import Progress
    from rolecall.threads.import_uwf import has_config, import_threads, take_config

    progress = Progress("imported")
    with open_store(options.store) as store:
        done = import_threads(
            store, options.folder, cas=options.cas, keep_going=options.keep_going, progress=progress
        )
    progress.clear()
    shown = done._asdict() | {
        "unread": [unread._asdict() for unread in done.unread],
        "problems": [problem._asdict() for problem in done.problems],
        "config": take_config(options.folder)._asdict()
        if options.config and has_config(options.folder)
        else None,
    }
    show(options, shown, lambda: _import_text(shown))
    if shown["config"] is None and has_config(options.folder):
        from shlex import quote

        command = in_this_store(options, f"rolecall thread import {quote(options.folder)} --config")
        print(
            f"note: its configuration was not imported; to add what is not set here: {command}",
            file=sys.stderr,
        )
    return 4 if done.unread else 0


def _import_text(shown: Mapping[str, Any]) -> str:
    lines = [
        f"{len(shown['threads'])} threads, {len(shown['workflows'])} workflows and {shown['nodes']} nodes imported"
    ]
    lines += [f"kept as it is here: {name}" for name in shown["kept"]]
    lines += [f"not imported: {unread['name']}: {unread['reason']}" for unread in shown["unread"]]
    lines += [f"{problem['kind']}: {problem['node']} {problem['text']}" for problem in shown["problems"]]
    for what, keys in (shown["config"] or {}).items():
        lines += [f"configuration, {what}: {key}" for key in keys]
    return "\n".join(lines)


# -- arguments --


def _reading(options: Namespace) -> Store:
    return open_store(options.store, create=False)


def show_arguments(parser: ArgumentParser) -> None:
    one_thread(parser)


def steps_arguments(parser: ArgumentParser) -> None:
    one_thread(parser)


def list_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--status", metavar="S,S", help="only these; active stands for all that have not ended (default)")
    add("--all", action="store_true", help="also those that have ended")
    add("--workflow", metavar="NAME", help="only threads of this workflow, by name or id")
    add("--since", "--after", type=_when, metavar="TIME", help="started since: 30m, 24h, 7d, or 2026-01-31")
    add("--before", type=_when, metavar="TIME", help="started before that time")
    add("--text", metavar="WORDS", help="only those with all these words in title, workflow or reason")
    add("--limit", "--take", type=count, default=_PAGE, metavar="N", help=f"at most N (default {_PAGE})")
    add("--skip", type=count, default=0, metavar="N", help="leave out the first N")
    add("--page", metavar="THREAD", help="go on after this thread, the last one of the page before")
    add("--watch", action="store_true", help="follow the list until Ctrl-C")
    common(parser)


def read_arguments(parser: ArgumentParser) -> None:
    one_thread(parser)
    parser.add_argument("--quota", type=count, default=4000, metavar="N", help="characters (default 4000)")
    parser.add_argument("--before", metavar="STEP", help="only what came before this step, by id or number")
    parser.add_argument("--start", action="store_true", help="with --before: show the task as well")


def step_details_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "step", metavar="STEP", help="a step's or an attempt's id, THREAD#N, or THREAD (its last)"
    )
    parser.add_argument("--prompt", action="store_true", help="show what the agent was told")
    parser.add_argument("--full", action="store_true", help="do not shorten long texts")
    common(parser)


def fork_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("thread", metavar="THREAD|STEP", help="a thread, THREAD#N, or a step's id")
    parser.add_argument("--at", metavar="STEP|N|start", help="where (default: at the thread's head)")
    parser.add_argument("--workflow", "-w", metavar="NAME", help="go on with another workflow or version")
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="go on with another task; @FILE and - read it")
    agent_option(parser)
    common(parser)


def diff_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("one", metavar="THREAD", help="a thread")
    parser.add_argument("other", metavar="THREAD", help="another thread")
    common(parser)


def export_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "thread", metavar="THREAD", help="a thread's id, or a part of it that no other id contains"
    )
    parser.add_argument("file", metavar="FILE", help="a new .html or .md file")
    parser.add_argument("--full", action="store_true", help="do not shorten long texts")
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    common(parser)


def import_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the storage folder of uwf, with threads.yaml in it")
    parser.add_argument("--cas", metavar="DIR", help="where its nodes are, when not (only) in DIR/cas")
    parser.add_argument(
        "--keep-going", action="store_true", help="take the intact nodes when some are damaged"
    )
    parser.add_argument(
        "--config",
        action="store_true",
        help="also import providers, models, agents and keys that are not set here",
    )
    common(parser)


def _when(text: str) -> int:
    """A moment in milliseconds: so long ago, or a date with or without a time (UTC unless it says else)."""
    import time

    units = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
    if text[-1:] in units and text[:-1].isdecimal():
        return max(time.time_ns() // 1_000_000 - int(text[:-1]) * units[text[-1]], 0)
    from datetime import UTC, datetime

    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is no time such as 30m, 24h, 7d or 2026-01-31T12:00") from error
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)

"""`rolecall thread export`: write a report of a thread."""

from __future__ import annotations

import os
from argparse import Namespace

from rolecall.cli import Reply, argument, flag, verb
from rolecall.cli.arguments import THREAD
from rolecall.cli.output import STORE, plural, warn
from rolecall.cli.thread_read import with_command
from rolecall.errors import UsageError
from rolecall.threads import html_report, report, thread, views
from rolecall.threads.workspace import open_store


@verb(
    "thread export",
    "write a thread as a report",
    "rolecall thread export 01M7F72S report.html",
    THREAD,
    argument("file", "FILE", "a new .html or .md file"),
    flag("--full", "do not shorten long texts"),
    flag("--force", "overwrite the file"),
    STORE,
)
def export(options: Namespace) -> Reply:
    path = options.file
    kind = os.path.splitext(path)[1].lower()
    if kind not in (".html", ".htm", ".md"):
        raise UsageError(
            f"{path!r} is neither a .html nor a .md file",
            hint="Markdown on standard output: `rolecall thread read`.",
        )
    if os.path.lexists(path) and not options.force:
        raise UsageError(f"{path} exists", hint="Name a new file, or overwrite it with --force.")
    limit = None if options.full else report.SHORT
    with open_store(options.store, create=False) as store:
        ref = thread.find(store, options.thread)
        card, steps = views.gather(store, ref)
        card = with_command(options, card)
        page = (
            report.markdown(card, steps, limit=limit)
            if kind == ".md"
            else html_report.page(store, ref, card, steps, limit=limit, warn=warn)
        )
    data = page.encode("utf-8", "backslashreplace")
    _write_file(path, data, overwrite=options.force)
    shown = {"thread": card["thread"], "file": path, "steps": len(steps), "bytes": len(data)}
    return Reply(shown, f"{path}: {plural(len(steps), 'step')}, {len(data):,} bytes")


def _write_file(path: str, data: bytes, *, overwrite: bool) -> None:
    """Write the whole file or nothing; a hard link, unlike a rename, never replaces a file."""
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

"""`rolecall thread export`, `checkout`, `blame`, `folder` and `import`: reports on threads, the files of their steps,
the work folders of threads, and threads of uwf."""

from __future__ import annotations

import os
from argparse import Namespace
from shlex import quote
from typing import TYPE_CHECKING

from rolecall.api import Rolecall
from rolecall.cli import CommandResult, argument, flag, verb
from rolecall.cli.arguments import THREAD, in_this_store, open_thread
from rolecall.cli.output import STORE, count_progress, plural, short, tell, warn, write_file
from rolecall.errors import UsageError
from rolecall.store.lazy import Module
from rolecall.threads.report import SHORT, shorten

if TYPE_CHECKING:
    from rolecall.threads import import_uwf
else:
    import_uwf = Module("rolecall.threads.import_uwf")


@verb(
    "thread export",
    "write a thread as a report",
    "rolecall thread export 01M7F72S report.html",
    THREAD,
    argument("file", "FILE", "a new .html or .md file"),
    flag("--full", "do not shorten long texts"),
    flag("--files", "show what each step changed in files, line by line"),
    flag("--force", "overwrite the file"),
    STORE,
)
def export(options: Namespace) -> CommandResult:
    path = options.file
    kind = os.path.splitext(path)[1].lower()
    if kind not in (".html", ".htm", ".md"):
        raise UsageError(
            f"{path!r} is neither a .html nor a .md file",
            hint="Markdown on standard output: `rolecall thread read`.",
        )
    with open_thread(options) as thread:
        page = thread.export(
            "markdown" if kind == ".md" else "html",
            max_chars=None if options.full else SHORT,
            files=options.files,
            warn=warn,
            phrase=lambda hint: in_this_store(options, hint),
        )
        steps = len(thread.steps)
    data = page.encode("utf-8", "backslashreplace")
    hint = "Name a new file, or overwrite it with --force."
    write_file(path, data, is_new=not options.force, hint=hint)
    shown = {"thread": thread.id, "file": path, "steps": steps, "bytes": len(data)}
    return CommandResult(shown, f"{path}: {plural(steps, 'step')}, {len(data):,} bytes")


@verb(
    "thread checkout",
    "write the files of a step into a folder",
    "rolecall thread checkout 01M7F72S ../as-it-ended\nrolecall thread checkout 01M7F72S --at 3 ../as-of-step-3",
    THREAD,
    argument("folder", "DIR", "a new or empty folder"),
    argument(
        "--at", "STEP", "the id or number of a step, the id of a failed attempt, or start (default: the last)"
    ),
    STORE,
)
def check_out(options: Namespace) -> CommandResult:
    with open_thread(options) as thread:
        done = thread.check_out(options.folder, at=options.at)
    for path in done["omitted"]:
        tell(f"not recorded, so not written: {path}")
    which = f"step {done['number']} left" if done["step"] else "the first step found"
    if "attempt" in done:
        which = f"the failed attempt {done['attempt']} left"
    return CommandResult(done, f"{done['folder']} has the files that {which}")


@verb(
    "thread blame",
    "name the step, role, agent and prompt behind each line of a file",
    "rolecall thread blame 01M7F72S src/login.py\nrolecall thread blame 01M7F72S src/login.py:42",
    THREAD,
    argument(
        "file", "FILE[:LINE]", "its path from the top of the work tree; LINE may be a range such as 40-60"
    ),
    argument(
        "--at", "STEP", "the file as it was after this step: an id, a number, or start (default: the last)"
    ),
    STORE,
)
def blame(options: Namespace) -> CommandResult:
    path, chosen = options.file, None
    name, _, place = path.rpartition(":")
    first, _, last = place.partition("-")
    if name and first.isdecimal() and (not last or last.isdecimal()):
        path, chosen = name, (int(first), int(last or first))
    with open_thread(options) as thread:
        found = thread.blame(path, lines=chosen, at=options.at)
    lines, steps = found["lines"], found["steps"]
    names: dict[str, str] = {}
    for ident, step in steps.items():
        number = "failed" if step["number"] is None else step["number"]
        other = f" of {step['thread']}" if step["thread"] != found["thread"] else ""
        names[ident] = f"{number} {step['role']}{other}"
    nobody = {"before": "before the thread", "between": "between steps"}
    labels = [names[line["step"]] if line["step"] else nobody[line["from"]] for line in lines]
    width, digits = max(map(len, labels), default=0), len(str(lines[-1]["line"])) if lines else 0
    text = [
        f"{label:{width}}  {line['line']:{digits}}  {line['text']}"
        for label, line in zip(labels, lines, strict=True)
    ]
    for ident, step in steps.items():
        prompt = step["prompt"].strip()
        text += ["", f"{names[ident]} · {step['agent']} · {ident}"]
        is_only = len(steps) == 1
        text.append(shorten(prompt, SHORT) if is_only else short(step["edgePrompt"].strip() or prompt, 100))
    return CommandResult(found, text)


@verb(
    "thread folder show",
    "show a thread's own work folders and what is in them",
    "rolecall thread folder show 01M7F72S",
    THREAD,
    STORE,
)
def show_folders(options: Namespace) -> CommandResult:
    with open_thread(options) as thread:
        folders = thread.folders()
    blocks = []
    for folder in folders:
        lines = [(folder["kind"], folder["path"]), ("state", folder["state"]), ("made for", folder["source"])]
        lines += [(key, str(folder[key])) for key in ("branch", "base", "from", "problem") if key in folder]
        if "ahead" in folder:
            commits = f"{folder['ahead']} ahead of {folder['into']}, {folder['behind']} behind"
            lines.append(("commits", commits))
        if folder.get("checkedOut", folder.get("branch")) != folder.get("branch"):
            lines.append(("checked out", folder["checkedOut"] or "no branch"))
        for key in ("uncommitted", "changes"):
            if key in folder:
                lines.append((key, ("\n" + " " * 13).join(folder[key]) or "nothing"))
        blocks.append("\n".join(f"{name:12} {value}" for name, value in lines))
    text = "\n\n".join(blocks) or "it works in the folder it was started in"
    return CommandResult({"thread": thread.id, "folders": folders}, text)


@verb(
    "thread folder diff",
    "show what a thread changed in its own work folders",
    "rolecall thread folder diff 01M7F72S",
    THREAD,
    STORE,
)
def show_changes(options: Namespace) -> CommandResult:
    with open_thread(options) as thread:
        text = thread.diff_folders()
    return CommandResult({"thread": thread.id, "diff": text}, text.rstrip("\n"))


@verb(
    "thread folder merge",
    "merge a thread's branch into the one that is checked out",
    "rolecall thread folder merge 01M7F72S",
    THREAD,
    STORE,
)
def merge(options: Namespace) -> CommandResult:
    with open_thread(options, ask="merging changes your branch") as thread:
        merged = thread.merge_folder()
    text = f"{merged['into']} already has everything from {merged['branch']}"
    if merged["merged"]:
        text = f"{merged['branch']} is merged into {merged['into']}: {merged['head']}"
    return CommandResult({"thread": thread.id, **merged}, text)


@verb(
    "thread folder remove",
    "remove a thread's own work folders and its branch",
    "rolecall thread folder remove 01M7F72S\nrolecall thread folder remove 01M7F72S --force",
    THREAD,
    flag("--force", "also remove work that is neither committed nor merged"),
    STORE,
)
def remove(options: Namespace) -> CommandResult:
    with open_thread(options, ask="removing its folders cannot be undone") as thread:
        done = thread.remove_folders(force=options.force)
    for branch in done["kept"]:
        tell(f"the branch {branch} is kept: it is checked out somewhere else")
    text = [f"removed {path}" for path in done["removed"]] or ["there was nothing to remove"]
    return CommandResult({"thread": thread.id, **done}, text)


@verb(
    "thread folder prune",
    "remove the work folders and branches of ended threads whose work is merged",
    "rolecall thread folder prune --dry-run\nrolecall thread folder prune",
    flag("--dry-run", "show what would be removed, and remove nothing"),
    STORE,
)
def prune(options: Namespace) -> CommandResult:
    with Rolecall(options.store, create=False) as rolecall:
        done = rolecall.prune_folders(is_dry=options.dry_run)
    removed = "would remove" if done["dryRun"] else "removed"
    lines = []
    for row in done["removed"]:
        branches = "".join(f" and the branch {branch}" for branch in row["branches"])
        lines.append(f"{removed} {row['thread']}: {', '.join(row['folders'])}{branches}")
    lines += [f"kept {row['thread']}: {row['why']}" for row in done["kept"]]
    return CommandResult(done, lines or ["no thread has its own folder"])


@verb(
    "thread import",
    "import threads from the predecessor",
    "rolecall thread import ~/.uncaged/workflow",
    argument("folder", "DIR", "the storage folder of uwf, with threads.yaml in it"),
    argument("--cas", "DIR", "where its nodes are, if not (only) in DIR/cas"),
    flag("--keep-going", "import the intact nodes if some are damaged"),
    flag("--config", "also import providers, models, agents and keys that are not set here"),
    STORE,
)
def import_folder(options: Namespace) -> CommandResult:
    with Rolecall(options.store) as rolecall, count_progress("imported") as progress:
        done = rolecall.import_uwf(
            options.folder, cas=options.cas, keep_going=options.keep_going, progress=progress
        )
    has_settings = import_uwf.has_config(options.folder)
    settings = import_uwf.take_config(options.folder)._asdict() if options.config and has_settings else None
    if has_settings and not options.config:
        command = in_this_store(options, f"rolecall thread import {quote(options.folder)} --config")
        tell(f"note: its configuration was not imported; to add what is not set here: {command}")
    shown = done._asdict() | {
        "unread": [unread._asdict() for unread in done.unread],
        "problems": [problem._asdict() for problem in done.problems],
        "config": settings,
    }
    lines = [f"{len(done.threads)} threads, {len(done.workflows)} workflows and {done.nodes} nodes imported"]
    lines += [f"kept unchanged here: {name}" for name in done.kept]
    lines += [f"not imported: {unread.name}: {unread.reason}" for unread in done.unread]
    lines += [f"{problem.kind}: {problem.node} {problem.text}" for problem in done.problems]
    for what, keys in (settings or {}).items():
        lines += [f"configuration, {what}: {key}" for key in keys]
    return CommandResult(shown, lines, code=4 if done.unread else 0)

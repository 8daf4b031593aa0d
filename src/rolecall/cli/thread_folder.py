"""`rolecall thread folder`: a thread's own work folders, looked at, merged, removed."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from rolecall.cli.output import add_format, add_store, printable, show
from rolecall.errors import UsageError
from rolecall.threads import handover, thread
from rolecall.threads.state import ThreadRef
from rolecall.threads.workspace import open_store


def run_folder_show(options: Namespace) -> None:
    with open_store(options.store, create=False) as store:
        ref = thread.find(store, options.thread)
    folders = [handover.show(kind, folder) for kind, folder in _folders(ref).items()]
    show(
        options,
        {"thread": thread.id_of(ref), "folders": folders},
        lambda: (
            "\n\n".join(_text(folder) for folder in folders) or "it works in the folder it was started in"
        ),
    )


def _folders(ref: ThreadRef) -> Mapping[str, Mapping[str, Any]]:
    folders: Mapping[str, Mapping[str, Any]] = ref.state.folders
    return folders


def _text(folder: Mapping[str, Any]) -> str:
    lines = [(folder["kind"], folder["path"]), ("state", folder["state"]), ("made for", folder["source"])]
    lines += [(key, str(folder[key])) for key in ("branch", "base", "from", "problem") if key in folder]
    if "ahead" in folder:
        lines.append(("commits", f"{folder['ahead']} ahead of {folder['into']}, {folder['behind']} behind"))
    if folder.get("checkedOut", folder.get("branch")) != folder.get("branch"):
        lines.append(("checked out", folder["checkedOut"] or "no branch"))
    for key in ("uncommitted", "changes"):
        if key in folder:
            lines.append((key, ("\n" + " " * 13).join(folder[key]) or "nothing"))
    return "\n".join(f"{name:12} {value}" for name, value in lines)


def run_folder_diff(options: Namespace) -> None:
    with open_store(options.store, create=False) as store:
        ref = thread.find(store, options.thread)
    there = {kind: folder for kind, folder in _folders(ref).items() if "removed" not in folder}
    if not there:
        raise UsageError(f"thread {thread.id_of(ref)} has no folder of its own")
    text = "".join(handover.diff(kind, folder) for kind, folder in there.items())
    show(options, {"thread": thread.id_of(ref), "diff": text}, lambda: text.rstrip("\n"))


def run_folder_merge(options: Namespace) -> None:
    with open_store(options.store, create=False) as store:
        ref = thread.find(store, options.thread)
        merged = handover.merge(store, ref)
    said = f"{merged['branch']} is merged into {merged['into']}: {merged['head']}"
    if not merged["merged"]:
        said = f"{merged['into']} has everything of {merged['branch']} already"
    show(options, {"thread": thread.id_of(ref), **merged}, lambda: said)


def run_folder_remove(options: Namespace) -> None:
    with open_store(options.store, create=False) as store:
        ref = thread.find(store, options.thread)
        done = handover.remove(store, ref, force=options.force)
    show(
        options,
        {"thread": thread.id_of(ref), **done},
        lambda: "\n".join(f"removed {path}" for path in done["removed"]) or "there was nothing to remove",
    )
    for branch in done["kept"]:
        print(printable(f"the branch {branch} is kept: it is checked out somewhere else"), file=sys.stderr)


def run_folder_prune(options: Namespace) -> None:
    with open_store(options.store, create=False) as store:
        done = handover.prune(store, is_dry=options.dry_run)
    show(options, done, lambda: _pruned_text(done))


def _pruned_text(done: Mapping[str, Any]) -> str:
    verb = "would remove" if done["dryRun"] else "removed"
    lines = []
    for row in done["removed"]:
        branches = "".join(f" and the branch {branch}" for branch in row["branches"])
        lines.append(f"{verb} {row['thread']}: {', '.join(row['folders'])}{branches}")
    lines += [f"kept {row['thread']}: {row['why']}" for row in done["kept"]]
    return "\n".join(lines) or "no thread has its own folder"


def _one_thread(parser: ArgumentParser) -> None:
    parser.add_argument(
        "thread", metavar="THREAD", help="a thread's id, or a part of it that no other id contains"
    )
    add_format(parser)
    add_store(parser)


folder_show_arguments = folder_diff_arguments = folder_merge_arguments = _one_thread


def folder_remove_arguments(parser: ArgumentParser) -> None:
    _one_thread(parser)
    parser.add_argument("--force", action="store_true", help="also what is neither committed nor merged")


def folder_prune_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be removed, and remove nothing"
    )
    add_format(parser)
    add_store(parser)

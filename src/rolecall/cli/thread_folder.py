"""`rolecall thread folder`: show, merge and remove a thread's own work folders."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from rolecall.cli import Reply, flag, verb
from rolecall.cli.arguments import THREAD
from rolecall.cli.output import STORE, printable
from rolecall.errors import UsageError
from rolecall.threads import handover, thread
from rolecall.threads.workspace import open_store


@verb(
    "thread folder show",
    "show a thread's own work folders and what is in them",
    "rolecall thread folder show 01M7F72S",
    THREAD,
    STORE,
)
def show_folders(options: Namespace) -> Reply:
    with open_store(options.store, create=False) as store:
        ref = thread.find(store, options.thread)
    folders = [handover.show(kind, folder) for kind, folder in ref.state.folders.items()]
    text = "\n\n".join(map(_folder_text, folders)) or "it works in the folder it was started in"
    return Reply({"thread": thread.id_of(ref), "folders": folders}, text)


def _folder_text(folder: Mapping[str, Any]) -> str:
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


@verb(
    "thread folder diff",
    "show what a thread changed in its own work folders",
    "rolecall thread folder diff 01M7F72S",
    THREAD,
    STORE,
)
def show_changes(options: Namespace) -> Reply:
    with open_store(options.store, create=False) as store:
        ref = thread.find(store, options.thread)
    folders = ref.state.folders
    kept = {kind: folder for kind, folder in folders.items() if "removed" not in folder}
    if not kept:
        raise UsageError(f"thread {thread.id_of(ref)} has no folder of its own")
    text = "".join(handover.diff(kind, folder) for kind, folder in kept.items())
    return Reply({"thread": thread.id_of(ref), "diff": text}, text.rstrip("\n"))


@verb(
    "thread folder merge",
    "merge a thread's branch into the one that is checked out",
    "rolecall thread folder merge 01M7F72S",
    THREAD,
    STORE,
)
def merge(options: Namespace) -> Reply:
    with open_store(options.store, create=False) as store:
        ref = thread.find(store, options.thread)
        merged = handover.merge(store, ref)
    text = f"{merged['into']} has everything of {merged['branch']} already"
    if merged["merged"]:
        text = f"{merged['branch']} is merged into {merged['into']}: {merged['head']}"
    return Reply({"thread": thread.id_of(ref), **merged}, text)


@verb(
    "thread folder remove",
    "remove a thread's own work folders and its branch",
    "rolecall thread folder remove 01M7F72S\nrolecall thread folder remove 01M7F72S --force",
    THREAD,
    flag("--force", "also what is neither committed nor merged"),
    STORE,
)
def remove(options: Namespace) -> Reply:
    with open_store(options.store, create=False) as store:
        ref = thread.find(store, options.thread)
        done = handover.remove(store, ref, force=options.force)
    for branch in done["kept"]:
        print(printable(f"the branch {branch} is kept: it is checked out somewhere else"), file=sys.stderr)
    text = "\n".join(f"removed {path}" for path in done["removed"]) or "there was nothing to remove"
    return Reply({"thread": thread.id_of(ref), **done}, text)


@verb(
    "thread folder prune",
    "remove the work folders and branches of ended threads whose work is merged",
    "rolecall thread folder prune --dry-run\nrolecall thread folder prune",
    flag("--dry-run", "show what would be removed, and remove nothing"),
    STORE,
)
def prune(options: Namespace) -> Reply:
    with open_store(options.store, create=False) as store:
        done = handover.prune(store, is_dry=options.dry_run)
    removed = "would remove" if done["dryRun"] else "removed"
    lines = []
    for row in done["removed"]:
        branches = "".join(f" and the branch {branch}" for branch in row["branches"])
        lines.append(f"{removed} {row['thread']}: {', '.join(row['folders'])}{branches}")
    lines += [f"kept {row['thread']}: {row['why']}" for row in done["kept"]]
    return Reply(done, "\n".join(lines) or "no thread has its own folder")

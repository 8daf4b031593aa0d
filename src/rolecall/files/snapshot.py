"""The files of a step as values: the tree that the role found, the tree that it left, and how the two differ.

`tree.py` takes and reads snapshots. This module is imported by every command that reads threads.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

from rolecall.errors import Damaged

_HEXADECIMAL = frozenset("0123456789abcdef")
MOST_CHANGES = 100
"""The number of changed files that a step lists. The trees contain all changed files."""
MOST_COMMITS = 100
"""The number of commits that a step lists, starting with the newest."""


class Snapshot(NamedTuple):
    tree: str
    """The id of a git tree."""
    repository: str
    """The name of the repository of ours that contains the tree."""
    omitted: tuple[str, ...] = ()
    """The files that were left out because they are too large or look like secrets, sorted. A name that ends with a
    slash is a nested repository with uncommitted files."""

    @property
    def nested(self) -> list[str]:
        """The paths of the nested repositories whose files are not recorded."""
        return [path.rstrip("/") for path in self.omitted if path.endswith("/")]


class FileDifference(TypedDict):
    """A `Changed` as JSON."""

    path: str
    kind: str
    added: int | None
    removed: int | None


class Changed(NamedTuple):
    """A file that differs between two trees."""

    path: str
    kind: str
    """`added`, `changed` or `removed`."""
    added: int | None
    """The number of lines added, or None for a binary file."""
    removed: int | None

    def dump(self) -> FileDifference:
        return {"path": self.path, "kind": self.kind, "added": self.added, "removed": self.removed}


class StepTree(NamedTuple):
    found: Snapshot
    left: Snapshot
    changed: tuple[Changed, ...] = ()
    more: int = 0
    """The number of changed files that are not in `changed`."""
    head: str = ""
    """The commit that was checked out when the role began, or empty outside git."""
    commits: tuple[str, ...] = ()
    """The commits that were made while the role worked, newest first."""

    def dump(self) -> dict[str, Any]:
        """Return the stored form. For a step that changed nothing, it contains only the tree that the role found."""
        stored: dict[str, Any] = {"found": self.found.tree, "repository": self.found.repository}
        if self.left.tree != self.found.tree:
            stored["left"] = self.left.tree
        if self.left.omitted:
            stored["omitted"] = list(self.left.omitted[:MOST_CHANGES])
        if self.found.omitted != self.left.omitted:
            stored["found_omitted"] = list(self.found.omitted[:MOST_CHANGES])
        if self.changed:
            stored["changed"] = [list(change) for change in self.changed[:MOST_CHANGES]]
        if more := self.more + max(0, len(self.changed) - MOST_CHANGES):
            stored["more"] = more
        if self.head:
            stored["head"] = self.head
        if self.commits:
            stored["commits"] = list(self.commits)
        return stored


def load_tree(stored: Mapping[str, Any] | None) -> StepTree | None:
    """Return the files of a step. Raise Damaged if a stored id does not have the form of an id, because the ids might
    come from a bundle and are passed to git."""
    if not stored:
        return None
    head, commits = stored.get("head", ""), tuple(stored.get("commits", ()))
    names = (stored["repository"], stored["found"], stored.get("left", stored["found"]), *commits)
    for name in (*names, head) if head else names:
        if not isinstance(name, str) or not name or set(name) - _HEXADECIMAL:
            raise Damaged(f"{name!r} is not the id of recorded files", hint="Restore the store.")
    repository, omitted = stored["repository"], tuple(stored.get("omitted", ()))
    found = Snapshot(stored["found"], repository, tuple(stored.get("found_omitted", omitted)))
    left = Snapshot(stored.get("left", stored["found"]), repository, omitted)
    changed = tuple(Changed(*change) for change in stored.get("changed", ()))
    return StepTree(found, left, changed, stored.get("more", 0), head, commits)

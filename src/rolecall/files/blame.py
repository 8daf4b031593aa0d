"""Find out in which recorded state of the files each line of a file originated.

The states become commits in a temporary repository, which borrows the objects of ours. Git then follows the lines
through these commits, including merges and renames.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import NamedTuple

from rolecall.errors import NotFound
from rolecall.files import git
from rolecall.files.snapshot import Snapshot
from rolecall.files.tree import FORMATS, Trees


class BlamedState(NamedTuple):
    """The files at one time. `parents` are the indexes of earlier states in the same list, with the main one first."""

    files: Snapshot
    parents: tuple[int, ...] = ()


class BlamedLine(NamedTuple):
    number: int
    """The number of the line, counted from 1."""
    text: str
    state: int
    """The index of the state that introduced the line."""


def blame(
    trees: Trees, states: Sequence[BlamedState], newest: int, path: str, lines: tuple[int, int] | None = None
) -> list[BlamedLine]:
    """Return the lines of a file in the state with the index `newest`, or only those from the first to the second
    number in `lines`."""
    data = trees.read(states[newest].files, path)
    total = data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
    if lines is not None and not 1 <= lines[0] <= lines[1] <= total:
        raise NotFound(f"{path} has only {total:,} lines, so lines {lines[0]} to {lines[1]} do not exist")
    objects = dict.fromkeys(trees.objects_of(state.files) for state in states)
    with TemporaryDirectory(prefix="rolecall-") as place:
        os.makedirs(os.path.join(place, "objects", "info"))
        os.makedirs(os.path.join(place, "refs"))
        for name, text in (
            ("objects/info/alternates", "".join(f"{folder}\n" for folder in objects)),
            ("config", f"{FORMATS[len(states[newest].files.tree) == 64]}[core]\n\tbare = true\n"),
            ("HEAD", "ref: refs/heads/states\n"),
        ):
            with open(os.path.join(place, name), "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
        env = {"GIT_DIR": place, "GIT_LITERAL_PATHSPECS": "1"}
        # The message of a commit is its index in the list, and its time is later than those of the commits before it.
        stream: list[str] = []
        for at, state in enumerate(states):
            stream += ["commit refs/heads/states", f"mark :{at + 1}", f"committer Rolecall <> {at + 1} +0000"]
            stream += [f"data {len(str(at))}", str(at)]
            for number, parent in enumerate(state.parents):
                stream.append(f"{'merge' if number else 'from'} :{parent + 1}")
            stream.append(f'M 040000 {state.files.tree} ""')
        stream += ["reset refs/heads/states", f"from :{newest + 1}", ""]
        git.run(place, "fast-import", "--quiet", "--force", env=env, stdin="\n".join(stream).encode())
        span = ("-L", f"{lines[0]},{lines[1]}") if lines else ()
        options = ("--porcelain", "--no-textconv", "--ignore-revs-file=", *span)
        found = git.run(place, "blame", *options, "HEAD", "--", path, env=env)
    return _read_blame(found.out)


def _read_blame(out: bytes) -> list[BlamedLine]:
    found: list[BlamedLine] = []
    places: dict[bytes, int] = {}
    commit, number = b"", 0
    is_header = True
    for line in out.split(b"\n"):
        if line.startswith(b"\t"):
            found.append(BlamedLine(number, line[1:].decode("utf-8", "replace"), places[commit]))
            is_header = True
        elif is_header and line:
            commit, number = line.split()[0], int(line.split()[2])
            is_header = False
        elif line.startswith(b"summary "):
            places[commit] = int(line.split()[1])
    return found

"""Take workflows from another folder or git repository, and later compare them with their source. Nothing in the source
is run.

A repository is fetched into an empty bare repository, one commit deep, and its files are read from git's objects. There
is no work tree, so no hook, filter, link or submodule has any effect.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import unified_diff
from typing import Literal, NamedTuple

from rolecall.errors import Hint, NotFound, RolecallError, StorageError, UsageError
from rolecall.files import git
from rolecall.settings import yaml12
from rolecall.settings.config_file import write_file
from rolecall.settings.form import did_you_mean
from rolecall.settings.repository import nearest, root_around
from rolecall.workflow import registry
from rolecall.workflow.pack import (
    LARGEST,
    MOST_BYTES,
    Pin,
    Tree,
    Unit,
    check_depth,
    check_size,
    find_units,
    is_taken,
    read_folder,
    read_pins,
    read_unit,
    write_pins,
)
from rolecall.workflow.places import ENDINGS, FOLDERS, PACKS

PATIENCE = 120.0
"""Seconds that one git command can take."""
_PROTOCOLS = "file:git:http:https:ssh"
_URL = re.compile(r"(?:https?|ssh|git|file)://\S+|\w[\w.-]*(?:@\w[\w.-]*)?:(?!:)\S+")
_BARE = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"


class Source(NamedTuple):
    """A place from which workflows are taken."""

    place: str
    """A git URL or a folder, whose path is absolute or relative to the project."""
    ref: str | None
    is_git: bool


class Pack(NamedTuple):
    """The workflows that a source contains now."""

    units: Mapping[str, Unit]
    commit: str | None


State = Literal["current", "outdated", "changed here", "missing here", "gone there", "unreachable"]


class PackComparison(NamedTuple):
    """A pinned workflow, compared with what its source offers now."""

    name: str
    pin: Pin
    state: State
    here: Unit | None
    offered: Unit | None
    new_pin: Pin
    """The pin of the workflow after an update."""
    reason: str = ""

    @property
    def can_update(self) -> bool:
        is_other = self.state in ("outdated", "missing here") or self.new_pin.ref != self.pin.ref
        return self.offered is not None and is_other and self.state != "changed here"


def packs_folder(folder: str) -> str:
    """Return the folder into which a project takes workflows from packs. The folder need not exist."""
    root = root_around(os.path.abspath(folder)) or os.path.abspath(folder)
    return nearest(PACKS, folder) or os.path.join(root, PACKS)


# -- taking workflows --


def add(folder: str, text: str, names: Sequence[str] = ()) -> tuple[dict[str, Pin], list[str]]:
    """Take the workflows `names` from a source, or all of its workflows if `names` is empty. Return their pins, and the
    names of the other workflows in the source. Nothing is written if one of them cannot be taken."""
    target = packs_folder(folder)
    if os.path.islink(target):
        raise UsageError(
            f"{target} is a link, and files of a pack must not have two paths", hint="Make it a folder."
        )
    source = parse_source(text, folder=folder, project=os.path.dirname(target))
    pack = read_pack(source, os.path.dirname(target))
    for name in names:
        if name not in pack.units:
            raise NotFound(
                f"{text} has no workflow {name!r}", hint=did_you_mean(name, pack.units, what="It has")
            )
    units = [pack.units[name].require_plain() for name in names or pack.units]
    pins, files = read_pins(target), registry.files_by_name(os.path.dirname(target))
    for unit in units:
        check_definition(unit)
        pin = pins.get(unit.name)
        if pin and unit.name in files and (pin.source, pin.ref) != (source.place, source.ref):
            moves = Hint("Move to that one", "update_workflow", workflow=unit.name, ref=source.ref)
            is_moved = pin.source == source.place and source.ref
            raise UsageError(
                f"{unit.name} is already here, from {pin.origin}",
                hint=moves if is_moved else f"Delete {os.path.relpath(files[unit.name])} first.",
            )
        if unit.name in files and not pin:
            others = [name for name in pack.units if name not in files]
            raise UsageError(
                f"there is already a workflow {unit.name!r}: {files[unit.name]}",
                hint=f"Name the ones to take: {', '.join(others)}." if others else "Rename yours first.",
            )
        if pin and unit.name in files and read_unit(files[unit.name]).content != unit.content:
            raise UsageError(
                f"{unit.name} is already here, with different content",
                hint=Hint("See how they differ", "update_workflow", workflow=unit.name),
            )
    added = {
        unit.name: Pin(source.place, unit.content, source.ref, pack.commit)
        for unit in units
        if unit.name not in pins or unit.name not in files
    }
    # Write the lock file first, because a crash between the two writes must not leave files that look like the
    # project's own.
    write_pins(target, {**pins, **added})
    for unit in units:
        if unit.name in added:
            write_unit(target, unit)
    return added, [name for name in pack.units if name not in pins and name not in added]


def parse_source(text: str, *, folder: str, project: str) -> Source:
    """Return the source that a user names as FOLDER or URL, either with or without #REF."""
    if text.startswith("-") or not text.isprintable():
        raise UsageError(f"{text!r} is neither a folder nor the address of a git repository")
    place, ref = text, None
    path = os.path.join(folder, os.path.expanduser(place))
    if not os.path.isdir(path) and "#" in text:
        place, _, ref = text.rpartition("#")
        path = os.path.join(folder, os.path.expanduser(place))
    if os.path.isdir(path):
        path = os.path.abspath(path)
        is_bare = os.path.isfile(os.path.join(path, "HEAD")) and os.path.isdir(os.path.join(path, "objects"))
        written = path if os.path.isabs(os.path.expanduser(place)) else os.path.relpath(path, project)
        return Source(written, ref, is_git=ref is not None or is_bare)
    if os.path.isfile(path) or place.endswith(ENDINGS):
        raise UsageError(
            f"{place} is a file, not a pack", hint=Hint("Register it", "put_workflow", file=place)
        )
    if not _URL.fullmatch(place):
        raise NotFound(
            f"{place!r} is neither a folder nor the address of a git repository",
            hint="For example ../flows, https://example.com/flows.git or git@example.com:flows.git#v1.",
        )
    login = re.match(r"(\w+)://([^/]*)@", place)
    if login and (login[1].startswith("http") or ":" in login[2]):  # ssh needs a user name, but no password
        raise UsageError(
            "the address contains a name or a password, which would be written into the lock file",
            hint="Leave it out, and let a git credential helper supply it.",
        )
    return Source(place, ref, is_git=True)


def check_definition(unit: Unit) -> None:
    """Raise an error if a YAML workflow is not valid on its own. Python is not loaded."""
    if unit.is_python:
        return
    with tempfile.TemporaryDirectory(prefix="rolecall-") as scratch:
        for name, data in unit.files.items():
            write_file(os.path.join(scratch, name), data)
        main = os.path.join(scratch, unit.main)
        errors = [one for one in registry.check_file(main).problems if one.severity == "error"]
        lines = "".join(f"\n  {problem}" for problem in errors).replace(scratch + os.sep, "")
    if errors:
        raise UsageError(f"the workflow {unit.name!r} of the pack does not validate:{lines}")


def write_unit(folder: str, unit: Unit) -> None:
    """Write the files of a workflow into a folder, in place of the files that the workflow had there."""
    if "/" not in unit.main:
        write_file(os.path.join(folder, unit.main), unit.files[unit.main])
        return
    place = os.path.join(folder, unit.name)
    try:
        made = tempfile.mkdtemp(prefix=f".{unit.name}-", dir=folder)
        for name, data in unit.files.items():
            write_file(os.path.join(made, name), data)
        if os.path.lexists(place):
            os.rename(place, os.path.join(made, "before"))
        os.rename(os.path.join(made, unit.name), place)
        shutil.rmtree(made)
    except OSError as error:
        raise StorageError(f"{place} cannot be written: {error.strerror}") from error


# -- comparing workflows with their source --


def compare(folder: str, names: Sequence[str] = (), *, ref: str | None = None) -> list[PackComparison]:
    """Compare the workflows `names` (or, if it is empty, all workflows from packs) with their sources. `ref` is another
    branch, tag or commit to compare with."""
    target = packs_folder(folder)
    project, pins = os.path.dirname(target), read_pins(target)
    for name in names:
        if name not in pins:
            raise NotFound(
                f"{name!r} does not come from a pack", hint=did_you_mean(name, pins, what="These do")
            )
    files, packs = registry.files_by_name(project), dict[Source, Pack | RolecallError]()
    found = []
    for name in names or sorted(pins):
        pin = pins[name]
        wanted = ref or pin.ref
        source = Source(pin.source, wanted, is_git=bool(pin.commit or ref))
        if source not in packs:
            try:
                packs[source] = read_pack(source, project)
            except RolecallError as error:
                packs[source] = error
        pack, here = packs[source], read_unit(files[name]) if name in files else None
        if isinstance(pack, RolecallError):
            found.append(PackComparison(name, pin, "unreachable", here, None, pin, pack.message))
            continue
        offered = pack.units.get(name)
        state: State = "current"
        if offered is None:
            state = "gone there"
        elif here is None:
            state = "missing here"
        elif here.content not in (pin.content, offered.content):
            state = "changed here"
        elif here.content != offered.content:
            state = "outdated"
        new_pin = Pin(pin.source, offered.content, wanted, pack.commit) if offered else pin
        found.append(PackComparison(name, pin, state, here, offered, new_pin))
    return found


def update(folder: str, chosen: Sequence[PackComparison]) -> None:
    """Replace workflows with what their sources offer."""
    target = packs_folder(folder)
    for one in chosen:
        if one.offered is not None:
            check_definition(one.offered.require_plain())
    pins = read_pins(target)
    write_pins(target, {**pins, **{one.name: one.new_pin for one in chosen}})
    for one in chosen:
        if one.offered is not None and (one.here is None or one.here.content != one.offered.content):
            write_unit(target, one.offered)
            if one.here is not None and one.here.place != one.offered.place:
                old = os.path.join(target, one.here.place)
                shutil.rmtree(old) if os.path.isdir(old) else os.unlink(old)


def diff(before: Unit | None, after: Unit) -> str:
    """Return how the files of a workflow differ, as a unified diff."""
    old = before.files if before else {}
    lines: list[str] = []
    for path in sorted({*old, *after.files}):
        texts = [files.get(path, b"").decode("utf-8", "replace") for files in (old, after.files)]
        sides = [text.splitlines(keepends=True) for text in texts]
        for line in unified_diff(sides[0], sides[1], f"a/{path}", f"b/{path}"):
            lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


# -- reading a source --


def read_pack(source: Source, project: str) -> Pack:
    """Read the workflows of a source. These are the workflows in its workflow folder or, if it has none, the YAML files
    in its top folder that are workflows."""
    if source.is_git:
        place = source.place
        if not _URL.fullmatch(place):
            place = os.path.normpath(os.path.join(project, place))
        with tempfile.TemporaryDirectory(prefix="rolecall-") as scratch:
            commit = _fetch(scratch, place, source.ref)
            tops = {name: (kind, ident) for kind, ident, name in _list_tree(scratch, commit)}
            folder = next((name for name in FOLDERS if tops.get(name, ("",))[0] == "tree"), "")
            root = tops[folder][1] if folder else commit
            tree = _read_tree(scratch, root, is_deep=bool(folder))
        units = find_units(tree) if folder else _find_loose(tree)
    else:
        commit, place = None, os.path.join(project, source.place)
        if not os.path.isdir(place):
            raise NotFound(f"there is no folder {place}")
        own = os.path.basename(os.path.abspath(place)) in FOLDERS
        below = [os.path.join(place, name) for name in FOLDERS]
        below = [path for path in below if os.path.isdir(path) and not os.path.islink(path)]
        if own or below:
            units = find_units(read_folder(place if own else below[0]))
        else:
            units = _find_loose(read_folder(place, is_deep=False))
    if not units:
        raise NotFound(
            f"{source.place} has no workflows",
            hint="They are in its folder .workflows or workflows, or YAML files at its top.",
        )
    return Pack(units, commit)


def _find_loose(tree: Tree) -> dict[str, Unit]:
    """Return the workflows among files outside a workflow folder. A file counts as a workflow if it is YAML with roles
    and a graph."""
    found = {}
    for name, unit in find_units(tree).items():
        if unit.is_python or "/" in unit.main or unit.main not in unit.files:
            continue
        with suppress(RolecallError, UnicodeDecodeError):
            value = yaml12.load(unit.files[unit.main].decode(), source=unit.main)
            if isinstance(value, dict) and {"roles", "graph"} <= value.keys():
                found[name] = unit
    return found


def _run_git(scratch: str, *args: str, stdin: bytes = b"", doing: str = "read the pack") -> git.GitResult:
    settings = ("fetch.fsckObjects=true", "submodule.recurse=false")
    # GIT_ALLOW_PROTOCOL takes precedence over the configuration, in which a transport could be a command.
    env = {"GIT_ALLOW_PROTOCOL": _PROTOCOLS}
    result = git.ask(scratch, *args, settings=settings, env=env, stdin=stdin, timeout=PATIENCE)
    if result.code:
        raise NotFound(f"git cannot {doing}: {result.err}", hint="Check the address and the name.")
    return result


def _fetch(scratch: str, place: str, ref: str | None) -> str:
    """Fetch one commit into an empty bare repository. Leave out large files if the server supports that."""
    if ref and (ref.startswith("-") or git.ask(scratch, "check-ref-format", f"refs/{ref}").code):
        raise UsageError(f"{ref!r} is not the name of a branch, a tag or a commit")
    _run_git(scratch, "init", "--quiet", "--bare", "--template=", ".")
    options = ["--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules"]
    if "://" in place:  # git cannot filter what it fetches from a path
        options.append(f"--filter=blob:limit={LARGEST + 1}")
    doing = f"fetch {place}{f'#{ref}' if ref else ''}"
    _run_git(scratch, "fetch", *options, "--", place, ref or "HEAD", doing=doing)
    # Without the URL of a server, git does not fetch missing files on demand.
    with open(os.path.join(scratch, "config"), "w", encoding="ascii") as file:
        file.write(_BARE)
    commit = git.commit(scratch, "FETCH_HEAD")
    if commit is None:
        raise NotFound(f"{place} has no commit {ref or 'HEAD'}")
    return commit


def _list_tree(scratch: str, ident: str) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the object id and the name of each entry in one folder. The kind of a link is `link`."""
    for record in _run_git(scratch, "ls-tree", "-z", ident).words:
        (mode, kind, blob), name = record.partition("\t")[0].split(), record.partition("\t")[2]
        yield "link" if mode == "120000" else kind, blob, name


def _read_tree(scratch: str, ident: str, *, is_deep: bool) -> Tree:
    """Read the files below a folder of a commit, with the same rules as `read_folder`. The folders are listed one at a
    time, because a small repository can contain an endless number of folders."""
    blobs: dict[str, str] = {}
    refused: dict[str, str] = {}
    waiting = [("", ident)]
    while waiting:
        below, tree = waiting.pop()
        for kind, blob, name in _list_tree(scratch, tree):
            path = f"{below}/{name}" if below else name
            if not is_taken(name) or (kind == "tree" and not is_deep):
                continue
            if kind == "tree":
                check_depth(path)
                waiting.append((path, blob))
            elif kind == "blob":
                blobs[path] = blob
            else:
                refused[path] = "is a link" if kind == "link" else "is a submodule"
            check_size(len(blobs) + len(refused) + len(waiting), MOST_BYTES)
    asked = "".join(f"{blob}\n" for blob in blobs.values()).encode()
    sizes = _run_git(scratch, "cat-file", "--batch-check", stdin=asked).text.splitlines()
    left = MOST_BYTES
    for path, line in zip(list(blobs), sizes, strict=True):
        size = line.rpartition(" ")[2]
        # The size of a file that was not fetched is "missing".
        if not size.isdecimal() or int(size) > LARGEST:
            refused[path] = f"is larger than {LARGEST:,} bytes"
            del blobs[path]
        else:
            left -= int(size)
    check_size(0, left)
    asked = "".join(f"{blob}\n" for blob in blobs.values()).encode()
    out, files, at = _run_git(scratch, "cat-file", "--batch", stdin=asked).out, dict[str, bytes](), 0
    for path in blobs:
        end = out.index(b"\n", at)
        after = end + 1 + int(out[at:end].rpartition(b" ")[2])
        files[path] = out[end + 1 : after]
        at = after + 1
    return Tree(files, refused)

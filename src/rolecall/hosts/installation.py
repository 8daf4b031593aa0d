"""Installs Rolecall in Claude Code, Codex and OpenCode, and uninstalls it again.

Each host module lists the entries it needs (`list_entries`), all made from one `HostSetup`. No record is kept between
installing and uninstalling. Each of our own files has a line with a hash, which reveals a file that was edited by hand
and must be kept. In a JSON or TOML file shared with others, our part is a named member, or an entry that starts our
command. `plan_install` and `plan_removal` only read, and return changes; `file_change` shows and makes the changes.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

import tomlkit

from rolecall.errors import Hint, NotFound, RolecallError, UsageError
from rolecall.hosts import file_change, git_exclude
from rolecall.hosts.file_change import FileChange
from rolecall.hosts.names import HOSTS
from rolecall.hosts.setup import HostSetup, check_paths
from rolecall.settings import config
from rolecall.settings.repository import root_around
from rolecall.store.canonical import JsonObject


class OwnFile(NamedTuple):
    """A file that is entirely ours, in a format with comments: `.md` with frontmatter, `.toml`, `.yaml` or `.js`."""

    path: str
    text: str


class FileMember(NamedTuple):
    """A named value in a JSON or TOML file, such as our server. Keys that somebody added to it are kept."""

    path: str
    keys: tuple[str, ...]
    value: JsonObject
    is_ours: Callable[[Any], bool]
    """A function that returns whether a value with this name is ours, from any version of Rolecall."""


class Items(NamedTuple):
    """Our entries in an array in a JSON file, such as our hooks among all hooks for an event."""

    path: str
    keys: tuple[str, ...]
    items: tuple[Any, ...]
    is_ours: Callable[[Any], bool]
    """A function that returns whether an entry is ours, from any version of Rolecall."""
    has_ours: Callable[[Any], bool] = lambda _: False
    """A function that returns whether somebody's own entry contains our command; only its author can remove it."""


Entry: TypeAlias = OwnFile | FileMember | Items


class Wiring(NamedTuple):
    """Everything that we install in a host."""

    entries: Sequence[Entry]
    sweeps: Sequence[str] = ()
    """Glob patterns for our own files, to find those that `entries` no longer names."""
    root: str = ""
    """The folder that no link is allowed to lead out of; empty if links can lead anywhere."""


def host_module(host: str) -> Any:
    """Return the module that handles a host's files; `setup.py` describes its interface."""
    if host not in HOSTS:
        raise NotFound(f"the host {host!r} is not known", hint=f"Hosts: {', '.join(HOSTS)}.")
    return import_module(f"rolecall.hosts.{host}.install")


def wiring_of(host: str, setup: HostSetup) -> Wiring:
    module = host_module(host)
    return Wiring(module.list_entries(setup), module.sweeps(setup), setup.project)


class HostInstallation(NamedTuple):
    """What installing in a host, or uninstalling, has changed or would change."""

    title: str
    """The host's name for people, such as "Claude Code"."""
    setup: HostSetup
    changes: Sequence[FileChange]
    paths: Sequence[str] = ()
    """The files that the installation consists of."""
    is_excluded: bool = False
    """Whether `.git/info/exclude` keeps the files out of git."""
    next_steps: Sequence[str] = ()
    """What the person still has to do in the host, if something changed."""
    elsewhere: HostSetup | None = None
    """The installation in the other scope, if there is one: after installing, because every hook then runs twice, and
    after uninstalling if nothing was found in this scope."""

    @property
    def change_count(self) -> int:
        """The number of files that change."""
        return sum(change.is_change for change in self.changes)

    def find_exclude_file(self) -> str | None:
        """Return the file that could keep the project's new files out of git, or None if there is no such file or git
        already ignores all of them."""
        file = git_exclude.find(self.setup.project) if self.setup.project else None
        return None if file is None or git_exclude.hides(self.setup.project, self.paths) else file


def install(
    host: str,
    setup: HostSetup,
    *,
    exclude: bool | None = None,
    force: bool = False,
    is_dry: bool = False,
    around: str = "",
) -> HostInstallation:
    """Install in a host. For the user's scope, `around` is a folder in a project whose hooks might run twice."""
    check_paths(setup)
    if not setup.key:
        setup = setup._replace(key=os.path.join(config.home(), config.HOST_KEYS, os.urandom(16).hex()))
    module, wiring = host_module(host), wiring_of(host, setup)
    changes = plan_install(wiring, force=force)
    paths = list({entry.path: None for entry in wiring.entries})
    file = git_exclude.find(setup.project) if setup.project else None
    if exclude and file is None:
        hint = Hint("Leave it out, or name another project", "name_project")
        raise UsageError("files can be kept out of git only in a git repository", hint=hint)
    is_excluded = file is not None and (exclude or (exclude is None and git_exclude.has_block(file, host)))
    if file is not None and is_excluded:
        changes.append(git_exclude.with_block(file, host, setup.project, paths))
    if not is_dry:
        # Only hosts know the key, which is the name of the file. The file also contains the key, so that no other
        # file can pass for it.
        os.makedirs(os.path.dirname(setup.key), mode=0o700, exist_ok=True)
        with open(setup.key, "w", encoding="utf-8") as key:
            key.write(os.path.basename(setup.key))
        file_change.make(changes, roots=module.roots(setup), is_private=setup.scope == "user")
    found = HostInstallation(module.TITLE, setup, changes, paths, bool(is_excluded))
    if not found.change_count:
        return found
    elsewhere = _find_elsewhere(module, setup, around)
    return found._replace(next_steps=module.next_steps(setup), elsewhere=elsewhere)


def uninstall(
    host: str, setup: HostSetup, *, force: bool = False, is_dry: bool = False, around: str = ""
) -> HostInstallation:
    """Remove an installation from a host. The arguments are the same as for `install`."""
    check_paths(setup)
    module, plan = host_module(host), plan_removal(wiring_of(host, setup), force=force)
    changes = [change for change in plan if change.state != "same"]
    file = git_exclude.find(setup.project) if setup.project else None
    if file and git_exclude.has_block(file, host):
        changes.append(git_exclude.without_block(file, host))
    if not is_dry:
        file_change.make(changes, roots=module.roots(setup), is_private=setup.scope == "user")
    elsewhere = None if changes else _find_elsewhere(module, setup, around)
    return HostInstallation(module.TITLE, setup, changes, elsewhere=elsewhere)


def _find_elsewhere(module: Any, setup: HostSetup, around: str) -> HostSetup | None:
    """Return the setup in the other scope (the user, or the project around a folder) if hooks are installed there."""
    other = setup._replace(scope="user", project="")
    if setup.scope == "user":
        if (folder := root_around(around)) is None:
            return None
        other = setup._replace(scope="project", project=folder)
    try:
        found = module.commands(other)
    except RolecallError:  # an unreadable file is reported when installing in that scope
        return None
    return other if any(found.hooks.values()) else None


# -- planning: only reads files --


def plan_install(wiring: Wiring, *, force: bool = False) -> list[FileChange]:
    """Return the changes that installing would make. Raise an error that names every file that prevents installing."""
    return _plan_or_refuse(wiring, is_removal=False, force=force)


def plan_removal(wiring: Wiring, *, force: bool = False) -> list[FileChange]:
    """Return the changes that uninstalling would make."""
    changes = _plan_or_refuse(wiring, is_removal=True, force=force)
    return [change for change in changes if change.before is not None]


def is_present(wiring: Wiring) -> bool:
    """Return whether any of our entries is installed in the host, as far as the host's files are readable."""
    changes, _ = _plan(wiring, is_removal=True, force=False)
    return any(change.is_change or change.note for change in changes)


def _plan_or_refuse(wiring: Wiring, *, is_removal: bool, force: bool) -> list[FileChange]:
    changes, refusals = _plan(wiring, is_removal=is_removal, force=force)
    for change in changes:
        try:
            if change.is_change:
                file_change.check_target(change.path, wiring.root)
        except RolecallError as error:
            refusals.append(error)
    if len(refusals) == 1:
        raise refusals[0]
    if refusals:
        lines = "".join(f"\n  {error.message}" for error in refusals)
        raise UsageError(f"nothing was written:{lines}", hint=refusals[0].hint)
    return changes


def _plan(wiring: Wiring, *, is_removal: bool, force: bool) -> tuple[list[FileChange], list[RolecallError]]:
    by_path: dict[str, list[Entry]] = {}
    for entry in wiring.entries:
        by_path.setdefault(entry.path, []).append(entry)
    changes: list[FileChange] = []
    refusals: list[RolecallError] = []
    for path, entries in by_path.items():
        try:
            before = file_change.read_text(path)
            if isinstance(own := entries[0], OwnFile):
                after, note = _edit_own_file(before, None if is_removal else own, force=force)
                changes.append(_change(path, before, after, note))
            elif before is None and is_removal:
                changes.append(FileChange(path, None, None))
            else:
                document = parse(path, before)
                notes = [
                    _edit(document, entry, is_removal=is_removal, force=force)
                    for entry in entries
                    if not isinstance(entry, OwnFile)
                ]
                after = _dump(path, document, before)
                changes.append(_change(path, before, after, "; ".join(filter(None, notes))))
        except RolecallError as error:
            refusals.append(error)

    # Find our files that are no longer needed, such as the file of an agent that was removed from the catalogue.
    for path in sorted({path for pattern in wiring.sweeps for path in glob.glob(pattern)} - set(by_path)):
        if os.path.isfile(path) and not os.path.islink(path):
            text = (file_change.read(path) or b"").decode(errors="replace")
            after, note = _edit_own_file(text, None, force=force)
            if note or after is None:
                changes.append(_change(path, text, after, note))
    return changes, refusals


def _change(path: str, before: str | None, after: str | None, note: str) -> FileChange:
    old, new = (None if text is None else text.encode() for text in (before, after))
    return FileChange(path, old, new, note)


# -- JSON and TOML files --


def read_value(path: str, keys: Sequence[str] = ()) -> Any:
    """Return the value at `keys` in a JSON or TOML file, or None."""
    return _find(parse(path, file_change.read_text(path)), keys)


def parse(path: str, text: str | None) -> Any:
    """Parse a JSON or TOML file; return an empty document if the file does not exist."""
    kind = "TOML" if path.endswith(".toml") else "JSON"
    try:
        if kind == "TOML":
            return tomlkit.parse(text or "")
        return {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "Correct the file and try again."
        raise UsageError(f"{path}: it is not {kind}, and was left unchanged: {error}", hint=hint) from None


def _dump(path: str, document: Any, before: str | None) -> str | None:
    """Return the document as text, with the file's indentation, or None if the document is empty."""
    if path.endswith(".toml"):
        text = tomlkit.dumps(document)
        if tomllib.loads(text) != document.unwrap():
            hint = "Edit the file by hand."
            raise UsageError(f"{path}: the server cannot be added to this content", hint=hint)
        if text == before:
            return text
        return f"{text.rstrip()}\n" if text.strip() else None
    if before is not None and document == json.loads(before):
        return before
    indent = re.search(r"\n([ \t]+)\S", before or "")
    try:
        text = json.dumps(document, ensure_ascii=False, indent=indent[1] if indent else 2, allow_nan=False)
        text.encode()
    except ValueError as error:  # a lone surrogate, or a number too large for a float
        raise UsageError(f"{path}: it cannot be written as JSON, and was left unchanged: {error}") from None
    return f"{text}\n" if document else None


def _edit(document: Any, entry: FileMember | Items, *, is_removal: bool, force: bool) -> str:
    """Put an entry into a document or remove it, and return a note of what stays."""
    there, name = _find(document, entry.keys), ".".join(entry.keys)
    if isinstance(entry, FileMember):
        is_ours = there is not None and entry.is_ours(there)
        if is_removal and is_ours:
            _delete(document, entry.keys)
        elif is_ours:
            there.update({key: value for key, value in entry.value.items() if there.get(key) != value})
        elif not is_removal and there is not None and not force:
            hint = Hint("Rename it, or replace it", "force")
            raise UsageError(f"{entry.path}: {name} exists and is not Rolecall's", hint=hint)
        elif not is_removal:
            _set(document, entry, dict(entry.value))
        return ""

    if not is_removal and not isinstance(there, list | None):
        raise UsageError(f"{entry.path}: {name} is not an array", hint="Correct the file.")
    # Entries keep their positions, because Codex uses a hook's position to remember whether the user trusts the hook.
    before = there if isinstance(there, list) else []
    items, fresh = [], [] if is_removal else list(entry.items)
    for item in before:
        if not entry.is_ours(item):
            items.append(item)
        elif fresh:
            items.append(fresh.pop(0))
    if items or fresh:
        _set(document, entry, [*items, *fresh])
    elif before:
        _delete(document, entry.keys)
    is_mixed = is_removal and any(map(entry.has_ours, items))
    return f"an entry of {name} has ours among others' and stays" if is_mixed else ""


def _find(document: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        if not isinstance(document, Mapping) or key not in document:
            return None
        document = document[key]
    return document


def _set(document: Any, entry: FileMember | Items, value: Any, depth: int = 0) -> None:
    """Set the value of an entry, and create missing objects on the path to that value."""
    if not isinstance(document, MutableMapping):
        where = ".".join(entry.keys[:depth]) or "the document"
        raise UsageError(f"{entry.path}: {where} is not an object", hint="Correct the file and try again.")
    first, *rest = entry.keys[depth:]
    if rest and first in document:
        _set(document[first], entry, value, depth + 1)
    else:
        for key in reversed(rest):
            value = {key: value}
        document[first] = value


def _delete(document: Any, keys: Sequence[str]) -> None:
    """Delete a value, and the objects on the path to that value that become empty."""
    first, *rest = keys
    if rest:
        _delete(document[first], rest)
    if not rest or not document[first]:
        del document[first]


# -- files of our own --

_SIGNATURE = "rolecall install wrote this file; a file changed by hand is left alone. sha256:"
_SIGNED = re.compile(r"^(?:#|//) rolecall install .*sha256:([0-9a-f]{64})\r?\n", re.MULTILINE)
"""The pattern of the line with the hash, in the wording of any version."""


def is_unchanged(text: str) -> bool:
    """Return whether a file is ours and unchanged."""
    found = _SIGNED.search(text)
    return found is not None and found[1] == _digest(text[: found.start()] + text[found.end() :])


def _digest(text: str) -> str:
    """Hash a text without regard to line endings, because git and editors can change them."""
    return hashlib.sha256(text.replace("\r\n", "\n").encode()).hexdigest()


def _edit_own_file(text: str | None, entry: OwnFile | None, *, force: bool) -> tuple[str | None, str]:
    """Return the new text of a file, which is None if the file is removed (without `entry`), and a note."""
    wanted = None
    if entry:
        comment = "//" if entry.path.endswith(".js") else "#"
        head = "---\n" if entry.text.startswith("---\n") else ""
        wanted = f"{head}{comment} {_SIGNATURE}{_digest(entry.text)}\n{entry.text.removeprefix(head)}"
    is_signed = text is not None and _SIGNED.search(text) is not None
    if text is None or text == wanted or is_unchanged(text) or (force and (entry or is_signed)):
        return wanted, ""
    if is_signed:
        return text, f"changed by hand, so it stays; --force {'replaces' if entry else 'removes'} it"
    if entry is None:
        return text, ""
    hint = Hint("Rename it, or replace it", "force")
    raise UsageError(f"{entry.path}: this file exists and is not Rolecall's", hint=hint)

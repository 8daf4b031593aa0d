"""Changes `config.yaml` and `.env` in place: one value at a time, what is written around it kept.

A change is made in the text, at the place the value stands, so comments and order survive. The result is
read back before it is taken: where the text is written in a way this cannot change, it says so and leaves
the file as it was. Files are replaced whole, readable by their owner only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rolecall.errors import StorageError, UsageError
from rolecall.settings import config, yaml12
from rolecall.settings.config import read_text

_PLAIN = re.compile(r"[A-Za-z/][\w./@+-]*(:[\w./@+-]+)*", re.ASCII)


# -- one value of config.yaml --


def with_value(text: str, path: Sequence[str], value: Any, *, source: str) -> str:
    """`text` with `value` at `path`."""
    wanted = _parsed(text, source)
    _assign(wanted, path, value, source)
    if not _content(text):
        changed = text + _newline(text) + _block(path, value, 0) + "\n"
    else:
        root = _composed(text)
        found, rest = _nearest(root, path)
        changed = _replaced(text, found, value) if not rest else _inserted(text, found, rest, value)
    return _checked(changed, wanted, source)


def without_value(text: str, path: Sequence[str], *, source: str) -> str:
    """`text` without what stands at `path`, and without what would be left empty by that."""
    wanted = _parsed(text, source)
    parents = [wanted]
    for step in path[:-1]:
        parents.append(parents[-1][step])
    del parents[-1][path[-1]]
    while len(parents) > 1 and not parents[-1]:
        parents.pop()
        path = path[:-1]
        del parents[-1][path[-1]]
    owner, _ = _nearest(_composed(text), path[:-1])
    key, node = next((key, node) for key, node in owner[1].value if key.value == path[-1])
    if owner[1].flow_style:
        changed = _replaced(text, owner, _without(config.parse(text, source), path))
    else:
        start = text.rfind("\n", 0, key.start_mark.index) + 1
        changed = text[:start] + text[_line_end(text, _end(text, node)) :]
    return _checked(changed, wanted, source)


def _parsed(text: str, source: str) -> Any:
    """The settings, with no part shared between two places as an anchor would have it."""
    return json.loads(json.dumps(config.parse(text, source)))


def _without(settings: Any, path: Sequence[str]) -> Any:
    for step in path[:-1]:
        settings = settings[step]
    return {key: value for key, value in settings.items() if key != path[-1]}


def _assign(settings: Any, path: Sequence[str], value: Any, source: str) -> None:
    for index, step in enumerate(path[:-1]):
        if settings.get(step) is None:
            settings[step] = {}
        settings = settings[step]
        if not isinstance(settings, dict):
            raise UsageError(
                f"{source}: {'.'.join(path[: index + 1])} is not a mapping", hint="Correct the file."
            )
    settings[path[-1]] = value


def _checked(changed: str, wanted: Any, source: str) -> str:
    try:
        is_right = config.parse(changed, source) == wanted
    except UsageError:
        is_right = False
    if is_right:
        return changed
    raise UsageError(
        f"{source} is written in a way that this command cannot change without loss",
        hint="Nothing was changed. Edit the file by hand.",
    )


def _composed(text: str) -> tuple[Any, Any]:
    """The root of the text as a pair of its key, which it has not, and itself."""
    import yaml

    return None, yaml.compose(text, Loader=yaml.SafeLoader)


def _content(text: str) -> str:
    return "".join(line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def _nearest(root: tuple[Any, Any], path: Sequence[str]) -> tuple[tuple[Any, Any], Sequence[str]]:
    """The last thing on the path that is there, and the rest of the path."""
    for index, step in enumerate(path):
        entries = root[1].value if root[1].id == "mapping" else []
        entry = next(((key, node) for key, node in entries if key.value == step), None)
        if entry is None:
            return root, path[index:]
        root = entry
    return root, ()


def _replaced(text: str, entry: tuple[Any, Any], value: Any) -> str:
    key, node = entry
    if node.id == "scalar" and node.start_mark.index == node.end_mark.index:
        start = end = text.index(":", key.end_mark.index) + 1
    elif node.id == "scalar" or node.flow_style:
        start, end = node.start_mark.index, _end(text, node)
        return text[:start] + _flow(value) + text[end:]
    else:
        start, end = text.index(":", key.end_mark.index) + 1, _end(text, node)
    return text[:start] + " " + _flow(value) + text[end:]


def _inserted(text: str, entry: tuple[Any, Any], path: Sequence[str], value: Any) -> str:
    key, node = entry
    if node.id == "mapping" and node.flow_style:
        end = node.end_mark.index - 1
        comma = ", " if node.value else ""
        return text[:end].rstrip() + comma + _flow_entry(path, value) + text[end:]
    if node.id == "mapping":
        at = _line_end(text, _end(text, node))
        block = _block(path, value, node.value[0][0].start_mark.column)
        return text[:at] + _newline(text[:at]) + block + "\n" + text[at:]
    # The key has no value yet.
    at = _line_end(text, text.index(":", key.end_mark.index) + 1)
    return text[:at] + _newline(text[:at]) + _block(path, value, key.start_mark.column + 2) + "\n" + text[at:]


def _end(text: str, node: Any) -> int:
    """Where a value ends; a block reaches, by its own account, to the next thing after it."""
    if node.id != "scalar" and not node.flow_style and node.value:
        last = node.value[-1]
        key, node = last if isinstance(last, tuple) else (None, last)
        if key is not None and node.id == "scalar" and node.start_mark.index == node.end_mark.index:
            return text.index(":", key.end_mark.index) + 1
        return _end(text, node)
    end: int = node.end_mark.index
    return len(text[:end].rstrip()) if node.id == "scalar" and node.style in ("|", ">") else end


def _line_end(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


def _newline(text: str) -> str:
    return "\n" if text and not text.endswith("\n") else ""


def _block(path: Sequence[str], value: Any, column: int) -> str:
    lines = [f"{' ' * (column + 2 * depth)}{_flow(step)}:" for depth, step in enumerate(path)]
    return "\n".join(lines) + " " + _flow(value)


def _flow_entry(path: Sequence[str], value: Any) -> str:
    for step in reversed(path[1:]):
        value = {step: value}
    return f"{_flow(path[0])}: {_flow(value)}"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and yaml12.load(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


# -- one variable of .env --


def with_variable(text: str, name: str, value: str) -> str:
    """The text of a `.env` with one variable set; every other line stays."""
    quote = "'" if '"' in value else '"'
    if quote in value or any(character in value for character in "\n\r\0"):
        raise UsageError(f"the value of {name} cannot be written into a .env file")
    line = (
        f"{name}={value}"
        if re.fullmatch(r"[\w./+=:@-]+", value, re.ASCII)
        else f"{name}={quote}{value}{quote}"
    )
    pattern = re.compile(rf"^[ \t]*(export[ \t]+)?{re.escape(name)}[ \t]*=.*$", re.MULTILINE)
    if not pattern.search(text):
        return text + _newline(text) + line + "\n"
    # The last of several lines is the one that counts, so all of them become this one.
    return pattern.sub(lambda _: line, text)


# -- files --


def change(path: str, edit: Callable[[str], str]) -> None:
    """Replace a file by what `edit` makes of its text, while no other change of ours happens."""
    path = os.path.realpath(path)
    with _alone(os.path.dirname(path)):
        text = read_text(path)
        changed = edit(text)
        if changed != text or not _is_private(path):
            write_private(path, changed)


def write_private(path: str, text: str) -> None:
    """Replace a file at once and as a whole; only its owner may read it."""
    draft = f"{path}.{os.getpid()}.new"
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o600)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.replace(draft, path)
    except OSError as exc:
        if os.path.exists(draft):
            os.unlink(draft)
        raise StorageError(f"{path} cannot be written: {exc.strerror}") from exc


@contextmanager
def _alone(folder: str) -> Iterator[None]:
    """One process at a time; the lock is on the folder, so it leaves no file behind."""
    import fcntl

    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as exc:
        raise StorageError(f"the folder {folder} cannot be used: {exc.strerror}") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_private(path: str) -> bool:
    return not os.path.exists(path) or os.stat(path).st_mode & 0o077 == 0

"""Change `config.yaml` and `.env` in place, one value at a time, and keep everything else unchanged.

The text is edited where the value is, so comments and order survive. The result is read back before it is used. If the
text is written in a way that cannot be edited like this, an error says so, and the file stays unchanged. Files are
replaced as a whole, and only their owner can read them.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import yaml

from rolecall.errors import StorageError, UsageError
from rolecall.settings import config, yaml12
from rolecall.settings.config import read_text
from rolecall.store import atomic

_PLAIN = re.compile(r"[A-Za-z/][\w./@+-]*(:[\w./@+-]+)*", re.ASCII)


# -- one value of config.yaml --


def with_value(text: str, path: Sequence[str], value: Any, *, source: str) -> str:
    """Return `text` with `value` at `path`."""
    wanted = settings = _parse(text, source)
    for index, step in enumerate(path[:-1]):
        if settings.get(step) is None:
            settings[step] = {}
        settings = settings[step]
        if not isinstance(settings, dict):
            key = ".".join(path[: index + 1])
            raise UsageError(f"{source}: {key} is not a mapping", hint="Correct the file.")
    settings[path[-1]] = value

    if all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines()):
        changed = _add_line(text, len(text), path, value, 0)
    else:
        found, rest = _find(text, path)
        changed = _insert(text, found, rest, value) if rest else _replace(text, found, value)
    return _check(changed, wanted, source)


def without_value(text: str, path: Sequence[str], *, source: str) -> str:
    """Return `text` without the value at `path`, and without the sections that become empty."""
    wanted = _parse(text, source)
    parents = [wanted]
    for step in path[:-1]:
        parents.append(parents[-1][step])
    del parents[-1][path[-1]]
    while len(parents) > 1 and not parents[-1]:
        parents.pop()
        path = path[:-1]
        del parents[-1][path[-1]]
    owner, _ = _find(text, path[:-1])
    key, node = next((key, node) for key, node in owner[1].value if key.value == path[-1])
    if owner[1].flow_style:
        changed = _replace(text, owner, parents[-1])
    else:
        start = text.rfind("\n", 0, key.start_mark.index) + 1
        changed = text[:start] + text[_line_end(text, _end(text, node)) :]
    return _check(changed, wanted, source)


def _parse(text: str, source: str) -> Any:
    """Parse the settings. Parts that YAML anchors would share are copied."""
    return json.loads(json.dumps(config.parse(text, source)))


def _check(changed: str, wanted: Any, source: str) -> str:
    with suppress(UsageError):
        if config.parse(changed, source) == wanted:
            return changed
    raise UsageError(
        f"{source} is written in a way that this command cannot change without losing something",
        hint="Nothing was changed. Edit the file by hand.",
    )


def _find(text: str, path: Sequence[str]) -> tuple[tuple[Any, Any], Sequence[str]]:
    """Return the last existing entry on the path, as its key and value, and the rest of the path."""
    entry: tuple[Any, Any] = None, yaml.compose(text, Loader=yaml.SafeLoader)
    for index, step in enumerate(path):
        entries = entry[1].value if entry[1].id == "mapping" else []
        found = next(((key, node) for key, node in entries if key.value == step), None)
        if found is None:
            return entry, path[index:]
        entry = found
    return entry, ()


def _replace(text: str, entry: tuple[Any, Any], value: Any) -> str:
    key, node = entry
    is_absent = node.id == "scalar" and node.start_mark.index == node.end_mark.index
    if not is_absent and (node.id == "scalar" or node.flow_style):
        return text[: node.start_mark.index] + _flow(value) + text[_end(text, node) :]
    start = text.index(":", key.end_mark.index) + 1
    return text[:start] + " " + _flow(value) + text[start if is_absent else _end(text, node) :]


def _insert(text: str, entry: tuple[Any, Any], path: Sequence[str], value: Any) -> str:
    key, node = entry
    if node.id != "mapping":  # the key has no value yet
        at = _line_end(text, text.index(":", key.end_mark.index) + 1)
        return _add_line(text, at, path, value, key.start_mark.column + 2)
    if not node.flow_style:
        return _add_line(
            text, _line_end(text, _end(text, node)), path, value, node.value[0][0].start_mark.column
        )
    for step in reversed(path[1:]):
        value = {step: value}
    end = node.end_mark.index - 1
    comma = ", " if node.value else ""
    return f"{text[:end].rstrip()}{comma}{_flow(path[0])}: {_flow(value)}{text[end:]}"


def _add_line(text: str, at: int, path: Sequence[str], value: Any, column: int) -> str:
    """Return the text with the value inserted as new lines at the offset `at`, indented to `column`."""
    newline = "\n" if text[:at] and not text[:at].endswith("\n") else ""
    lines = [f"{' ' * (column + 2 * depth)}{_flow(step)}:" for depth, step in enumerate(path)]
    return text[:at] + newline + "\n".join(lines) + f" {_flow(value)}\n" + text[at:]


def _end(text: str, node: Any) -> int:
    """Return the offset at which a value ends. The parser's own end mark for a block extends to the next token."""
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
    """Return the text of a `.env` file with one variable set and every other line unchanged."""
    quote = "'" if '"' in value else '"'
    if quote in value or any(character in value for character in "\n\r\0"):
        raise UsageError(f"the value of {name} cannot be written into a .env file")
    is_plain = re.fullmatch(r"[\w./+=:@-]+", value, re.ASCII)
    line = f"{name}={value}" if is_plain else f"{name}={quote}{value}{quote}"
    pattern = re.compile(rf"^[ \t]*(export[ \t]+)?{re.escape(name)}[ \t]*=.*$", re.MULTILINE)
    if not pattern.search(text):
        return text + ("\n" if text and not text.endswith("\n") else "") + line + "\n"
    # If there are several lines, the last one counts, so all of them are replaced.
    return pattern.sub(lambda _: line, text)


# -- files --


def change(path: str, edit: Callable[[str], str]) -> None:
    """Replace a file with the result of `edit` for its text. Meanwhile, no other process of ours can change the
    file."""
    path = os.path.realpath(path)
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as exc:
        raise StorageError(f"the folder {folder} cannot be used: {exc.strerror}") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # lock the folder, so that no lock file is left behind
        text = read_text(path)
        changed = edit(text)
        is_private = not os.path.exists(path) or os.stat(path).st_mode & 0o077 == 0
        if changed != text or not is_private:
            write_file(path, changed.encode(), is_private=True)
    finally:
        os.close(descriptor)


def write_file(path: str, data: bytes, *, is_private: bool = False) -> None:
    """Replace a file atomically, and create its folder if necessary. Only the owner can read a private file."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        atomic.replace(path, data, mode=0o600 if is_private else None, durable=True)
    except OSError as exc:
        raise StorageError(f"{path} cannot be written: {exc.strerror}") from exc

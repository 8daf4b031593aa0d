"""Print results as text, or as JSON or YAML on request."""

from __future__ import annotations

import json
import os
import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from rolecall.cli import argument, program
from rolecall.errors import InvalidValue, UsageError
from rolecall.settings import config
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import unicodedata

    from rolecall.cli import Text
    from rolecall.store import atomic
    from rolecall.workflow import document
else:
    atomic = Module("rolecall.store.atomic")
    document = Module("rolecall.workflow.document")  # imports PyYAML, which is slow
    unicodedata = Module("unicodedata")

_PREDECESSORS = ("workflow", "thread", "step", "cas", "config", "log", "setup")
"""The commands of the original `uwf`, before it became another name for `rolecall`."""

_OWN_WORDS = ("doctor", "fleet", "init", "install", "serve", "setup", "trigger", "uninstall", "validate")
"""Commands whose output contains only Rolecall's own words, so that every command in the output is a suggestion to the
user."""


def FORMAT(parser: ArgumentParser) -> None:
    parser.add_argument("--format", choices=("text", "json", "yaml"), help="text (default), json or yaml")
    parser.add_argument(
        "--json", dest="format", action="store_const", const="json", help="short for --format json"
    )


COLOR = argument(
    "--color",
    None,
    "whether to print colours (default: on a terminal, unless NO_COLOR is set)",
    choices=("auto", "always", "never"),
    default="auto",
)
STORE = argument(
    "--store", "URL", "a SQLite file, files:FOLDER or postgresql://… (default: the configured one)"
)


def under_this_name(text: str) -> str:
    """Replace `rolecall` in the commands within `text` by the current program name."""
    if program() == "rolecall":
        return text
    return re.sub(r"(?<![\w/.-])rolecall (?=[a-z]|--)", f"{program()} ", text)


def format_of(options: Namespace) -> str:
    """Return the requested output format. The default is text, except that the predecessor's commands print JSON when
    they run as `uwf` and standard output is not a terminal."""
    if options.format is None and program() == "uwf" and options.verb.name.split()[0] in _PREDECESSORS:
        return "text" if sys.stdout.isatty() else "json"
    return options.format or "text"


def show(options: Namespace, value: Any, text: Text | None = None) -> None:
    """Print a result. `text` is its form for people; without it, people see indented JSON."""
    kind = format_of(options)
    if kind == "json":
        try:
            print(json.dumps(value, ensure_ascii=False, allow_nan=False))
        except ValueError as exc:
            raise InvalidValue(
                "the reply contains NaN or an infinity, which JSON cannot express",
                hint="--format yaml shows it.",
            ) from exc
    elif kind == "yaml":
        print(dump_yaml(value), end="")
    elif text is None:
        print(printable(json.dumps(value, ensure_ascii=False, indent=2)))
    else:
        shown = text() if callable(text) else text if isinstance(text, str) else "\n".join(text)
        if options.verb.name.split()[0] in _OWN_WORDS:
            shown = under_this_name(shown)
        print(_render(shown, sys.stdout))


def dump_yaml(value: Any) -> str:
    return document.dump(value)


def word_value(value: Any) -> str:
    """Return a text unchanged, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def show_record(options: Namespace, record: Mapping[str, Any], text: Text | None = None) -> None:
    """Print one of several results as soon as it is known."""
    if format_of(options) == "yaml":
        print("---")
    show(options, dict(record), text)
    sys.stdout.flush()


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a line immediately, in colour on a terminal."""
    stream = stream or sys.stdout
    if stream is sys.stderr:
        text = under_this_name(text)
    print(_render(text, stream), file=stream, flush=True)


def tell(text: str) -> None:
    """Print a line for the person on standard error, after all previous output."""
    with suppress(OSError):  # nobody reads the output any more
        sys.stdout.flush()
    say(text, sys.stderr)


def warn(text: str) -> None:
    tell(warning(text))


def warning(text: str) -> str:
    return f"{paint('warning:', 'yellow')} {text}"


# -- characters and colours --


_COLORS = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bold": 1, "dim": 2}
_BEGINS = {name: 0xFDD0 + number for number, name in enumerate(_COLORS)}
_END = 0xFDD0 + len(_COLORS)
"""Code points that mark colours until a text is printed. Unicode reserves them for internal use."""
_STATUS_COLORS = {
    **dict.fromkeys(("completed", "done", "ok", "ready", "decided"), "green"),
    **dict.fromkeys(("failed", "crashed", "damaged", "killed", "problem"), "red"),
    **dict.fromkeys(("suspended", "waiting", "blocked", "discarded", "warning"), "yellow"),
    **dict.fromkeys(("running", "in_progress"), "cyan"),
}
_SIGN_COLORS = {"✓": "green", "✗": "red", "⚠": "yellow"}
color_mode = "auto"
"""The value of --color."""


def has_color(stream: TextIO) -> bool:
    if color_mode != "auto":
        return color_mode == "always"
    return stream.isatty() and config.wants_color()


class Colored(str):
    """A text with colour marks around it."""


def paint(text: str, color: str) -> str:
    """Mark `text` to be printed in a colour by `say` and `show` if the stream supports colours."""
    return Colored(f"{chr(_BEGINS[color])}{text}{chr(_END)}") if color else text


def color_status(status: str) -> str:
    return paint(status, _STATUS_COLORS.get(status, ""))


def color_diff(text: str) -> str:
    """Colour the added and removed lines of a diff."""
    colors = {"+": "green", "-": "red", "@": "cyan"}
    return "\n".join(paint(line, colors.get(line[:1], "")) for line in text.split("\n"))


def printable(text: str) -> str:
    """Escape characters that control the terminal, reverse the writing direction, or are invisible."""
    return _translate(text, _VISIBLE)


def _render(text: str, stream: TextIO) -> str:
    return _translate(text, _COLORED if has_color(stream) else _UNCOLORED)


def _translate(text: str, table: Mapping[int, str]) -> str:
    text = text.translate(table)
    # Joiners are legitimate between letters of some scripts and between the parts of an emoji, and a variation
    # selector after a character. In other places, or repeated, these characters can hide something.
    return text if text.isascii() else re.sub(_STRAY, lambda found: _escape(ord(found[0])), text)


_STRAY = (
    "(?<![^\0-\xa0\u200c\u200d])[\u200c\u200d]|[\u200c\u200d](?![^\0-\xa0\u200c\u200d])"
    "|(?<=[\ufe00-\ufe0f\U000e0100-\U000e01ef])[\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
_KEPT_FORMATS = (0x200C, 0x200D, *range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD)
"""Format characters that are not escaped: joiners (see above), and visible signs of Arabic, Syriac and Kaithi."""


class _Characters(dict[int, str]):
    """The printed form of each character, computed when first needed."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        if code < 0xA0:
            is_shown = letter in "\n\t" or 0x20 <= code < 0x7F
        else:
            is_hidden = unicodedata.category(letter) in ("Cf", "Zl", "Zp") and code not in _KEPT_FORMATS
            is_shown = not is_hidden and not 0xE0000 <= code <= 0xE007F and not 0xFDD0 <= code <= 0xFDEF
        self[code] = letter if is_shown else _escape(code)
        return self[code]


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_VISIBLE = _Characters()
_UNCOLORED = _Characters(dict.fromkeys((*_BEGINS.values(), _END), ""))
_COLORED = _Characters(
    {
        _END: "\033[0m",
        **{mark: f"\033[{_COLORS[name]}m" for name, mark in _BEGINS.items()},
        **{ord(sign): f"\033[{_COLORS[name]}m{sign}\033[0m" for sign, name in _SIGN_COLORS.items()},
    }
)


# -- tables --


_LEAST_ROOM = 20
"""The minimum width of a table's last column. Before the column becomes narrower, other columns are left out."""
_WHOLE = ("id", "thread", "step", "role", "type", "trigger", "status", "state", "to do")
"""Columns that are never shortened, because users type their values or look at them first."""


def table(
    rows: Sequence[Sequence[Any]],
    headings: Sequence[str],
    spared: Sequence[str] = (),
    whole: Sequence[str] = _WHOLE,
    *,
    folds: bool = False,
) -> str:
    """Format rows as aligned columns that fit the terminal; without a terminal, the width is unlimited. Numbers are
    right-aligned and, unless they are ids, have thousands separators.

    If the columns do not fit, or the last column becomes too narrow, the columns in `spared` are left out one by one.
    After that the widest columns are shortened, except those in `whole`. A column in `spared` is also left out if it is
    empty. With `folds`, the last column continues on the next line instead of being shortened.
    """
    empty = [at for at, name in enumerate(headings) if name in spared and all(row[at] == "" for row in rows)]
    if empty:
        rows = [[cell for at, cell in enumerate(row) if at not in empty] for row in rows]
        headings = [name for at, name in enumerate(headings) if at not in empty]
    columns: list[list[str]] = []
    right: list[bool] = []
    for at, name in enumerate(headings):
        values = [row[at] for row in rows]
        right.append(all(isinstance(value, (int, float)) for value in values if value != ""))
        column: list[str] = []
        for value in values:
            is_count = isinstance(value, int) and not isinstance(value, bool) and name != "id"
            text = f"{value:,}" if is_count else str(value)
            column.append(value if isinstance(value, Colored) else " ".join(printable(text).split()))
        columns.append(column)
    widths = [max(map(_cells, (name, *column))) for name, column in zip(headings, columns, strict=True)]
    kept = list(range(len(headings)))
    dropped = [headings.index(name) for name in spared if name in headings]
    least = {at: max(8, len(name)) for at, name in enumerate(headings) if name not in whole and not right[at]}
    room = columns_of_terminal(elsewhere=sys.maxsize)
    while True:
        fitting = _fit(widths, kept, least, room)
        is_fit = sum(fitting[at] + 2 for at in kept) - 2 <= room
        if not dropped or (is_fit and fitting[-1] >= min(_LEAST_ROOM, widths[-1])):
            break
        kept.remove(dropped.pop(0))
    if folds and fitting[-1] < widths[-1]:
        folded = [fold(text, fitting[-1]) for text in columns[-1]]
        below = [[""] * (len(lines) - 1) for lines in folded]
        for at, column in enumerate(columns[:-1]):
            columns[at] = [part for text, blank in zip(column, below, strict=True) for part in (text, *blank)]
        columns[-1] = [line for lines in folded for line in lines]
    for at in kept:
        columns[at] = _cut_apart(columns[at], fitting[at])
        if headings[at] in ("status", "state"):
            columns[at] = [cell if isinstance(cell, Colored) else color_status(cell) for cell in columns[at]]
    lines = []
    for row in [list(headings), *zip(*columns, strict=True)]:
        padded = []
        for at in kept:
            pad = " " * (fitting[at] - _cells(row[at]))
            padded.append(pad + row[at] if right[at] else row[at] + pad)
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _fit(widths: list[int], kept: list[int], least: Mapping[int, int], room: int) -> list[int]:
    """Return the widths of the kept columns. Columns with an entry in `least` shrink, the widest first, until all
    columns fit."""
    widths = list(widths)
    for at in least:
        widths[at] = min(widths[at], room)
    while sum(widths[at] + 2 for at in kept) - 2 > room:
        flexible = [at for at in kept if at in least and widths[at] > least[at]]
        if not flexible:
            break
        widths[max(flexible, key=lambda at: widths[at])] -= 1
    return widths


def _shorten(text: str, cells: int) -> str:
    return text if _cells(text) <= cells else _cut(text, cells - 1) + "…"


def fold(text: str, cells: int) -> list[str]:
    """Break a line at its words, and longer words anywhere."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and _cells(longer) > cells:
            lines.append(word)
        else:
            lines[-1] = longer
        while _cells(lines[-1]) > cells:
            head = _cut(lines[-1], cells) or lines[-1][:1]
            lines[-1:] = [head, lines[-1][len(head) :]]
    return lines


def _cut_apart(texts: list[str], cells: int) -> list[str]:
    """Shorten texts at the end. Texts that would then look the same are shortened in the middle of the part they
    share."""
    cut = {text: _shorten(text, cells) for text in texts}
    groups: dict[str, list[str]] = {}
    for text, shortened in cut.items():
        groups.setdefault(shortened, []).append(text)
    for same, alike in groups.items():
        if len(alike) == 1:
            continue
        pairs = zip(min(alike), max(alike), strict=False)
        shared = next((at for at, (one, other) in enumerate(pairs) if one != other), len(min(alike)))
        tails = ["…" + text[shared - 1 :] for text in alike]
        head = _cut(same, max(cells // 3, cells - max(map(_cells, tails))))
        if shared > len(head) + 2:
            tails = _cut_apart(tails, cells - _cells(head))
            cut.update({text: head + tail for text, tail in zip(alike, tails, strict=True)})
    return [cut[text] for text in texts]


def columns_of_terminal(*, elsewhere: int = 80) -> int:
    """Return the line width in cells. Without a terminal, return the value of COLUMNS or, if that is not set,
    `elsewhere`."""
    try:
        return os.get_terminal_size(1).columns or 80
    except (OSError, ValueError):
        return config.columns() or elsewhere


def _cells(text: str) -> int:
    return len(text) if text.isascii() else sum(map(_letter_cells, text))


def _letter_cells(letter: str) -> int:
    """Return the width of a letter in terminal cells. Letters of some scripts take two cells; combining marks and
    colour marks take none."""
    if unicodedata.combining(letter) or 0xFDD0 <= ord(letter) <= 0xFDEF:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _cut(text: str, cells: int) -> str:
    """Return the longest beginning of a line that fits into a number of terminal cells."""
    if text.isascii():
        return text[:cells]
    for at, letter in enumerate(text):
        cells -= _letter_cells(letter)
        if cells < 0:
            return text[:at]
    return text


def short(text: str | None, limit: int) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def plural(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


class LastLine:
    """The lines at the bottom of a terminal that show the current activity. Without a terminal, they are not shown."""

    def __init__(self) -> None:
        self._out = sys.stderr if sys.stderr.isatty() else None
        self._drawn: list[str] = []

    @property
    def height(self) -> int:
        """How many lines can be drawn so that all of them stay visible, or 0 without a terminal."""
        return max(1, self._size().lines - 1) if self._out else 0

    def draw(self, *lines: str) -> None:
        if not self._out:
            return
        width = self._size().columns or 80
        shown = [_shorten(printable(line), width - 1) for line in lines]
        if shown != self._drawn:
            self._out.write(self._erase() + "\n".join(shown))
            self._out.flush()
            self._drawn = shown

    def clear(self) -> None:
        if self._out and self._drawn:
            self._out.write(self._erase())
            self._out.flush()
            self._drawn = []

    def _size(self) -> os.terminal_size:
        try:
            return os.get_terminal_size(2)
        except OSError:
            return os.terminal_size((80, 1))

    def _erase(self) -> str:
        up = len(self._drawn) - 1
        return f"\r\033[{up}A\033[J" if up > 0 else "\r\033[K"


@contextmanager
def count_progress(what: str) -> Iterator[Callable[[int], None]]:
    """Show a counter until a long operation ends."""
    line = LastLine()
    try:
        yield lambda count: line.draw(f"{what}: {count:,}")
    finally:
        line.clear()


# -- input --


def between(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a parser for whole numbers from `least` to `most`."""

    def check(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            bounds = f"of {least} or more" if most is None else f"from {least} to {most}"
            raise ArgumentTypeError(f"{text!r} is not a number {bounds}")
        return int(text)

    return check


def pair(text: str) -> tuple[str, str]:
    """Parse a value of the form NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def read_input(argument: str) -> str:
    """Return the text that an argument denotes: standard input for `-`, the contents of a file for `@FILE`, otherwise
    the argument itself."""
    if argument == "-":
        return _decode(sys.stdin.buffer.read(), "standard input")
    return read_file(argument[1:]) if argument.startswith("@") else argument


def read_file(path: str) -> str:
    """Read a file, or standard input for `-`."""
    if path == "-":
        return read_input(path)
    try:
        with open(path, "rb") as file:
            return _decode(file.read(), path)
    except OSError as exc:
        raise UsageError(
            f"{path} cannot be read: {exc.strerror}",
            hint=f"Name a file; relative paths start in {os.getcwd()}.",
        ) from exc


def write_file(path: str, data: bytes, *, is_new: bool = False, hint: str = "Name a new file.") -> None:
    """Write a file completely or not at all. With `is_new`, raise an error with `hint` if the file exists."""
    if is_new and os.path.lexists(path):
        raise UsageError(f"{path} exists", hint=hint)
    target = os.path.realpath(path)
    try:
        if os.path.isfile(target) or not os.path.exists(target):
            atomic.replace(target, data)
        else:  # such as /dev/stdout
            with open(target, "wb") as file:
                file.write(data)
    except OSError as exc:
        raise UsageError(f"{path} cannot be written: {exc.strerror}") from exc


def _decode(data: bytes, source: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise InvalidValue(f"{source} is not UTF-8: byte {exc.start} is {data[exc.start]:#04x}") from exc


def parse_json(text: str) -> Any:
    """Parse strict JSON: NaN and repeated keys are refused, and deep nesting raises an error instead of ending the
    program."""

    def refuse_constant(name: str) -> None:
        raise InvalidValue(f"{name} is not JSON", hint="Send null or a string instead.")

    def refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                raise InvalidValue(f"the key {key!r} appears twice in one object")
            result[key] = value
        return result

    try:
        # A byte order mark belongs to the file's encoding, not to the value.
        return json.loads(
            text.removeprefix("\ufeff"), parse_constant=refuse_constant, object_pairs_hook=refuse_repeats
        )
    except json.JSONDecodeError as exc:
        raise InvalidValue(
            f"not JSON: {exc.msg} at line {exc.lineno} column {exc.colno}",
            hint="Strings need their quotes: '\"hello\"'.",
        ) from exc
    except RecursionError as exc:
        raise InvalidValue("the JSON nests too deeply", hint="Flatten the value.") from exc
    except ValueError as exc:
        raise InvalidValue(f"not acceptable JSON: {exc}") from exc

"""Canonical bytes of a JSON value, and back: the deterministic CBOR that ids are made from.

The form is RFC 8949's core deterministic encoding, except that floats are never shortened. It must stay the same byte
for byte because other programs share the format: numbers follow JavaScript (1.0 is the integer 1, an integer beyond
2^53-1 is a float64, -0 is 0), strings are UTF-8 without normalisation, map keys sort by their encoded form. A value
that would decode to a different one is refused, never adjusted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import isfinite
from typing import Any

from rolecall.errors import Damaged, InvalidValue

MAX_DEPTH = 200
"""How deep lists and objects may nest. Schema validation stops at 255, so this leaves some room."""

_SAFE_INTEGER = (1 << 53) - 1
_FLOAT = struct.Struct(">d")


def encode(value: Any) -> bytes:
    """Return the canonical bytes of a JSON value; `InvalidValue` names the part that has none."""
    out = bytearray()
    try:
        _write(value, out, 0)
    except _Refused as refused:
        raise InvalidValue(f"{refused.place()} {refused.reason}", hint=refused.hint) from None
    return bytes(out)


def decode(data: bytes) -> Any:
    """Return the value of canonical bytes; raise `Damaged` if they are not exactly one value.

    Other programs write values that this one does not: NaN is returned, and too deep nesting is an `InvalidValue`.
    """
    value, end = decode_at(data, 0)
    if end != len(data):
        raise Damaged(f"{len(data) - end} bytes follow the value")
    return value


# -- writing --


class _Refused(Exception):
    """A value without a canonical form; each container adds its step to the path as the exception passes."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.path: list[str | int] = []

    def place(self) -> str:
        # A key may contain unprintable characters, so it is shown escaped.
        steps = [ascii(step).strip("'") for step in reversed(self.path)]
        shown = steps if len(steps) <= 12 else [*steps[:6], "…", *steps[-3:]]
        return "/" + "/".join(shown) if steps else "the value"


def _write(value: Any, out: bytearray, depth: int) -> None:
    kind = type(value)
    if kind is str:
        text = _utf8(value)
        _write_head(0x60, len(text), out)
        out += text
    elif kind is dict:
        _write_object(value, out, depth)
    elif value is None:
        out.append(0xF6)
    elif kind is bool:
        out.append(0xF5 if value else 0xF4)
    elif kind is int:
        _write_integer(value, out)
    elif kind is list or kind is tuple:
        _write_list(value, out, depth)
    elif kind is float:
        _write_float(value, out)
    else:
        _write_subclass(value, out, depth)


def _write_list(value: list[Any] | tuple[Any, ...], out: bytearray, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise _Refused(f"nests deeper than {MAX_DEPTH} levels", "Flatten the value.")
    _write_head(0x80, len(value), out)
    index = 0
    try:
        for index, item in enumerate(value):  # noqa: B007 - the handler needs the index
            _write(item, out, depth + 1)
    except _Refused as refused:
        refused.path.append(index)
        raise


def _write_object(value: dict[Any, Any], out: bytearray, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise _Refused(f"nests deeper than {MAX_DEPTH} levels", "Flatten the value.")
    _write_head(0xA0, len(value), out)
    key: Any = None
    try:
        encoded = []
        for key in value:
            if not isinstance(key, str):
                raise _Refused("is a key that is not a string", "JSON objects have string keys only.")
            encoded.append((_utf8(key), key))
        # Sorting by length, then bytes, equals sorting by the encoded form, because the head carries the length.
        encoded.sort(key=_by_length)
        for text, key in encoded:
            _write_head(0x60, len(text), out)
            out += text
            _write(value[key], out, depth + 1)
    except _Refused as refused:
        refused.path.append(key)
        raise


def _by_length(pair: tuple[bytes, str]) -> tuple[int, bytes]:
    return len(pair[0]), pair[0]


def _write_subclass(value: Any, out: bytearray, depth: int) -> None:
    """Write an enum member, a str subclass and the like as the plain value it extends."""
    if isinstance(value, str):
        # Not str(value), because an enum member's own __str__ returns its name.
        return _write(str.__str__(value), out, depth)
    plain_kinds: tuple[Any, ...] = (int, float, dict, list)
    for plain in plain_kinds:
        if isinstance(value, plain):
            return _write(plain(value), out, depth)
    raise _Refused(
        f"is a {type(value).__name__}, which JSON does not have",
        "Use only objects, arrays, strings, numbers, true, false and null.",
    )


def _write_integer(value: int, out: bytearray) -> None:
    if 0 <= value <= _SAFE_INTEGER:
        _write_head(0x00, value, out)
    elif -_SAFE_INTEGER <= value < 0:
        _write_head(0x20, -1 - value, out)
    else:
        out.append(0xFB)
        out += _FLOAT.pack(_float_of_integer(value))


def _float_of_integer(value: int) -> float:
    """The float that a large integer denotes.

    JavaScript writes 2^53 exactly and 123456789012345680000 rounded to its significant digits; each denotes one float.
    An integer that denotes none would change when read back, so it is refused.
    """
    try:
        number = float(value)
    except OverflowError:
        number = 0.0
    if number and (int(number) == value or _written_as(number) == value):
        return number
    text = str(value) if value.bit_length() < 256 else f"of {value.bit_length()} bits"
    raise _Refused(
        f"is the integer {text}, which no float64 holds exactly",
        "Integers beyond 2^53-1 are kept as float64. Send this one as a string.",
    )


def _written_as(number: float) -> int:
    """The integer written by JavaScript's shortest digits for `number`."""
    mantissa, _, exponent = repr(number).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = int(whole + fraction.rstrip("0"))
    return int(digits * 10 ** (int(exponent or 0) - len(fraction.rstrip("0"))))


def _write_float(value: float, out: bytearray) -> None:
    if not isfinite(value):
        raise _Refused(f"is {value}, which JSON cannot say", "Send null or a string instead.")
    if value.is_integer() and abs(value) <= _SAFE_INTEGER:
        _write_integer(int(value), out)
    else:
        out.append(0xFB)
        out += _FLOAT.pack(value)


def _write_head(major: int, number: int, out: bytearray) -> None:
    if number < 24:
        out.append(major | number)
    elif number < 0x100:
        out.append(major | 24)
        out.append(number)
    elif number < 0x10000:
        out.append(major | 25)
        out += number.to_bytes(2, "big")
    elif number < 0x100000000:
        out.append(major | 26)
        out += number.to_bytes(4, "big")
    else:
        out.append(major | 27)
        out += number.to_bytes(8, "big")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise _Refused(
            f"holds the lone surrogate U+{ord(text[exc.start]):04X} at character {exc.start}",
            "It is half of a character and has no UTF-8 form. Replace it before storing.",
        ) from exc


# -- reading --


def decode_at(data: bytes, at: int, depth: int = 0) -> tuple[Any, int]:
    """Return the value that begins at `at`, and the offset where it ends."""
    head, number, at = _read_head(data, at)
    major = head >> 5
    reader = _READERS.get(major)
    if reader is None:
        raise Damaged(f"byte {head:#04x} at {at - 1} begins nothing this format has")
    if depth > MAX_DEPTH:
        raise InvalidValue(f"the value nests deeper than {MAX_DEPTH} levels")
    return reader(data, at, number, head, depth)


def _read_head(data: bytes, at: int) -> tuple[int, int, int]:
    if at >= len(data):
        raise Damaged(f"the bytes end at {len(data)}, in the middle of a value")
    head = data[at]
    short = head & 31
    at += 1
    if short < 24:
        return head, short, at
    if short > 27:
        raise Damaged(f"byte {head:#04x} at {at - 1} begins nothing this format has")
    width = 1 << (short - 24)
    if at + width > len(data):
        raise Damaged(f"the bytes end at {len(data)}, in the middle of a number")
    return head, int.from_bytes(data[at : at + width], "big"), at + width


def _read_text(data: bytes, at: int, length: int, _head: int, _depth: int) -> tuple[str, int]:
    end = at + length
    if end > len(data):
        raise Damaged(f"the bytes end at {len(data)}, in the middle of a string")
    try:
        return data[at:end].decode(), end
    except UnicodeDecodeError as exc:
        raise Damaged(f"the string at byte {at} is not UTF-8") from exc


def _read_list(data: bytes, at: int, length: int, _head: int, depth: int) -> tuple[list[Any], int]:
    if length > len(data) - at:
        raise Damaged(f"the list at byte {at} claims {length} items and has fewer bytes")
    items = []
    for _ in range(length):
        item, at = decode_at(data, at, depth + 1)
        items.append(None if item is _UNDEFINED else item)
    return items, at


def _read_object(data: bytes, at: int, length: int, _head: int, depth: int) -> tuple[dict[str, Any], int]:
    if length > len(data) - at:
        raise Damaged(f"the object at byte {at} claims {length} keys and has fewer bytes")
    result: dict[str, Any] = {}
    for _ in range(length):
        head, size, at = _read_head(data, at)
        if head >> 5 != 3:
            raise Damaged(f"the key before byte {at} is not a string")
        key, at = _read_text(data, at, size, head, depth)
        value, at = decode_at(data, at, depth + 1)
        # JavaScript encodes properties that are present but undefined; JSON omits them.
        if value is not _UNDEFINED:
            result[key] = value
    return result, at


_UNDEFINED = object()
_SIMPLE = {20: False, 21: True, 22: None, 23: _UNDEFINED}


def _read_simple(_data: bytes, at: int, number: int, head: int, depth: int) -> tuple[Any, int]:
    if head == 0xFB:
        return _FLOAT.unpack(number.to_bytes(8, "big"))[0], at
    if head & 31 not in _SIMPLE:
        raise Damaged(f"byte {head:#04x} before {at} begins nothing this format has")
    value = _SIMPLE[head & 31]
    return (None if value is _UNDEFINED and depth == 0 else value), at


_READERS: dict[int, Callable[[bytes, int, int, int, int], tuple[Any, int]]] = {
    0: lambda _data, at, number, _head, _depth: (number, at),
    1: lambda _data, at, number, _head, _depth: (-1 - number, at),
    3: _read_text,
    4: _read_list,
    5: _read_object,
    7: _read_simple,
}

"""The canonical bytes of a JSON value, and back: the deterministic CBOR encoding from which ids are made.

The form is the core deterministic encoding of RFC 8949, except that floats are never shortened. The form must stay the
same byte for byte, because other programs share it. Numbers follow JavaScript: 1.0 is the integer 1, an integer beyond
2^53-1 is a float64, and -0 is 0. Strings are UTF-8 without normalisation, and map keys are sorted by their encoded
form. A value that would decode to a different value is refused, never adjusted.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from math import isfinite
from typing import Any, TypeAlias

from rolecall.errors import Damaged, InvalidValue

JsonObject: TypeAlias = Mapping[str, Any]
"""A JSON object whose keys are not known here, such as the state of a ref, the body of an event, an agent's output, or
what a client or another program sends."""
Schema: TypeAlias = dict[str, Any]
"""A JSON Schema."""

MAX_DEPTH = 200
"""How deep lists and objects can be nested. Schema validation stops at 255, so this leaves some room."""

_SAFE_INTEGER = (1 << 53) - 1
_FLOAT = struct.Struct(">d")


def encode(value: Any) -> bytes:
    """Return the canonical bytes of a JSON value. Raise `InvalidValue`, which names the part at fault, if the value has
    no canonical form."""
    out = bytearray()
    try:
        _write(value, out, 0)
    except _Refused as refused:
        raise InvalidValue(f"{refused.place()} {refused.reason}", hint=refused.hint) from None
    return bytes(out)


def decode(data: bytes) -> Any:
    """Return the value that canonical bytes encode. Raise `Damaged` if the bytes are not exactly one value.

    Other programs write values that this one does not write. NaN is returned; nesting that is too deep raises
    `InvalidValue`.
    """
    value, end = decode_at(data, 0)
    if end != len(data):
        raise Damaged(f"{len(data) - end} bytes follow the value")
    return value


# -- writing --


class _Refused(Exception):
    """Raised for a value without a canonical form. Each container adds its step to the path as the exception passes."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.path: list[str | int] = []

    def place(self) -> str:
        # A key can contain unprintable characters, so show it escaped.
        steps = [ascii(step).strip("'") for step in reversed(self.path)]
        shown = steps if len(steps) <= 12 else [*steps[:6], "…", *steps[-3:]]
        return "/" + "/".join(shown) if steps else "the value"


def _write(value: Any, out: bytearray, depth: int) -> None:
    kind = type(value)
    if kind is str:
        text = _utf8(value)
        _write_head(0x60, len(text), out)
        out += text
    elif kind is dict or kind is list or kind is tuple:
        _write_container(value, out, depth)
    elif value is None:
        out.append(0xF6)
    elif kind is bool:
        out.append(0xF5 if value else 0xF4)
    elif kind is int:
        _write_integer(value, out)
    elif kind is float:
        if not isfinite(value):
            raise _Refused(f"is {value}, which JSON cannot say", "Send null or a string instead.")
        if value.is_integer() and abs(value) <= _SAFE_INTEGER:
            _write_integer(int(value), out)
        else:
            out.append(0xFB)
            out += _FLOAT.pack(value)
    elif isinstance(value, str):
        # Write a subclass as the plain value that it extends. `str(value)` would be wrong: an enum member's own
        # `__str__` is its name.
        _write(str.__str__(value), out, depth)
    else:
        plain_kinds: tuple[Any, ...] = (int, float, dict, list)
        plain = next((plain for plain in plain_kinds if isinstance(value, plain)), None)
        if plain is None:
            raise _Refused(
                f"is a {kind.__name__}, which JSON does not have",
                "Use only objects, arrays, strings, numbers, true, false and null.",
            )
        _write(plain(value), out, depth)


def _write_container(value: dict[Any, Any] | list[Any] | tuple[Any, ...], out: bytearray, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise _Refused(f"nests deeper than {MAX_DEPTH} levels", "Flatten the value.")
    step: Any = None
    try:
        if isinstance(value, dict):
            keys = []
            for step in value:
                if not isinstance(step, str):
                    raise _Refused("is a key that is not a string", "JSON objects have string keys only.")
                text = _utf8(step)
                keys.append((len(text), text, step))
            # Sorting by length, then by bytes, equals sorting by the encoded form, because the head carries the length.
            keys.sort()
            _write_head(0xA0, len(keys), out)
            for length, text, step in keys:
                _write_head(0x60, length, out)
                out += text
                _write(value[step], out, depth + 1)
        else:
            _write_head(0x80, len(value), out)
            for step, item in enumerate(value):  # noqa: B007 - the handler needs the index
                _write(item, out, depth + 1)
    except _Refused as refused:
        refused.path.append(step)
        raise


def _write_integer(value: int, out: bytearray) -> None:
    if 0 <= value <= _SAFE_INTEGER:
        _write_head(0x00, value, out)
    elif -_SAFE_INTEGER <= value < 0:
        _write_head(0x20, -1 - value, out)
    else:
        # Refuse an integer that is neither the exact value nor the shortest decimal form of a float, because it would
        # change when it is read back. JavaScript writes 2^53 exactly, but 123456789012345680000 in its shortest form.
        try:
            number = float(value)
        except OverflowError:
            number = 0.0
        mantissa, _, exponent = repr(number).partition("e")
        whole, _, fraction = mantissa.removesuffix(".0").partition(".")
        shortest = int(whole + fraction) * 10 ** max(int(exponent or 0) - len(fraction), 0)
        if value not in (int(number), shortest):
            text = str(value) if value.bit_length() < 256 else f"of {value.bit_length()} bits"
            raise _Refused(
                f"is the integer {text}, which no float64 holds exactly",
                "Integers beyond 2^53-1 are kept as float64. Send this one as a string.",
            )
        out.append(0xFB)
        out += _FLOAT.pack(number)


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
            "A lone surrogate is half of a character and has no UTF-8 form. Replace it before storing.",
        ) from exc


# -- reading --


_UNDEFINED = object()
"""JavaScript's `undefined`, which is left out of objects and becomes null elsewhere."""
_SIMPLE = {20: False, 21: True, 22: None, 23: _UNDEFINED}


def decode_at(data: bytes, at: int) -> tuple[Any, int]:
    """Return the value that begins at `at`, and the offset at which it ends."""
    value, at = _read(data, at, 0)
    return None if value is _UNDEFINED else value, at


def _read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    start, (head, number, at) = at, _read_head(data, at)
    if depth > MAX_DEPTH:
        raise InvalidValue(f"the value nests deeper than {MAX_DEPTH} levels")
    match head >> 5:
        case 0:
            return number, at
        case 1:
            return -1 - number, at
        case 3:
            return _read_text(data, at, number)
        case 4:
            if number > len(data) - at:
                raise Damaged(f"the list at byte {at} claims {number} items and has fewer bytes")
            items = []
            for _ in range(number):
                item, at = _read(data, at, depth + 1)
                items.append(None if item is _UNDEFINED else item)
            return items, at
        case 5:
            if number > len(data) - at:
                raise Damaged(f"the object at byte {at} claims {number} keys and has fewer bytes")
            result: dict[str, Any] = {}
            for _ in range(number):
                key_head, length, at = _read_head(data, at)
                if key_head >> 5 != 3:
                    raise Damaged(f"the key before byte {at} is not a string")
                key, at = _read_text(data, at, length)
                value, at = _read(data, at, depth + 1)
                if value is not _UNDEFINED:
                    result[key] = value
            return result, at
        case 7 if head == 0xFB:
            return _FLOAT.unpack(number.to_bytes(8, "big"))[0], at
        case 7 if head & 31 in _SIMPLE:
            return _SIMPLE[head & 31], at
    raise _no_such_head(head, start)


def _read_head(data: bytes, at: int) -> tuple[int, int, int]:
    if at >= len(data):
        raise Damaged(f"the bytes end at {len(data)}, in the middle of a value")
    head = data[at]
    short = head & 31
    at += 1
    if short < 24:
        return head, short, at
    if short > 27:
        raise _no_such_head(head, at - 1)
    width = 1 << (short - 24)
    if at + width > len(data):
        raise Damaged(f"the bytes end at {len(data)}, in the middle of a number")
    return head, int.from_bytes(data[at : at + width], "big"), at + width


def _no_such_head(head: int, at: int) -> Damaged:
    return Damaged(f"byte {head:#04x} at {at} begins nothing this format has")


def _read_text(data: bytes, at: int, length: int) -> tuple[str, int]:
    end = at + length
    if end > len(data):
        raise Damaged(f"the bytes end at {len(data)}, in the middle of a string")
    try:
        return data[at:end].decode(), end
    except UnicodeDecodeError as exc:
        raise Damaged(f"the string at byte {at} is not UTF-8") from exc

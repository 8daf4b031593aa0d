"""Canonical bytes: the format's vectors, every refusal, and an independent decoder as the judge."""

from __future__ import annotations

import enum
import json
import math
import random
import struct
import unicodedata
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.errors import Damaged, InvalidValue
from rolecall.store import canonical, ids
from rolecall.store.canonical import MAX_DEPTH, decode, encode

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "vectors.json").read_text(encoding="utf-8")
)
SAFE = 2**53 - 1


def assert_vector(vector: dict[str, Any]) -> None:
    data = encode(vector["payload"])
    if "cbor_hex" in vector:
        assert data.hex() == vector["cbor_hex"]
    if vector.get("self"):
        assert ids.node_id("", data) == vector["node_hash"] == vector["type_hash"]
    else:
        assert ids.node_id(vector["type_hash"], data) == vector["node_hash"]
    assert ids.is_id_of(vector["node_hash"], vector["type_hash"], data)
    assert encode(decode(data)) == data


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"][:60] for vector in VECTORS])
def test_vector_gives_its_bytes_and_its_id(vector: dict[str, Any]) -> None:
    assert_vector(vector)


def test_vectors_of_the_reference_data_give_their_bytes_and_ids(shared_data: Path) -> None:
    vectors = json.loads((shared_data / "cas-vectors.json").read_text(encoding="utf-8"))
    for vector in vectors:
        assert_vector(vector)
    assert len(vectors) >= 47


def test_every_schema_of_a_vector_has_the_type_id_of_the_vector() -> None:
    meta = VECTORS[0]["node_hash"]
    schemas = [vector for vector in VECTORS if isinstance(vector["schema"], dict)]
    for vector in schemas:
        own = meta if "$builtin" in vector["schema"] else ids.node_id(meta, encode(vector["schema"]))
        assert own == vector["type_hash"], vector["name"]


# -- what is refused --


class _Foreign:
    pass


@pytest.mark.parametrize(
    ("value", "place", "reason"),
    [
        (math.nan, "the value", "is nan"),
        (math.inf, "the value", "is inf"),
        (-math.inf, "the value", "is -inf"),
        ({"a": [1, math.nan]}, "/a/1", "is nan"),
        ([{"deep": {"er": -math.inf}}], "/0/deep/er", "is -inf"),
        ("\ud800", "the value", "U+D800 at character 0"),
        ({"a": ["ok", "x\udfff"]}, "/a/1", "U+DFFF at character 1"),
        ({"a": {"b\udc00": 1}}, "/a/b\\udc00", "U+DC00 at character 1"),
        ({1: 2}, "/1", "a key that is not a string"),
        ({"a": {None: 2}}, "/a/None", "a key that is not a string"),
        ({"a": b"bytes"}, "/a", "is a bytes"),
        ({"a": {1, 2}}, "/a", "is a set"),
        ([_Foreign()], "/0", "is a _Foreign"),
        ([1 + 2j], "/0", "is a complex"),
        ([2**53 + 1], "/0", "is the integer 9007199254740993"),
        (-(2**53) - 1, "the value", "is the integer -9007199254740993"),
        (10**400, "the value", "of 1329 bits"),
        (1152921504606846977, "the value", "is the integer 1152921504606846977"),
    ],
)
def test_value_without_a_canonical_form_is_refused_with_its_place(
    value: Any, place: str, reason: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        encode(value)
    assert caught.value.message.startswith(place + " ")
    assert reason in caught.value.message
    assert caught.value.hint
    caught.value.message.encode()


def nested(depth: int, *, objects: bool = False) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"k": value} if objects else [value]
    return value


@pytest.mark.parametrize("objects", [False, True])
def test_nesting_up_to_the_limit_is_kept_and_one_more_is_refused(objects: bool) -> None:
    deepest = nested(MAX_DEPTH, objects=objects)
    assert decode(encode(deepest)) == deepest
    with pytest.raises(InvalidValue, match="nests deeper than 200 levels"):
        encode(nested(MAX_DEPTH + 1, objects=objects))
    with pytest.raises(InvalidValue, match="nests deeper than 200 levels"):
        encode(nested(100_000, objects=objects))


def test_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidValue, match="nests deeper"):
        encode(loop)


# -- numbers --


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_turn_into_floats_beyond_two_to_the_53(sign: int) -> None:
    assert encode(sign * SAFE)[0] in (0x1B, 0x3B)
    assert encode(sign * 2**53) == b"\xfb" + struct.pack(">d", sign * 2.0**53)
    assert encode(float(sign * SAFE)) == encode(sign * SAFE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (2**60, 1152921504606847000),
        (1152921504606846976, 1152921504606847000),
        (123456789012345680000, 123456789012345683968),
        (123456789012345680000, 1.2345678901234568e20),
        (-(2**60), -1152921504606847000),
        (2**53, 9007199254740992.0),
        (10**22, 1e22),
        (1, 1.0),
        (0, -0.0),
        (-7, -7.0),
    ],
)
def test_two_ways_to_write_one_number_give_the_same_bytes(one: float, other: float) -> None:
    assert encode(one) == encode(other)


def test_floats_are_never_shortened() -> None:
    assert encode(0.5) == b"\xfb" + struct.pack(">d", 0.5)
    assert encode(1.5) == b"\xfb" + struct.pack(">d", 1.5)


def test_booleans_are_not_integers() -> None:
    assert encode([True, 1, False, 0]).hex() == "84f501f400"


# -- strings, keys, subclasses --


def test_composed_and_decomposed_characters_stay_different() -> None:
    composed, decomposed = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    assert encode(composed) != encode(decomposed)
    assert decode(encode({composed: 1, decomposed: 2})) == {composed: 1, decomposed: 2}


def test_keys_are_ordered_by_length_and_then_by_bytes() -> None:
    value = {"世": 1, "aa": 2, "é": 3, "z": 4, "": 5, "b": 6}
    assert list(decode(encode(value))) == ["", "b", "z", "aa", "é", "世"]


def test_subclasses_stand_for_the_plain_value_they_extend() -> None:
    class Text(str, enum.Enum):  # noqa: UP042 - its str() is not its value, which is the point
        DONE = "done"

    class Level(enum.IntEnum):
        HIGH = 3

    class Odd(str):
        def __str__(self) -> str:
            return self

    class Table(dict[str, int]):
        pass

    assert encode([Text.DONE, Level.HIGH, Odd("x"), Table(a=1)]) == encode(["done", 3, "x", {"a": 1}])
    assert encode({Text.DONE: 1}) == encode({"done": 1})
    assert encode((1, (2,))) == encode([1, [2]])


# -- reading --


def test_undefined_is_left_out_of_objects_and_null_elsewhere() -> None:
    assert decode(bytes.fromhex("a26161f7616201")) == {"b": 1}
    assert decode(bytes.fromhex("8301f702")) == [1, None, 2]
    assert decode(bytes.fromhex("f7")) is None


RICH = encode(
    {
        "text": "héllo — 世界 🌍",
        "long": "x" * 300,
        "numbers": [0, -1, 24, 256, 65536, 2**32, SAFE, -SAFE, 0.1, 1e21],
        "nested": {"a": [[], {}, None, True, False], "b": {"c": {"d": "e"}}},
    }
)


def test_truncation_at_every_position_is_damage() -> None:
    for end in range(len(RICH)):
        with pytest.raises(Damaged):
            decode(RICH[:end])


def test_bytes_after_the_value_are_damage() -> None:
    with pytest.raises(Damaged, match="2 bytes follow"):
        decode(encode(1) + b"\x00\x00")


def test_every_bit_flip_gives_another_value_or_damage() -> None:
    for position in range(len(RICH)):
        for bit in range(8):
            changed = bytearray(RICH)
            changed[position] ^= 1 << bit
            try:
                value = decode(bytes(changed))
            except Damaged:
                continue
            assert isinstance(value, (dict, list, str, int, float, bool, type(None)))


def test_random_bytes_give_a_value_or_damage() -> None:
    source = random.Random(7)
    for _ in range(20_000):
        data = source.randbytes(source.randrange(0, 40))
        try:
            decode(data)
        except Damaged:
            continue


@pytest.mark.parametrize(
    "data",
    [
        "9bffffffffffffffff",  # a list of 2^64-1 items
        "bbffffffffffffffff",
        "7bffffffffffffffff",
        "9affffffff00",
        "ba7fffffff6161",
        "5f",  # lengths that are not given, tags, byte strings, short floats, breaks: not in this format
        "9f01ff",
        "bf616101ff",
        "7f6161ff",
        "c100",
        "4161",
        "f93c00",
        "fa3f800000",
        "f814",
        "ff",
        "1c",
        "a10101",  # a key that is a number
        "61ff",  # not UTF-8
        "63eda080",  # a surrogate in UTF-8's clothes
        "",
    ],
)
def test_bytes_the_format_does_not_have_are_damage(data: str) -> None:
    with pytest.raises(Damaged):
        decode(bytes.fromhex(data))


@pytest.mark.parametrize("opening", [b"\x81", b"\xa1\x61k"])
def test_endless_nesting_in_stored_bytes_is_refused(opening: bytes) -> None:
    with pytest.raises(InvalidValue, match="nests deeper"):
        decode(opening * 100_000 + b"\x00")


def test_a_value_can_be_read_from_the_middle_of_bytes() -> None:
    data = b"head" + encode({"a": 1}) + b"tail"
    assert canonical.decode_at(data, 4) == ({"a": 1}, len(data) - 4)


# -- against an independent decoder --

NUMBERS = st.one_of(
    st.integers(-SAFE, SAFE),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**70), 2**70).map(lambda number: int(float(number))),
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=30,
)


def same(one: Any, other: Any) -> bool:
    """Equality as JSON has it: 1 is 1.0, but true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(JSON)
def test_an_independent_decoder_reads_the_same_value(value: Any) -> None:
    assert same(cbor2.loads(encode(value)), value)


@given(JSON)
def test_decoding_gives_the_value_and_the_same_bytes_again(value: Any) -> None:
    data = encode(value)
    assert same(decode(data), value)
    assert encode(decode(data)) == data


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), JSON), st.randoms())
def test_equal_objects_in_any_key_order_give_equal_bytes(
    value: dict[str, Any], shuffler: random.Random
) -> None:
    items = list(value.items())
    shuffler.shuffle(items)
    assert encode(dict(items)) == encode(value)
    ordered = [key.encode() for key in decode(encode(value))]
    assert ordered == sorted(ordered, key=lambda key: (len(key), key))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_damage(data: bytes) -> None:
    try:
        value = decode(data)
    except Damaged:
        return
    assert value is None or isinstance(value, (bool, int, float, str, list, dict))

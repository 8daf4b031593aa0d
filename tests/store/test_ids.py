"""Node ids and thread ids: base32, hashes, times."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rolecall.errors import UsageError
from rolecall.store import ids

NUMBERS = st.integers(0, 2**64 - 1)
NOW_MS = 1_780_000_000_000  # in 2026
SHIFT_LIMIT = 1 << 42


def base32(number: int, length: int) -> str:
    """Crockford base32 by long division, digit after digit."""
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 32)
        digits.append("0123456789ABCDEFGHJKMNPQRSTVWXYZ"[digit])
    assert number == 0
    return "".join(reversed(digits))


@given(NUMBERS)
def test_number_is_spelt_in_thirteen_characters_and_read_back(number: int) -> None:
    spelt = ids.node_from_number(number)
    assert spelt == base32(number, 13)
    assert ids.is_node_id(spelt)
    assert ids.node_number(spelt) == number


@pytest.mark.parametrize(
    ("number", "spelt"),
    [(0, "0000000000000"), (1, "0000000000001"), (31, "000000000000Z"), (2**64 - 1, "FZZZZZZZZZZZZ")],
)
def test_numbers_at_the_bounds(number: int, spelt: str) -> None:
    assert ids.node_from_number(number) == spelt


@given(st.binary(max_size=200))
def test_node_id_is_the_hash_of_type_and_bytes(data: bytes) -> None:
    type_id = "7VQ43ZSJTEWA7"
    assert ids.node_id(type_id, data) == base32(xxhash.xxh64(type_id.encode() + data).intdigest(), 13)
    assert ids.node_id("", data) == base32(xxhash.xxh64(data).intdigest(), 13)
    assert ids.is_id_of(ids.node_id(type_id, data), type_id, data)
    assert ids.is_id_of(ids.node_id("", data), ids.node_id("", data), data)
    assert not ids.is_id_of(ids.node_id(type_id, data), type_id, data + b"x")
    assert not ids.is_id_of(ids.node_id(type_id, data), "BEAZQGKVXMZT8", data)


@pytest.mark.parametrize("name", ["", "not an id", "ZZZZZZZZZZZZZ", "0000_00000000", "95st8mz0qtkp9", "ÄÖÜ"])
def test_a_name_that_is_no_id_is_the_id_of_nothing(name: str) -> None:
    assert not ids.is_id_of(name, "7VQ43ZSJTEWA7", b"\x65hello")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("95ST8MZ0QTKP9", True),
        ("95st8mz0qtkp9", False),
        ("95ST8MZ0QTKP", False),
        ("95ST8MZ0QTKP99", False),
        ("I5ST8MZ0QTKP9", False),
        ("L5ST8MZ0QTKP9", False),
        ("O5ST8MZ0QTKP9", False),
        ("U5ST8MZ0QTKP9", False),
        ("95ST8MZ0QTKP\n", False),
        ("", False),
    ],
)
def test_which_texts_are_node_ids(text: str, answer: bool) -> None:
    assert ids.is_node_id(text) is answer


# -- thread ids --


@given(st.integers(0, SHIFT_LIMIT - 1), st.binary(min_size=10, max_size=10))
def test_thread_id_carries_its_time(ms: int, randomness: bytes) -> None:
    thread = ids.thread_id(ms, randomness)
    assert thread == base32((ms << 80) | int.from_bytes(randomness, "big"), 26)
    assert ids.is_thread_id(thread)
    assert ids.thread_time(thread) == ms


@given(st.lists(st.tuples(st.integers(0, SHIFT_LIMIT - 1), st.binary(min_size=10, max_size=10)), max_size=20))
def test_sorting_thread_ids_sorts_by_time(pairs: list[tuple[int, bytes]]) -> None:
    names = sorted(ids.thread_id(ms, randomness) for ms, randomness in pairs)
    assert [ids.thread_time(name) for name in names] == sorted(ms for ms, _ in pairs)


def predecessor_id(ms: int, randomness: bytes) -> str:
    """A thread id as the predecessor wrote it: 16 bytes as base32 with the padding bits at the end."""
    return base32(int.from_bytes(ms.to_bytes(6, "big") + randomness, "big") << 2, 26)


@given(st.integers(NOW_MS - 10**11, NOW_MS + 10**11), st.binary(min_size=10, max_size=10))
def test_shifted_ids_of_the_predecessor_are_dated_right(ms: int, randomness: bytes) -> None:
    assert ids.thread_time(predecessor_id(ms, randomness)) == ms


def test_shifted_and_plain_ids_of_one_moment_begin_differently() -> None:
    shifted, plain = predecessor_id(NOW_MS, bytes(10)), ids.thread_id(NOW_MS, bytes(10))
    assert shifted.startswith("06")
    assert plain.startswith("01K")
    assert ids.thread_time(shifted) == ids.thread_time(plain) == NOW_MS


def test_an_id_of_2026_as_the_predecessor_wrote_it_is_dated_2026() -> None:
    for digit in "0Z":
        when = datetime.fromtimestamp(ids.thread_time("06G" + digit * 23) / 1000, tz=UTC)
        assert when.year == 2026


@pytest.mark.parametrize(
    ("ms", "randomness"), [(-1, bytes(10)), (SHIFT_LIMIT, bytes(10)), (0, bytes(9)), (0, bytes(11))]
)
def test_time_or_randomness_out_of_bounds_is_refused(ms: int, randomness: bytes) -> None:
    with pytest.raises(UsageError):
        ids.thread_id(ms, randomness)


@pytest.mark.parametrize("text", ["", "01K", "0" * 25, "0" * 27, "u" * 26, "I" * 26, "0" * 25 + "\n"])
def test_text_that_is_no_thread_id_has_no_time(text: str) -> None:
    assert not ids.is_thread_id(text)
    with pytest.raises(UsageError) as caught:
        ids.thread_time(text)
    assert repr(text) in caught.value.message
    assert "26 characters" in caught.value.hint

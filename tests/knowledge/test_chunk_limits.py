"""Passages fit into their limit, and no text is too deep or too long to be cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.knowledge.chunk import passages
from rolecall.knowledge.words import tokens


@pytest.mark.parametrize("path", ["a.py", "a.md", "a.txt", "a.yaml", "a.rs"])
@given(sizes=st.lists(st.integers(0, 60), max_size=120), limit=st.integers(50, 300))
def test_no_passage_is_longer_than_it_may_be(path: str, sizes: list[int], limit: int) -> None:
    text = "\n".join("word " * size for size in sizes)
    for each in passages(path, text, limit=limit):
        assert tokens(each.text) <= limit * 1.5 or each.start == each.end


def test_what_is_not_code_is_cut_by_lines_when_parsing_takes_too_long() -> None:
    found = passages("a.ts", "It's 'x' \"\n" * 30_000, limit=400)  # took minutes
    assert {each.trail for each in found} == {()} and found[-1].end > 29_000


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", "(" * 20_000 + "word" + ")" * 20_000),
        ("a.js", "[" * 20_000 + "word"),
        ("a.md", "> " * 5_000 + "word"),
        ("a.yaml", "[" * 5_000 + "word"),
        ("a.toml", "a = " + "[" * 5_000),
        ("b.yaml", "".join(f"{' ' * depth}key{depth}:\n" for depth in range(400))),
    ],
    ids=["python", "javascript", "markdown", "yaml", "toml", "keys"],
)
def test_nesting_without_end_is_no_matter(path: str, text: str) -> None:
    assert passages(path, text, limit=400)

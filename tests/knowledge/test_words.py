"""Texts as words."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from rolecall.knowledge.words import parts, stem, terms, tokens


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("getHTTPStatus", ["get", "http", "status"]),
        ("get_http_status", ["get", "http", "status"]),
        ("HTTPServer2", ["http", "server", "2"]),
        ("__init__", ["init"]),
        ("utf8Decode", ["utf", "8", "decode"]),
        ("Zürich", ["z", "ü", "rich"]),
        ("naïve-approach", ["na", "ï", "ve", "approach"]),
    ],
)
def test_a_name_is_split_at_case_underscores_and_digits(name: str, found: list[str]) -> None:
    assert parts(name) == found


def test_a_name_of_several_parts_is_a_word_of_its_own_before_them() -> None:
    assert terms("maxLineLength") == ["maxlinelength", "max", "lin", "length"]
    assert terms("length") == ["length"]
    assert terms("max_line") == [stem("max_line"), "max", "lin"]


def test_the_ways_to_write_a_thing_meet_in_their_parts() -> None:
    wanted = {"retry", "limit"}
    for text in ("retryLimit", "retry_limits", "RETRY_LIMIT", "limits of retries", "retried; limited"):
        assert wanted <= set(terms(text)), text


@pytest.mark.parametrize("same", [("retries", "retry", "retried"), ("cache", "caches", "caching", "cached")])
def test_common_endings_are_cut_off(same: tuple[str, ...]) -> None:
    assert len({stem(word) for word in same}) == 1


@pytest.mark.parametrize("word", ["class", "ss", "is", "as", "the", "bed", "ring", ""])
def test_a_short_word_and_a_double_s_keep_their_ends(word: str) -> None:
    assert stem(word) == word


def test_scripts_without_spaces_are_words_of_two_characters() -> None:
    assert parts("重试次数limit") == ["重试", "试次", "次数", "limit"]
    assert parts("重") == ["重"]


def test_a_word_without_end_is_cut() -> None:
    assert all(len(word) <= 64 for word in terms("a" * 5000 + "_" + "0" * 5000))


@given(st.text())
def test_whatever_the_text_words_are_small_and_safe_to_quote(text: str) -> None:
    for word in terms(text):
        assert word and '"' not in word and not word.isspace()
        assert word == word.lower() or not word.isascii()


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"])), st.text(alphabet="ab \n"))
def test_more_text_is_never_fewer_tokens(text: str, more: str) -> None:
    assert 1 <= tokens(text) <= tokens(text + more)


def test_tokens_are_about_what_a_tokenizer_counts() -> None:
    package = find_spec("wordllama")
    assert package and package.origin
    model = Tokenizer.from_file(
        str(Path(package.origin).parent / "tokenizers" / "l2_supercat_tokenizer_config.json")
    )
    sources = sorted((Path(__file__).parents[2] / "src" / "rolecall").glob("*.py"))
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    counted = len(model.encode(text, add_special_tokens=False).ids)
    assert 0.75 < tokens(text) / counted < 1.25

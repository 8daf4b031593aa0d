"""Tags in messages, slash commands, and which skill is active after them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.nexus import catalog, tags
from rolecall.nexus.tags import Activation, Detection, InlineAction, detect

CATALOG = catalog.load()
TAGS = CATALOG.vocabulary.tags


def found(message: str) -> list[Activation | InlineAction]:
    return list(detect(message, TAGS).found)


def triggers(message: str) -> list[str]:
    """Which tags were found, by id, with their variant."""
    return [f"{one.tag}:{variant}" if (variant := one[1]) else one.tag for one in detect(message, TAGS).found]


def plan(text: str = "", mode: str = "") -> Activation:
    return Activation("nx-plan", mode, text, "plan")


def decide(text: str = "") -> InlineAction:
    return InlineAction("nx_plan_decide", "", text, "d")


# -- what is found --


def test_a_skill_tag_activates_its_skill_with_the_words_behind_it() -> None:
    assert found("[plan] let's add login") == [plan("let's add login")]
    assert found("Please.\n[run]") == [Activation("nx-run", "", "", "run")]
    assert found("[sync]") == [Activation("nx-sync", "", "", "sync")]


def test_a_variant_of_a_skill_tag_is_its_mode() -> None:
    assert found("[plan:auto] add login") == [plan("add login", "auto")]


def test_an_inline_action_has_its_handler_and_its_words() -> None:
    assert found("[d] We take SQLite.") == [decide("We take SQLite.")]
    assert found("[m] tests need a terminal") == [
        InlineAction("memory_store", "", "tests need a terminal", "m")
    ]
    assert found("[m:gc]") == [InlineAction("memory_gc", "", "", "m-gc")]


def test_a_rule_may_have_any_suffix_and_passes_it_on() -> None:
    assert found("[rule] no tabs") == [InlineAction("rule_store", "", "no tabs", "rule")]
    assert found("[rule:frontend] no tabs") == [InlineAction("rule_store", "frontend", "no tabs", "rule")]
    assert found("[rule:앞 단] x") == [InlineAction("rule_store", "앞 단", "x", "rule")]


def test_several_tags_are_found_in_order_each_with_its_words() -> None:
    assert found("[d] take A\n[rule:db] no raw SQL\n\nand\n[m] locks are slow.\n- [plan:auto] next") == [
        decide("take A"),
        InlineAction("rule_store", "db", "no raw SQL", "rule"),
        InlineAction("memory_store", "", "locks are slow.", "m"),
        plan("next", "auto"),
    ]


def test_words_go_to_the_end_of_the_paragraph() -> None:
    assert found("[d] take A,\nbecause B is slow\n \nSomething else.") == [
        decide("take A,\nbecause B is slow")
    ]


def test_a_code_block_that_follows_at_once_belongs_to_the_words() -> None:
    message = "[m] run it so:\n```sh\nmake x\n\nmake [d]\n```\nalways\n\nelse"
    assert found(message) == [
        InlineAction("memory_store", "", "run it so:\n```sh\nmake x\n\nmake [d]\n```\nalways", "m")
    ]


def test_tags_side_by_side_share_their_words() -> None:
    memory = InlineAction("memory_store", "", "take A", "m")
    assert found("[d][m] take A") == found("[d] [m]\ntake A") == [decide("take A"), memory]


def test_a_comma_between_tags_leaves_them_side_by_side() -> None:
    assert found("[d], [m] take A") == found("[d] [m] take A")


def test_a_colon_behind_the_tag_is_not_part_of_the_words() -> None:
    assert found("[d]: take A") == [decide("take A")]


# -- what is ignored --

IGNORED = {
    "within a line": "Please [run] it",
    "at the end of a line": "We take SQLite. [d]",
    "fenced code": "```\n[plan]\n```",
    "fenced code with a language": "text\n```python\nx = [d]\n```\ntext",
    "tildes": "~~~\n[plan]\n```\n[run]\n~~~",
    "a fence that is not closed": "```\n[plan]\n\n[run]",
    "a longer fence around a shorter": "````\n```\n[plan]\n```\n[run]\n````",
    "a fence in a list": "- ```\n  [plan]\n  ```\n1. ~~~\n   [run]\n   ~~~",
    "inline code": "type `[plan]` to plan",
    "inline code with two backticks": "type `` `[plan]` `` to plan",
    "a quoted line": "> [plan] he said\n  > [run]",
    "a quoted fence": "> ```\n> [plan]",
    "a quotation in a list": "- > [plan] he said\n- a\n  1. > [run]",
    "quotation marks": "What does \"[d]\" do? And '[m]', \u201c[plan]\u201d, \u00ab[run]\u00bb?",
    "quotation marks around more": 'he wrote "[d] take A" and "so be it [m]"',
    "parentheses": "The tag ([d]). And ([plan]) too",
    "the end of parentheses": "tags (such as [d], [m], [plan] / [run].) are short",
    "only a mark behind it": "[d].\n\n[plan]?\n\n[m]),",
    "indented code": "so:\n\n    [plan] it\n\n    [run]",
    "indented code at the beginning": "    [plan] it",
    "code behind a tab": "so:\n\n\t[plan] it\n \t[run]",
    "indented code with blanks on the line before": "so:\n   \n     [plan] it",
    "indented code right behind a fence": "```\nx\n```\n    [plan]",
    "an indented fence, which is code and no fence": "so:\n\n    ```\n    [plan]",
    "indented code in a list": "- so\n\n      [plan] it\n\n1. a\n\n       [run]",
    "indented code behind a list": "- a\n\nb\n\n    [plan] it",
    "indented code in a list in a list": "- a\n  - b\n\n        [plan]",
    "pre": "<pre>[plan]</pre>",
    "pre with what would be a fence": "<pre>\n```\n[plan]\n</pre>",
    "pre within a line": "it says <pre> [plan] </pre> there",
    "code in HTML": "type <code>[plan]</code> to plan",
    "an escape": r"\[plan] and \[d]",
    "a word before it": "matrix[d] and list_[run]",
    "a word behind it": "[d]one",
    "a link": "[plan](https://example.org) and [run](x)",
    "an image": "![plan](x.png)",
    "a link with a title": 'see [this](x "or [plan]") and [that](<a b> (or [run]))',
    "a tag in the words of a link": "see [the [plan] of it](https://example.org) and [a [run]][ref]",
    "a tag in an address": "https://example.org/[plan]?x=[d] and <https://example.org/[run]>",
    "a tag in the address of a link": "[x](docs/[plan].md) and [y](a/(b)/[run])",
    "a link by reference": "see [plan][ref] and [run][]",
    "a reference": "see [the plan][plan] and [x][run]",
    "an index": "a[0][d]",
    "a reference definition": "[plan]: https://example.org/plan",
    "a reference definition by a path": '[run]: ../run.md "Run"',
    "tags side by side of which one is defined": "see [run][plan]\n\n[plan]: https://example.org",
    "a wiki link": "[[plan]]",
    "another case": "[PLAN]",
    "blanks": "[ plan ] [plan ] [d:]",
    "an unknown variant": "[plan:fast] [run:auto] [m:gcc]",
    "no tag at all": "[x] [ ] [1] [todo] []",
    "an open bracket": "[plan",
    "nothing": "",
}


@pytest.mark.parametrize("message", IGNORED.values(), ids=IGNORED)
def test_a_tag_that_is_not_spoken_is_ignored(message: str) -> None:
    assert found(message) == []


SPOKEN = {
    "after a fence": ("```\ncode\n```\n[plan]", ["plan"]),
    "a fence closed by a longer one": ("```\ncode\n`````\n[plan]", ["plan"]),
    "after a quotation": ("> he said\n\n[plan]", ["plan"]),
    "a fence inside a quotation opens nothing": ("> ```\n\n[plan]", ["plan"]),
    "in a list": ("- [plan] it\n1. [rule:x] y", ["plan", "rule:x"]),
    "beside a quotation": ("[d] \"yes\" to '[m]'", ["d"]),
    "with quotation marks in it": ('[rule:"x"] y', ['rule:"x"']),
    "indented by three": ("a\n\n   [plan]", ["plan"]),
    "behind an indented fence": ("a\n\n    ```\n\n[plan]", ["plan"]),
    "behind indented code": ("a\n\n    b\n\n[plan]", ["plan"]),
    "before a link": ("[plan] [x](y) [run]", ["plan"]),
    "before words in parentheses": ("[plan] (the login)", ["plan"]),
    "before a word in brackets": ("[plan] [x]", ["plan"]),
    "with a colon before words": (
        "[d]: yes\n\n[m]: node.js\n\n[plan]: #12 and https://x",
        ["d", "m", "plan"],
    ),
    "a definition of another": ("[plan] it\n\n[run]: https://example.org", ["plan"]),
    "CRLF": ("[d] a\r\n\r\n[m] b\r\n", ["d", "m"]),
    "on the next line of a paragraph": ("so\n[plan] it", ["plan"]),
}


@pytest.mark.parametrize(("message", "tags"), SPOKEN.values(), ids=SPOKEN)
def test_a_tag_that_is_spoken_is_found(message: str, tags: list[str]) -> None:
    assert triggers(message) == tags


# -- near misses --

MEANT = {
    "[plann] it": ["[plann] is not a tag. Did you mean [plan]?"],
    "[Plan]": ["[Plan] is not a tag. Did you mean [plan]?"],
    "[D]": ["[D] is not a tag. Did you mean [d]?"],
    "[paln]\n[sycn]": [
        "[paln] is not a tag. Did you mean [plan]?",
        "[sycn] is not a tag. Did you mean [sync]?",
    ],
    "[plan: auto]": ["[plan: auto] is not a tag. Did you mean [plan:auto]?"],
    "[plan:fast]": ["[plan:fast] is not a tag. Did you mean [plan]?"],
    "[rul:frontend]": ["[rul:frontend] is not a tag. Did you mean [rule:frontend]?"],
    "[m:gcc] [m:gcc]": ["[m:gcc] is not a tag. Did you mean [m:gc]?"],
    "[run:auto]": ["[run:auto] is not a tag. Did you mean [run]?"],
    "`[plann]` > [x] [a] [ok] [todo] [note: this] [link](x)": [],
}


@pytest.mark.parametrize(("message", "told"), MEANT.items())
def test_what_is_nearly_a_tag_is_pointed_out_and_does_nothing(message: str, told: list[str]) -> None:
    detection = detect(message, TAGS)
    assert [str(one) for one in detection.near_misses] == told
    assert detection.found == ()


# -- properties --

PIECES = [
    "[plan]",
    "[d]",
    "[rule:x]",
    "[plann]",
    "`",
    "```",
    "~~~",
    "\n",
    "\n\n",
    "> ",
    "\\",
    "word",
    " ",
    "[",
    "]",
    "- ",
    "    ",
    "<pre>",
    "</pre>",
    "<code>",
    "</code>",
    "<!--",
    "-->",
    "[plan]: http://x",
    "(x)",
    "://",
]


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=30).map("".join)))
def test_any_message_gives_tags_whose_words_stand_in_it(message: str) -> None:
    detection = detect(message, TAGS)
    assert len(detection.found) <= message.count("[")
    assert all(one.text in message for one in detection.found)


@given(st.text())
def test_fenced_text_never_holds_a_tag(text: str) -> None:
    fence = "`" * (max((len(run) for run in text.split("\n")), default=0) + 3)
    assert detect(f"{fence}\n{text} [plan]\n{fence}", TAGS) == Detection(())


HOSTILE = (
    *(
        "[d] a\n\n",
        "a`",
        "\\",
        "[",
        "]",
        "[abc]",
        "> x\n",
        "``` \n",
        "[plan]",
        "`` a ` ",
        "- ",
        "\\`",
        "`",
        " ",
        "\t",
    ),
    *(
        "<pre>",
        "<code>",
        "<code ",
        "</code>",
        "<!--",
        "-->",
        "<",
        "://",
        "a://",
        "[a](",
        "[a](b 'c",
        '[a](b "',
        "](",
    ),
    *(
        "[a](<",
        "[a](b (",
        "[plan]: ",
        "[a]: b/c",
        "[a]: x\n",
        "(",
        "    a\n\n",
        "- a\n\n    ",
        "1. ",
        "\n",
        "[ ",
        "a/b.",
        '"[d] ',
        "'[d]",
        "\u201c[d]",
        "([d]",
        "([d])",
        "[d],",
    ),
)


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize(
    ("before", "behind"), [("[plan]", ""), ("", " [plan]"), ("[x](", "[plan]"), ("[" * 9, "]" * 9)]
)
def test_the_time_for_a_message_follows_its_size(piece: str, before: str, behind: str) -> None:
    message = before + piece * (100_000 // len(piece)) + behind
    start = time.process_time()
    detect(message, TAGS)
    assert time.process_time() - start < 3  # with its square it would be minutes


def test_deep_brackets_are_no_burden() -> None:
    start = time.process_time()
    assert triggers("[" * 200_000 + "[plan] " + "]" * 200_000) == []
    assert triggers("[x " * 100_000 + "[plan] " + "]" * 100_000) == []
    assert time.process_time() - start < 3


# -- slash commands and the active skill --


def test_a_slash_command_activates_any_skill() -> None:
    assert tags.slash("/nx-init", CATALOG.skills, CATALOG.vocabulary.tags) == Activation("nx-init")
    assert tags.slash(
        " /nx-plan auto add login\nand logout", CATALOG.skills, CATALOG.vocabulary.tags
    ) == Activation("nx-plan", "auto", "add login\nand logout")
    assert tags.slash("/nx-run auto", CATALOG.skills, CATALOG.vocabulary.tags) == Activation(
        "nx-run", "", "auto"
    )


@pytest.mark.parametrize("message", ["nx-init", "/help", "see /nx-init", "", "/", "/nx-initial"])
def test_other_messages_are_no_slash_command(message: str) -> None:
    assert tags.slash(message, CATALOG.skills, CATALOG.vocabulary.tags) is None

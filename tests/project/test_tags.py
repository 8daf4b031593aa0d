"""Tags in messages, slash commands, and which skill is active after them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.errors import UsageError
from rolecall.project import catalog, skills
from rolecall.project.skills import Active
from rolecall.project.tags import NO_PLAN, Action, Activation, Detection, detect, refusal

CATALOG = catalog.load()
TAGS = CATALOG.vocabulary.tags


def found(message: str) -> list[Activation | Action]:
    return list(detect(message, TAGS).found)


def triggers(message: str) -> list[str]:
    """Which tags were found, by id, with their variant."""
    return [f"{one.tag}:{variant}" if (variant := one[1]) else one.tag for one in detect(message, TAGS).found]


def plan(text: str = "", mode: str = "") -> Activation:
    return Activation("nx-plan", mode, text, "plan")


def decide(text: str = "") -> Action:
    return Action("nx_plan_decide", "", text, "d")


# -- what is found --


def test_a_skill_tag_activates_its_skill_with_the_words_behind_it() -> None:
    assert found("[plan] let's add login") == [plan("let's add login")]
    assert found("Please [run]") == [Activation("nx-run", "", "Please", "run")]
    assert found("[sync]") == [Activation("nx-sync", "", "", "sync")]


def test_a_variant_of_a_skill_tag_is_its_mode() -> None:
    assert found("[plan:auto] add login") == [plan("add login", "auto")]


def test_an_inline_action_has_its_handler_and_its_words() -> None:
    assert found("[d] We take SQLite.") == [decide("We take SQLite.")]
    assert found("[m] tests need a terminal") == [Action("memory_store", "", "tests need a terminal", "m")]
    assert found("[m:gc]") == [Action("memory_gc", "", "", "m-gc")]


def test_a_rule_may_have_any_suffix_and_passes_it_on() -> None:
    assert found("[rule] no tabs") == [Action("rule_store", "", "no tabs", "rule")]
    assert found("[rule:frontend] no tabs") == [Action("rule_store", "frontend", "no tabs", "rule")]
    assert found("[rule:앞 단] x") == [Action("rule_store", "앞 단", "x", "rule")]


def test_several_tags_are_found_in_order_each_with_its_words() -> None:
    assert found("[d] take A\n[rule:db] no raw SQL\n\nand [m] locks are slow. [plan:auto] next") == [
        decide("take A"),
        Action("rule_store", "db", "no raw SQL", "rule"),
        Action("memory_store", "", "locks are slow.", "m"),
        plan("next", "auto"),
    ]


def test_words_go_to_the_end_of_the_paragraph() -> None:
    assert found("[d] take A,\nbecause B is slow\n \nSomething else.") == [
        decide("take A,\nbecause B is slow")
    ]


def test_a_code_block_that_follows_at_once_belongs_to_the_words() -> None:
    message = "[m] run it so:\n```sh\nmake x\n\nmake [d]\n```\nalways\n\nelse"
    assert found(message) == [
        Action("memory_store", "", "run it so:\n```sh\nmake x\n\nmake [d]\n```\nalways", "m")
    ]


def test_a_tag_at_the_end_takes_the_words_before_it() -> None:
    assert found("Unrelated.\n\nWe take SQLite. [d]") == [decide("We take SQLite.")]


def test_tags_side_by_side_share_their_words() -> None:
    memory = Action("memory_store", "", "take A", "m")
    assert found("[d][m] take A") == found("take A [d] [m]") == [decide("take A"), memory]


def test_words_that_belong_to_one_tag_are_not_given_to_the_next() -> None:
    assert found("[d] take A [m]") == [decide("take A"), Action("memory_store", "", "", "m")]


def test_a_colon_behind_the_tag_is_not_part_of_the_words() -> None:
    assert found("[d]: take A") == [decide("take A")]


# -- what is ignored --

IGNORED = {
    "fenced code": "```\n[plan]\n```",
    "fenced code with a language": "text\n```python\nx = [d]\n```\ntext",
    "tildes": "~~~\n[plan]\n```\n[run]\n~~~",
    "a fence that is not closed": "```\n[plan]\n\n[run]",
    "a longer fence around a shorter": "````\n```\n[plan]\n```\n[run]\n````",
    "a fence in a list": "- ```\n  [plan]\n  ```\n1. ~~~\n   [run]\n   ~~~",
    "inline code": "type `[plan]` to plan",
    "inline code with two backticks": "type `` `[plan]` `` to plan",
    "inline code over two lines": "a `b\n[plan] c` d",
    "a quoted line": "> [plan] he said\n  > [run]",
    "a quoted fence": "> ```\n> [plan]",
    "an escape": r"\[plan] and \[d]",
    "a word before it": "matrix[d] and list_[run]",
    "a word behind it": "[d]one",
    "a link": "[plan](https://example.org) and [run](x)",
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
    "an unclosed backtick": ("it's a ` here [plan]", ["plan"]),
    "backticks of other lengths": ("`` a ` [plan] b", ["plan"]),
    "a backtick that is closed in another paragraph": ("a ` b [plan]\n\nc ` d", ["plan"]),
    "an escaped backtick": (r"a \` b [plan] c ` d", ["plan"]),
    "an escaped backslash": (r"\\[plan]", ["plan"]),
    "beside inline code": ("`code`[plan]`code`", ["plan"]),
    "in a list": ("- [plan] it\n    - [rule:x] y", ["plan", "rule:x"]),
    "in brackets and behind marks": ("([plan]) so:[run]!", ["plan", "run"]),
    "beside letters of other alphabets": ("이거[plan]해줘", ["plan"]),
    "backticks on one line are no fence when more follow": ("```a``` [plan]", ["plan"]),
    "CRLF": ("[d] a\r\n\r\n[m] b\r\n", ["d", "m"]),
}


@pytest.mark.parametrize(("message", "tags"), SPOKEN.values(), ids=SPOKEN)
def test_a_tag_that_is_spoken_is_found(message: str, tags: list[str]) -> None:
    assert triggers(message) == tags


# -- near misses --

MEANT = {
    "[plann] it": ["[plann] is no tag. Did you mean [plan]?"],
    "[Plan]": ["[Plan] is no tag. Did you mean [plan]?"],
    "[D]": ["[D] is no tag. Did you mean [d]?"],
    "[paln] [sycn]": ["[paln] is no tag. Did you mean [plan]?", "[sycn] is no tag. Did you mean [sync]?"],
    "[plan: auto]": ["[plan: auto] is no tag. Did you mean [plan:auto]?"],
    "[plan:fast]": ["[plan:fast] is no tag. Did you mean [plan]?"],
    "[rul:frontend]": ["[rul:frontend] is no tag. Did you mean [rule:frontend]?"],
    "[m:gcc] [m:gcc]": ["[m:gcc] is no tag. Did you mean [m:gc]?"],
    "[run:auto]": ["[run:auto] is no tag. Did you mean [run]?"],
    "`[plann]` > [x] [a] [ok] [todo] [note: this] [link](x)": [],
}


@pytest.mark.parametrize(("message", "told"), MEANT.items())
def test_what_is_nearly_a_tag_is_pointed_out_and_does_nothing(message: str, told: list[str]) -> None:
    detection = detect(message, TAGS)
    assert [str(one) for one in detection.near_misses] == told
    assert detection.found == ()


# -- actions that cannot be done --


def test_a_decision_without_a_plan_is_refused_with_the_pinned_words() -> None:
    [action] = found("[d] take A")
    assert isinstance(action, Action)
    assert refusal(action, has_plan=False) == NO_PLAN
    assert NO_PLAN.startswith("No active plan session")
    assert refusal(action, has_plan=True) == ""


def test_other_actions_need_no_plan() -> None:
    for action in found("[m] a [m:gc] b [rule] c"):
        assert isinstance(action, Action)
        assert refusal(action, has_plan=False) == ""


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


@pytest.mark.parametrize(
    "piece", ["[d] a\n\n", "a`", "\\", "[", "[abc]", "> x\n", "``` \n", "[plan]", "`` a ` ", "- ", "\\`"]
)
def test_the_time_for_a_message_follows_its_size(piece: str) -> None:
    message = piece * (200_000 // len(piece))
    before = time.process_time()
    detect(message, TAGS)
    assert time.process_time() - before < 3  # with its square it would be minutes


# -- slash commands and the active skill --


def test_a_slash_command_activates_any_skill() -> None:
    assert skills.slash("/nx-init", CATALOG) == Activation("nx-init")
    assert skills.slash(" /nx-plan auto add login\nand logout", CATALOG) == Activation(
        "nx-plan", "auto", "add login\nand logout"
    )
    assert skills.slash("/nx-run auto", CATALOG) == Activation("nx-run", "", "auto")


@pytest.mark.parametrize("message", ["nx-init", "/help", "see /nx-init", "", "/", "/nx-initial"])
def test_other_messages_are_no_slash_command(message: str) -> None:
    assert skills.slash(message, CATALOG) is None


def test_manual_skills_are_never_offered_nor_guessed() -> None:
    assert [skill.id for skill in skills.offered(CATALOG)] == ["nx-plan", "nx-run", "nx-sync"]
    assert skills.guessed(CATALOG, "nx-sync") == Activation("nx-sync")
    with pytest.raises(UsageError) as caught:
        skills.guessed(CATALOG, "nx-init")
    assert caught.value.message == "nx-init is only activated by the user"
    assert caught.value.hint == "Type /nx-init to activate it."


def test_a_skill_stays_active_until_another_replaces_it() -> None:
    active = skills.after(None, found("[plan:auto] x"))
    assert active == Active("nx-plan", "auto")
    assert skills.after(active, found("[d] yes [m] no")) == active
    assert skills.after(active, found("[run] [sync]")) == Active("nx-sync")


def test_only_the_active_skill_can_end() -> None:
    assert skills.ended(Active("nx-plan"), "nx-plan") is None
    assert skills.ended(Active("nx-run"), "nx-plan") == Active("nx-run")
    assert skills.ended(None, "nx-plan") is None

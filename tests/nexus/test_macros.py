"""Invocation macros: what is read, what is refused and where, what a host without means is told."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.errors import UsageError
from rolecall.nexus import catalog, macros
from rolecall.nexus.macros import Argument, Arguments, Item, Render, find
from rolecall.nexus.vocabulary import Invocation, Parameter

CATALOG = catalog.load()
TAGS = CATALOG.vocabulary.tags
OWN = CATALOG.vocabulary.invocations


def expand(text: str, render: Render, source: str = "<text>") -> str:
    return macros.expand(text, render, invocations=OWN, choices=CATALOG.choices, source=source)


def parsed(text: str) -> list[tuple[str, dict[str, Any]]]:
    return [(macro.primitive, dict(macro.arguments)) for macro in find(text)]


def echo(arguments: Arguments) -> str:
    return f"<{', '.join(f'{name}={value}' for name, value in arguments.items())}>"


ECHO = dict.fromkeys(OWN, echo)


# -- reading --

READ: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "{{subagent_spawn target_role=engineer prompt=\"do it\" resume_tier_hint=bounded}}": [
        ("subagent_spawn", {"target_role": "engineer", "prompt": "do it", "resume_tier_hint": "bounded"})
    ],
    "a {{x}} b {{y a=1}}{{z}}": [("x", {}), ("y", {"a": "1"}), ("z", {})],
    "{{x\n  a=1\n  b=two\n}}": [("x", {"a": "1", "b": "two"})],
    r'{{x a="say \"hi\" \\ or\n\tnot"}}': [("x", {"a": 'say "hi" \\ or\n\tnot'})],
    '{{x a="}} {{y}} [b] <<C"}}': [("x", {"a": "}} {{y}} [b] <<C"})],
    "{{x a=.nexus/memory/a-b.md b=2026-01-02T03:04:05Z c=k=v d=<id>}}": [
        ("x", {"a": ".nexus/memory/a-b.md", "b": "2026-01-02T03:04:05Z", "c": "k=v", "d": "<id>"})
    ],
    "{{x a=[]}}": [("x", {"a": ()})],
    '{{x a=[one, "two, three",four ]}}': [("x", {"a": ("one", "two, three", "four")})],
    '{{x a=[{label: "A: b", "description": c}, {}]}}': [
        ("x", {"a": ({"label": "A: b", "description": "c"}, {})})
    ],
    '{{x a=[\n  {"label": "yes"},\n  {"label": "no"}\n] b=1}}': [
        ("x", {"a": ({"label": "yes"}, {"label": "no"}), "b": "1"})
    ],
    "{{x a=[<list of them, or: none...>, {label: <a name>}, {...}] b=<which one>}}": [
        ("x", {"a": ("<list of them, or: none...>", {"label": "<a name>"}, "{...}"), "b": "<which one>"})
    ],
    "{{x p=>>END b=1}}\nline\n\n  {{not}} read\n<<END": [("x", {"p": "line\n\n  {{not}} read", "b": "1"})],
    "{{x p=>>END\nline <<END\n <<ENDS\n<<END\nb=1}}": [("x", {"p": "line <<END\n <<ENDS", "b": "1"})],
    "{{x p=>>A q=>>B}}\nfirst\n<<A\nsecond\n<<B": [("x", {"p": "first", "q": "second"})],
    "{{x p=>>A}}  \n<<A\n": [("x", {"p": ""})],
    "{{x p=>>A}}\n\n\n<<A\n": [("x", {"p": "\n"})],
    "{{x p=>>A}}\r\none\r\ntwo\r\n  <<A \r\nrest": [("x", {"p": "one\r\ntwo"})],
    "{{x p=>>A}}\n<<B\n<<A": [("x", {"p": "<<B"})],
    "{ {x}} {{ x }} {{}} {{1}} {{#a}} }} {{": [],
}  # fmt: skip


@pytest.mark.parametrize(("text", "read"), READ.items())
def test_macros_are_read(text: str, read: list[tuple[str, dict[str, Any]]]) -> None:
    assert parsed(text) == read


REFUSED = {
    "{{x": "1:1: the macro {{x is not closed",
    "a\n  {{x a=1": "2:3: the macro {{x is not closed",
    "{{x a=1 }": "1:9: expected key=value or }}, found '}'",
    "{{x a}}": "1:5: expected key=value or }}, found 'a}}'",
    "{{x a = 1}}": "1:5: expected key=value or }}, found 'a = 1}}'",
    "{{x a=}}": "1:7: expected a value, found '}}'",
    "{{x a=": "1:7: expected a value, found the end of the text",
    '{{x a="b"c=d}}': "1:10: expected a blank or }}, found 'c=d}}'",
    '{{x a="b': "1:7: the quote is not closed on its line",
    '{{x a="b\nc"}}': "1:7: the quote is not closed on its line",
    r'{{x a="b\q"}}': r"1:9: the escape \q is not known",
    "{{x a=1 a=2}}": "1:9: the parameter 'a' is given twice",
    "{{x a=[b}}": "1:9: expected , or ], found '}}'",
    "{{x a=[b,]}}": "1:10: expected another entry behind the comma, found ']}}'",
    "{{x a=[,b]}}": "1:8: expected an entry of the list, found ',b]}}'",
    "{{x a=[b c]}}": "1:10: expected , or ], found 'c]}}'",
    "{{x a=[[b]]}}": "1:8: expected an entry of the list, found '[b]]}}'",
    "{{x a=[{b}]}}": "1:10: expected : behind the key 'b', found '}]}}'",
    "{{x a=[{b: 1, b: 2}]}}": "1:15: 'b' is given twice in one entry",
    "{{x a=[": "1:8: expected an entry of the list, found the end of the text",
    "{{x p=>>}}": "1:7: a heredoc needs a name",
    "{{x p=>>A}}": "1:7: the heredoc >>A is not closed",
    "{{x p=>>A}}\ntext <<A\n<<AB\n": "1:7: the heredoc >>A is not closed",
    "{{x p=>>A\ntext\n<<A": "1:1: the macro {{x is not closed",
    "{{x p=>>A}} more\ntext\n<<A": "1:12: expected the end of the line, because the text of >>A follows, found ' more'",
    "a\n {{ x a=1 }}": "2:2: a macro's name stands right behind {{, without a blank",
    "{{\n\tx\n a-b=1}}": "1:1: a macro's name stands right behind {{, without a blank",
    "{{x p=>>A-b}}": "1:10: expected a blank or }}, found '-b}}'",
}


@pytest.mark.parametrize(("text", "error"), REFUSED.items())
def test_what_cannot_be_read_is_refused_with_line_and_column(text: str, error: str) -> None:
    with pytest.raises(UsageError) as caught:
        list(find(text, source="body.md"))
    assert caught.value.message == f"body.md:{error}"
    with pytest.raises(UsageError, match=re.escape(error.split(": ", 1)[1])):
        expand(text, ECHO)


# -- expanding --


def test_a_macro_is_replaced_and_all_around_it_is_kept() -> None:
    text = "one {{skill_activation skill=nx-run}}, two\n{{task_register label=a state=pending}}\n"
    assert expand(text, ECHO) == "one <skill=nx-run>, two\n<label=a, state=pending>\n"


def test_a_heredoc_goes_with_its_macro() -> None:
    text = (
        "before\n{{subagent_spawn target_role=writer prompt=>>P}}\nsay {{this}}\n<<P\n"
        "after {{task_register label=a state=pending}}"
    )
    assert expand(text, ECHO) == (
        "before\n<target_role=writer, prompt=say {{this}}>\nafter <label=a, state=pending>"
    )


def test_every_misuse_is_reported_at_once_with_its_place() -> None:
    text = (
        "{{sub_agent_spawn}}\n"
        " {{subagent_spawn target_role=engineer promt=x}}\n"
        "{{user_question question=[a] options=b}}\n"
        "{{task_register"
    )
    with pytest.raises(UsageError) as caught:
        expand(text, ECHO, source="body.md")
    lines = [line.strip() for line in caught.value.message.splitlines()[1:]]
    expected = [
        "body.md:1:1: error: the primitive 'sub_agent_spawn' is not known. Did you mean 'subagent_spawn'?",
        "body.md:2:2: error: subagent_spawn needs the parameter 'prompt'",
        "body.md:2:2: error: subagent_spawn has no parameter 'promt'. Did you mean 'prompt'?",
        "body.md:3:1: error: user_question: 'question' takes a text, not a list",
        "body.md:3:1: error: user_question: 'options' takes a list",
        "body.md:4:1: error: the macro {{task_register is not closed",
    ]
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start), (line, start)


WRONG_NAMES = {
    "{{skill_activation skill=nx-plna}}": (
        "skill_activation: 'skill' cannot be 'nx-plna'. Did you mean 'nx-plan'?"
        " Skills: nx-init, nx-plan, nx-run, nx-sync."
    ),
    "{{subagent_spawn target_role=engineeer prompt=x}}": (
        "subagent_spawn: 'target_role' cannot be 'engineeer'. Did you mean 'engineer'? Agents: architect, designer,"
        " engineer, postdoc, researcher, reviewer, strategist, tester, writer, explore."
    ),
    "{{subagent_spawn target_role=writer prompt=x resume_tier_hint=forever}}": (
        "subagent_spawn: 'resume_tier_hint' cannot be 'forever'. Resume tiers: persistent, bounded, ephemeral."
    ),
    "{{task_register label=a state=done}}": (
        "task_register: 'state' cannot be 'done'. States: pending, in_progress, completed."
    ),
    "{{skill_activation skill=nx-plan mode=atuo}}": (
        "skill_activation: 'mode' cannot be 'atuo'. Did you mean 'auto'? Modes of nx-plan: auto."
    ),
    "{{skill_activation mode=auto skill=nx-run}}": (
        "skill_activation: 'mode' cannot be 'auto'. Modes of nx-run: none."
    ),
    '{{task_register label=a state=""}}': "task_register: 'state' cannot be ''.",
}


@pytest.mark.parametrize(("text", "told"), WRONG_NAMES.items())
def test_a_value_that_names_nothing_is_refused_with_what_it_could_be(text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        expand(f"x\n {text}", ECHO, source="body.md")
    assert f"body.md:2:2: error: {told}" in caught.value.message


@pytest.mark.parametrize("role", [*catalog.load().agents, "explore"])
def test_every_agent_and_the_hosts_explorer_may_be_sent_out(role: str) -> None:
    for tier in ("persistent", "bounded", "ephemeral"):
        text = f"{{{{subagent_spawn target_role={role} prompt=x resume_tier_hint={tier}}}}}"
        assert expand(text, ECHO) == f"<target_role={role}, prompt=x, resume_tier_hint={tier}>"


@pytest.mark.parametrize("name", ["skill", "mode"])
def test_a_list_is_refused_where_a_name_is_meant(name: str) -> None:
    with pytest.raises(UsageError, match=f"skill_activation: '{name}' takes a text, not a list"):
        expand(
            f"{{{{skill_activation skill=nx-run {name}=[nx-run]}}}}".replace("skill=nx-run skill", "skill"),
            ECHO,
        )


def test_kinds_hold_for_a_vocabulary_that_does_not_state_them() -> None:
    untyped = {
        id: one._replace(semantic_params=tuple(part._replace(value_type="") for part in one.semantic_params))
        for id, one in OWN.items()
    }
    found = macros.problems("{{user_question question=[a] options=b}}", untyped)
    assert [problem.message for problem in found] == [
        "user_question: 'question' takes a text, not a list",
        "user_question: 'options' takes a list",
    ]


def test_a_primitive_that_the_host_has_no_words_for_is_an_error() -> None:
    render = {name: words for name, words in ECHO.items() if name != "task_register"}
    with pytest.raises(UsageError, match="the host has no way to do 'task_register'"):
        expand("{{task_register label=a state=pending}}", render)


def test_the_vocabulary_that_is_given_decides() -> None:
    knows_x = {"x": Invocation("x", (Parameter("a", "-", required=False),))}
    assert macros.expand("{{x}}{{x a=[b]}}", {"x": echo}, invocations=knows_x) == "<><a=('b',)>"
    with pytest.raises(UsageError, match="the primitive 'task_register' is not known"):
        macros.expand("{{task_register label=a state=b}}", ECHO, invocations=knows_x)


# -- words for a host without means --

PROSE = macros.prose(TAGS)


def test_a_skill_is_activated_by_its_tag() -> None:
    assert expand("{{skill_activation skill=nx-plan mode=auto}}", PROSE) == (
        "Go on with the skill `nx-plan`: write `[plan:auto]` on a line of its own."
    )
    assert "write `[sync]` on" in expand("{{skill_activation skill=nx-sync}}", PROSE)


def test_a_skill_without_a_tag_for_it_is_named() -> None:
    assert expand("{{skill_activation skill=nx-init}}", PROSE) == "Go on with the skill `nx-init`."
    assert PROSE["skill_activation"]({"skill": "nx-run", "mode": "auto"}) == (
        "Go on with the skill `nx-run` in the mode auto."
    )


def test_a_spawn_becomes_a_request_that_warns_where_it_cannot_be_met() -> None:
    text = "{{subagent_spawn target_role=tester name=t1 resume_tier_hint=ephemeral prompt=>>P}}\nRun ```this```.\n<<P"
    assert expand(text, PROSE) == (
        "Hand this to an agent in the role `tester` (called `t1`, resume tier ephemeral). Where agents cannot be"
        " started, tell the user that this step was not delegated. Its prompt:\n\n"
        "````text\nRun ```this```.\n````"
    )


def test_a_question_becomes_a_numbered_list() -> None:
    text = '{{user_question question="Which?" options=[{label: A, description: "the first"}, B, {label: C}]}}'
    assert expand(text, PROSE) == (
        "Ask the user this, and end your turn:\n\nWhich?\n\n1. A: the first\n2. B\n3. C"
    )
    assert expand("{{user_question question=Why? options=[]}}", PROSE).endswith("\n\nWhy?")


def test_display_and_observation_are_left_out() -> None:
    observation = "{{memory_read_observation file_path=a reader_identity=b observed_at=c}}"
    text = f"a{{{{task_register label=x state=pending}}}}b{observation}c"
    assert expand(text, PROSE) == "abc"


# -- properties --

NAME = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
BARE = re.compile(r'[^\s"\[\]{},:<>]+')
WORD = st.text(max_size=30)


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def word(text: str) -> str:
    return text if BARE.fullmatch(text) else quoted(text)


def item(value: Item) -> str:
    if isinstance(value, str):
        return word(value)
    return "{" + ", ".join(f"{word(key)}: {word(part)}" for key, part in value.items()) + "}"


def written(primitive: str, arguments: Mapping[str, Argument], heredocs: set[str]) -> str:
    """A macro with these arguments, those in `heredocs` behind it."""
    parts, behind = [primitive], []
    for number, (name, value) in enumerate(arguments.items()):
        if not isinstance(value, str):
            parts.append(f"{name}=[{', '.join(map(item, value))}]")
        elif name in heredocs:
            parts.append(f"{name}=>>END_{number}")
            behind.append(f"\n{value}\n<<END_{number}" if value else f"\n<<END_{number}")
        else:
            parts.append(f"{name}={word(value)}")
    return "{{" + " ".join(parts) + "}}" + "".join(behind)


QUOTABLE = WORD.filter(lambda text: "\r" not in text)
ITEMS = st.lists(st.one_of(QUOTABLE, st.dictionaries(QUOTABLE, QUOTABLE, max_size=3)), max_size=4).map(tuple)
ARGUMENTS: st.SearchStrategy[dict[str, Argument]] = st.dictionaries(
    NAME, st.one_of(QUOTABLE, ITEMS), max_size=4
)


@given(NAME, ARGUMENTS, st.text("ab \n", max_size=5), st.data())
@settings(max_examples=150)
def test_what_is_written_is_read_again(
    primitive: str, arguments: dict[str, Argument], around: str, data: st.DataObject
) -> None:
    heredocs = data.draw(st.sets(st.sampled_from(sorted(arguments) or [""])))
    text = written(primitive, arguments, heredocs)
    has_heredoc = ">>END_" in text and "<<END_" in text
    behind = "\n" if has_heredoc else around
    [macro] = find(around + text + behind)
    assert (macro.primitive, dict(macro.arguments)) == (primitive, arguments)
    assert (around + text + behind)[macro.start : macro.end] == text


@given(st.text().filter(lambda text: not re.search(r"\{\{[A-Za-z_]", text)))
def test_text_without_macros_stays_as_it_is(text: str) -> None:
    assert expand(text, {}) == text


PIECES = [
    "{{",
    "}}",
    "subagent_spawn",
    "prompt=",
    ">>A",
    "<<A",
    "\n",
    " ",
    '"',
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "\\",
    "x",
]


@given(st.one_of(st.lists(st.sampled_from(PIECES), max_size=25).map("".join), st.text()))
@settings(max_examples=300)
def test_any_text_is_expanded_or_refused_with_its_place(text: str) -> None:
    try:
        expand(text, PROSE, source="body.md")
    except UsageError as exc:
        assert re.search(r"body\.md:[1-9]\d*:[1-9]\d*: error: ", exc.message), exc.message


@pytest.mark.parametrize(
    "piece",
    [
        '{{task_register label="a b" state=pending}}\n',
        "{{x}}\n",
        "{{",
        "{{x a=[b, ",
        "\n {{x p=>>A}}\n<<A",
        "{{ a",
        "{{ a b ",
    ],
)
def test_the_time_for_a_text_follows_its_size(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    before = time.process_time()
    macros.problems(text, OWN)
    assert time.process_time() - before < 3  # with its square it would be minutes

"""The mask replaces every secret it knows, also where a text comes in pieces or as JSON."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.settings.mask import MASKED, Mask, secrets_in

SECRET = "hunter2-correct-horse"


def test_secrets_are_known_by_the_names_of_their_variables() -> None:
    named = [
        "OPENAI_API_KEY",
        "github_token",
        "DB_PASSWORD",
        "MY_SECRET",
        "AWS_CREDENTIALS",
        "GPG_PASSPHRASE",
        "SMTP_PASS",
    ]
    environ = {name: f"value-of-{name}" for name in named}
    assert set(secrets_in({**environ, "HOME": "/home/somebody", "PWD": "/home/somebody/work"})) == set(
        environ.values()
    )


def test_what_is_listed_is_a_secret_whatever_its_name() -> None:
    assert secrets_in({"REGION": "eu-central-1", "EDITOR": "something"}, always=["REGION", "MISSING"]) == (
        "eu-central-1",
    )


def test_a_password_inside_an_address_is_a_secret() -> None:
    assert secrets_in({"DATABASE_URL": "postgresql://me:p4ssw0rd!@db.example/x"}) == ("p4ssw0rd!",)


def test_short_values_are_left_alone() -> None:
    assert secrets_in({"API_KEY": "1234567", "TOKEN": ""}) == ()


def test_a_secret_inside_another_does_not_show_the_rest_of_it() -> None:
    assert Mask(["abcdefgh", "abcdefgh-ijkl"]).text("x abcdefgh-ijkl y") == f"x {MASKED} y"


def test_values_are_masked_in_keys_lists_and_depth() -> None:
    value = {SECRET: [{"a": f"<{SECRET}>"}, 1, None, (SECRET,)]}
    assert Mask([SECRET]).value(value) == {MASKED: [{"a": f"<{MASKED}>"}, 1, None, [MASKED]]}


@pytest.mark.parametrize(
    "secret", ['quo"ted-secret', "line\nbreak-secret", "back\\slash-secret", "ümläut-sécret"]
)
def test_a_secret_is_found_inside_json(secret: str) -> None:
    shown = Mask([secret]).text(f"{secret} and {json.dumps({'key': secret})}")
    assert shown == f'{MASKED} and {{"key": "{MASKED}"}}'


def test_no_secrets_change_nothing() -> None:
    assert Mask([]).text("text") == "text" and Mask(["", ""]).value({"a": "b"}) == {"a": "b"}
    stream = Mask([]).stream()
    assert stream.feed("text") == "text" and stream.rest() == ""


@given(
    st.lists(
        st.sampled_from([SECRET, SECRET[:9], SECRET[9:], "h", "aXbcdefgaXb", "plain ", "hunter2-", "aX", "b"])
    ),
    st.lists(st.integers(0, 200), max_size=20),
)
def test_a_text_in_pieces_is_masked_like_the_whole(parts: list[str], cuts: list[int]) -> None:
    # One secret begins another, one begins as it ends.
    mask, text = Mask([SECRET, SECRET[:9], "aXbcdefgaX"]), "".join(parts)
    stream = mask.stream()
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    shown = "".join(stream.feed(text[start:end]) for start, end in pairwise(places)) + stream.rest()
    assert shown == mask.text(text)


def test_a_stream_passes_on_at_once_what_cannot_be_a_secret() -> None:
    stream = Mask([SECRET]).stream()
    assert stream.feed("nothing special. hunt") == "nothing special. "
    assert stream.feed("ing season") == "hunting season"


PEM = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\nw0BAQEFAASCBKcwggSj\nabc=\n-----END KEY-----"


@pytest.mark.parametrize(
    "shown",
    [
        PEM,
        PEM.replace("\n", "\n    "),
        PEM.replace("\n", "\r\n"),
        "\n".join(f"+{line}" for line in PEM.split("\n")),
        "\n".join(f"{number}: {line}" for number, line in enumerate(PEM.split("\n"))),
        json.dumps(PEM.replace("\n", "\n\t")),
        PEM.split("\n")[2],
    ],
)
def test_a_secret_of_several_lines_is_masked_line_by_line(shown: str) -> None:
    mask = Mask([PEM])
    stream = mask.stream()
    for masked in (mask.text(shown), "".join([*map(stream.feed, shown), stream.rest()])):
        assert MASKED in masked
        assert not [line for line in PEM.split("\n") if len(line) > 8 and line in masked]


def test_a_secret_of_one_line_and_short_lines_are_no_lines_of_a_secret() -> None:
    assert Mask(["one line alone"]).text("one line") == "one line"
    assert Mask([PEM]).text("abc= and { }") == "abc= and { }"

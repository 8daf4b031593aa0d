"""JSON that others write, too: what is put in is there, what was there keeps its bytes, what is taken out is gone."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsontexts import settings, texts

from rolecall.errors import UsageError
from rolecall.hosts.json_text import Document, NotJson

SERVER = {"command": "/opt/role call/rolecall", "args": ["mcp"]}
ITEM = {"hooks": [{"type": "command", "command": "ours"}]}


def put_all(text: str) -> str:
    document = Document(text)
    document.set(["mcpServers", "ours"], SERVER)
    document.append(["hooks", "PreToolUse"], [ITEM])
    document.append(["hooks", "Stop"], [ITEM, ITEM])
    document.append(["permissions", "allow"], ["ours 1", "ours 2"])
    return document.text


def take_all(text: str) -> str:
    document = Document(text)
    document.remove(["mcpServers", "ours"])
    for keys in (["hooks", "PreToolUse"], ["hooks", "Stop"], ["permissions", "allow"]):
        entries = document.get(keys)
        for index in reversed(range(len(entries))):
            if entries[index] == ITEM or str(entries[index]).startswith("ours "):
                document.remove([*keys, index])
    return document.text


@given(st.data())
def test_taking_out_what_was_put_in_gives_back_the_very_text(data: st.DataObject) -> None:
    value = data.draw(settings())
    text = data.draw(texts(value))
    after = put_all(text)
    found = json.loads(after.removeprefix("\ufeff"))
    assert found["mcpServers"]["ours"] == SERVER
    assert found["hooks"]["PreToolUse"][-1] == ITEM
    assert found["permissions"]["allow"][-2:] == ["ours 1", "ours 2"]
    assert {key: one for key, one in found.items() if key not in OURS} == {
        key: one for key, one in value.items() if key not in OURS
    }
    assert take_all(after) == text


OURS = ("mcpServers", "hooks", "permissions")


@given(st.data())
def test_the_order_in_which_parts_are_taken_out_does_not_matter(data: st.DataObject) -> None:
    text = data.draw(texts(data.draw(settings())))
    document = Document(put_all(text))
    document.remove(["permissions", "allow", len(document.get(["permissions", "allow"])) - 2])
    document.remove(["permissions", "allow", len(document.get(["permissions", "allow"])) - 1])
    for key in data.draw(st.permutations(["Stop", "PreToolUse"])):
        while (document.get(["hooks", key]) or [None])[-1] == ITEM:
            document.remove(["hooks", key, len(document.get(["hooks", key])) - 1])
    document.remove(["mcpServers", "ours"])
    assert document.text == text


def test_what_is_put_in_takes_on_indent_and_line_ends_of_the_file() -> None:
    document = Document('{\r\n\t"a": {\r\n\t\t"b": 1\r\n\t}\r\n}\r\n')
    document.set(["a", "c"], {"d": 2})
    assert (
        document.text == '{\r\n\t"a": {\r\n\t\t"b": 1,\r\n\t\t"c": {\r\n\t\t\t"d": 2\r\n\t\t}\r\n\t}\r\n}\r\n'
    )


def test_a_file_of_one_line_stays_one() -> None:
    document = Document('{"a":1}')
    document.set(["b", "c"], [1, 2])
    assert document.text == '{"a":1, "b": {"c": [1, 2]}}'


def test_a_value_that_is_the_same_is_not_written_again() -> None:
    text = '{"a": {"x" :1,   "y":[ ]}}'
    document = Document(text)
    document.set(["a"], {"x": 1, "y": []})
    assert document.text == text


def test_an_empty_object_that_was_there_stays_and_one_that_we_made_goes() -> None:
    there, not_there = Document('{"a": { }}'), Document("{\n}")
    for document in (there, not_there):
        document.set(["a", "b"], 1)
        assert document.get(["a", "b"]) == 1
        document.remove(["a", "b"])
    assert (there.text, not_there.text) == ('{"a": { }}', "{\n}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "in line 1"),
        ('{"a": 1,}', "in line 1"),
        ('{"a": 1\n"b": 2}', "in line 2"),
        ("{'a': 1}", "in line 1"),
        ('{"a": 1} x', "behind the end in line 1"),
        ('{"a": 01}', "in line 1"),
        ('{"a": "\n"}', "in line 1"),
        ('{// no\n"a": 1}', "in line 1"),
        ('{"a": NaN}', "NaN is no number"),
        ('{"x": {"a": 1, "a": 2}}', "the key 'a' stands twice"),
        (f'{{"a": {"9" * 5_000}}}', "limit"),
    ],
)
def test_what_is_not_json_is_refused_with_the_place(text: str, why: str) -> None:
    with pytest.raises(NotJson, match=why):
        Document(text)


def test_a_large_file_is_edited_about_as_fast_as_it_is_read() -> None:
    entry = {"history": [{"display": "x" * 200, "pasted": {}}] * 100}
    text = json.dumps({"projects": {f"/p/{number}": entry for number in range(200)}}, indent=2)
    begun = time.process_time()
    json.loads(text)
    reading = time.process_time() - begun
    begun = time.process_time()
    document = Document(text)
    document.set(["mcpServers", "ours"], SERVER)
    document.remove(["mcpServers", "ours"])
    assert document.text == text
    assert time.process_time() - begun < 80 * reading


def test_a_text_that_nests_too_deeply_is_refused_and_does_not_crash() -> None:
    with pytest.raises(NotJson, match="too deeply"):
        Document("[" * 100_000)


@pytest.mark.parametrize("value", [[], 1, "text", None])
def test_something_that_is_in_the_way_is_not_written_over(value: Any) -> None:
    document = Document(json.dumps({"mcpServers": value}))
    with pytest.raises(UsageError, match="mcpServers is no object"):
        document.set(["mcpServers", "ours"], 1)
    assert json.loads(document.text) == {"mcpServers": value}


def test_an_array_that_is_none_is_not_written_over() -> None:
    with pytest.raises(UsageError, match=r"hooks\.Stop is no array"):
        Document('{"hooks": {"Stop": {}}}').append(["hooks", "Stop"], [1])

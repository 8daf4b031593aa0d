"""`rolecall cas` as a user meets it: the installed program in a child process."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from rolecall.settings import yaml12
from rolecall.store.backend import Change
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import BUILTIN, META, Store, make_record

if TYPE_CHECKING:
    from conftest import Rolecall

HELLO = "95ST8MZ0QTKP9"
MISSING = "0000000000001"
LIST = {"type": "array", "title": "List", "items": {"type": "string", "format": "ocas_ref"}}
PROGRAM = str(Path(sys.executable).parent / "rolecall")


def child_env(rolecall: Rolecall) -> dict[str, str]:
    return {**os.environ, "ROLECALL_HOME": str(rolecall.home)}


@pytest.fixture
def small(rolecall: Rolecall) -> dict[str, str]:
    """A store with a text, a list type and a list of the text."""
    leaf = rolecall.json("cas", "put-text", "hello")["hash"]
    kind = rolecall.json("cas", "schema", "put", json.dumps(LIST))["hash"]
    root = rolecall.json("cas", "put", kind, json.dumps([leaf]))["hash"]
    return {"leaf": leaf, "kind": kind, "root": root}


def assert_error(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    assert done.returncode == code, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr


def tamper(rolecall: Rolecall, statement: str, *values: Any) -> None:
    with sqlite3.connect(rolecall.home / "store.db") as db:
        assert db.execute(statement, values).rowcount == 1
    db.close()


# -- shapes --


def test_answers_have_exactly_the_shapes_of_the_predecessor(
    rolecall: Rolecall, small: dict[str, str]
) -> None:
    leaf, kind, root = small["leaf"], small["kind"], small["root"]
    assert leaf == HELLO
    assert rolecall.json("cas", "put-text", "hello") == {"hash": HELLO}
    assert rolecall.json("cas", "put", "@ocas/string", '"hello"') == {"hash": HELLO}
    assert rolecall.json("cas", "put", kind, json.dumps([leaf])) == {"hash": root}
    assert rolecall.json("cas", "get", HELLO) == {"type": BUILTIN["string"], "payload": "hello"}
    assert rolecall.json("cas", "get", root) == {"type": kind, "payload": [leaf]}
    assert rolecall.json("cas", "has", HELLO) == {"exists": True}
    assert rolecall.json("cas", "has", MISSING, check=1) == {"exists": False}
    assert rolecall.json("cas", "refs", root) == {"refs": [leaf]}
    assert rolecall.json("cas", "refs", leaf) == {"refs": []}
    assert rolecall.json("cas", "walk", root) == {"hashes": [root, leaf]}
    assert rolecall.json("cas", "schema", "put", json.dumps(LIST)) == {"hash": kind}
    assert rolecall.json("cas", "schema", "get", kind) == LIST
    assert rolecall.json("cas", "reindex")["status"] == "reindexed"


def test_a_reply_in_json_is_one_line(rolecall: Rolecall, small: dict[str, str]) -> None:
    for args in (
        ["get", HELLO],
        ["has", HELLO],
        ["walk", small["root"]],
        ["stats"],
        ["schema", "list"],
        ["gc"],
    ):
        assert rolecall("cas", *args, "--json", check=0).stdout.count("\n") == 1


def test_timestamp_is_shown_on_request(rolecall: Rolecall, small: dict[str, str]) -> None:
    shown = rolecall.json("cas", "get", HELLO, "--timestamp")
    assert set(shown) == {"type", "payload", "timestamp"}
    assert shown["timestamp"] > 1_600_000_000_000


def test_walk_follows_types_and_stops_at_a_limit(rolecall: Rolecall, small: dict[str, str]) -> None:
    root, leaf, kind = small["root"], small["leaf"], small["kind"]
    assert rolecall.json("cas", "walk", root, "--types")["hashes"] == [
        root,
        leaf,
        kind,
        BUILTIN["string"],
        META,
    ]
    assert rolecall.json("cas", "walk", root, "--max", "1") == {"hashes": [root]}


def test_walk_reports_references_to_nothing(rolecall: Rolecall, small: dict[str, str]) -> None:
    node = rolecall.json("cas", "put", small["kind"], json.dumps([MISSING]))["hash"]
    assert rolecall.json("cas", "walk", node) == {
        "hashes": [node],
        "dangling": [{"id": MISSING, "referrer": node}],
    }
    done = rolecall("cas", "walk", node, "--format", "text", check=0)
    assert done.stdout == node + "\n"
    assert MISSING in done.stderr


def test_schema_list_gives_ids_and_titles(rolecall: Rolecall, small: dict[str, str]) -> None:
    listed = rolecall.json("cas", "schema", "list")
    assert {"hash": small["kind"], "title": "List"} in listed
    assert len(listed) == 9
    assert all(set(row) == {"hash", "title"} for row in listed)


def test_stats_count_nodes_by_type(rolecall: Rolecall, small: dict[str, str]) -> None:
    stats = rolecall.json("cas", "stats")
    assert stats["nodes"] == 11
    assert {"id": small["kind"], "title": "List", "nodes": 1} in stats["types"]
    assert stats["refs"] == stats["events"] == 0
    assert stats["disk"] > 0


def test_gc_shows_first_and_deletes_on_request(rolecall: Rolecall, small: dict[str, str]) -> None:
    assert rolecall.json("cas", "gc")["collected"] == 0
    found = rolecall.json("cas", "gc", "--grace", "0")
    assert (found["collected"], found["deleted"]) == (3, False)
    assert rolecall.json("cas", "has", HELLO) == {"exists": True}
    assert rolecall.json("cas", "gc", "--grace", "0", "--delete")["collected"] == 3
    assert rolecall.json("cas", "has", HELLO, check=1) == {"exists": False}
    text = rolecall("cas", "gc", "--grace", "0", "--format", "text", check=0).stdout
    assert text.startswith("8 nodes: 8 in use")


def test_gc_deletes_nothing_while_something_refers_to_nothing(
    rolecall: Rolecall, small: dict[str, str]
) -> None:
    node = rolecall.json("cas", "put", small["kind"], json.dumps([MISSING]))["hash"]
    with Store(SqliteBackend(str(rolecall.home / "store.db"))) as store:
        store.move("keep/it", None, node)
    message = f"{node} refers to {MISSING}, which is not stored"
    assert message in rolecall("cas", "gc", "--format", "text", check=0).stdout
    assert_error(rolecall("cas", "gc", "--delete", "--grace", "0"), 4, message, "--force")
    assert rolecall.json("cas", "has", HELLO) == {"exists": True}
    done = rolecall("cas", "gc", "--delete", "--grace", "0", "--force", "--format", "text", check=0)
    assert message in done.stdout and "2 removed" in done.stdout
    assert rolecall.json("cas", "has", HELLO, check=1) == {"exists": False}


def test_export_takes_the_intact_nodes_of_a_damaged_store_on_request(
    rolecall: Rolecall, small: dict[str, str], tmp_path: Path
) -> None:
    tamper(rolecall, "UPDATE nodes SET data = X'6568756c6c6f' WHERE id = ?", HELLO)
    bundle = str(tmp_path / "b.tar")
    assert_error(rolecall("cas", "export", bundle), 4, HELLO, "--keep-going")
    exported = rolecall.json("cas", "export", bundle, "--keep-going", check=4)
    assert (exported["nodes"], [problem["node"] for problem in exported["problems"]]) == (10, [HELLO])
    imported = rolecall.json("cas", "import", bundle, "--store", str(tmp_path / "other.db"))
    assert imported == {"nodes": 10, "refs": 0, "events": 0, "kept": [], "problems": []}


# -- formats --


VERBS_THAT_SHOW = [
    ["get", "{root}"],
    ["put", "{kind}", "[]"],
    ["put-text", "x"],
    ["has", "{leaf}"],
    ["refs", "{root}"],
    ["walk", "{root}"],
    ["reindex"],
    ["verify"],
    ["gc"],
    ["schema", "list"],
    ["schema", "get", "{kind}"],
    ["schema", "put", "{{}}"],
]


@pytest.mark.parametrize("verb", VERBS_THAT_SHOW, ids=lambda verb: " ".join(verb[:2]))
def test_every_verb_says_the_same_in_json_and_yaml_and_something_in_text(
    rolecall: Rolecall, small: dict[str, str], verb: list[str]
) -> None:
    args = ["cas", *(word.format(**small) for word in verb)]
    as_json = rolecall(*args, "--format", "json", check=0).stdout
    rolecall(*args, check=0)
    assert yaml.safe_load(rolecall(*args, "--format", "yaml", check=0).stdout) == json.loads(as_json)
    text = rolecall(*args, "--format", "text", check=0).stdout
    assert text.strip()


def test_text_answers_are_bare(rolecall: Rolecall, small: dict[str, str]) -> None:
    def text(*args: str, check: int = 0) -> str:
        return rolecall("cas", *args, "--format", "text", check=check).stdout

    assert text("put-text", "hello") == HELLO + "\n"
    assert text("has", HELLO) == "yes\n"
    assert text("has", MISSING, check=1) == "no\n"
    assert text("refs", small["root"]) == HELLO + "\n"
    assert text("walk", small["root"]) == f"{small['root']}\n{HELLO}\n"
    assert "11 nodes: ok" in text("verify")


def test_control_characters_never_reach_the_terminal(rolecall: Rolecall) -> None:
    evil = "\x1b]0;title\x07\x9b31m\x7f\u202e\r"
    node = rolecall.json("cas", "put-text", "-", input=evil)["hash"]
    title = rolecall.json("cas", "schema", "put", json.dumps({"title": evil + "\nsecond line"}))["hash"]
    shown = rolecall("cas", "get", node, "--format", "text", check=0).stdout
    listed = rolecall("cas", "schema", "list", "--format", "text", check=0).stdout
    refused = rolecall("cas", "schema", "put", json.dumps({evil: 1})).stderr
    for text in (shown, listed, refused):
        assert not set(text) & set("\x1b\x07\x9b\x7f\u202e\r"), ascii(text)
    assert len([line for line in listed.splitlines() if title in line or "second" in line]) == 1
    assert rolecall.json("cas", "get", node)["payload"] == evil


# -- where data comes from --


def test_data_comes_from_an_argument_standard_input_or_a_file(rolecall: Rolecall, tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{"a": "é"}', encoding="utf-8")
    ways = [
        rolecall.json("cas", "put", "@ocas/object", '{"a": "é"}'),
        rolecall.json("cas", "put", "object", "-", input='\ufeff{"a": "é"}\n'),
        rolecall.json("cas", "put", "object", f"@{file}"),
        rolecall.json("cas", "put", BUILTIN["object"], str(file)),
    ]
    assert ways == [ways[0]] * 4
    file.write_text("hello", encoding="utf-8")
    assert rolecall.json("cas", "put-text", f"@{file}") == {"hash": HELLO}
    assert rolecall.json("cas", "put-text", "-", input="hello") == {"hash": HELLO}


def test_a_byte_order_mark_is_part_of_a_text_and_not_of_json(rolecall: Rolecall, tmp_path: Path) -> None:
    file = tmp_path / "marked"
    file.write_text("\ufeffhello", encoding="utf-8")
    ways = [
        rolecall.json("cas", "put-text", f"@{file}"),
        rolecall.json("cas", "put-text", "-", input="\ufeffhello"),
        rolecall.json("cas", "put-text", "\ufeffhello"),
    ]
    assert ways == [ways[0]] * 3
    assert rolecall.json("cas", "get", ways[0]["hash"])["payload"] == "\ufeffhello"
    file.write_text('\ufeff"hello"', encoding="utf-8")
    assert rolecall.json("cas", "put", "string", str(file)) == {"hash": HELLO}


def test_text_is_kept_to_the_byte(rolecall: Rolecall) -> None:
    text = " \r\n\ttrailing \u2028 \U0001f30d\n\n"
    node = rolecall.json("cas", "put-text", "-", input=text)["hash"]
    assert rolecall.json("cas", "get", node)["payload"] == text


def test_a_payload_of_a_megabyte_goes_in_and_out(rolecall: Rolecall) -> None:
    payload = {"text": "é" * 500_000, "list": list(range(20_000))}
    node = rolecall.json("cas", "put", "object", "-", input=json.dumps(payload))["hash"]
    assert rolecall.json("cas", "get", node)["payload"] == payload


def test_a_payload_as_deep_as_allowed_comes_out_in_every_format(rolecall: Rolecall) -> None:
    text = "[" * 200 + "]" * 200
    node = rolecall.json("cas", "put", "array", "-", input=text)["hash"]
    assert rolecall.json("cas", "get", node)["payload"] == json.loads(text)
    for kind in ("text", "yaml"):
        assert rolecall("cas", "get", node, "--format", kind, check=0).stdout


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "not JSON"),
        ("hello", "not JSON"),
        ("", "not JSON"),
        ("[1,]", "not JSON"),
        ("[1] 2", "not JSON"),
        ("NaN", "NaN is not JSON"),
        ('{"a": [-Infinity]}', "-Infinity is not JSON"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' appears twice"),
        ('"\\ud800"', "lone surrogate"),
        ('{"a": 1e999}', "/a is inf"),
        ("9007199254740993", "9007199254740993"),
        ("1" * 5000, "not acceptable JSON"),
        ("[" * 201 + "]" * 201, "nests deeper than 200"),
        ("[" * 100_000, "nests too deeply"),
        (b"\xff\xfe", "not UTF-8: byte 0"),
        (b'"caf\xe9"', "not UTF-8: byte 4"),
    ],
)
def test_data_that_is_no_json_value_is_wrong_use(rolecall: Rolecall, data: str | bytes, message: str) -> None:
    rolecall.json("cas", "schema", "put", "{}")
    anything = "9A21BXXC9WNBW"
    assert_error(rolecall("cas", "put", anything, "-", input=data), 2, "rolecall: ", message)


def test_arguments_that_are_not_utf8_are_wrong_use(rolecall: Rolecall) -> None:
    done = subprocess.run(
        [PROGRAM.encode(), b"cas", b"put-text", b"\xff\xfe"],
        env=child_env(rolecall),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Traceback" not in done.stderr


def test_a_file_that_is_not_there_is_wrong_use(rolecall: Rolecall) -> None:
    assert_error(rolecall("cas", "put-text", "@/no/such/file"), 2, "/no/such/file cannot be read")


# -- ids --


def test_ids_may_be_shortened_and_written_small(rolecall: Rolecall, small: dict[str, str]) -> None:
    for prefix in ("95ST", "95st8", HELLO.lower(), HELLO[:12]):
        assert rolecall.json("cas", "get", prefix)["payload"] == "hello"
    assert rolecall.json("cas", "put", small["kind"][:6].lower(), "[]")["hash"]
    assert rolecall.json("cas", "has", "ZZZZ", check=1) == {"exists": False}
    assert_error(rolecall("cas", "get", "ZZZZ"), 3, "no node id begins with ZZZZ")
    assert_error(rolecall("cas", "get", "95S"), 2, "'95S' is not a node id", "13 characters")
    assert_error(rolecall("cas", "get", "hello!"), 2, "'hello!' is not a node id")
    assert_error(rolecall("cas", "has", "95STU"), 2, "is not a node id")


def test_a_prefix_of_several_nodes_is_refused_with_the_candidates(rolecall: Rolecall) -> None:
    with Store(SqliteBackend(str(rolecall.home / "store.db"))) as store:
        by_prefix: dict[str, list[str]] = {}
        for node in store.put_many((BUILTIN["integer"], number) for number in range(3_000)):
            by_prefix.setdefault(node[:4], []).append(node)
    prefix, nodes = next((prefix, nodes) for prefix, nodes in by_prefix.items() if len(nodes) > 1)
    assert_error(rolecall("cas", "get", prefix.lower()), 2, "several nodes", *nodes[:2], "more characters")


# -- exit codes --


def test_what_is_not_there_is_not_found(rolecall: Rolecall, small: dict[str, str]) -> None:
    assert_error(rolecall("cas", "get", MISSING), 3, MISSING, "\n  ")
    assert_error(rolecall("cas", "refs", MISSING), 3, MISSING)
    assert_error(rolecall("cas", "walk", MISSING), 3, MISSING)
    assert_error(rolecall("cas", "verify", MISSING), 3, MISSING)
    assert_error(rolecall("cas", "schema", "get", MISSING), 3, MISSING)
    assert_error(rolecall("cas", "put", MISSING, "1"), 3, MISSING, "schema put")
    assert_error(rolecall("cas", "import", "/no/such/bundle"), 3, "/no/such/bundle")


def test_wrong_use_is_refused(rolecall: Rolecall, small: dict[str, str]) -> None:
    assert_error(rolecall("nonsense"), 2, "unknown command 'nonsense'", "rolecall --help")
    assert_error(rolecall("cas", "nonsense"), 2, "unknown command 'cas nonsense'", "rolecall cas --help")
    assert_error(rolecall("cas", "get"), 2, "usage: rolecall cas get")
    assert_error(rolecall("cas", "get", HELLO, "--format", "xml"), 2, "xml")
    assert_error(rolecall("cas", "walk", HELLO, "--max", "0"), 2, "'0' is not a number of 1 or more")
    assert_error(rolecall("cas", "gc", "--grace", "soon"), 2, "'soon' is not a time such as 90s")
    assert_error(rolecall("cas", "put", HELLO, "1"), 2, "is not a schema")
    assert_error(rolecall("cas", "get", HELLO, "--store", "mysql://x/y"), 2, "mysql://x/y")


def test_a_payload_that_does_not_fit_is_refused_with_every_misfit(
    rolecall: Rolecall, small: dict[str, str]
) -> None:
    done = rolecall("cas", "put", small["kind"], '["a", 1, "b"]')
    assert_error(done, 2, "/0:", "/1:", "/2:", f"cas schema get {small['kind']}")
    done = rolecall("cas", "schema", "put", '{"$ref": "#", "type": "strin"}')
    assert_error(done, 2, "/$ref is not", "/type must", "Accepted keywords: $comment, additionalProperties,")


def test_yaml_means_the_same_by_the_rules_of_1_2(rolecall: Rolecall) -> None:
    texts = [
        "1e3",
        "0o17",
        "0x1F",
        "1_000",
        "1:30",
        "~",
        "null",
        "yes",
        "on",
        ".5",
        ".inf",
        "-.5e2",
        "+1",
        "=",
        "<<",
    ]
    payload = {"texts": texts, **dict.fromkeys(texts, 1e3), "long": "word " * 60, "block": "a\n b\n"}
    node = rolecall.json("cas", "put", "object", json.dumps(payload))["hash"]
    shown = rolecall("cas", "get", node, "--format", "yaml", check=0).stdout
    assert yaml12.load(shown)["payload"] == payload


def test_a_value_that_json_cannot_say_is_not_shown_as_json(rolecall: Rolecall) -> None:
    data = b"\xfb\x7f\xf8" + bytes(6)
    with Store(SqliteBackend(str(rolecall.home / "store.db"))) as store:
        store.put_text("x")
        record = make_record(BUILTIN["number"], data, (), 1)
        store.backend.commit(Change([record]), now=1, durable=True)
    assert_error(rolecall("cas", "get", record.id, "--json"), 2, "NaN", "--format yaml")
    assert ".nan" in rolecall("cas", "get", record.id, "--format", "yaml", check=0).stdout


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_output_is_utf8_whatever_the_environment_says(rolecall: Rolecall, encoding: str) -> None:
    env = {"PYTHONIOENCODING": encoding}
    node = rolecall.json("cas", "put-text", "snow \u2603 caf\xe9", env=env)["hash"]
    assert rolecall.json("cas", "get", node, env=env)["payload"] == "snow \u2603 caf\xe9"
    assert "snow \u2603 caf\xe9" in rolecall("cas", "get", node, "--format", "text", env=env, check=0).stdout
    assert_error(rolecall("cas", "get", "\u2603", env=env), 2, "\u2603")


def test_a_schema_as_text_is_laid_out_for_people(rolecall: Rolecall, small: dict[str, str]) -> None:
    shown = rolecall("cas", "schema", "get", small["kind"], "--format", "text", check=0).stdout
    assert json.loads(shown) == LIST and shown.count("\n") > 5


def test_a_walk_that_meets_damage_ends_its_reply_and_says_so(
    rolecall: Rolecall, small: dict[str, str]
) -> None:
    tamper(rolecall, "UPDATE nodes SET data = X'6568756c6c6f' WHERE id = ?", HELLO)
    done = rolecall("cas", "walk", small["root"], "--json", check=4)
    assert json.loads(done.stdout) == {"hashes": [small["root"]]}
    assert HELLO in done.stderr and "damaged" in done.stderr


def test_references_are_those_of_the_payload(rolecall: Rolecall, small: dict[str, str]) -> None:
    tamper(rolecall, "UPDATE nodes SET refs = ? WHERE id = ?", MISSING, small["root"])
    assert rolecall.json("cas", "refs", small["root"]) == {"refs": [HELLO]}


def test_gc_on_overwritten_bytes_is_an_error_that_names_the_file(
    rolecall: Rolecall, small: dict[str, str]
) -> None:
    path = rolecall.home / "store.db"
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), 4096):
        data[at + 100 : at + 200] = b"\xaa" * 100
    path.write_bytes(data)
    assert_error(rolecall("cas", "gc", "--delete"), 4, str(path))


@pytest.mark.parametrize("verb", ["get", "has", "refs", "walk"])
def test_a_damaged_node_is_named_and_never_shown(
    rolecall: Rolecall, small: dict[str, str], verb: str
) -> None:
    tamper(rolecall, "UPDATE nodes SET data = X'6568756c6c6f' WHERE id = ?", HELLO)
    assert_error(rolecall("cas", verb, HELLO), 4, HELLO, "damaged", "--repair")


def test_verify_names_what_is_damaged_and_says_so_with_its_exit_code(
    rolecall: Rolecall, small: dict[str, str]
) -> None:
    assert rolecall.json("cas", "verify") == {"status": "ok", "nodes": 11, "problems": []}
    assert rolecall.json("cas", "verify", "95ST") == {"status": "ok", "nodes": 1, "problems": []}
    tamper(rolecall, "UPDATE nodes SET data = X'6568756c6c6f' WHERE id = ?", HELLO)
    found = rolecall.json("cas", "verify", check=4)
    assert (found["status"], found["nodes"]) == ("1 problem", 11)
    assert [(problem["node"], problem["kind"]) for problem in found["problems"]] == [(HELLO, "damaged")]
    assert HELLO in rolecall("cas", "verify", HELLO, "--format", "text", check=4).stdout


def test_a_dangling_reference_is_a_no_but_no_damage(rolecall: Rolecall, small: dict[str, str]) -> None:
    node = rolecall.json("cas", "put", small["kind"], json.dumps([MISSING]))["hash"]
    found = rolecall.json("cas", "verify", check=1)
    assert [(problem["node"], problem["kind"]) for problem in found["problems"]] == [(node, "dangling")]


def test_reindex_corrects_what_verify_found(rolecall: Rolecall, small: dict[str, str]) -> None:
    tamper(rolecall, "UPDATE nodes SET refs = '' WHERE id = ?", small["root"])
    assert rolecall.json("cas", "verify", check=4)["problems"][0]["kind"] == "index"
    assert rolecall.json("cas", "reindex")["corrected"] == 1
    assert rolecall.json("cas", "verify")["status"] == "ok"


# -- stores --

READS = [
    ["get", HELLO],
    ["refs", HELLO],
    ["walk", HELLO],
    ["reindex"],
    ["verify"],
    ["gc"],
    ["gc", "--delete"],
    ["stats"],
    ["export", "backup.tgz"],
    ["schema", "list"],
    ["schema", "get", "@ocas/string"],
]


@pytest.mark.parametrize("verb", READS, ids=" ".join)
@pytest.mark.parametrize("kind", ["configured", "files"])
def test_reading_where_there_is_no_store_creates_none(
    rolecall: Rolecall, tmp_path: Path, verb: list[str], kind: str
) -> None:
    store = ["--store", f"files:{tmp_path / 'folder'}"] if kind == "files" else []
    work = tmp_path / "work"
    work.mkdir()
    assert_error(rolecall("cas", *verb, *store, cwd=work), 3, "there is no store at", "rolecall init")
    assert list(tmp_path.rglob("*")) == [work]


WRITES_THAT_FAIL = [
    (["put", MISSING, "1"], 3),
    (["put", "@ocas/string", "1"], 2),
    (["put-text", "-"], 2),
    (["schema", "put", '{"$ref": "#"}'], 2),
    (["import", "/no/such/bundle"], 3),
    (["import", "work"], 3),
]


@pytest.mark.parametrize(("verb", "code"), WRITES_THAT_FAIL, ids=str)
@pytest.mark.parametrize("kind", ["configured", "files"])
def test_a_write_that_fails_creates_no_store(
    rolecall: Rolecall, tmp_path: Path, verb: list[str], code: int, kind: str
) -> None:
    store = ["--store", f"files:{tmp_path / 'folder'}"] if kind == "files" else []
    (tmp_path / "work").mkdir()
    assert_error(rolecall("cas", *verb, *store, cwd=tmp_path, input=b"\xff"), code)
    assert list(tmp_path.rglob("*")) == [tmp_path / "work"]


def test_where_there_is_no_store_there_is_no_node(rolecall: Rolecall) -> None:
    assert rolecall.json("cas", "has", HELLO, check=1) == {"exists": False}
    assert rolecall("cas", "has", HELLO, "--format", "text", check=1).stdout == "no\n"
    assert not rolecall.home.exists()


def test_a_store_that_keeps_nothing_is_refused(rolecall: Rolecall, tmp_path: Path) -> None:
    for address in ("", "sqlite:", ":memory:", "files:", "file:/tmp/x"):
        done = rolecall("cas", "put-text", "hello", "--store", address, cwd=tmp_path)
        assert_error(done, 2, f"{address!r} is not a store", "files:FOLDER")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["path", "sqlite:", "files:"])
def test_the_store_may_be_named_on_the_command_line(rolecall: Rolecall, tmp_path: Path, kind: str) -> None:
    place = str(tmp_path / "elsewhere")
    store = ["--store", place if kind == "path" else kind + place]
    assert rolecall.json("cas", "put-text", "hello", *store) == {"hash": HELLO}
    list_type = rolecall.json("cas", "schema", "put", json.dumps(LIST), *store)["hash"]
    root = rolecall.json("cas", "put", list_type, json.dumps([HELLO]), *store)["hash"]
    assert rolecall.json("cas", "get", "95st", *store)["payload"] == "hello"
    assert rolecall.json("cas", "walk", root, *store) == {"hashes": [root, HELLO]}
    assert rolecall.json("cas", "verify", *store)["status"] == "ok"
    assert rolecall.json("cas", "gc", *store)["collected"] == 0
    assert not rolecall.home.exists()
    assert rolecall.json("cas", "has", HELLO, env={"ROLECALL_STORE": store[1]}) == {"exists": True}


def test_a_file_that_is_no_store_is_damaged(rolecall: Rolecall, tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("Dear reader, " * 100)
    assert_error(rolecall("cas", "get", HELLO, "--store", str(file)), 4, str(file))
    assert file.read_text() == "Dear reader, " * 100


def test_the_database_of_another_program_is_left_alone(rolecall: Rolecall, tmp_path: Path) -> None:
    file = tmp_path / "browser.sqlite"
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE nodes (id)")
    db.close()
    before = file.read_bytes()
    for verb in (["put-text", "hello"], ["get", HELLO], ["import", str(tmp_path)]):
        done = rolecall("cas", *verb, "--store", str(file))
        assert_error(done, 2, f"{file} is the database of another program")
    assert file.read_bytes() == before


# -- the program --


def test_both_names_are_the_same_program(rolecall: Rolecall) -> None:
    assert rolecall("--version", program="uwf", check=0).stdout == rolecall("--version", check=0).stdout
    assert rolecall.json("cas", "put-text", "hello", program="uwf") == {"hash": HELLO}
    assert rolecall.json("cas", "get", HELLO, program="uwf")["payload"] == "hello"


@pytest.mark.parametrize("verb", ["get", "walk"])
@pytest.mark.parametrize("kind", ["json", "text", "yaml"])
def test_a_reader_that_leaves_early_is_no_error(rolecall: Rolecall, verb: str, kind: str) -> None:
    with Store(SqliteBackend(str(rolecall.home / "store.db"))) as store:
        draft = store.draft()
        nodes = [draft.put(BUILTIN["integer"], number) for number in range(8_000)]
        root = draft.put(draft.put_schema(LIST), nodes)
        draft.commit()
    child = subprocess.Popen(
        [PROGRAM, "cas", verb, root, "--format", kind],
        env=child_env(rolecall),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None and child.stderr is not None
    assert child.stdout.read(10)
    child.stdout.close()
    complaint = child.stderr.read()
    child.stderr.close()
    assert complaint == b""
    assert child.wait(60) in (0, 141)  # 0 when the system took everything in one write


@pytest.mark.parametrize("args", ["cas get " + HELLO, "--help", "--version"])
def test_a_reader_that_never_reads_is_a_broken_pipe_also_where_output_is_buffered(
    rolecall: Rolecall, small: dict[str, str], args: str
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [PROGRAM, *args.split()],
        env={**child_env(rolecall), "PYTHONUNBUFFERED": ""},
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_reader_that_never_reads_the_errors_is_a_broken_pipe(rolecall: Rolecall) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    env = {**child_env(rolecall), "PYTHONUNBUFFERED": ""}
    done = subprocess.run([PROGRAM, "no-such-command"], env=env, stderr=writing, check=False, timeout=60)
    os.close(writing)
    assert done.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("args", [["cas", "get", HELLO], ["--version"]], ids=" ".join)
def test_output_that_cannot_be_written_is_an_error(
    rolecall: Rolecall, small: dict[str, str], args: list[str]
) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [PROGRAM, *args],
            env=child_env(rolecall),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    assert done.returncode == 5
    assert b"No space left" in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_scripts_are_valid_shell(rolecall: Rolecall, tmp_path: Path, shell: str) -> None:
    file = tmp_path / "completion"
    file.write_text(rolecall("completion", shell, check=0).stdout)
    done = subprocess.run(["bash", "-n", str(file)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("program", ["rolecall", "uwf"])
def test_bash_completes_verbs(rolecall: Rolecall, tmp_path: Path, program: str) -> None:
    file = tmp_path / "completion"
    file.write_text(rolecall("completion", "bash", check=0).stdout)
    script = (
        f"source {file}; COMP_WORDS=({program} cas put); COMP_CWORD=2; "
        f"$(complete -p {program} | sed 's/.*-F \\([^ ]*\\) .*/\\1/') 2>/dev/null; "
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.split() == ["put", "put-text"]


def test_a_schema_can_come_from_a_process_substitution(rolecall: Rolecall) -> None:
    program = Path(sys.executable).parent / "rolecall"
    script = f"""{program} cas schema put <(echo '{{"type": "object"}}') --format json"""
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "ROLECALL_HOME": str(rolecall.home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == {"hash": "944RT37WX1PQ5"}

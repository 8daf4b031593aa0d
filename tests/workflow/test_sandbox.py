"""`sandbox:` of a workflow or a role: read with all problems, stored only where it is given, and written out again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from definitions import errors_in

from rolecall.errors import UsageError
from rolecall.settings import yaml12
from rolecall.store import schema
from rolecall.workflow import document, draw, python, yaml
from rolecall.workflow.model import (
    SCHEMAS,
    Sandbox,
    StoredRole,
    StoredWorkflow,
    describe_sandbox,
    from_payload,
    sandbox_of,
    split_address,
    to_payload,
    type_of,
)
from rolecall.workflow.yaml import Definition

TEXT = """\
name: run-it
roles:
  a:
    prompt: Go.
    sandbox: ROLE
    schema: {type: object}
  b: {prompt: Go., schema: {type: object}}
graph: {$START: a, a: b, b: $END}
"""
FULL = (
    "{write: [out, ~/.cache/pip, /var/tmp/x], read: [../docs], network: [api.example.com:443, '[::1]:80'], "
    "env: [CI, NPM_*], memory: 1.5 GB, processes: 40, seconds: 90.5, best_effort: true}"
)
FULL_VALUE = Sandbox(
    write=("out", "~/.cache/pip", "/var/tmp/x"),
    read=("../docs",),
    network=("api.example.com:443", "[::1]:80"),
    env=("CI", "NPM_*"),
    memory=1_500_000_000,
    processes=40,
    seconds=90.5,
    best_effort=True,
)


def read(role: str = "", workflow: str = "") -> Definition:
    text = TEXT.replace("    sandbox: ROLE\n", f"    sandbox: {role}\n" if role else "")
    return yaml.parse(text + (f"sandbox: {workflow}\n" if workflow else ""), source="run-it.yaml")


def read_workflow(role: str = "", workflow: str = "") -> StoredWorkflow:
    found = read(role, workflow)
    assert found.workflow is not None, found.problems
    return found.workflow


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", Sandbox()),
        ("off", Sandbox(is_off=True)),
        ("false", Sandbox(is_off=True)),
        ("{write: []}", Sandbox(write=())),
        ("{write: [../../x]}", Sandbox(write=("../../x",))),
        ("{network: all}", Sandbox()),
        ("{network: none}", Sandbox(network="none")),
        ("{env: ['*']}", Sandbox(env=("*",))),
        ("{memory: 512MB}", Sandbox(memory=512_000_000)),
        ("{memory: 2GiB}", Sandbox(memory=2 * 2**30)),
        ("{memory: 1048576}", Sandbox(memory=1_048_576)),
        (FULL, FULL_VALUE),
    ],
)
def test_a_sandbox_is_read_stored_and_written_again(text: str, expected: Sandbox) -> None:
    for workflow in (read_workflow(text), read_workflow("", text)):
        assert sandbox_of(workflow, "a") == expected
        assert sandbox_of(workflow, "b") == workflow.sandbox
        stored = to_payload(workflow, {"a": "0" * 13, "b": "1" * 13})
        assert schema.Type(type_of(stored)).misfits(stored) == []
        schemas: dict[str, Any] = {"0" * 13: workflow.roles["a"].schema, "1" * 13: workflow.roles["b"].schema}
        assert from_payload(stored, schemas) == workflow
        assert yaml.parse(document.to_yaml(workflow), source="run-it.yaml").workflow == workflow
        assert jsonschema_rs.is_valid(yaml.json_schema(), document.to_document(workflow))


def test_a_workflow_without_a_sandbox_is_stored_as_before() -> None:
    bare = to_payload(read_workflow(), {"a": "0" * 13, "b": "1" * 13})
    assert "sandbox" not in str(bare) and "sandbox" not in str(type_of(bare))
    assert "sandbox" not in document.to_yaml(read_workflow())
    assert all("sandbox" not in str(one) for one in SCHEMAS[:-1])
    changes = document.changes(read_workflow(), read_workflow("off", "{}"))
    assert [str(change) for change in changes] == ["changed workflow: sandbox", "changed role a: sandbox"]


def test_the_sandbox_of_a_role_replaces_that_of_the_workflow_as_a_whole() -> None:
    workflow = read_workflow("{memory: 2GB}", "{network: none}")
    assert sandbox_of(workflow, "a") == Sandbox(memory=2_000_000_000)
    assert sandbox_of(workflow, "b") == Sandbox(network="none")
    assert sandbox_of(read_workflow(), "a") is None


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("on", 14, "must be a mapping or off, not 'on'. `sandbox: {}` means the defaults."),
        ("true", 14, "must be a mapping or off, not true"),
        ("null", 14, "must be a mapping or off, not empty"),
        ("{wirte: [x]}", 15, "'wirte' is not a key of a sandbox. Did you mean 'write'?"),
        ("{is_off: true}", 15, "'is_off' is not a key of a sandbox"),
        ("{write: out}", 22, "must be a list of paths, not 'out'"),
        ("{write: ['']}", 23, "must be a path, not ''"),
        ("{write: [out, ' ']}", 28, "must be a path, not ' '"),
        ("{read: [$HOME/x]}", 22, "variables are not replaced"),
        ("{read: [~bob/x]}", 22, "below your home as ~/…"),
        ("{write: [~x]}", 23, "below your home as ~/…"),
        ("{write: ['~']}", 23, "below your home as ~/…"),
        ("{write: null}", 22, "must be a list of paths, not empty"),
        ("{network: some}", 24, "must be all, none or a list of host:port, not 'some'"),
        ("{network: []}", 24, "must be all, none or a list of host:port, not an empty list"),
        ("{network: [example.com]}", 25, "'example.com' has no port. Write host:port"),
        ("{network: ['example.com:0']}", 25, "has a port that is not from 1 to 65535"),
        ("{network: ['a:443', 'b:65536']}", 34, "has a port that is not from 1 to 65535"),
        ("{network: ['https://example.com']}", 25, "is not a host and a port"),
        ("{network: ['::1:80']}", 25, "is not a host and a port"),
        ("{env: [A B]}", 21, "must be the name of a variable, which may end with *, not 'A B'"),
        ("{env: [A*B]}", 21, "must be the name of a variable"),
        ("{memory: lots}", 23, "must be a size such as 512MB or 2GB, or a number of bytes, not 'lots'"),
        ("{memory: 2gb}", 23, "must be a size such as 512MB or 2GB"),
        ("{memory: -1}", 23, "must be a size such as 512MB or 2GB"),
        ("{memory: 512}", 23, "must be from 1MB to 1000TB, not 512. A number without a unit is in bytes."),
        ("{memory: 9000TB}", 23, "must be from 1MB to 1000TB, not '9000TB'"),
        (f"{{memory: {'9' * 400}GB}}", 23, "must be a size such as 512MB or 2GB"),
        ("{memory: true}", 23, "must be a size such as 512MB or 2GB"),
        ("{processes: 0}", 26, "must be a whole number from 1 to 4,194,304"),
        ("{processes: 5000000}", 26, "must be a whole number from 1 to 4,194,304"),
        ("{seconds: 0}", 24, "must be a number above 0"),
        ("{seconds: 1e300}", 24, "at most 1,000,000,000"),
        ("{best_effort: maybe}", 28, "must be true or false"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_column(text: str, column: int, message: str) -> None:
    (problem,) = [problem for problem in read(text).problems if problem.severity == "error"]
    assert (problem.line, problem.column) == (5, column) and message in str(problem)
    node, _ = yaml12.read(text, source="x.yaml")
    if not (
        "port" in message or "TB'" in message or "' '" in message
    ):  # more than the schema for editors says
        assert node and not jsonschema_rs.is_valid(yaml.json_schema()["properties"]["sandbox"], node.value)


def test_all_problems_of_a_sandbox_are_reported_at_once() -> None:
    problems = errors_in(read("{write: [''], memory: big, network: [x], seconds: 0}", "{env: x}"))
    assert len(problems) == 5


@pytest.mark.parametrize(
    ("address", "expected"),
    [("example.com:443", ("example.com", 443)), ("[::1]:80", ("::1", 80)), ("10.0.0.1:1", ("10.0.0.1", 1))],
)
def test_an_address_is_a_host_and_a_port(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@pytest.mark.parametrize(
    "address", ["", ":80", "a:", "a:b", "a b:80", "[::1]", "-a:80", "a:80:90", "user@a:80"]
)
def test_other_texts_are_not(address: str) -> None:
    with pytest.raises(UsageError, match="host"):
        split_address(address)


# -- workflows in Python --


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (Sandbox(network="none", write=()), Sandbox(network="none", write=())),
        ({"write": ("out",), "memory": "2GB"}, Sandbox(write=("out",), memory=2_000_000_000)),
        ({}, Sandbox()),
        ("off", Sandbox(is_off=True)),
        (Sandbox(is_off=True), Sandbox(is_off=True)),
    ],
)
def test_a_workflow_in_python_takes_a_sandbox_a_mapping_or_off(given: Any, expected: Sandbox) -> None:
    roles = {"a": python.Role(None, "Go.", {"type": "object"}, sandbox=given)}
    workflow = python.Workflow("run-it", roles, graph={"$START": "a", "a": "$END"}, sandbox=given)
    made = python.compile(workflow, python="x:y").workflow
    assert (made.sandbox, made.roles["a"].sandbox) == (expected, expected)


def test_a_wrong_sandbox_in_python_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run-it.py"
    file.write_text(
        "from rolecall import Role, Sandbox, Workflow\n"
        "a = Role(None, 'Go.', {'type': 'object'}, sandbox=Sandbox(memory=5, network=('example.com',)))\n"
        "workflow = Workflow('run-it', {'a': a}, graph={'$START': 'a', 'a': '$END'}, sandbox='on')\n"
    )
    playbook, problems = python.check_python(str(file))
    assert playbook is None
    assert [(problem.line, problem.message.partition(" ")[0]) for problem in problems] == [
        (2, "roles.a.sandbox.network.0"),
        (2, "roles.a.sandbox.memory"),
        (3, "sandbox"),
    ]


# -- lint --

HELD = """\
name: run-it
sandbox: FLOW
roles:
  a:
    prompt: Go.
    KEYS
    sandbox: ROLE
    schema: {type: object}
graph: {$START: a, a: $END}
"""


def lint(keys: str, role: str = "", workflow: str = "") -> list[tuple[int, int, str]]:
    """The line, the column and the text of each problem."""
    text = HELD.replace("    sandbox: ROLE\n", f"    sandbox: {role}\n" if role else "")
    text = text.replace("sandbox: FLOW\n", f"sandbox: {workflow}\n" if workflow else "")
    found = yaml.parse(text.replace("KEYS", keys), source="run-it.yaml")
    assert (found.workflow is None) is bool(errors_in(found))
    return [(problem.line, problem.column, str(problem)) for problem in found.problems]


@pytest.mark.parametrize(
    "words", ["read_only", "no_file_edit", "no_shell_exec", "no_shell_exec, no_file_edit"]
)
def test_a_restricted_role_without_a_sandbox_is_a_warning_that_says_what_enforces(words: str) -> None:
    message = f"the role 'a' has no sandbox, so only its agent's own settings enforce {words}"
    [(line, column, text)] = lint(f"capabilities: [{words}]", "off")
    assert (line, column) == (6, 14) and "warning" in text and message in text
    [(line, column, text)] = lint(f"capabilities: [{words}]", "", "off")
    assert (line, column) == (2, 10) and "warning" in text and message in text
    assert lint("capabilities: [no_task_create]", "off") == []
    assert lint(f"capabilities: [{words}]", "{}", "off") == []


@pytest.mark.parametrize("place", [".", "./", "src", "src/..", "..", "../..", "/", "../../"])
def test_a_read_only_role_must_not_have_a_sandbox_that_can_write_its_work_folder(place: str) -> None:
    message = f"the role 'a' is read_only, but its sandbox lets it write to {place!r}"
    [(line, column, text)] = lint("capabilities: [read_only]", f"{{write: [/var/tmp, {place}]}}")
    assert (line, column) == (6, 33) and "error" in text and message in text
    [(line, column, text)] = lint("capabilities: [read_only]", "", f"{{write: [{place}]}}")
    assert (line, column) == (2, 19) and message in text and "give 'a' a `sandbox` of its own" in text
    assert lint("capabilities: [no_file_edit]", f"{{write: [{place}]}}") == []
    assert lint("capabilities: [read_only]", "{}", f"{{write: [{place}]}}") == []


@pytest.mark.parametrize("place", ["../beside", "~/out", "~/", "/var/tmp", "../../x/y"])
def test_it_may_write_elsewhere(place: str) -> None:
    assert lint("capabilities: [read_only]", f"{{write: [{place}]}}") == []


def test_a_variable_that_is_named_twice_is_a_warning() -> None:
    for role, workflow, place in (("{env: [A, B, A]}", "", (6, 27)), ("", "{env: [A, B, A]}", (2, 23))):
        [(line, column, text)] = lint("description: x", role, workflow)
        assert (line, column) == place and "the variable 'A' is named twice" in text and "warning" in text


@pytest.mark.parametrize("agent", ["human", "workflow:do-more", "[human, human]\n    times: 2"])
def test_a_role_without_processes_has_nothing_to_put_into_a_sandbox(agent: str) -> None:
    [(_, column, text)] = lint(f"agent: {agent}\n    workdir: shared", "{}")
    assert column == 5 and "has no processes for a sandbox, because only people or other workflows" in text
    assert (lint(f"agent: {agent}\n    workdir: shared", "", "{}") == []) is ("human" in agent)
    assert lint("agent: claude\n    stand_in: codex", "{}") == []


def test_a_function_has_nothing_to_put_into_a_sandbox(tmp_path: Path) -> None:
    file = tmp_path / "run-it.py"
    file.write_text(
        "from rolecall import Role, Workflow\n"
        "async def go(context): ...\n"
        "a = Role.function(go, {'type': 'object'}, sandbox={})\n"
        "workflow = Workflow('run-it', {'a': a}, graph={'$START': 'a', 'a': '$END'})\n"
    )
    [problem] = python.check_python(str(file))[1]
    assert problem.line == 3 and "because a Python function plays it" in problem.message


@pytest.mark.parametrize(
    ("workflow", "role", "count"), [("{}", "", 1), ("{}", "off", 0), ("{best_effort: true}", "", 0)]
)
def test_a_workflow_says_which_roles_its_sandbox_cannot_hold(workflow: str, role: str, count: int) -> None:
    found = lint("agent: workflow:do-more", role, workflow)
    assert len(found) == count
    assert all(
        "the sandbox cannot hold the role 'a', which another workflow plays" in text for *_, text in found
    )


def test_a_team_leaves_sandboxes_to_the_roles_of_its_members() -> None:
    text = TEXT.replace("sandbox: ROLE", "sandbox: off\n    roles: [b]").replace("prompt: Go.\n    ", "", 1)
    found = yaml.parse(text.replace("    schema: {type: object}\n", ""), source="run-it.yaml")
    assert "the team 'a' has 'sandbox', which belongs to the roles of its members" in str(errors_in(found)[0])


# -- words and pictures --


@pytest.mark.parametrize(
    ("sandbox", "words"),
    [
        (Sandbox(), "the defaults"),
        (Sandbox(is_off=True), "off"),
        (
            Sandbox(write=(), read=(), env=()),
            "writes nothing, reads only its work folder, gets only basic variables",
        ),
        (
            FULL_VALUE,
            "writes only to out, ~/.cache/pip, /var/tmp/x, reads only its work folder, ../docs, "
            "connects only to api.example.com:443, [::1]:80, gets only basic variables, CI, NPM_*, "
            "1,500 MB for each process, at most 40 processes, 90.5 s for each call, "
            "as far as the machine can enforce it",
        ),
    ],
)
def test_a_sandbox_is_described_in_words(sandbox: Sandbox, words: str) -> None:
    assert describe_sandbox(sandbox) == words


def test_pictures_mark_roles_with_and_without_a_sandbox() -> None:
    workflow = read_workflow("off", "{}")
    text = draw.to_text(workflow)
    assert "│ a (no sandbox) │" in text and "│  b (sandbox)   │" in text
    assert '"a (no sandbox)"' in draw.to_mermaid(workflow)
    svg = draw.to_svg(workflow._replace(roles={**workflow.roles, "b": StoredRole(agent="claude")}))
    assert ">no sandbox<" in svg and ">claude, sandbox<" in svg
    asked = workflow._replace(roles={**workflow.roles, "b": StoredRole(agent="human")})
    assert draw.to_text(asked).count("sandbox") == 1

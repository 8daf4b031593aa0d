"""Groups in a workflow: how they are written, stored and checked, and what their members and their output look like."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from definitions import errors_in, require

from rolecall.errors import UsageError
from rolecall.settings.yaml12 import Position
from rolecall.store import canonical, schema
from rolecall.store.ids import node_id
from rolecall.store.store import META
from rolecall.workflow import condition, document, gallery, group, yaml
from rolecall.workflow.model import Group, StoredWorkflow, from_payload, to_payload, type_of
from rolecall.workflow.playbook import Message
from rolecall.workflow.python import Joined, MemberResult, Role, Workflow, check

FILE = """\
name: review-files
roles:
  lister:
    goal: List the files.
    schema:
      type: object
      properties:
        files:
          type: array
          items: {type: object, properties: {path: {type: string}, note: {type: string}}, required: [path]}
        title: {type: string}
      required: [files, title]
  reviewer:
    each: steps[-1].output.files
    at_once: 4
    agent: [claude, codex]
    capabilities: [read_only]
    goal: Review {{item.path}}, file {{number}} of {{count}}.
    schema: {type: object, properties: {finding: {type: string}}, required: [finding]}
  backend:
    goal: Write the backend.
    workdir: worktree
    schema: {type: object, properties: {api: {type: string}}, required: [api]}
  docs:
    goal: Write the pages.
    workdir: worktree
    schema: {type: object, properties: {pages: {type: integer}}, required: [pages]}
  team:
    roles: [backend, docs]
    merge: queue
    check: [make, test]
graph:
  $START: lister
  lister: reviewer
  reviewer:
    done: {role: team, prompt: "{{#members}}{{#output}}{{output.finding}}{{/output}}{{/members}} {{count}}"}
    partly: $FAIL
    failed: $FAIL
  team: $END
"""


def load(tmp_path: Path, text: str = FILE) -> yaml.Definition:
    file = tmp_path / "review-files.yaml"
    file.write_text(text)
    return yaml.load_file(file)


def find(tmp_path: Path, old: str, new: str) -> list[str]:
    """The problems of the file after one change, as "line:column severity: message"."""
    assert old in FILE
    found = load(tmp_path, FILE.replace(old, new)).problems
    return [f"{one.line}:{one.column} {one.severity}: {one.message}" for one in found]


@pytest.fixture
def sound(tmp_path: Path) -> StoredWorkflow:
    return require(load(tmp_path))


# -- written, stored --


def test_groups_are_read_without_problems(tmp_path: Path) -> None:
    definition = load(tmp_path)
    assert not definition.problems
    roles = require(definition).roles
    assert roles["reviewer"].group == Group(
        each="steps[-1].output.files", agents=("claude", "codex"), at_once=4
    )
    assert roles["team"].group == Group(roles=("backend", "docs"), merge="queue", check=("make", "test"))
    assert roles["lister"].group is None


def test_a_group_is_stored_and_read_again(sound: StoredWorkflow) -> None:
    ids = {name: node_id(META, canonical.encode(dict(role.schema))) for name, role in sound.roles.items()}
    payload = to_payload(sound, ids)
    assert payload["roles"]["reviewer"]["group"] == {
        "each": "steps[-1].output.files",
        "agents": ["claude", "codex"],
        "at_once": 4,
    }
    assert not list(schema.Type(type_of(payload)).misfits(payload))
    assert from_payload(payload, {ids[name]: role.schema for name, role in sound.roles.items()}) == sound


@pytest.mark.parametrize("join", ["all", "any", "first", "{at_least: 2}"])
def test_the_written_yaml_gives_the_same_workflow(tmp_path: Path, join: str) -> None:
    more = f"    join: {join}\n    on_failure: stop\n    on_limit: wait\n    deadline: 1.5\n    at_once: 4\n"
    workflow = require(load(tmp_path, FILE.replace("    at_once: 4\n", more)))
    written = document.to_yaml(workflow)
    assert require(yaml.parse(written, source="again")) == workflow


def test_editors_know_groups(sound: StoredWorkflow) -> None:
    validator = jsonschema_rs.validator_for(yaml.json_schema())
    assert validator.is_valid(document.to_document(sound))
    wrong = document.to_document(sound)
    del wrong["roles"]["reviewer"]["schema"]  # only a team may leave it out
    assert not validator.is_valid(wrong)


# -- checked --


def test_lists_of_lists_become_one_list_of_items() -> None:
    text = (Path(gallery.FOLDER) / "security-review.yaml").read_text()
    assert "each: steps[-1].output.members.output.findings" in text
    wrong = yaml.parse(
        text.replace("{{item.title}}", "{{item.titel}}"), source="security-review.yaml"
    ).problems
    assert [problem.message for problem in wrong] == [
        "{{item.titel}} has no value for a member of skeptic (line 1 of the text)"
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("{{item.path}}", "{{item.pth}}", "18:11 error: {{item.pth}} has no value for a member of reviewer"),
        ("{{number}}", "{{nummer}}", "18:11 error: {{nummer}} has no value for a member of reviewer"),
        ("{{item.path}}", "{{item.note}}", "18:11 warning: {{item.note}} may have no value"),
        ("{{item.path}}", "{{item.path", "18:11 error: a {{ is never closed by }}"),
        ("each: steps[-1].output.files", "each: steps[-1].output.filess", "14:11 error: 'filess' is not a field"),
        ("each: steps[-1].output.files", "each: steps[-1].output.title", "14:11 error: 'title' is not a list"),
        ("each: steps[-1].output.files", "each: steps[-1].output.files.pth", "14:11 error: 'files.pth' is not a field"),
        ("output.files", "output.files.path", "18:11 error: {{item.path}} has no value for a member of reviewer"),
        ("each: steps[-1].output.files", "each: steps[-1].output", "14:11 error: 'output' is not a list"),
        ("each: steps[-1].output.files", "each: files", "14:11 error: the list of 'reviewer' cannot be read: 'files'"),
        ("each: steps[-1].output.files", "each: start.prompt", "14:11 error: 'start.prompt' is not a list"),
        ("each: steps[-1].output.files", "each: 'steps['", "14:11 error: the list of 'reviewer' cannot be read"),
        ("each: steps[-1].output.files", "each: [a, b]", "14:11 error: roles.reviewer.each must be an expression"),
        ("$START: lister", "$START: reviewer", "14:11 error: the list of 'reviewer' comes from a step, but $START"),
        ("at_once: 4", "at_once: 0", "15:14 error: roles.reviewer.at_once must be a whole number of 1 or more"),
        ("each: steps[-1].output.files", "times: 100001", "14:12 error: a group has at most 100,000 members"),
        ("type: array\n", "enum: [a, b]\n", "14:11 error: 'files' is not a list"),
        ("at_once: 4", "times: 2", "15:5 error: the role 'reviewer' has both 'each' and 'times'"),
        ("at_once: 4", "join: most", "15:11 error: roles.reviewer.join must be"),
        ("at_once: 4", "join: {at_least: 0}", "15:22 error: roles.reviewer.join.at_least must be"),
        ("at_once: 4", "check: [make]", "15:5 error: the check of 'reviewer' never runs"),
        ("at_once: 4", "merge: queue", "15:12 error: 'reviewer' merges its members, but they have no worktrees"),
        ("at_once: 4", "deadline: -1", "15:15 error: roles.reviewer.deadline must be a number above 0"),
        ("    each: steps[-1].output.files\n", "", "14:5 error: the role 'reviewer' has 'at_once' of a group, but is"),
        ("capabilities: [read_only]", "output: x", "13:3 error: members of 'reviewer' may write at the same time"),
        ("[backend, docs]", "[backend, doc]", "29:22 error: 'doc' is not a role"),
        ("[backend, docs]", "[backend, team]", "29:22 error: the team 'team' is its own member"),
        ("[backend, docs]", "[backend, reviewer]", "29:22 error: the member 'reviewer' of 'team' is a group itself"),
        ("[backend, docs]", "[backend, $END]", "29:22 error: '$END' is not a role"),
        ("[backend, docs]", "[]", "29:12 error: roles.team.roles must be a list of at least 1 entry"),
        ("merge: queue", "join: {at_least: 3}", "30:11 error: 'team' needs 3 members that are done, but has only 2"),
        ("merge: queue", "goal: Work together.", "30:5 error: the team 'team' has 'prompt', which belongs to"),
        ("merge: queue", "agent: [a, b]", "30:5 error: the team 'team' has 'agent', which belongs to"),
        ("merge: queue", "schema: {type: object}", "30:5 error: the team 'team' has 'schema', which belongs to"),
        ("    partly: $FAIL\n", "", "35:3 error: reviewer can end with 'partly', for which the graph has no edge"),
        ("    partly: $FAIL", "    half: $FAIL", "37:5 error: the schema of reviewer has no status 'half'"),
        ("output.finding", "output.found", "36:32 error: {{output.found}} has no value after reviewer"),
        ("{{count}}\"", "{{item}}\"", "36:32 error: {{item}} has no value after reviewer"),
        ("[claude, codex]", "workflow:review-files", "16:12 error: members of 'reviewer' are played by the workflow"),
        ("[claude, codex]", "[claude, workflow:review-files]", "16:12 error: members of 'reviewer' are played by the"),
        ("goal: List the files.", "agent: [a, b]", "4:5 error: the role 'lister' has 'agent' of a group, but is"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_where_it_was_made(tmp_path: Path, old: str, new: str, expected: str) -> None:
    found = find(tmp_path, old, new)
    assert any(problem.startswith(expected) for problem in found), found


@pytest.mark.parametrize("new", ["times: 0", "each: 3", "roles: []"])
def test_what_follows_from_a_group_that_cannot_be_read_is_not_reported(tmp_path: Path, new: str) -> None:
    found = find(tmp_path, "each: steps[-1].output.files", new)
    assert [problem for problem in found if " error: roles.reviewer." not in problem] == []


@pytest.mark.parametrize(
    "line",
    [
        "workdir: shared",
        "workdir: worktree",
        "capabilities: [no_file_edit, no_shell_exec]",
        "agent: human",
        "agent: workflow:review-one",
        "at_once: 1",
    ],
)
def test_members_that_cannot_disturb_each_other_are_accepted(tmp_path: Path, line: str) -> None:
    text = FILE.replace(
        "    at_once: 4\n    agent: [claude, codex]\n    capabilities: [read_only]\n", f"    {line}\n"
    )
    assert not errors_in(load(tmp_path, text))


def test_a_name_for_members_in_an_edge_has_a_hint(tmp_path: Path) -> None:
    text = FILE.replace("lister: reviewer", 'lister: {role: reviewer, prompt: "Look at {{item}}."}')
    problem = errors_in(load(tmp_path, text))[0]
    assert "{{item}} has no value after lister" in problem.message
    assert "write {{item}} into the prompt of reviewer" in problem.hint


def test_templates_in_other_roles_stay_text(tmp_path: Path) -> None:
    assert not find(tmp_path, "goal: List the files.", "goal: 'Write {{name}} and {{'")


def test_a_section_over_an_output_is_left_out_without_one(tmp_path: Path) -> None:
    assert not find(tmp_path, "{{output.finding}}", "{{finding}}")


# -- members --


def test_a_member_gets_its_item_and_its_agent(sound: StoredWorkflow) -> None:
    name, role = group.role_of(sound, "reviewer", number=2, count=3, item={"path": "a.py"})
    assert (name, role.prompt, role.agent, role.group) == (
        "reviewer", "Review a.py, file 2 of 3.", "codex", None,
    )  # fmt: skip
    _, third = group.role_of(sound, "reviewer", number=3, count=3, item={"path": "b.py"})
    assert third.agent == "claude"


def test_an_item_without_the_field_is_an_error_with_the_member(sound: StoredWorkflow) -> None:
    with pytest.raises(UsageError, match=r"the prompt of 'reviewer' .* member 1: {{item.path}} has no value"):
        group.role_of(sound, "reviewer", number=1, count=1, item={})


def test_a_member_of_a_team_plays_its_role(sound: StoredWorkflow) -> None:
    name, role = group.role_of(sound, "team", number=2, count=2, item="docs")
    assert (name, role) == ("docs", sound.roles["docs"])


def items(expression: str, output: Any) -> list[Any]:
    steps = [{"role": "lister", "output": output}]
    return group.items_of(Group(each=expression), start={"prompt": "x"}, steps=steps, steps_count=1)


@pytest.mark.parametrize(
    ("expression", "output", "expected"),
    [
        ("steps[-1].output.files", {"files": []}, []),
        ("steps[-1].output.files", {"files": ["a"]}, ["a"]),
        ("steps[-1].output.files", {"files": ["a", "a"]}, ["a", "a"]),
        ("steps[-1].output.files", {"files": [["a"], [], None]}, [["a"], [], None]),
        ("steps[-1].output.a.b", {"a": {"b": [1]}}, [1]),
        # One hit of a filter is a list of one, and none is an empty list.
        ("steps[-1].output.issues[is_open]", {"issues": [{"is_open": True}]}, [{"is_open": True}]),
        ("steps[-1].output.issues[is_open]", {"issues": [{"is_open": False}]}, []),
        ("steps[-1].output.issues.title", {"issues": [{"title": "x"}]}, ["x"]),
        ("$split(steps[-1].output.text, ',')", {"text": "a,b"}, ["a", "b"]),
        ("$split(steps[-1].output.text, ',')", {"text": "a"}, ["a"]),
    ],
)  # fmt: skip
def test_a_list_has_an_item_for_each_member(expression: str, output: Any, expected: list[Any]) -> None:
    assert condition.check(expression) is None
    assert items(expression, output) == expected


@pytest.mark.parametrize(
    ("output", "kind"),
    [({}, "nothing"), ({"files": "a"}, "a text"), ({"files": {}}, "an object"), ({"files": 3}, "a number")],
)
def test_anything_else_is_not_a_list(output: Any, kind: str) -> None:
    with pytest.raises(UsageError, match=f"'steps\\[-1\\].output.files' gives {kind}, not a list"):
        items("steps[-1].output.files", output)


def test_ten_thousand_items() -> None:
    many = [{"number": number, "open": number % 2} for number in range(10_000)]
    assert items("steps[-1].output.issues", {"issues": many}) == many
    assert len(items("steps[-1].output.issues[open = 1]", {"issues": many})) == 5_000


def test_times_and_teams_have_members_too() -> None:
    given: dict[str, Any] = {"start": {}, "steps": [], "steps_count": 0}
    assert group.items_of(Group(times=3), **given) == [None, None, None]
    assert group.items_of(Group(roles=("a", "b")), **given) == ["a", "b"]


# -- the output --


def member(number: int, **more: Any) -> dict[str, Any]:
    return {"number": number, "status": "done", "id": "T", "output": {"finding": "none"}, "item": 1, **more}


def joined(*members: dict[str, Any], status: str = "done") -> dict[str, Any]:
    counts = {word: sum(one["status"] == word for one in members) for word in group.MEMBER_STATUSES}
    return {"status": status, "members": list(members), "count": len(members), **counts}


def test_the_output_of_a_group_has_the_schema_of_its_members(sound: StoredWorkflow) -> None:
    kind = schema.Type(dict(group.output_schema(sound, "reviewer")))
    assert not list(kind.misfits(joined(member(1), member(2, status="failed", output=None, reason="x"))))
    assert not list(kind.misfits(joined()))
    assert list(kind.misfits(joined(member(1, output={"found": 1}))))
    assert list(kind.misfits(joined(member(1, status="lost"))))
    assert group.output_schema(sound, "lister") == sound.roles["lister"].schema


@pytest.mark.parametrize(
    ("join", "count", "done", "status"),
    [
        ("all", 3, 3, "done"), ("all", 3, 2, "partly"), ("all", 3, 0, "failed"), ("all", 0, 0, "done"),
        ("any", 3, 1, "done"), ("any", 3, 0, "failed"), ("any", 0, 0, "done"),
        ("first", 3, 1, "done"), ("first", 3, 0, "failed"),
        (2, 3, 2, "done"), (2, 3, 1, "partly"), (2, 3, 0, "failed"), (2, 1, 1, "partly"), (2, 0, 0, "done"),
    ],
)  # fmt: skip
def test_the_status_says_whether_enough_are_done(join: Any, count: int, done: int, status: str) -> None:
    assert group.status_of(Group(times=3, join=join), count=count, done=done) == status


# -- in Python --


@dataclass
class Review:
    finding: str


REVIEWER = Role.each(
    "steps[-1].output.files",
    Role(["claude", "codex"], "Review {{item}}.", Review, capabilities=["read_only"]),
    at_once=4,
)
LISTER = Role(
    None, "List.", {"type": "object", "properties": {"files": {"type": "array"}}, "required": ["files"]}
)


def test_python_has_the_same_groups() -> None:
    roles: dict[str, Role[Any]] = {
        "lister": LISTER,
        "reviewer": REVIEWER,
        "judge": Role.times(3, Role(None, "Judge {{number}}.", Review, workdir="worktree"), join="any"),
        "team": Role.team("lister", "writer", join={"at_least": 1}, workdir="worktree"),
        "writer": Role(None, "Write.", Review),
    }
    graph = {"$START": "lister", "lister": "reviewer", "reviewer": "judge", "judge": "team", "team": "$END"}
    book, problems = check(Workflow("do-work", roles, graph=graph), name=None, python="x.py:workflow")
    assert book is not None, problems
    groups = {name: role.group for name, role in book.workflow.roles.items() if role.group}
    assert groups == {
        "reviewer": Group(each="steps[-1].output.files", agents=("claude", "codex"), at_once=4),
        "judge": Group(times=3, join="any"),
        "team": Group(roles=("lister", "writer"), join=1),
    }
    assert book.workflow.roles["team"].workdir == "worktree"


def test_a_moderator_may_lead_to_a_group_from_anywhere() -> None:
    roles: dict[str, Role[Any]] = {"reviewer": REVIEWER, "lister": LISTER}
    book, problems = check(Workflow("do-work", roles, lambda _: "$END"), name=None, python="x.py:workflow")
    assert (book is not None, problems) == (True, [])


def test_a_mistake_in_python_names_the_line_of_the_role() -> None:
    role = Role.each("steps[-1].output.files", Role(None, "Review {{itm}}.", Review, workdir="shared"))
    workflow = Workflow("do-work", {"lister": LISTER, "reviewer": role}, lambda _: "$END")
    _, problems = check(workflow, name=None, python="x.py:workflow")
    assert [(Position(*one[2:5]), one.message) for one in problems] == [
        (role.place, "{{itm}} has no value for a member of reviewer")
    ]


def test_a_group_is_read_with_the_type_of_its_members() -> None:
    failed = member(2, status="failed", output=None, reason="no login")
    found = REVIEWER.read(Message("reviewer", "", joined(member(1), failed, status="partly")))
    assert found == Joined(
        "partly",
        (
            MemberResult(1, "done", Review("none"), "T", item=1),
            MemberResult(2, "failed", None, "T", item=1, reason="no login"),
        ),
    )
    assert found.outputs == [Review("none")]

"""`rolecall workflow` as a user meets it, and the examples of the page on writing workflows."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema_rs
import pytest
import yaml

from rolecall.agents.sandbox import find_layers
from rolecall.workflow.yaml import json_schema

if TYPE_CHECKING:
    from conftest import Rolecall

PAGE = Path(__file__).parents[2] / "docs" / "workflows.md"

SOLVE = """\
name: solve-issue
description: End-to-end issue resolution
version: "1"
roles:
  planner:
    goal: Plan.
    agent: human
    meta: {type: object, properties: {plan: {type: string}}, required: [plan]}
  reviewer:
    goal: Review.
    agent: human
    meta: {type: object, properties: {approved: {type: boolean}}, required: [approved]}
conditions:
  notApproved: steps[-1].output.approved = false
graph:
  $START: planner
  planner: {role: reviewer, prompt: "Review {{plan}}."}
  reviewer:
    - {role: planner, condition: notApproved}
    - {role: $END}
limits: {steps: 20}
"""
BROKEN = """\
name: solve-isue
roles:
  planner:
    goal: Plan.
    mata: {}
graph:
  $START: plannr
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "solve-issue.yaml").write_text(SOLVE)
    return folder


def assert_error(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    assert done.returncode == code, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr


# -- put, show, list --


def test_put_registers_the_workflow_and_its_schemas(rolecall: Rolecall, project: Path) -> None:
    done = rolecall.json("workflow", "put", "solve-issue.yaml", cwd=project)
    assert set(done) == {"name", "hash"}
    node = rolecall.json("cas", "get", done["hash"])
    refs = rolecall.json("cas", "refs", done["hash"])["refs"]
    assert sorted(role["meta"] for role in node["payload"]["roles"].values()) == sorted(refs)
    schema = rolecall.json("cas", "get", node["payload"]["roles"]["planner"]["meta"])["payload"]
    assert schema["title"] == "solve-issue.planner"


def test_put_reports_every_problem_with_its_place_and_stores_nothing(
    rolecall: Rolecall, project: Path
) -> None:
    file = project / "solve-issue.yaml"
    file.write_text(BROKEN)
    done = rolecall("workflow", "put", "solve-issue.yaml", cwd=project)
    assert_error(
        done, 2, f"{file}:1:7: error:", f"{file}:5:5: error:", f"{file}:7:11: error:", "nothing was stored"
    )
    assert not rolecall.home.exists()


def test_put_shows_warnings_and_goes_on(rolecall: Rolecall, project: Path) -> None:
    file = project / "solve-issue.yaml"
    file.write_text(SOLVE.replace("limits: {steps: 20}\n", ""))
    done = rolecall("workflow", "put", "solve-issue.yaml", "--json", cwd=project, check=0)
    assert re.search(rf"{re.escape(str(file))}:\d+:\d+: warning: ", done.stderr)
    assert json.loads(done.stdout)["name"] == "solve-issue"


def test_show_has_the_shape_of_the_predecessor(rolecall: Rolecall, project: Path) -> None:
    put = rolecall.json("workflow", "put", "solve-issue.yaml", cwd=project)
    for name in ("solve-issue", put["hash"], put["hash"][:6]):
        shown = rolecall.json("workflow", "show", name)
        assert {key: shown[key] for key in ("hash", "name", "origin", "path")} == {
            **put, "origin": "global", "path": None,
        }  # fmt: skip
        node = rolecall.json("cas", "get", put["hash"], "--timestamp")
        assert {key: shown[key] for key in node} == node
    local = rolecall.json("workflow", "show", "./solve-issue.yaml", cwd=project)
    assert (local["hash"], local["origin"], local["path"]) == (
        put["hash"],
        "local",
        str(project / "solve-issue.yaml"),
    )


def test_show_for_people_has_the_schemas_written_out(rolecall: Rolecall, project: Path) -> None:
    rolecall("workflow", "put", "solve-issue.yaml", cwd=project, check=0)
    shown = yaml.safe_load(rolecall("workflow", "show", "solve-issue", "--format", "yaml", check=0).stdout)
    assert shown["payload"]["roles"]["planner"]["schema"]["properties"] == {"plan": {"type": "string"}}
    text = rolecall("workflow", "show", "solve-issue", "--format", "text", check=0).stdout
    assert text.startswith(f"# {shown['hash']}, put 20")


def test_what_show_writes_as_yaml_is_the_same_workflow(
    rolecall: Rolecall, project: Path, tmp_path: Path
) -> None:
    put = rolecall.json("workflow", "put", "solve-issue.yaml", cwd=project)
    copy = tmp_path / "copy" / "solve-issue.yaml"
    copy.parent.mkdir()
    copy.write_text(rolecall("workflow", "show", "solve-issue", "--yaml", check=0).stdout)
    assert rolecall.json("workflow", "put", str(copy)) == put


def test_a_sandbox_is_put_shown_drawn_and_checked(rolecall: Rolecall, project: Path, tmp_path: Path) -> None:
    bare = rolecall.json("workflow", "put", "solve-issue.yaml", cwd=project)
    file = project / "solve-issue.yaml"
    text = SOLVE.replace("agent: human", "agent: claude\n    sandbox: {network: none, memory: 2GB}", 1)
    text = text.replace("agent: human", "agent: claude\n    capabilities: [read_only]\n    sandbox: off", 1)
    file.write_text(f"{text}sandbox: {{}}\n")
    put = rolecall.json("workflow", "put", "solve-issue.yaml", cwd=project)
    shown = rolecall.json("workflow", "show", "solve-issue")["payload"]
    assert (shown["sandbox"], shown["roles"]["reviewer"]["sandbox"]) == ({}, "off")
    assert shown["roles"]["planner"]["sandbox"] == {"network": "none", "memory": 2_000_000_000}
    copy = tmp_path / "solve-issue.yaml"
    copy.write_text(rolecall("workflow", "show", "solve-issue", "--yaml", check=0).stdout)
    assert rolecall.json("workflow", "put", str(copy)) == put
    drawn = rolecall("workflow", "graph", "solve-issue", check=0).stdout
    assert "planner (sandbox)" in drawn and "reviewer (no sandbox)" in drawn
    done = rolecall("workflow", "validate", "solve-issue.yaml", cwd=project)
    line = text[: text.index("sandbox: off")].count("\n") + 1
    warning = (
        f"{file}:{line}:14: warning: the role 'reviewer' has no sandbox, so only its agent's own settings"
    )
    assert warning in done.stdout
    file.write_text(SOLVE)
    assert rolecall.json("workflow", "put", "solve-issue.yaml", cwd=project) == bare


def test_list_shows_the_projects_own_and_the_registered(rolecall: Rolecall, project: Path) -> None:
    assert rolecall.json("workflow", "list", cwd=project) == []
    put = rolecall.json("workflow", "put", "solve-issue.yaml", cwd=project)
    folder = project / ".workflows"
    folder.mkdir()
    (folder / "do-more.yaml").write_text(SOLVE.replace("solve-issue", "do-more"))
    (folder / "break-it.yaml").write_text("name: [")
    (folder / "run-code.py").write_text("raise SystemExit('a listing must not run this')")
    rows = {row["name"]: row for row in rolecall.json("workflow", "list", cwd=project)}
    assert rows["solve-issue"] == {
        **put, "origin": "global", "path": None, "description": "End-to-end issue resolution", "versions": 1,
    }  # fmt: skip
    assert (rows["do-more"]["hash"], rows["do-more"]["origin"]) == ("(local)", "local")
    assert rows["break-it"]["description"] == "(does not validate)"
    assert rows["run-code"]["description"] is None


# -- validate --


def test_validate_reports_all_files_and_needs_no_store(rolecall: Rolecall, project: Path) -> None:
    (project / "break-it.yaml").write_text(BROKEN)
    done = rolecall(
        "workflow", "validate", "solve-issue.yaml", "break-it.yaml", "nowhere", "--json", cwd=project, check=2
    )
    good, bad, missing = json.loads(done.stdout)
    assert (good["valid"], good["name"], good["problems"]) == (True, "solve-issue", [])
    assert not bad["valid"]
    assert {(one["line"], one["severity"]) for one in bad["problems"]} >= {
        (1, "error"),
        (5, "error"),
        (7, "error"),
    }
    assert set(bad["problems"][0]) == {"severity", "message", "file", "line", "column", "hint"}
    assert not missing["valid"]
    assert not rolecall.home.exists()
    text = rolecall("workflow", "validate", "break-it.yaml", "--format", "text", cwd=project, check=2).stdout
    assert text.splitlines()[0].startswith(f"{project / 'break-it.yaml'}:1:7: error: ")
    assert text.splitlines()[-1].startswith(f"{project / 'break-it.yaml'}: not valid (")


def test_validate_warns_of_roles_that_nobody_would_play(rolecall: Rolecall, project: Path) -> None:
    file = project / "solve-issue.yaml"
    file.write_text(SOLVE.replace("agent: human", "agent: hunam", 1).replace("    agent: human\n", ""))
    [report] = rolecall.json("workflow", "validate", "solve-issue.yaml", cwd=project)
    assert report["valid"]
    assert [(one["severity"], one["line"]) for one in report["problems"]] == [("warning", 7), ("warning", 9)]
    assert "Did you mean 'human'?" in report["problems"][0]["hint"]
    rolecall("config", "set", "defaultAgent", "human", check=0)
    rolecall("config", "set", "agentOverrides.solve-issue.planner", "human", check=0)
    rolecall("config", "set", "agentOverrides.solve-issue.plannner", "human", check=0)
    [report] = rolecall.json("workflow", "validate", "solve-issue.yaml", cwd=project)
    assert ["matches no role" in one["message"] for one in report["problems"]] == [True]


@pytest.mark.parametrize(
    ("agent", "said", "is_valid"),
    [
        ("cluade:opus", "there is no agent 'cluade:opus'", False),
        ("claude:modle=opus", "the agent 'claude' has no option 'modle'", False),
        ("claude:timeout=soon", "the agent 'claude': timeout must be a number above 0", False),
        ("command:", "the agent 'command' needs a program", False),
        ("careful", "there is no agent 'careful'", True),
        ("command:not-installed-here", "which was not found", True),
    ],
)
def test_validate_refuses_an_agent_that_can_exist_nowhere(
    rolecall: Rolecall, project: Path, agent: str, said: str, is_valid: bool
) -> None:
    file = project / "solve-issue.yaml"
    file.write_text(SOLVE.replace("agent: human", f"agent: '{agent}'", 1))
    done = rolecall(
        "workflow",
        "validate",
        "solve-issue.yaml",
        "--format",
        "json",
        cwd=project,
        check=0 if is_valid else 2,
    )
    [report] = json.loads(done.stdout)
    [problem] = report["problems"]
    assert said in problem["message"] and problem["line"] == 7
    assert (report["valid"], problem["severity"]) == (is_valid, "warning" if is_valid else "error")


def test_validate_takes_an_alias_of_the_configuration_with_a_colon(rolecall: Rolecall, project: Path) -> None:
    rolecall.home.mkdir()
    (rolecall.home / "config.yaml").write_text('agents: {"my:own": {adapter: "command:sh"}}')
    (project / "solve-issue.yaml").write_text(SOLVE.replace("agent: human", "agent: 'my:own'", 1))
    [report] = rolecall.json("workflow", "validate", "solve-issue.yaml", "--format", "json", cwd=project)
    assert report["valid"] and report["problems"] == []


def test_validate_reads_a_file_once_however_many_roles_nobody_would_play(
    rolecall: Rolecall, project: Path
) -> None:
    roles = "".join(f"  r{n}: {{goal: Do it., meta: {{type: object}}}}\n" for n in range(3_000))
    edges = "".join(f"  r{n}: r{n + 1}\n" for n in range(2_999))
    graph = "graph:\n  $START: r0\n" + edges + "  r2999: $END\n"
    (project / "many.yaml").write_text(f"name: many\ndescription: Many roles.\nroles:\n{roles}{graph}")
    # To read the file again for every role took ten minutes.
    [report] = rolecall.json("workflow", "validate", "many.yaml", cwd=project)
    assert [one["line"] for one in report["problems"][-3:]] == [3001, 3002, 3003]


def test_validate_takes_names_of_the_project_and_of_the_registry(rolecall: Rolecall, project: Path) -> None:
    assert_error(rolecall("workflow", "validate", cwd=project), 2, "this project has no workflow")
    put = rolecall.json("workflow", "put", "solve-issue.yaml", cwd=project)
    [report] = rolecall.json("workflow", "validate", "solve-issue", cwd=project)
    assert (report["file"], report["id"], report["valid"]) == (put["hash"], put["hash"], True)
    (project / "workflows").mkdir()
    (project / "workflows" / "do-more.yaml").write_text(SOLVE.replace("solve-issue", "do-more"))
    [report] = rolecall.json("workflow", "validate", cwd=project)
    assert report["name"] == "do-more"


# -- graph and schema --


def test_graph_draws_text_svg_and_mermaid(rolecall: Rolecall, project: Path) -> None:
    text = rolecall("workflow", "graph", "./solve-issue.yaml", cwd=project, check=0).stdout
    assert "├─↺ notApproved ─" in text
    mermaid = rolecall(
        "workflow", "graph", "./solve-issue.yaml", "--as", "mermaid", cwd=project, check=0
    ).stdout
    assert mermaid.startswith("flowchart TD\n")
    done = rolecall("workflow", "graph", "./solve-issue.yaml", "-o", "x.svg", cwd=project, check=0)
    assert (project / "x.svg").read_text().startswith("<svg ")
    assert (done.stdout, done.stderr) == ("", "x.svg written\n")
    reported = rolecall.json("workflow", "graph", "./solve-issue.yaml", "-o", "x.svg", cwd=project)
    assert reported == {"as": "svg", "file": "x.svg"}


def test_the_printed_schema_accepts_what_the_reader_accepts(rolecall: Rolecall) -> None:
    schema = json.loads(rolecall("workflow", "schema", "--json", check=0).stdout)
    assert schema == json_schema()
    validator = jsonschema_rs.validator_for(schema)
    assert validator.is_valid(yaml.safe_load(SOLVE))
    assert not validator.is_valid(yaml.safe_load(BROKEN))


# -- history and diff --


def test_old_versions_stay_reachable(rolecall: Rolecall, project: Path) -> None:
    file = project / "solve-issue.yaml"
    first = rolecall.json("workflow", "put", str(file))["hash"]
    file.write_text(SOLVE.replace('"1"', '"2"').replace("Review.", "Review well."))
    second = rolecall.json("workflow", "put", str(file))["hash"]
    history = rolecall.json("workflow", "history", "solve-issue")
    assert [(row["id"], row["version"], row["current"]) for row in history] == [
        (second, "2", True),
        (first, "1", False),
    ]
    assert history[0]["timestamp"] >= history[1]["timestamp"]
    assert rolecall.json("workflow", "show", first)["payload"]["version"] == "1"
    for name in ("solve-issue@1", f"solve-issue@{first}", f"solve-issue@{first[:6].lower()}"):
        assert rolecall.json("workflow", "show", name)["hash"] == first
    assert rolecall.json("workflow", "diff", "solve-issue@1", "solve-issue")["to"]["id"] == second
    missing = rolecall("workflow", "show", "solve-issue@3")
    assert_error(missing, 3, "no version '3' (newest versions: solve-issue@2, solve-issue@1)")
    assert_error(rolecall("workflow", "history", "solve-isue"), 3, "'solve-isue'")


def test_diff_compares_a_file_with_what_was_put_and_versions_with_each_other(
    rolecall: Rolecall, project: Path
) -> None:
    file = project / "solve-issue.yaml"
    assert_error(rolecall("workflow", "diff", str(file)), 3, "no other version")
    first = rolecall.json("workflow", "put", str(file))["hash"]
    assert rolecall.json("workflow", "diff", str(file))["same"]
    file.write_text(SOLVE.replace("Review.", "Review well.").replace("{steps: 20}", "{steps: 30}"))
    changed = rolecall.json("workflow", "diff", str(file))
    assert [(one["kind"], one["what"], one["name"], one["fields"]) for one in changed["changes"]] == [
        ("changed", "limits", "", ["steps"]),
        ("changed", "role", "reviewer", ["prompt"]),
    ]
    assert "\n-    prompt: Review.\n+    prompt: Review well.\n" in changed["diff"]
    second = rolecall.json("workflow", "put", str(file))["hash"]
    for arguments in (["solve-issue"], [first], [first, second], [first, "solve-issue"]):
        done = rolecall.json("workflow", "diff", *arguments)
        assert (done["from"]["id"], done["to"]["id"]) == (first, second)
    text = rolecall("workflow", "diff", first, second, "--format", "text", check=0).stdout
    assert text.startswith("changed limits: steps\nchanged role reviewer: prompt\n\n--- solve-issue ")


# -- workflows in Python --

PYTHON = """\
from pathlib import Path
from rolecall import Role, Workflow

async def write(context):
    return {"body": "", "output": {}}

try:
    Path(__file__).with_name("loaded").touch()
except OSError:
    pass
print("this is not part of any answer")
workflow = Workflow(
    "greet",
    roles={"writer": Role.function(write, {"type": "object"})},
    graph={"$START": "writer", "writer": {"role": "$END"}},
)
"""


@pytest.mark.skipif(not find_layers().can_restrict_files, reason="this machine has no sandbox")
def test_looking_at_a_workflow_in_python_writes_nothing(rolecall: Rolecall, project: Path) -> None:
    (project / "greet.py").write_text(PYTHON)
    (report,) = rolecall.json("workflow", "validate", "greet.py", cwd=project)
    assert report["valid"] and report["problems"] == []  # a function needs no agent
    put = rolecall.json("workflow", "put", "greet.py", cwd=project)
    assert put == {"name": "greet", "hash": report["id"]}
    for verb in ("show", "graph"):
        assert "writer" in rolecall("workflow", verb, "./greet.py", cwd=project, check=0).stdout
    rolecall("doctor", "./greet.py", cwd=project)
    assert not (project / "loaded").exists()


# -- errors --


@pytest.mark.parametrize("verb", ["show", "graph", "diff", "put"])
def test_a_workflow_that_is_not_there_is_not_found(rolecall: Rolecall, verb: str, project: Path) -> None:
    assert_error(rolecall("workflow", verb, "nowhere", cwd=project), 3, "there is no workflow 'nowhere'")
    assert_error(rolecall("workflow", verb, "./no.yaml", cwd=project), 3, "there is no workflow file")
    assert not rolecall.home.exists()


def test_a_node_that_is_no_workflow_is_said_to_be_none(rolecall: Rolecall) -> None:
    node = rolecall.json("cas", "put-text", "hello")["hash"]
    assert_error(rolecall("workflow", "show", node), 2, f"node {node} is not a workflow")


# -- the page --


def examples() -> list[tuple[str, str]]:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [(match[1], block) for block in blocks if (match := re.match(r"name: ([\w-]+)\n", block))]


@pytest.mark.parametrize(("name", "text"), examples(), ids=[name for name, _ in examples()])
def test_examples_of_the_page_are_valid_without_a_warning(
    rolecall: Rolecall, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "procedure.md").write_text("Read everything.\n")
    (tmp_path / "verdict.json").write_text(
        '{"type": "object", "properties": {"verdict": {"type": "string"}}}'
    )
    rolecall("config", "set", "defaultAgent", "human", check=0)
    [report] = rolecall.json("workflow", "validate", f"{name}.yaml", cwd=tmp_path)
    assert report["valid"]
    assert report["problems"] == []


def test_the_page_has_examples_and_names_every_key() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(examples()) >= 4
    schema = json_schema()
    role = schema["properties"]["roles"]["additionalProperties"]
    keys = {*schema["properties"], *role["properties"], *role["properties"]["limits"]["properties"]}
    assert sorted(key for key in keys if f"`{key}`" not in page) == []


def test_the_hint_of_a_problem_is_a_command(rolecall: Rolecall, project: Path) -> None:
    (project / "solve-issue.yaml").write_text(SOLVE.replace("    agent: human\n", ""))
    for name, command in (
        ("nope.yaml", "`rolecall workflow list`"),
        ("solve-issue.yaml", "`rolecall config set defaultAgent NAME`"),
    ):
        output = rolecall("workflow", "validate", name, cwd=project).stdout
        shown = json.loads(rolecall("workflow", "validate", name, "--json", cwd=project).stdout)
        assert command in output
        assert command in shown[0]["problems"][0]["hint"]

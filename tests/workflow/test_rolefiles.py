"""Roles in files of their own: `roles/<role>.md` beside an `index.yaml`."""

from __future__ import annotations

from pathlib import Path

import pytest
from definitions import errors_in, require

from rolecall.workflow.model import Sandbox
from rolecall.workflow.yaml import Definition, load_file

INDEX = "name: review-text\ngraph: {$START: reader, reader: $END}\n"
READER = """\
---
description: Reads.
agent: claude
capabilities: [read_only]
meta:
  type: object
  properties: {verdict: {type: string}}
  required: [verdict]
---

You are a reader.

Read the text.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "review-text"
    (made / "roles").mkdir(parents=True)
    (made / "index.yaml").write_text(INDEX)
    return made


def loaded(folder: Path) -> Definition:
    return load_file(folder / "index.yaml")


def list_problems(folder: Path) -> list[str]:
    return [str(problem).replace(f"{folder}/", "") for problem in errors_in(loaded(folder))]


def test_the_frontmatter_is_the_role_and_the_text_its_prompt(folder: Path) -> None:
    (folder / "roles" / "reader.md").write_text(READER)
    role = require(loaded(folder)).roles["reader"]
    assert role.prompt == "You are a reader.\n\nRead the text."
    assert (role.description, role.agent, role.capabilities) == ("Reads.", "claude", ("read_only",))
    assert role.schema["required"] == ["verdict"]


def test_roles_in_the_index_and_in_files_stand_side_by_side(folder: Path) -> None:
    (folder / "index.yaml").write_text(
        "name: review-text\nroles:\n  writer: {goal: Write., meta: {type: object}}\n"
        "graph: {$START: writer, writer: reader, reader: $END}\n"
    )
    (folder / "roles" / "reader.md").write_text(READER)
    assert list(require(loaded(folder)).roles) == ["writer", "reader"]


def test_a_role_that_stands_twice_is_an_error_at_the_index(folder: Path) -> None:
    (folder / "index.yaml").write_text(
        "name: review-text\nroles:\n  reader: {goal: Read., meta: {type: object}}\n"
        "graph: {$START: reader, reader: $END}\n"
    )
    (folder / "roles" / "reader.md").write_text(READER)
    assert list_problems(folder) == [
        "index.yaml:3:3: error: the role 'reader' is also defined in roles/reader.md. Keep one of them."
    ]


def test_problems_have_the_places_of_the_roles_file(folder: Path) -> None:
    text = READER.replace("agent: claude", "agnet: claude").replace("[verdict]\n", "[verdcit]\n")
    (folder / "roles" / "reader.md").write_text(text)
    [misspelt, unmet] = list_problems(folder)
    assert misspelt.startswith(
        "roles/reader.md:3:1: error: 'agnet' is not a key of a role. Did you mean 'agent'?"
    )
    assert unmet.startswith("roles/reader.md:8:14: error: 'verdcit' is required but not declared")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("---\nagent: x\n", "roles/reader.md:1:1: error: the frontmatter is never closed by a line '---'"),
        ("---\n- a\n---\n", "roles/reader.md:1:1: error: the frontmatter of a role must be a mapping"),
        (
            "---\ngoal: G\nmeta: {}\n---\n",
            "roles/reader.md:2:1: error: the text of a role's file is its prompt. The",
        ),
        ("---\na: [\n---\n", "roles/reader.md:3:1: error: not valid YAML"),
        ("Just a text.\n", "roles/reader.md:1:1: error: 'schema' is missing in roles.reader"),
    ],
)
def test_a_file_that_is_no_role_is_told_with_its_place(folder: Path, text: str, problem: str) -> None:
    (folder / "roles" / "reader.md").write_text(text)
    assert any(one.startswith(problem) for one in list_problems(folder)), list_problems(folder)


def test_a_schema_may_be_included_from_the_workflows_folder_but_not_from_outside(folder: Path) -> None:
    (folder / "verdict.json").write_text('{"type": "object"}')
    (folder.parent / "outside.json").write_text('{"type": "object"}')
    (folder / "roles" / "reader.md").write_text("---\nmeta: !include ../verdict.json\n---\nRead.\n")
    assert require(loaded(folder)).roles["reader"].prompt == "Read."
    (folder / "roles" / "reader.md").write_text("---\nmeta: !include ../../outside.json\n---\nRead.\n")
    assert "leads outside the folder of the file" in list_problems(folder)[0]


def test_other_files_and_other_workflows_are_left_alone(folder: Path) -> None:
    (folder / "roles" / "reader.md").write_text(READER)
    (folder / "roles" / "notes.txt").write_text("not a role")
    (folder / "roles" / ".reader.md.swp").write_text("of an editor")
    assert list(require(loaded(folder)).roles) == ["reader"]
    (folder / "single.yaml").write_text(
        "name: single\nroles: {a: {goal: A., meta: {type: object}}}\ngraph: {$START: a, a: $END}\n"
    )
    assert list(require(load_file(folder / "single.yaml")).roles) == ["a"]


def test_a_sandbox_in_a_roles_file_is_read_and_its_problems_are_named_there(folder: Path) -> None:
    file = folder / "roles" / "reader.md"
    file.write_text(READER.replace("agent: claude\n", "agent: claude\nsandbox: {network: none}\n"))
    workflow = loaded(folder).workflow
    assert workflow is not None and workflow.roles["reader"].sandbox == Sandbox(network="none")
    file.write_text(READER.replace("agent: claude\n", "agent: claude\nsandbox: {write: [.]}\n"))
    [problem] = errors_in(loaded(folder))
    assert (problem.file, problem.line, problem.column) == (str(file), 4, 19)
    assert "is read_only, but its sandbox lets it write to '.'" in problem.message

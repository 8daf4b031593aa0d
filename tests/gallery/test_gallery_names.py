"""The workflows that come with Rolecall: their names work wherever a workflow is named, after the project's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gallerystage import Stage, deliver

from rolecall.api import Rolecall as Api
from rolecall.api import reader
from rolecall.errors import NotFound
from rolecall.mcp import thread_verbs
from rolecall.mcp.tools import Caller, ToolContext
from rolecall.workflow import gallery, registry

PAGES = Path(__file__).parents[2] / "docs" / "gallery"
OWN = """\
name: answer-question
description: Our own way to answer
roles:
  sage: {prompt: Answer., schema: {type: object, properties: {answer: {type: string}}, required: [answer]}}
graph: {$START: sage, sage: $END}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("name", gallery.names())
def test_a_workflow_of_the_gallery_is_valid_without_a_warning_and_has_a_page(name: str) -> None:
    checked = registry.check_file(str(gallery.path_of(name)))
    assert checked.playbook is not None and checked.problems == ()
    workflow = checked.playbook.workflow
    assert (
        gallery.summaries()[name] == workflow.description and len(workflow.description) <= 58
    )  # `rolecall new` lists them in 80 columns
    assert workflow.limits.steps or workflow.limits.cost
    assert (PAGES / f"{name}.md").read_text().startswith(f"# {name}\n\n{workflow.description}.\n")
    assert f"({name}.md)" in (PAGES / "index.md").read_text()


def test_a_name_is_looked_for_in_the_project_then_in_the_store_then_in_the_gallery(tmp_path: Path) -> None:
    with Api(folder=tmp_path) as rolecall:
        assert rolecall.find_workflow("answer-question").path == gallery.path_of("answer-question")
        assert rolecall.workflow("answer-question")["name"] == "answer-question"
        assert "answer-question" in [entry.name for entry in rolecall.gallery()]
        thread = rolecall.start("answer-question", "Why?", agent="human")
        assert thread.workflow and rolecall.workflows() == []  # the name is still that of the gallery

        (tmp_path / "answer-question.yaml").write_text(OWN)
        node = rolecall.put("./answer-question.yaml")
        assert rolecall.find_workflow("answer-question").node == node
        assert "answer-question" not in [entry.name for entry in rolecall.gallery()]

        (tmp_path / ".workflows").mkdir()
        os.rename(tmp_path / "answer-question.yaml", tmp_path / ".workflows/answer-question.yaml")
        found = rolecall.find_workflow("answer-question").path
        assert found == str(tmp_path / ".workflows/answer-question.yaml")


def test_a_client_of_the_tools_sees_and_starts_them(tmp_path: Path) -> None:
    place = ToolContext(str(tmp_path))
    listed = thread_verbs.list_workflows(place, Caller())
    assert listed["workflows"] == [] and listed["gallery"] == gallery.summaries()
    shown = thread_verbs.show_workflow(place, Caller(), "fix-test")
    assert (shown["origin"], shown["workflow"]["name"]) == ("gallery", "fix-test")


def test_an_unknown_name_is_told_the_near_ones(tmp_path: Path) -> None:
    with (
        reader(folder=tmp_path) as here,
        pytest.raises(NotFound, match="no workflow 'answr-question'") as error,
    ):
        here.find_workflow("answr-question")
    assert "Did you mean 'answer-question'?" in error.value.hint
    with pytest.raises(NotFound, match="in the gallery"):
        gallery.read("nothing")
    assert gallery.read("answer-question").startswith("name: answer-question\n")


def test_a_role_can_be_played_by_a_workflow_of_the_gallery(tmp_path: Path) -> None:
    own = OWN.replace("answer-question", "ask-more").replace(
        "sage: {", "sage: {agent: 'workflow:answer-question', "
    )
    with Stage(tmp_path) as stage:
        stage.commit({".workflows/ask-more.yaml": own})
        source = {"file": "code.txt", "line": 1, "quote": "a bug", "shows": "that"}
        answer = deliver("answered", answer="Because.", sources=[source])
        confirmed = deliver("confirmed", answer="Because.", sources=["code.txt:1"])
        thread = stage.run("ask-more", researcher=[answer], checker=[confirmed])
        assert (thread.status, thread.steps[0].output["answer"]) == ("completed", "Because.")
        assert (
            stage.rolecall.stored_workflows() == []
        )  # the name still stands for the file of the installed version

"""A conversation with the Lead: a person's words count as in a host, whichever agent plays it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolecall.api import Rolecall, own_words
from rolecall.errors import UsageError
from rolecall.hosts import sessions
from rolecall.hosts.lead import conversation

SCRIPT = {"roles": {"lead": [{"body": "Hello.", "session": "s"}]}, "after_last": "repeat"}
LESSON = "[m] upload-retries: three retries are enough for the upload server"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rolecall]:
    monkeypatch.setenv("ROLECALL_HOME", str(tmp_path / "home"))
    project = tmp_path / "project"
    project.mkdir()
    subprocess.run(["git", "init", "--quiet", str(project)], check=True)
    (project / "script.json").write_text(json.dumps(SCRIPT))
    with Rolecall(folder=project) as rolecall:
        yield rolecall


AGENT = "scripted:script.json"


def test_tags_are_carried_out_and_the_lead_is_told(here: Rolecall) -> None:
    thread = here.talk(f"[plna] Hello\n{LESSON}", agent=AGENT)
    (note,) = here.project().memories()
    assert note["name"] == "upload-retries.md" and "upload-retries.md" in thread.prompt
    assert thread.notice == "[plna] is not a tag. Did you mean [plan]?" and thread.notice in thread.prompt
    assert own_words(thread.prompt) == f"[plna] Hello\n{LESSON}" and thread.state.title == "[plna] Hello"
    thread.run().wait()
    assert (thread.status, thread.role, thread.steps[-1].body) == ("suspended", "user", "Hello.")

    # Handled twice, for example after a crash, a message has the same effect as once.
    thread.say(LESSON)
    assert len(here.project().memories()) == 1 and not thread.notice


def test_a_skill_is_given_to_the_lead_in_words_for_any_agent(here: Rolecall) -> None:
    thread = here.talk("Good morning", agent=AGENT)
    assert thread.prompt == "Good morning"  # nothing to say yet, and no folder is made
    assert not os.path.exists(os.path.join(here.folder, ".nexus"))
    thread.run().wait()
    thread.say("[run]")
    body = thread.steps[-1].body
    assert own_words(body) == "[run]" and "# nx-run: carry out the tasks" in body
    assert (
        "`rolecall plan run`" in body and "{{" not in body and "Ask the user this, and end your turn" in body
    )
    assert sessions.find(here.folder, thread.id) is not None
    thread.run().wait()

    here.project().start_plan("Uploads", ["How often?"], research="none")
    thread.say("[d] three times")
    assert here.project().plan()["issues"][0]["decision"] == "three times"
    assert "Every issue is decided." in thread.steps[-1].body
    assert thread.leave().startswith("Unfinished: plan 'Uploads'")
    assert sessions.find(here.folder, thread.id) is None


def test_a_tag_outside_a_repository_is_answered_by_what_is_missing(here: Rolecall, tmp_path: Path) -> None:
    answer = conversation.receive(str(tmp_path), "s", "[plan] go")
    assert "git init" in answer.notice and answer.context == answer.notice
    assert conversation.receive(str(tmp_path), "s", "hello") == ("", "", "")
    assert conversation.leave(str(tmp_path), "s") == ""


def test_nothing_is_recorded_if_no_agent_can_answer(here: Rolecall) -> None:
    with pytest.raises(UsageError, match="no agent is named for the role 'lead'"):
        here.talk(LESSON)
    assert not os.path.exists(os.path.join(here.folder, ".nexus"))


def test_words_to_another_workflow_are_only_its_task(here: Rolecall) -> None:
    thread = here.talk(LESSON, workflow="answer-question", agent="human")
    assert thread.prompt == LESSON and not thread.leave()
    assert not os.path.exists(os.path.join(here.folder, ".nexus"))


def test_a_closed_conversation_has_ended(here: Rolecall) -> None:
    thread = here.talk("Good morning", agent=AGENT)
    thread.run().wait()
    thread.answer({"closed": True})
    assert thread.status == "completed"


def test_every_tag_and_skill_is_listed(here: Rolecall) -> None:
    assert {"[plan]", "[run]", "[sync]", "[d]", "[m]", "[rule]", "/nx-plan"} <= here.tags().keys()

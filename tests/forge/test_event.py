"""Which events start a thread, which continue one, and which are ignored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from rolecall.errors import UsageError
from rolecall.forge.event import (
    CommentCommand,
    Continue,
    ForgeEvent,
    Ignore,
    Person,
    SavedThread,
    StartThread,
    Subject,
    decide,
    parse_command,
    read,
)
from rolecall.settings.forge import Job

WAITS = SavedThread(
    place="place",
    thread="01THREAD",
    needs_person=True,
    is_told=True,
    handled=("run-1", "comment-1"),
)
ISSUE = {"number": 12, "title": "Broken", "body": "Fix it."}
REPOSITORY = {"repository": {"default_branch": "main"}}


def job(
    forge: Literal["github", "gitlab"], event: str, payload: str, variables: dict[str, str] | None = None
) -> Job:
    return Job(forge, "https://x", "o/r", "token", event, payload, "7", "", "/tmp", variables=variables or {})


def read_payload(place: Path, forge: Literal["github", "gitlab"], event: str, payload: Any) -> ForgeEvent:
    (place / "event.json").write_text(json.dumps(payload))
    return read(job(forge, event, str(place / "event.json")))


def comment(text: str) -> ForgeEvent:
    return ForgeEvent("comment-5", Subject("issue", 12), Person("alice"), "Broken", comment=text)


@pytest.mark.parametrize(
    ("text", "command"),
    {
        "/rolecall answer approved: yes\nmore": CommentCommand("answer", "approved: yes\nmore"),
        " \n/rolecall run": CommentCommand("run"),
        "/rolecall resume cost=2.5 developer.steps=9 Try again": CommentCommand(
            "resume", "Try again", {"cost": 2.5, "developer.steps": 9}
        ),
        "/rolecall resume": CommentCommand("resume"),
        "/rolecall kill a=1": CommentCommand("kill", "a=1"),
        "/rolecalling answer": None,
        "Say /rolecall answer approved": None,
        "> /rolecall answer approved": None,
        "<!-- rolecall 01 -->\n/rolecall answer approved": None,
        "/rolecall answer <!-- rolecall 01 -->": None,
        "": None,
    }.items(),
)
def test_a_command_is_what_a_comment_begins_with(text: str, command: CommentCommand | None) -> None:
    assert parse_command(text) == command


@pytest.mark.parametrize("text", ["fly", "answer", "resume dollars=5", "resume steps=1.5", "Answer yes"])
def test_a_wrong_command_is_an_error(text: str) -> None:
    with pytest.raises(UsageError):
        parse_command(f"/rolecall {text}")


def test_an_issue_starts_a_thread_with_its_text_after_the_prompt(tmp_path: Path) -> None:
    payload = {"action": "labeled", "issue": ISSUE, "sender": {"login": "alice"}, **REPOSITORY}
    event = read_payload(tmp_path, "github", "issues", payload)
    assert (event.subject, event.by, event.target) == (Subject("issue", 12), Person("alice"), "main")
    assert decide(event, None, prompt="Do it.") == StartThread("Do it.\n\nBroken\n\nFix it.")
    assert isinstance(decide(event, WAITS), Ignore)
    assert decide(event, replace(WAITS, needs_person=False)) == Continue()
    assert decide(event, replace(WAITS, needs_person=False, has_ended=True)) == StartThread(
        "Broken\n\nFix it."
    )


def test_comments_continue_the_thread_that_waits_and_start_one_if_none_does() -> None:
    answer = comment("/rolecall answer approved")
    assert decide(answer, WAITS) == Continue(CommentCommand("answer", "approved"))
    assert decide(answer, None) == Ignore("no thread waits here; `/rolecall run` starts one")
    ended = replace(WAITS, has_ended=True, needs_person=False)
    assert isinstance(decide(answer, ended), Ignore)
    run = comment("/rolecall run Now.")
    assert decide(run, None) == decide(run, ended) == StartThread("Broken\n\nNow.")
    assert isinstance(decide(run, WAITS), Ignore)
    assert isinstance(decide(comment("Nice"), WAITS), Ignore)


def test_what_was_done_is_not_done_again_unless_the_job_was_lost() -> None:
    again = ForgeEvent("run-1", Subject("issue", 12), task="Broken")
    assert isinstance(decide(again, WAITS), Ignore)
    assert decide(again, replace(WAITS, is_told=False)) == Continue()
    assert decide(again, replace(WAITS, needs_person=False)) == Continue()
    said = comment("/rolecall answer approved")._replace(key="comment-1")
    assert isinstance(decide(said, WAITS), Ignore)
    runs = replace(WAITS, needs_person=False)
    assert decide(said, runs) == Continue()
    assert isinstance(decide(said, replace(runs, run="another")), Ignore)  # another job is at it


def test_an_event_without_a_task_needs_a_prompt(tmp_path: Path) -> None:
    event = read_payload(tmp_path, "github", "schedule", REPOSITORY)
    assert event.subject is None and event.by is None
    with pytest.raises(UsageError, match="does not name a task"):
        decide(event, None)
    assert decide(event, None, prompt="Tidy up.") == StartThread("Tidy up.")
    given = {"inputs": {"prompt": "This."}, **REPOSITORY}
    assert read_payload(tmp_path, "github", "workflow_dispatch", given).task == "This."
    pushed = {"ref": "refs/heads/topic", "commits": [{"message": "A"}, {"message": "B"}], **REPOSITORY}
    event = read_payload(tmp_path, "github", "push", pushed)
    assert (event.task, event.target) == ("A\n\nB", "topic")


def test_whoever_causes_an_event_that_needs_no_rights_is_named(tmp_path: Path) -> None:
    starred = {"action": "started", "sender": {"login": "mallory"}, **REPOSITORY}
    assert read_payload(tmp_path, "github", "watch", starred).by == Person("mallory")
    fields = {"GITLAB_USER_LOGIN": "mallory", "GITLAB_USER_ID": "9"}
    assert read(job("gitlab", "external", "", fields)).by == Person("mallory", "9")


def test_a_branch_of_a_fork_is_not_a_target(tmp_path: Path) -> None:
    for owner, target in (("o/r", "topic"), ("fork/r", "main")):
        change = {**ISSUE, "head": {"ref": "topic", "repo": {"full_name": owner}}}
        payload = {"action": "opened", "pull_request": change, "sender": {"login": "alice"}, **REPOSITORY}
        event = read_payload(tmp_path, "github", "pull_request", payload)
        assert (event.subject, event.target) == (Subject("change", 12), target)


def test_gitlab_passes_on_issues_and_comments_and_says_the_rest_in_variables(tmp_path: Path) -> None:
    user = {"username": "alice", "id": 7}
    about = {"iid": 12, "title": "Broken", "description": "Fix it.", "action": "open"}
    payload: dict[str, Any] = {"object_kind": "issue", "user": user, "object_attributes": about}
    event = read_payload(tmp_path, "gitlab", "trigger", payload)
    assert (event.subject, event.by, event.task) == (
        Subject("issue", 12),
        Person("alice", "7"),
        "Broken\n\nFix it.",
    )
    note = {"object_kind": "note", "user": user, "object_attributes": {"id": 3, "note": "/rolecall run"}}
    event = read_payload(tmp_path, "gitlab", "trigger", {**note, "merge_request": about})
    assert (event.key, event.subject, event.comment) == ("comment-3", Subject("change", 12), "/rolecall run")
    assert read_payload(tmp_path, "gitlab", "trigger", note).ignored
    change = about | {"source_branch": "topic", "source_project_id": 5, "target_project_id": 5}
    event = read_payload(tmp_path, "gitlab", "trigger", {**note, "merge_request": change})
    fork = read_payload(
        tmp_path, "gitlab", "trigger", {**note, "merge_request": change | {"source_project_id": 6}}
    )
    assert (event.target, fork.target) == ("topic", "")
    assert read_payload(tmp_path, "gitlab", "trigger", {**payload, "object_kind": "pipeline"}).ignored
    fields = {"CI_MERGE_REQUEST_IID": "4", "CI_MERGE_REQUEST_TITLE": "A change", "GITLAB_USER_ID": "7"}
    fields |= {"CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "topic", "CI_MERGE_REQUEST_PROJECT_ID": "5"}
    for project, target in {"5": "topic", "6": ""}.items():
        fields["CI_MERGE_REQUEST_SOURCE_PROJECT_ID"] = project
        event = read(job("gitlab", "merge_request_event", "", fields))
        assert (event.subject, event.target) == (Subject("change", 4), target)
    fields = {"CI_COMMIT_MESSAGE": "A\n", "CI_COMMIT_BRANCH": "topic"}
    event = read(job("gitlab", "push", "", fields))
    assert (event.task, event.target, event.by) == ("A", "topic", None)


@pytest.mark.parametrize(
    ("action", "before", "now", "is_asked"),
    [
        ("open", None, None, True),
        ("reopen", None, None, True),
        ("close", None, None, False),
        ("update", None, None, False),
        ("update", [], ["rolecall"], True),
        ("update", ["rolecall"], ["rolecall", "other"], False),
        ("update", ["rolecall"], [], False),
    ],
)
def test_gitlab_starts_a_thread_for_a_new_issue_or_our_label(
    tmp_path: Path, action: str, before: list[str] | None, now: list[str] | None, is_asked: bool
) -> None:
    about = {"iid": 12, "title": "Broken", "description": "", "action": action}
    names = {"previous": before, "current": now}
    labels = {which: [{"title": name} for name in found or ()] for which, found in names.items()}
    changes = {"updated_at": {"previous": None, "current": "now"}} | ({"labels": labels} if now else {})
    user = {"username": "alice", "id": 7}
    payload = {"object_kind": "issue", "user": user, "object_attributes": about, "changes": changes}
    event = read_payload(tmp_path, "gitlab", "trigger", payload)
    assert bool(event.ignored) != is_asked


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"issue": {"number": "x"}}', '{"issue": {}, "sender": {}}', '{"issue": 5}']
)
def test_an_event_that_does_not_have_the_documented_form_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "event.json").write_text(text)
    with pytest.raises(UsageError):
        read(job("github", "issues", str(tmp_path / "event.json")))

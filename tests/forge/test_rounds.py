"""Whole rounds: the steps of the action and the scripts of the template, each job on an empty machine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from forge_jobs import KEY, Stage, forge, git, stage
from forgestage import TOKEN, Failure

__all__ = ["forge", "stage"]  # fixtures

STATE = "refs/rolecall-ci/issue-12"


def check(done: subprocess.CompletedProcess[str], *words: str, code: int = 0) -> str:
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    for word in words:
        assert word in said, said
    return said


def test_a_thread_waits_without_a_job_and_continues_when_an_allowed_person_comments(
    stage: Stage, tmp_path: Path
) -> None:
    forge, inputs = stage.forge, {"request": "true", "limits": "steps=9 cost=2.5"}
    done = stage.github("issues", stage.issue(), depth=1, inputs=inputs)
    check(done, "suspended", "waits for a comment on issue-12")
    [comment] = forge.comments
    assert comment["on"] == 12 and "/rolecall answer approved: your reasons" in comment["body"]
    assert "/rolecall answer rejected: your comments" in comment["body"]
    assert "calc.py" in comment["body"] and "$0.25" in comment["body"]
    assert not forge.requests and stage.show("rolecall/issue-12", "calc.py") == "first"
    assert list((tmp_path / "jobs").iterdir()) == []  # nothing stays on the machine
    assert not list(tmp_path.glob("machine-*/checkout/pwned"))

    # Agents get the key of their model and no token, and their words do nothing on the forge.
    seen = stage.show("rolecall/issue-12", "seen.txt")
    assert KEY in seen and TOKEN not in seen and "runtime-token" not in seen
    assert "extraheader" not in seen.lower()
    assert "\n/merge" not in comment["body"] and "@bob" not in comment["body"]
    assert comment["body"].count("<!-- rolecall") == 1 and KEY not in comment["body"]

    # What happens elsewhere meanwhile does not reach the thread.
    stage.commit(**{"other.txt": "other\n"})
    first = stage.ref(STATE)
    stranger = stage.comment("/rolecall answer approved", by="mallory")
    check(stage.github("issue_comment", stranger, inputs=inputs), "mallory may not write")
    assert stage.ref(STATE) == first and len(forge.comments) == 1

    # Rejected: the developer finds its files again, on another machine, and continues from them.
    said = stage.comment("/rolecall answer rejected: Do it again.", ident=5)
    check(stage.github("issue_comment", said, depth=1, inputs=inputs), "suspended")
    assert stage.show("rolecall/issue-12", "calc.py") == "second"

    said = stage.comment("/rolecall answer approved: Looks right.\r\nThank you.", ident=6)
    check(stage.github("issue_comment", said, inputs=inputs), "completed")
    [comment] = forge.comments
    assert "`fix` completed" in comment["body"] and "Thank you." in comment["body"]
    [request] = forge.requests
    assert (request["head"], request["base"]) == ("rolecall/issue-12", "main")
    assert "Closes #12." in request["body"]
    assert "other.txt" not in git(
        stage.remote, "ls-tree", "-r", "--name-only", "refs/heads/rolecall/issue-12"
    )
    outputs = (tmp_path / f"machine-{stage.jobs}" / "output").read_text()
    assert "status=completed" in outputs and f"request={request['html_url']}" in outputs


def test_a_comment_that_cannot_be_used_is_explained_and_a_thread_can_be_killed(stage: Stage) -> None:
    check(stage.github("issues", stage.issue(), "--limit", "steps=2"), "suspended")
    for ident, (words, problem) in enumerate(
        {"answer LGTM": "must begin with approved or rejected", "fly": "is not a command"}.items(), 20
    ):
        check(stage.github("issue_comment", stage.comment(f"/rolecall {words}", ident=ident)), "suspended")
        assert problem in stage.forge.comments[0]["body"]
    said = stage.comment("/rolecall answer rejected: no", ident=30)
    check(stage.github("issue_comment", said), code=7)  # a limit, and not a question, is in the way
    assert "/rolecall resume steps=4" in stage.forge.comments[0]["body"]
    said = stage.comment("/rolecall kill Not needed", ident=31)
    check(stage.github("issue_comment", said), code=8)
    assert "Not needed" in stage.forge.comments[0]["body"]


def test_only_those_in_the_list_may_continue_if_there_is_one(stage: Stage) -> None:
    check(stage.github("issues", stage.issue() | {"sender": {"login": "mallory"}}, "--open"), "suspended")
    for name, answer in {"alice": "alice is not in the list", "dave": "completed"}.items():
        said = stage.comment("/rolecall answer approved", by=name)
        check(stage.github("issue_comment", said, "--allow", "carol, dave"), answer)
    assert not any("/permission" in one for one in stage.forge.seen)


def test_an_event_without_an_issue_gets_one_when_a_person_is_asked(stage: Stage) -> None:
    done = stage.github("schedule", {}, "--prompt", "Tidy up.", run="77")
    check(done, "waits for a comment on issue-50")
    [issue] = stage.forge.issues
    assert "Tidy up." in issue["title"]
    check(stage.github("schedule", {}, "--prompt", "Tidy up.", run="77"), "this was done before")
    said = stage.comment("/rolecall answer approved", issue={"number": 50, "title": "x", "body": ""})
    check(stage.github("issue_comment", said), "completed")


def test_a_job_that_could_not_tell_anybody_tells_them_when_it_is_run_again(stage: Stage) -> None:
    stage.forge.failures = [Failure(403, on="POST ")]
    check(stage.github("issues", stage.issue(), run="5"), "403", "Give the token the right", code=2)
    assert not stage.forge.comments
    assert "✓ 1 developer" not in check(stage.github("issues", stage.issue(), run="5"), "suspended")
    assert len(stage.forge.comments) == 1


def test_of_two_jobs_with_the_same_comment_one_acts(stage: Stage) -> None:
    check(stage.github("issues", stage.issue()), "suspended")
    said = stage.comment("/rolecall answer approved", ident=9)
    before = stage.ref(STATE)
    check(stage.github("issue_comment", said), "completed")
    after = stage.ref(STATE)
    # The other job fetches what was saved before, and its push finds what was saved after.
    git(stage.remote, "update-ref", STATE, before)
    hook = stage.remote / "hooks" / "update"
    hook.write_text(f"#!/bin/sh\nrm {hook}\ngit update-ref {STATE} {after}\nexit 1\n")
    hook.chmod(0o755)
    check(stage.github("issue_comment", said), "looking again", "this was done before")
    assert stage.ref(STATE) == after


def test_a_job_that_is_killed_has_saved_its_thread(stage: Stage) -> None:
    script = "roles:\n  developer:\n    - hang: true\n"
    slow = stage.start_job("issues", stage.issue(), run="6", script=script)
    stage.wait_for_ref(STATE)
    slow.kill()
    slow.wait()
    check(stage.github("issues", stage.issue(), run="6"), "suspended")
    record = json.loads(stage.show(STATE, "thread.json"))
    assert record["handled"] == ["run-6"] and len(stage.forge.comments) == 1


def test_a_pull_request_is_a_subject_of_its_own(stage: Stage) -> None:
    head = {"ref": "topic", "repo": {"full_name": "o/r"}}
    change = {"number": 3, "title": "A change", "body": None, "head": head}
    opened = {"action": "opened", "pull_request": change, "sender": {"login": "alice"}}
    check(stage.github("pull_request", opened), "waits for a comment on change-3")
    about = {"number": 3, "title": "A change", "body": None, "pull_request": {}}
    said = stage.comment("/rolecall answer approved", issue=about)
    check(stage.github("issue_comment", said), "completed")


def test_the_same_rounds_work_on_gitlab(stage: Stage) -> None:
    forge = stage.forge
    wanted = {"ROLECALL_REQUEST": "true"}
    check(stage.gitlab("trigger", stage.note("/rolecall run"), wanted), "waits for a comment on issue-12")
    [comment] = forge.comments
    seen = stage.show("rolecall/issue-12", "seen.txt")
    assert TOKEN not in seen and "job-token" not in seen
    for name, reason in (("mallory", "may not write"), ("reader", "may not write")):
        check(stage.gitlab("trigger", stage.note("/rolecall answer approved", by=name, ident=2)), reason)
    check(stage.gitlab("trigger", stage.note(comment["body"], ident=3)), "does not begin with /rolecall")
    answer = stage.note("/rolecall answer\n---\nstatus: approved\n---\nGood.", ident=4)
    check(stage.gitlab("trigger", answer, wanted), "completed")
    [request] = forge.requests
    assert request["source_branch"] == "rolecall/issue-12" and "Closes #12." in request["description"]
    told = {"CI_MERGE_REQUEST_IID": "4", "CI_MERGE_REQUEST_TITLE": "A change", "GITLAB_USER_LOGIN": "alice"}
    check(stage.gitlab("merge_request_event", None, {**told, "GITLAB_USER_ID": "7"}), "change-4")
    record = json.loads(stage.show("refs/rolecall-ci/change-4", "thread.json"))
    assert record["needs_person"] and record["is_told"]

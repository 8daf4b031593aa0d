"""Whole rounds: the steps of the action and the scripts of the template, each job on an empty machine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import commands
from forge_jobs import COMMAND, KEY, SCRIPT, WORKFLOW, Stage, forge, git, stage
from forgestage import TOKEN, Failure
from git_http import serve_git

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
    assert done.stderr.startswith("::stop-commands::")  # what agents write is no command to the runner
    [comment] = forge.comments
    assert "**approver**: Is this right?" in comment["body"]
    assert comment["on"] == 12 and "/rolecall answer approved: your reasons" in comment["body"]
    assert "/rolecall answer rejected: your comments" in comment["body"]
    assert "calc.py" in comment["body"] and "$0.25" in comment["body"]
    assert not forge.requests and stage.show("rolecall/issue-12", "calc.py") == "first"
    assert list((tmp_path / "jobs").iterdir()) == []  # nothing stays on the machine
    assert not list(tmp_path.glob("machine-*/checkout/pwned"))

    # Agents get the key of their model, no token and no file of the runner, and their words do nothing on the forge.
    seen = stage.show("rolecall/issue-12", "seen.txt")
    assert KEY in seen and TOKEN not in seen and "runtime-token" not in seen
    assert "extraheader" not in seen.lower()
    assert "GITHUB_REPOSITORY" in seen and "GITHUB_ENV" not in seen and "GITHUB_OUTPUT" not in seen
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
    opened = stage.issue() | {"sender": {"login": "mallory"}}
    check(stage.github("issues", opened, "--limit", "steps=2", "--open"), "suspended")
    for ident, (words, problem) in enumerate(
        {
            "answer LGTM": "must begin with approved or rejected",
            "fly": "is not a command. Known are run,",
        }.items(),
        20,
    ):
        check(stage.github("issue_comment", stage.comment(f"/rolecall {words}", ident=ident)), "suspended")
        assert problem in stage.forge.comments[0]["body"]
    said = stage.comment("/rolecall answer rejected: no", ident=30)
    check(stage.github("issue_comment", said), code=7)  # a limit, and not a question, is in the way
    assert "/rolecall resume steps=4" in stage.forge.comments[0]["body"]
    said = stage.comment("/rolecall kill Not needed", ident=31)
    check(stage.github("issue_comment", said), code=8)
    assert "Not needed" in stage.forge.comments[0]["body"]


def test_an_event_without_an_issue_gets_one_when_a_person_is_asked(stage: Stage) -> None:
    done = stage.github("schedule", {}, "--prompt", "Tidy up.", run="77")
    check(done, "waits for a comment on issue-50")
    [issue] = stage.forge.issues
    assert "Tidy up." in issue["title"]
    check(stage.github("schedule", {}, "--prompt", "Tidy up.", run="77"), "this was done before")
    # With a list of people, only they count, whatever their rights.
    for name, answer in {"alice": "alice is not in the list", "dave": "completed"}.items():
        about = {"number": 50, "title": "x", "body": ""}
        said = stage.comment("/rolecall answer approved", by=name, issue=about)
        check(stage.github("issue_comment", said, "--allow", "carol, @Dave"), answer)
    assert not any("/permission" in one for one in stage.forge.seen)


def test_nothing_is_done_twice_when_a_job_is_run_again_or_two_have_the_same_comment(stage: Stage) -> None:
    stage.forge.failures = [Failure(403, on="POST ")]
    check(stage.github("issues", stage.issue(), run="5"), "403", "Give the token the right", code=2)
    assert not stage.forge.comments
    assert "✓ 1 developer" not in check(stage.github("issues", stage.issue(), run="5"), "suspended")
    assert len(stage.forge.comments) == 1
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


def test_a_worktree_with_its_commits_is_made_again_on_the_next_machine(stage: Stage) -> None:
    workflow = WORKFLOW.replace("name: fix", "name: fix\nworkdir: worktree")
    commit = "[git, -c, user.name=x, -c, user.email=x@localhost, commit, -q, -a, -m, Mine]"
    script = SCRIPT.replace("run: [[sh,", f"run: [{commit}, [sh,")
    stage.commit(**{".workflows/fix.yaml": workflow, "script.yaml": script})
    check(stage.github("issues", stage.issue(), "--request"), "suspended")
    said = stage.comment("/rolecall answer rejected: Do it again.", ident=5)
    check(stage.github("issue_comment", said, "--request"), "suspended")
    branch = "refs/heads/rolecall/issue-12"
    assert stage.show(branch, "calc.py") == "second" and stage.show(branch, "new/file.txt") == "new"
    assert "Mine" in git(stage.remote, "log", "--format=%s", branch)


def test_a_job_that_is_killed_or_cancelled_continues_when_it_is_run_again(
    stage: Stage, tmp_path: Path
) -> None:
    script = "roles:\n  developer:\n    - edit: {begun: now}\n      hang: true\n"
    lost = stage.start_job("issues", stage.issue(), run="6", script=script)
    stage.wait_for_file("jobs/*/repository/begun")
    first = stage.ref(STATE)
    lost.kill()
    lost.wait()
    [left] = tmp_path.glob("jobs/*/repository/begun")
    left.unlink()
    cancelled = stage.start_job("issues", stage.issue(), run="6", script=script)
    stage.wait_for_file("jobs/*/repository/begun")
    cancelled.terminate()
    assert cancelled.wait(commands.PATIENCE) == 130
    assert stage.ref(STATE) != first and list((tmp_path / "jobs").iterdir()) == []
    check(stage.github("issues", stage.issue(), run="6"), "suspended")
    record = json.loads(stage.show(STATE, "thread.json"))
    assert record["handled"] == ["run-6"] and len(stage.forge.comments) == 1


def test_the_same_rounds_work_on_gitlab(stage: Stage) -> None:
    forge = stage.forge
    wanted = {"ROLECALL_REQUEST": "true"}
    check(stage.gitlab("trigger", stage.note("/rolecall run"), wanted), "waits for a comment on issue-12")
    [comment] = forge.comments
    seen = stage.show("rolecall/issue-12", "seen.txt")
    assert TOKEN not in seen and "job-token" not in seen
    stranger = stage.note("/rolecall answer approved", by="reader", ident=2)
    check(stage.gitlab("trigger", stranger), "reader may not write")
    assert "/rolecall answer approved" in comment["body"]
    answer = stage.note("/rolecall answer\n---\nstatus: approved\n---\nGood.", ident=4)
    check(stage.gitlab("trigger", answer, wanted), "completed")
    [request] = forge.requests
    assert request["source_branch"] == "rolecall/issue-12" and "Closes #12." in request["description"]


def test_over_http_git_gets_the_token_and_nothing_that_the_checkout_has(stage: Stage, tmp_path: Path) -> None:
    with serve_git(tmp_path, f"x-access-token:{TOKEN}") as address:
        place, env = stage.github_machine("issues", stage.issue())
        checkout = place / "checkout"
        git(checkout, "remote", "set-url", "origin", f"http://user:password@{address}/remote.git")
        for name in ("http.extraHeader", f"http.http://{address}/.extraheader"):  # as actions/checkout does
            git(checkout, "config", name, "Authorization: Basic b2xkOm9sZA==")
        done = commands.run([*COMMAND, "--request"], env=env, cwd=checkout)
        assert TOKEN not in check(done, "suspended") and stage.ref(STATE)
        assert stage.show("rolecall/issue-12", "calc.py") == "first"
        assert "password" not in stage.show("rolecall/issue-12", "seen.txt")
        env["ROLECALL_FORGE_TOKEN"] = "another-token-1234567890"
        done = commands.run([*COMMAND], env=env, cwd=checkout)
        assert "another-token" not in check(done, "Check that the token may read the repository", code=5)


def test_an_agent_cannot_turn_what_is_pushed_to_another_address(stage: Stage) -> None:
    elsewhere = f"[git, config, url./nowhere.insteadOf, {stage.remote}]"
    stage.commit(**{"script.yaml": SCRIPT.replace("run: [[sh,", f"run: [{elsewhere}, [sh,")})
    check(stage.github("issues", stage.issue(), "--request"), "suspended")
    assert stage.ref(STATE) and stage.show("rolecall/issue-12", "calc.py") == "first"


def test_what_cannot_be_read_is_named_with_what_to_do(stage: Stage, tmp_path: Path) -> None:
    check(stage.github("issues", stage.issue()), "suspended")
    git(stage.work, "fetch", "-q", "origin", STATE)
    git(stage.work, "checkout", "-q", "FETCH_HEAD")
    for name, start in (("store.tgz", 500), ("thread.json", 5)):
        file = stage.work / name
        file.write_bytes(file.read_bytes()[:start])
        git(stage.work, "commit", "-q", "-a", "-m", "Cut off")
        git(stage.work, "push", "-q", "--force", "origin", f"HEAD:{STATE}")
        said = stage.comment("/rolecall answer approved", ident=start)
        done = stage.github("issue_comment", said)
        check(done, f"{STATE} of {stage.remote} cannot be read", "Delete the ref to begin again", code=4)
    (tmp_path / "jobs").rmdir()
    (tmp_path / "jobs").touch()
    done = stage.github("issues", stage.issue(number=13))
    check(done, f"{tmp_path}/jobs cannot be made: File exists", "ROLECALL_CI_FOLDER", code=2)


def test_the_commit_of_a_branch_is_proven_with_the_saved_thread(stage: Stage, tmp_path: Path) -> None:
    commit = "[git, -c, user.name=x, -c, user.email=x@localhost, commit, -q, -a, -m, Mine]"
    stage.commit(**{"script.yaml": SCRIPT.replace("run: [[sh,", f"run: [{commit}, [sh,")})
    check(stage.github("issues", stage.issue(), "--request"), "suspended")
    said = stage.comment("/rolecall answer approved: Good.", ident=5)
    check(stage.github("issue_comment", said, "--request"), "completed")

    # On another machine: the repository, and the store of the saved thread.
    place, env = stage.machine()
    checkout = place / "checkout"
    git(checkout, "fetch", "-q", "origin", STATE)
    bundle = subprocess.run(
        ["git", "-C", checkout, "show", "FETCH_HEAD:store.tgz"], capture_output=True, check=True
    )
    (place / "thread.tgz").write_bytes(bundle.stdout)
    commands.run([commands.SCRIPT, "cas", "import", str(place / "thread.tgz")], env=env, cwd=checkout)
    thread = json.loads(stage.show(STATE, "thread.json"))["thread"]
    check(commands.run([commands.SCRIPT, "thread", "read", thread], env=env, cwd=checkout), "Good.")
    made = commands.run([commands.SCRIPT, "thread", "fork", f"{thread}#1", "--json"], env=env, cwd=checkout)
    copy = place / "home" / ".rolecall" / "work" / json.loads(made.stdout)["thread"] / "fork"
    assert (copy / "calc.py").read_text() == "first\n"
    for name in ("origin/rolecall/issue-12", "origin/rolecall/issue-12^"):  # ours, and the agent's own
        done = commands.run([commands.SCRIPT, "prove", name, "--json"], env=env, cwd=checkout)
        proof = json.loads(check(done))
        assert proof["proven"] and proof["anchor"], proof
        people = [step for step in proof["steps"] if step["id"] in proof["people"]]
        assert [(one["person"], one["door"]) for one in people] == [("alice", "github")]


def test_commits_of_others_on_the_branch_are_not_overwritten(stage: Stage) -> None:
    check(stage.github("issues", stage.issue(), "--request"), "suspended")
    git(stage.work, "fetch", "-q", "origin", "rolecall/issue-12")
    git(stage.work, "checkout", "-q", "FETCH_HEAD")
    git(stage.work, "commit", "-q", "--amend", "--allow-empty", "-m", "Rolecall-Thread: mine now")
    git(stage.work, "push", "-q", "--force", "origin", "HEAD:refs/heads/rolecall/issue-12")
    theirs = stage.ref("refs/heads/rolecall/issue-12")
    said = stage.comment("/rolecall answer rejected: Do it again.", ident=5)
    check(stage.github("issue_comment", said, "--request", run="40"), "somebody else has pushed", code=5)
    assert stage.ref("refs/heads/rolecall/issue-12") == theirs
    assert "somebody else has pushed to rolecall/issue-12" in stage.forge.comments[0]["body"]
    git(stage.remote, "update-ref", "-d", "refs/heads/rolecall/issue-12")
    check(stage.github("issue_comment", said, "--request", run="40"), "suspended")
    assert stage.show("rolecall/issue-12", "calc.py") == "second"


def test_people_are_told_if_the_branch_is_refused(stage: Stage) -> None:
    hook = stage.remote / "hooks" / "update"
    hook.write_text('#!/bin/sh\ncase "$1" in refs/heads/*) echo "not workflows"; exit 1;; esac\n')
    hook.chmod(0o755)
    check(stage.github("issues", stage.issue(), "--request", run="5"), "could not be pushed", code=5)
    [comment] = stage.forge.comments
    assert "waits for you" in comment["body"] and "not workflows" in comment["body"]
    hook.unlink()
    check(stage.github("issues", stage.issue(), "--request", run="5"), "suspended")
    assert stage.show("rolecall/issue-12", "calc.py") == "first"
    assert "not workflows" not in comment["body"]


def test_changes_of_a_change_are_offered_to_its_branch_whatever_event_ends_the_thread(stage: Stage) -> None:
    git(stage.remote, "branch", "feature", "main")
    head = {"ref": "feature", "repo": {"full_name": "o/r"}}
    opened = {"number": 7, "title": "A change", "body": "", "head": head}
    event = {"action": "opened", "pull_request": opened, "sender": {"login": "alice"}}
    check(stage.github("pull_request", event, "--request"), "waits for a comment on change-7")
    about = {"number": 7, "title": "A change", "body": "", "pull_request": {"url": "x"}}
    said = stage.comment("/rolecall answer approved", issue=about)
    check(stage.github("issue_comment", said, "--request"), "completed")
    assert [request["base"] for request in stage.forge.requests] == ["feature"]

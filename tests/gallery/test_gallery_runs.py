"""Every workflow of the gallery runs to its end in a real repository: without trouble, and with one detour.

What its page says about the steps of a run without trouble is what happened here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gallerystage import Stage, deliver, went

from rolecall.api import Thread

PAGES = Path(__file__).parents[2] / "docs" / "gallery"
TESTS = ["sh", "test.sh"]
COMMAND: dict[str, Any] = {"test_command": TESTS, "known_failures": []}
APPROVED_WITH_REASON = deliver("approved", reason="The cause is gone.")
REJECTED = deliver("rejected", problems=["code.txt:1 is still wrong"])


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path  # which a sandboxed agent sees


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("ROLECALL_HOME", str(tmp_path / "home"))
    with Stage(tmp_path) as stage:
        yield stage


def assert_page_counts(workflow: str, thread: Thread) -> None:
    asked = [step for step in thread.steps if not step.agent.startswith("run:")]
    said = f"{len(thread.steps)} steps, {len(asked)} of them by agents or people"
    assert said in (PAGES / f"{workflow}.md").read_text(), said


# -- roles that change code until commands and a reviewer are content --


def fix(cure: str, **edit: str) -> Any:
    return deliver("fixed", edit={"code.txt": cure, **edit}, cause="code.txt:1", change="one word")


TO_FIX = deliver(failing_command=TESTS, test_files=["test.sh"], symptom="it fails", **COMMAND)


def test_fix_test(stage: Stage) -> None:
    thread = stage.run("fix-test", scout=[TO_FIX], developer=[fix("fine\n")], reviewer=[APPROVED_WITH_REASON])
    assert went(thread) == (
        "base:passed scout known:passed red:failed developer:fixed green:passed suite:passed guard:passed "
        "change:passed reviewer:approved completed"
    )
    assert stage.read(thread, "code.txt") == "fine\n" and (stage.repo / "code.txt").read_text() == "a bug\n"
    assert_page_counts("fix-test", thread)
    # Steps that run a command cost nothing, so what the next run may cost is known.
    assert stage.rolecall.look_ahead("fix-test", "Another task.").forecast.past("cost") == [0.75]


def test_fix_test_sends_back_who_changes_the_test(stage: Stage) -> None:
    bent, honest = (
        fix("a bug\n", **{"test.sh": "true\n"}),
        fix("fine\n", **{"test.sh": "! grep -q bug code.txt\n"}),
    )
    thread = stage.run(
        "fix-test",
        scout=[TO_FIX],
        developer=[bent, honest, fix("finer\n")],
        reviewer=[REJECTED, APPROVED_WITH_REASON],
    )
    assert "suite:passed guard:failed developer:fixed green:passed" in went(thread)
    assert "reviewer:rejected developer:fixed" in went(thread) and went(thread).endswith("approved completed")


def test_fix_test_sends_back_a_scout_who_misspells_the_files_of_the_test(stage: Stage) -> None:
    misspelt = {**TO_FIX, "output": {**TO_FIX["output"], "test_files": ["tests.sh"]}}
    bent = fix("a bug\n", **{"test.sh": "true\n"})
    thread = stage.run("fix-test", scout=[misspelt, TO_FIX], developer=[bent])
    assert went(thread).startswith("base:passed scout known:failed scout known:passed red:failed")
    assert "guard:failed" in went(thread)


def test_fix_test_goes_on_after_a_command_that_cannot_be_started(stage: Stage) -> None:
    wrong = {**TO_FIX, "output": {**TO_FIX["output"], "failing_command": ["A=1", *TESTS]}}
    thread = stage.run(
        "fix-test", scout=[wrong, TO_FIX], developer=[fix("fine\n")], reviewer=[APPROVED_WITH_REASON]
    )
    assert thread.status == "suspended" and "A message that resumes the thread goes to scout" in thread.reason
    thread.resume("A variable needs env.").run().wait()
    assert "scout known:passed $PERSON scout known:passed red:failed developer:fixed" in went(thread)
    assert thread.status == "completed"


def test_fix_test_fails_if_the_test_passes_already(stage: Stage) -> None:
    stage.commit({"code.txt": "fine\n"})
    thread = stage.run("fix-test", scout=[TO_FIX])
    assert (
        went(thread) == "base:passed scout known:passed red:passed failed"
        and "passes already" in thread.reason
    )


PLAN = deliver("planned", criteria=["no bug"], files=["code.txt"], **COMMAND)
MET = deliver("approved", met=[{"criterion": "no bug", "place": "code.txt:1"}], remarks=[])


def built(text: str) -> Any:
    evidence = [{"criterion": "no bug", "code": "code.txt:1", "test": "test.sh"}]
    return deliver("built", edit={"code.txt": text}, summary="done", evidence=evidence, deviations=[])


def test_implement_issue(stage: Stage) -> None:
    thread = stage.run("implement-issue", planner=[PLAN], builder=[built("fine\n")], reviewer=[MET])
    assert went(thread) == (
        "base:passed planner:planned builder:built tests:passed change:passed reviewer:approved completed"
    )
    assert_page_counts("implement-issue", thread)


def test_a_reviewer_sees_new_files_that_nobody_committed(stage: Stage) -> None:
    left = {**built(""), "edit": {"code.txt": "fine\n", "new.txt": "not committed\n"}, "run": []}
    thread = stage.run("implement-issue", planner=[PLAN], builder=[left], reviewer=[MET])
    assert "new.txt" in next(step for step in thread.steps if step.role == "change").output["output"]
    assert thread.merge_folder()["merged"] and stage.git("show", "HEAD:new.txt") == "not committed"


def test_implement_issue_asks_its_owner_and_goes_round_until_it_is_green(stage: Stage) -> None:
    thread = stage.run(
        "implement-issue",
        planner=[deliver("unclear", question="Which?", readings=["this", "that"]), PLAN],
        builder=[built("still a bug\n"), built("fine\n"), built("finer\n")],
        reviewer=[REJECTED, MET],
    )
    assert thread.status == "suspended" and thread.needs_person
    thread.answer({"decision": "this"})
    thread.run().wait()
    assert went(thread) == (
        "base:passed planner:unclear owner planner:planned builder:built tests:failed builder:built tests:passed "
        "change:passed reviewer:rejected builder:built tests:passed change:passed reviewer:approved completed"
    )


UPGRADE = deliver(
    "possible",
    name="lib",
    from_version="1",
    to_version="2",
    breaking=[{"change": "2: a", "places": []}],
    **COMMAND,
)


def upgraded(text: str) -> Any:
    lists = {"adapted": ["code.txt:1"], "also_upgraded": [], "changed_tests": []}
    return deliver("upgraded", edit={"code.txt": text}, version="2", **lists)


def test_upgrade_dependency(stage: Stage) -> None:
    stage.commit({"code.txt": "lib 1\n"})
    thread = stage.run(
        "upgrade-dependency",
        scout=[UPGRADE],
        upgrader=[upgraded("lib 2\n")],
        reviewer=[deliver("approved", risks=[])],
    )
    assert went(thread) == (
        "base:passed scout:possible before:passed upgrader:upgraded after:passed change:passed "
        "reviewer:approved completed"
    )
    assert_page_counts("upgrade-dependency", thread)


def test_upgrade_dependency_needs_tests_that_pass_before_and_after(stage: Stage) -> None:
    thread = stage.run("upgrade-dependency", scout=[UPGRADE])
    assert went(thread) == "base:passed scout:possible before:failed failed"
    stage.commit({"code.txt": "lib 1\n"})
    impossible = deliver("impossible", why="It needs another Python.")
    thread = stage.run("upgrade-dependency", scout=[UPGRADE], upgrader=[upgraded("lib 2 bug\n"), impossible])
    assert went(thread).endswith("upgrader:upgraded after:failed upgrader:impossible failed")
    assert thread.reason == "It needs another Python."


GAPS = deliver(
    coverage_command=["grep", "-q", "asserts", "more.sh"],
    source_files=["code.txt"],
    measured=40,
    goal=80,
    gaps=[{"place": "code.txt:1", "does": "it", "risk": "high"}],
)


def covered(**edit: str) -> Any:
    return deliver(
        edit={"more.sh": "asserts\n", **edit}, tests=[{"name": "more.sh", "catches": "bugs"}], bugs=[]
    )


def test_raise_coverage(stage: Stage) -> None:
    reviewer = [deliver("approved", mutations=["code.txt:1, a bug, more.sh"])]
    thread = stage.run("raise-coverage", scout=[GAPS], writer=[covered()], reviewer=reviewer)
    assert went(thread) == (
        "base:passed scout known:passed writer guard:passed coverage:passed change:passed reviewer:approved "
        "completed"
    )
    assert_page_counts("raise-coverage", thread)


def test_raise_coverage_lets_nobody_change_the_module(stage: Stage) -> None:
    writer = [
        covered(**{"code.txt": "less code\n"}),
        covered(**{"code.txt": "a bug\n", "more.sh": "runs\n"}),
        covered(),
        covered(**{"more.sh": "asserts a lot\n"}),
    ]
    reviewer = [REJECTED, deliver("approved", mutations=["code.txt:1, a bug, more.sh"])]
    thread = stage.run("raise-coverage", scout=[GAPS], writer=writer, reviewer=reviewer)
    assert went(thread) == (
        "base:passed scout known:passed writer guard:failed writer guard:passed coverage:failed writer guard:passed "
        "coverage:passed change:passed reviewer:rejected writer guard:passed coverage:passed change:passed "
        "reviewer:approved completed"
    )


def written(text: str) -> Any:
    pages = [{"path": name, "claims": [{"says": "it", "source": "code.txt:1"}]} for name in ("a.md", "b.md")]
    return deliver(
        edit={"a.md": text, "b.md": text}, pages=pages, check_command=["grep", "-q", "bug", "a.md"], ran=[]
    )


def test_write_docs(stage: Stage) -> None:
    thread = stage.run("write-docs", author=[written("a bug\n")], checker=[deliver(checked=3, wrong=[])])
    assert went(thread) == "base:passed author build:passed guard:passed checker:done completed"
    assert thread.steps[-1].output["count"] == 2
    assert_page_counts("write-docs", thread)


def test_write_docs_corrects_what_the_code_does_not_do(stage: Stage) -> None:
    checker = (
        "grep -q 'a feature' a.md &&\n"
        'wrong=\'[{place: "a.md:1", problem: it is a bug, source: "code.txt:1"}]\'\n'
        'printf -- "---\\nchecked: 1\\nwrong: ${wrong:-[]}\\n---\\n"\n'
    )
    pages = [written("nothing\n"), written("a feature, no bug\n"), written("a bug\n")]
    thread = stage.run("write-docs", author=pages, checker=checker)
    assert went(thread) == (
        "base:passed author build:failed author build:passed guard:passed checker:done "
        "author build:passed guard:passed checker:done completed"
    )
    *_, last = (step for step in thread.steps if step.role == "author")
    assert "a.md:1: it is a bug (see code.txt:1)" in last.prompt


def refactored(text: str) -> Any:
    return deliver(
        "refactored", edit={"code.txt": text}, steps_taken=["one"], changed_tests=[], gained="less"
    )


COMPARED = deliver("approved", compared=["code.txt:1, code.txt:1"])


def test_refactor(stage: Stage) -> None:
    stage.commit({"code.txt": "long\n"})
    scout = deliver("protected", held=["all: test.sh"], not_held=[], **COMMAND)
    thread = stage.run("refactor", scout=[scout], developer=[refactored("short\n")], reviewer=[COMPARED])
    assert went(thread) == (
        "base:passed scout:protected before:passed start:passed developer:refactored after:passed change:passed "
        "reviewer:approved completed"
    )
    assert_page_counts("refactor", thread)


def test_refactor_holds_the_behaviour_first(stage: Stage) -> None:
    stage.commit({"code.txt": "long\n"})
    thread = stage.run(
        "refactor",
        scout=[deliver("unprotected", held=[], not_held=["code.txt:1 is long"], **COMMAND)],
        tester=[deliver(edit={"test.sh": "grep -q long code.txt\n"}, tests=["it is long"], odd=[])],
        developer=[refactored("short\n"), refactored("longer\n")],
        reviewer=[COMPARED],
    )
    assert "tester before:passed start:passed developer:refactored after:failed developer" in went(thread)
    assert went(thread).endswith("completed")
    assert "test.sh" not in thread.steps[-2].output["output"]  # the reviewer sees what came after the tests


# -- roles that only read --


SOURCE = {"file": "code.txt", "line": 1, "quote": "a bug", "shows": "that"}
ANSWER = deliver("answered", answer="Because.", sources=[SOURCE])


def test_answer_question(stage: Stage) -> None:
    confirmed = deliver("confirmed", answer="Because.", sources=["code.txt:1"])
    thread = stage.run("answer-question", researcher=[ANSWER], checker=[confirmed])
    result = thread.result()
    assert result and result["output"]["answer"] == "Because."
    assert went(thread) == "researcher:answered checker:confirmed completed"
    assert_page_counts("answer-question", thread)


def test_answer_question_corrects_what_was_refuted(stage: Stage) -> None:
    unknown = deliver("unknown", answer="It is not here.", looked_at=["code.txt"])
    refuted = deliver("refuted", problems=["code.txt:1 says something else"])
    thread = stage.run("answer-question", researcher=[ANSWER, unknown], checker=[refuted])
    assert went(thread) == "researcher:answered checker:refuted researcher:unknown completed"


FINDING = {"place": "code.txt:1", "severity": "blocker", "problem": "a bug", "suggestion": "none"}
VERDICT: dict[str, Any] = {"reason": "a bug", "findings": [], "dropped": 3, "not_reviewed": []}


def test_review_change(stage: Stage) -> None:
    stage.commit({"code.txt": "two bugs\n"})
    thread = stage.run(
        "review-change",
        scout=[deliver(range="HEAD~1...HEAD", purpose="more")],
        reviewer=[deliver(findings=[FINDING])],
        judge=[deliver(verdict="request_changes", **VERDICT)],
    )
    assert went(thread) == "scout change:passed reviewer:done judge completed"
    assert "+two bugs" in thread.steps[1].output["output"] and thread.steps[2].output["done"] == 4
    assert_page_counts("review-change", thread)


def test_review_change_asks_again_for_a_range_and_needs_three_reviewers(stage: Stage) -> None:
    stage.commit({"code.txt": "two bugs\n"})
    ranges = [deliver(range="nowhere...HEAD", purpose="more"), deliver(range="HEAD^!", purpose="more")]
    reviewer = (
        "case $prompt in *'only for this: tests'*) exit 1 ;; *'only for this: design'*) exit 2 ;; esac\n"
        'printf -- "---\\nfindings: []\\n---\\n"\n'
    )
    thread = stage.run("review-change", scout=ranges, reviewer=reviewer)
    assert went(thread) == "scout change:failed scout change:passed reviewer:partly failed"
    assert thread.reason == "Only 2 of 4 reviewers have finished; three are needed."


HOLE = {"title": "hole", "severity": "high", "place": "code.txt:1", "way": "in", "fix": "close it"}
ENTRIES = deliver(scope=["."], entries=[{"place": "code.txt:1", "what": "all"}], assumptions=[])


def test_security_review(stage: Stage) -> None:
    thread = stage.run(
        "security-review",
        scout=[ENTRIES],
        auditor=[deliver(findings=[HOLE])],
        skeptic=[deliver(verdict="confirmed", evidence="code.txt:1", severity="high")],
        reporter=[deliver(verdict="findings", confirmed=1, unclear=0, worst="high", not_reviewed=[])],
    )
    assert went(thread) == "scout auditor:done skeptic:done reporter completed"
    assert thread.steps[2].output["count"] == 5
    assert_page_counts("security-review", thread)


def test_security_review_that_finds_nothing_has_nothing_to_refute(stage: Stage) -> None:
    nothing = deliver(verdict="nothing found", confirmed=0, unclear=0, worst="none", not_reviewed=[])
    thread = stage.run("security-review", scout=[ENTRIES], auditor=[deliver(findings=[])], reporter=[nothing])
    assert went(thread) == "scout auditor:done skeptic:done reporter completed"
    assert thread.steps[2].output["count"] == 0


ISSUES = deliver(issues=[{"id": number, "title": "a bug", "text": f"text {number}"} for number in "123"])
TRIAGED: dict[str, Any] = {
    "kind": "bug",
    "confirmed": "yes",
    "severity": "low",
    "effort": "hours",
    "area": "code",
}
SORTED = deliver(first=["1"], duplicates=[{"keep": "1", "close": ["3"]}], close=[], not_triaged=[])


def test_triage_issues(stage: Stage) -> None:
    triager = [deliver(**TRIAGED, places=["code.txt:1"], next="fix it", ask=[])]
    thread = stage.run("triage-issues", lister=[ISSUES], triager=triager, editor=[SORTED])
    assert went(thread) == "lister triager:done editor completed"
    assert_page_counts("triage-issues", thread)


def test_triage_issues_goes_on_without_one_that_fails(stage: Stage) -> None:
    triager = (
        "case $prompt in *'text 2'*) exit 1 ;; esac\n"
        'printf -- \'---\\nkind: bug\\nconfirmed: "yes"\\nseverity: low\\neffort: hours\\narea: code\\nplaces: []\\n'
        "next: fix it\\nask: []\\n---\\n'\n"
    )
    thread = stage.run("triage-issues", lister=[ISSUES], triager=triager, editor=[SORTED])
    assert went(thread) == "lister triager:done editor completed"
    assert "2 of 3 issues were looked at; 1 could not be." in thread.steps[-1].prompt


# -- git does a part of the work --


def test_find_regression(stage: Stage) -> None:
    good = stage.commit({"code.txt": "fine\n"})
    for text in ("finer\n", "still fine\n", "a bug\n", "a bug, worse\n"):
        bad = stage.commit({"code.txt": text})
    guilty = stage.git("rev-parse", "HEAD~1")
    thread = stage.run("find-regression", **hunted(good, bad, "! grep -q bug code.txt\n"))
    assert went(thread) == (
        "scout:ready begin:passed hunt:passed culprit:passed wrong:failed parent:passed right:passed commit:passed "
        "reset:passed change:passed analyst completed"
    )
    assert guilty in thread.steps[9].output["output"] and stage.git("rev-parse", "HEAD") == bad
    assert_page_counts("find-regression", thread)


def test_find_regression_corrects_the_test(stage: Stage) -> None:
    good = stage.commit({"code.txt": "fine\n"})
    bad = stage.commit({"code.txt": "a bug\n"})
    roles = hunted(good, bad, "exit 200\n")
    roles["scout"].append(deliver("ready", bad="0" * 40, good=good, test=["true"], behaviour="no bug"))
    roles["scout"].append(deliver("not_found", why="It was always so."))
    thread = stage.run("find-regression", **roles)
    assert went(thread) == (
        "scout:ready begin:passed hunt:failed scout:ready begin:failed scout:not_found failed"
    )
    assert thread.reason == "It was always so."


def hunted(good: str, bad: str, test: str) -> dict[str, Any]:
    ready = deliver("ready", bad=bad, good=good, test=["sh", "./bisect-me.sh"], behaviour="no bug")
    found: dict[str, Any] = {
        "commit": bad,
        "title": "change",
        "cause": "a bug",
        "places": ["code.txt:1"],
        "fix": "none",
        "test": "it",
    }
    return {
        "scout": [{**ready, "edit": {"bisect-me.sh": test}}],
        "analyst": [deliver(**found, confidence="certain")],
    }


MIGRATE: dict[str, Any] = {
    "rule": "old becomes new",
    "model": "model.txt",
    "files": [{"path": name, "note": "small"} for name in ("a.txt", "b.txt", "c.txt")],
    "test_command": TESTS,
}
MODEL = deliver(edit={"model.txt": "new\n"}, **MIGRATE)
CONSISTENT = deliver(verdict="consistent", read=3, problems=[], missed=[])
PATH_OF = "path=$(echo \"$prompt\" | sed -n 's/.*scout: \\([a-z]*[.]txt\\).*/\\1/p' | head -n 1)\n"
MIGRATED = "git commit --quiet --all -m work\nprintf -- '---\\nchanged: [one]\\nby_hand: []\\n---\\n'\n"


def many_files(stage: Stage) -> None:
    stage.commit({"code.txt": "fine\n", "model.txt": "old\n", **{f"{name}.txt": "old\n" for name in "abc"}})


def test_migrate_files(stage: Stage) -> None:
    many_files(stage)
    migrator = f"{PATH_OF}echo new > $path\n{MIGRATED}"
    thread = stage.run("migrate-files", scout=[MODEL], migrator=migrator, reviewer=[CONSISTENT])
    assert went(thread) == (
        "base:passed scout before:passed migrator:done tests:passed change:passed reviewer completed"
    )
    assert [stage.read(thread, f"{name}.txt") for name in "abc"] == ["new\n"] * 3
    assert_page_counts("migrate-files", thread)


def test_migrate_files_mends_what_the_check_sets_aside(stage: Stage) -> None:
    many_files(stage)
    migrator = f"{PATH_OF}echo new > $path\n[ $path = b.txt ] && echo a bug > code.txt\n{MIGRATED}"
    mender = (
        "branch=$(echo \"$prompt\" | sed -n 's/.*on the branch \\(rolecall[^:]*\\):.*/\\1/p' | head -n 1)\n"
        "git merge --quiet --no-edit $branch\necho fine > code.txt\ngit commit --quiet --all -m mended\n"
        "printf -- '---\\nsummary: mended\\n---\\n'\n"
    )
    thread = stage.run(
        "migrate-files", scout=[MODEL], migrator=migrator, mender=mender, reviewer=[CONSISTENT]
    )
    assert went(thread) == (
        "base:passed scout before:passed migrator:partly mender:done tests:passed change:passed reviewer completed"
    )
    assert [stage.read(thread, f"{name}.txt") for name in ("a", "b", "code")] == ["new\n", "new\n", "fine\n"]


RACE = deliver(criteria=["no bug"], **COMMAND)
BUILDER = """\
number=$(echo "$prompt" | sed -n 's/.*You are number \\([0-9]\\).*/\\1/p' | head -n 1)
{}
git commit --quiet --all -m work
printf -- '---\\napproach: number %s\\ntest_exit_code: 0\\nweaknesses: [none]\\n---\\n' $number
"""
JUDGE = """\
bad=$(echo "$prompt" | sed -n 's/.*The tests of \\(rolecall[^ ]*\\) end.*/\\1/p' | head -n 1)
branch=$(echo "$prompt" | grep -o 'rolecall/[A-Za-z0-9-]*: number 1' | head -n 1)
[ -z "$bad" ] || branch=$(echo "$prompt" | grep -o 'rolecall/0[A-Za-z0-9]*' | grep -v "$bad" | head -n 1)
printf -- '---\\n$status: picked\\nbranch: %s\\nreason: best\\n' "${branch%%:*}"
printf -- 'compared: [{criterion: no bug, best: one, evidence: "code.txt:1"}]\\nborrow: []\\n---\\n'
"""


def test_best_of_three(stage: Stage) -> None:
    builder = BUILDER.format("echo solution $number > code.txt")
    thread = stage.run("best-of-three", scout=[RACE], builder=builder, judge=JUDGE)
    assert went(thread) == "base:passed scout builder:done judge:picked take:passed tests:passed completed"
    assert stage.read(thread, "code.txt") == "solution 1\n"
    assert_page_counts("best-of-three", thread)


def test_best_of_three_takes_another_one_if_the_tests_fail(stage: Stage) -> None:
    builder = BUILDER.format(
        "[ $number = 1 ] && echo a big bug > code.txt || echo solution $number > code.txt"
    )
    thread = stage.run("best-of-three", scout=[RACE], builder=builder, judge=JUDGE)
    assert went(thread) == (
        "base:passed scout builder:done judge:picked take:passed tests:failed undo:passed judge:picked take:passed "
        "tests:passed completed"
    )
    assert stage.read(thread, "code.txt") in ("solution 2\n", "solution 3\n")


# -- a person decides --


def prepared(**output: Any) -> Any:
    commands = {
        "test_command": TESTS,
        "publish_command": ["sh", "publish.sh"],
        "verify_command": ["test", "-f", "out"],
    }
    lists = {"breaking": [], "checklist": [{"item": "tests", "evidence": "sh test.sh: 0"}]}
    texts = {"version": "2", "last_version": "1", "notes": "All of it.", "cannot_be_undone": "The number."}
    return deliver(
        "prepared", **{**commands, **lists, **texts, **output}, edit={"code.txt": f"release {len(output)}\n"}
    )


SOUND = deliver("sound", advice="Read the notes.")


def test_release(stage: Stage) -> None:
    stage.commit({"publish.sh": "echo published > out\n"})
    thread = stage.run("release", preparer=[prepared()], auditor=[SOUND])
    assert thread.status == "suspended" and thread.needs_person
    asked = thread.question().due
    assert asked and "`sh` `publish.sh`" in asked.prompt
    assert not (Path(thread.state.folders["worktree"].path) / "out").exists()
    thread.answer({"$status": "publish"})
    thread.run().wait()
    assert went(thread) == (
        "base:passed preparer:prepared tests:passed clean:passed change:passed auditor:sound approver:publish "
        "publish:passed verify:passed completed"
    )
    assert_page_counts("release", thread)


def test_release_is_changed_tried_again_and_stopped_by_a_person(stage: Stage) -> None:
    stage.commit({"publish.sh": "exit 4\n"})
    unsound = deliver("unsound", problems=["code.txt:1 names the old version"])
    left = {**prepared(), "edit": {"new.txt": "not committed\n", "code.txt": "release\n"}, "run": []}
    preparer = [left, prepared(), prepared(notes="Some of it."), prepared(notes="Most of it.", version="3")]
    thread = stage.run("release", preparer=preparer, auditor=[unsound, SOUND, SOUND])
    for output in (
        {"$status": "change", "comments": "Call it 3."},
        {"$status": "publish"},
        {"$status": "stop"},
    ):
        assert thread.status == "suspended"
        thread.answer(output)
        if thread.status != "failed":
            thread.run().wait()
    ways = went(thread)
    assert "clean:failed preparer:prepared tests:passed clean:passed" in ways
    assert "auditor:unsound preparer:prepared" in ways and "approver:change preparer:prepared" in ways
    assert ways.endswith("approver:publish publish:failed approver:stop failed")

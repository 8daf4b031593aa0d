"""The files of steps, with the installed program: written into a folder, compared, listed, and traced line by line."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import rolecall as library

if TYPE_CHECKING:
    from conftest import Rolecall

STATUS = {"type": "object", "properties": {"status": {"enum": ["done", "again"]}}, "required": ["status"]}
DONE = {"type": "object", "properties": {"status": {"enum": ["done"]}}, "required": ["status"]}
FLOW = {
    "name": "flow",
    "description": "One writes, one checks.",
    "roles": {
        "writer": {"goal": "Write it well.", "schema": DONE},
        "checker": {"goal": "Check it.", "schema": STATUS},
    },
    "graph": {
        "$START": "writer",
        "writer": {"done": {"role": "checker", "prompt": "Look at the poem."}},
        "checker": {
            "again": {"role": "writer", "prompt": "Write a better second line."},
            "done": "$END",
        },
    },
}
WRITER: list[dict[str, Any]] = [
    {"edit": {"poem": "roses\nviolets\nsugar\n", "notes": "x\n"}, "output": {"status": "done"}},
    {
        "edit": {"poem": {"old": "violets", "new": "tulips"}},
        "run": [["rm", "notes"]],
        "output": {"status": "done"},
    },
]
CHECKER: list[dict[str, Any]] = [{"output": {"status": "again"}}, {"output": {"status": "done"}}]


def git(folder: Path, *words: str) -> str:
    argv = ["git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@b", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def files_in(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }


class Work:
    """A folder with a poem, a workflow of two roles, and a script for them."""

    def __init__(self, rolecall: Rolecall, place: Path, *, has_git: bool) -> None:
        self.rolecall = rolecall
        self.place = place
        self.folder = place / "my work"
        self.folder.mkdir()
        (self.folder / "poem").write_text("roses\n")
        if has_git:
            git(self.folder, "init", "--quiet")
            git(self.folder, "add", "--all")
            git(self.folder, "commit", "--quiet", "-m", "first")
        self.flow = place / "flow.yaml"
        self.flow.write_text(json.dumps(FLOW))

    def start(self, **roles: list[dict[str, Any]]) -> str:
        script = self.place / "script.json"
        script.write_text(json.dumps({"roles": {"writer": WRITER, "checker": CHECKER, **roles}}))
        words = ("thread", "start", str(self.flow), "-p", "A poem", "--cwd", str(self.folder))
        ident: str = self.rolecall.json(*words, "--agent", f"scripted:{script}")["thread"]
        return ident

    def run(self, **roles: list[dict[str, Any]]) -> str:
        ident = self.start(**roles)
        self.rolecall("thread", "run", ident, check=0)
        return ident

    def text(self, *words: str, check: int = 0) -> str:
        done = self.rolecall(*words, "--format", "text", check=check)
        return done.stdout + done.stderr


@pytest.fixture(params=["repository", "folder"])
def work(rolecall: Rolecall, tmp_path: Path, request: pytest.FixtureRequest) -> Work:
    return Work(rolecall, tmp_path, has_git=request.param == "repository")


@pytest.fixture
def plain(rolecall: Rolecall, tmp_path: Path) -> Work:
    return Work(rolecall, tmp_path, has_git=False)


# -- checkout --


def test_checkout_writes_the_files_of_any_step(work: Work) -> None:
    ident = work.run()
    after = {"start": {"poem": "roses\n"}, "1": {"poem": "roses\nviolets\nsugar\n", "notes": "x\n"}}
    after |= {"2": after["1"], "3": {"poem": "roses\ntulips\nsugar\n"}}
    for at, files in after.items():
        target = work.place / f"at {at}"
        done = work.rolecall.json("thread", "checkout", ident, str(target), "--at", at)
        assert files_in(target) == files
        assert (done["folder"], done["number"], done["omitted"]) == (
            str(target),
            int(at.replace("start", "0")),
            [],
        )
    (work.folder / "poem").write_text("later\n")
    text = work.rolecall(
        "thread", "checkout", ident, "now", "--format", "text", cwd=work.place, check=0
    ).stdout
    assert text == f"{work.place / 'now'} has the files that step 4 left\n"
    assert files_in(work.place / "now") == after["3"]
    assert not (work.place / "now" / ".git").exists()


def test_checkout_keeps_what_is_in_the_folder(plain: Work) -> None:
    ident = plain.run()
    (plain.place / "full").mkdir()
    (plain.place / "full" / "mine").write_text("mine\n")
    assert "is not empty" in plain.text("thread", "checkout", ident, str(plain.place / "full"), check=2)
    assert files_in(plain.place / "full") == {"mine": "mine\n"}
    assert "cannot be written" in plain.text("thread", "checkout", ident, str(plain.flow), check=2)
    assert "has no step '9'" in plain.text("thread", "checkout", ident, "new", "--at", "9", check=3)


def test_checkout_names_the_files_that_were_not_recorded(plain: Work) -> None:
    (plain.folder / ".env").write_text("KEY=1\n")
    ident = plain.run()
    text = plain.text("thread", "checkout", ident, str(plain.place / "new"))
    assert "not recorded, so not written: .env" in text
    assert ".env (not recorded)" in plain.text("thread", "step-details", f"{ident}#1")


def test_files_that_were_not_recorded_are_an_error_that_names_the_step(plain: Work) -> None:
    ident = plain.start()
    new = str(plain.place / "new")
    assert "no role of thread" in plain.text("thread", "checkout", ident, new, check=3)
    plain.rolecall("config", "set", "trees.keep", "false", check=0)
    plain.rolecall("thread", "step", ident, check=0)
    plain.rolecall("config", "unset", "trees.keep", check=0)
    plain.rolecall("thread", "step", ident, check=0)
    assert "the files of step 1" in plain.text("thread", "checkout", ident, new, "--at", "1", check=3)
    assert "the files of step 1" in plain.text("thread", "diff", ident, "--files", check=3)
    assert "no file changed" in plain.text("thread", "diff", ident, "--files", "--at", "2")
    plain.rolecall("thread", "checkout", ident, new, check=0)
    assert files_in(Path(new)) == {"poem": "roses\nviolets\nsugar\n", "notes": "x\n"}


# -- diff --


def test_diff_shows_what_a_thread_a_step_and_a_role_changed(work: Work) -> None:
    ident = work.run()
    [whole] = work.rolecall.json("thread", "diff", ident, "--files")["parts"]
    assert whole["changes"] == [{"path": "poem", "kind": "changed", "added": 2, "removed": 0}]
    assert "+tulips\n" in whole["diff"] and whole["step"] is None

    [step] = work.rolecall.json("thread", "diff", ident, "--files", "--at", "3")["parts"]
    assert (step["number"], step["role"]) == (3, "writer")
    assert [change["path"] for change in step["changes"]] == ["notes", "poem"]
    assert "-violets\n+tulips\n" in step["diff"]

    [between] = work.rolecall.json("thread", "diff", ident, "--files", "--at", "1..4")["parts"]
    assert between["diff"] == step["diff"]
    assert (
        work.rolecall.json("thread", "diff", ident, "--files", "--at", "..1")["parts"][0]["left"]
        == step["found"]
    )
    assert work.text("thread", "diff", ident, "--files", "--at", "2") == "no file changed\n"

    parts = work.rolecall.json("thread", "diff", ident, "--files", "--role", "writer")["parts"]
    assert [part["number"] for part in parts] == [1, 3]
    parts = work.rolecall.json("thread", "diff", ident, "--files", "--role", "writer", "--at", "1..")["parts"]
    assert [part["number"] for part in parts] == [3]
    words = ("thread", "diff", ident, "--files", "--role", "writer", "--at", "3..1")
    assert "step 3 comes after step 1" in work.text(*words, check=2)
    assert "no step of nobody" in work.text("thread", "diff", ident, "--files", "--role", "nobody", check=3)


def test_diffs_can_be_applied(plain: Work) -> None:
    ident = plain.run()
    target = plain.place / "copy"
    plain.rolecall("thread", "checkout", ident, str(target), "--at", "start", check=0)
    for at in ("1", "2..4"):
        patch = plain.text("thread", "diff", ident, "--files", "--at", at)
        subprocess.run(["git", "apply"], cwd=target, input=patch, text=True, check=True)
    assert files_in(target) == {"poem": "roses\ntulips\nsugar\n"}
    assert plain.text("thread", "diff", ident, "--files", "--role", "writer").startswith(
        "step 1: writer\ndiff --git "
    )


def test_diff_of_two_threads_compares_their_last_files(plain: Work) -> None:
    one = plain.run()
    (plain.folder / "poem").write_text("roses\n")
    other = plain.run(
        writer=[{"edit": {"poem": "lilies\n"}, "output": {"status": "done"}}], checker=CHECKER[1:]
    )
    found = plain.rolecall.json("thread", "diff", one, other, "--files")
    assert found["threads"] == [one, other]
    assert "-roses\n-tulips\n-sugar\n+lilies\n" in found["parts"][0]["diff"]
    assert "two threads" in plain.text("thread", "diff", one, other, "--files", "--at", "1", check=2)
    assert "Add --files" in plain.text("thread", "diff", one, other, "--at", "1", check=2)
    assert plain.text("thread", "diff", one) == plain.text("thread", "diff", one, "--files")


# -- lists --


def test_show_steps_read_and_reports_list_the_files_of_each_step(work: Work) -> None:
    ident = work.run()
    card = work.rolecall.json("thread", "show", ident)
    assert [(step["number"], len(step["changes"])) for step in card["files"]] == [(1, 2), (3, 2)]
    shown = work.text("thread", "show", ident).splitlines()
    at = next(at for at, line in enumerate(shown) if line.split() == ["role", "files"])
    assert [line.split() for line in shown[at + 1 : at + 5]] == [
        ["1", "writer", "notes", "(added)", "+1"],
        ["poem", "+2"],
        ["3", "writer", "notes", "(removed)", "-1"],
        ["poem", "+1", "-1"],
    ]
    assert "2 files +3 -0" in work.text("thread", "steps", ident)
    assert "Files:\n\n- notes (removed) -1\n- poem +1 -1\n" in work.text("thread", "read", ident)
    assert "### Files\n\n- notes (removed) -1\n- poem +1 -1\n" in work.text(
        "thread", "step-details", f"{ident}#3"
    )
    for name in ("report.md", "report.html"):
        work.rolecall("thread", "export", ident, name, cwd=work.place, check=0)
        assert "poem +1 -1" in (work.place / name).read_text()
        assert "+tulips" not in (work.place / name).read_text()
        work.rolecall("thread", "export", ident, name, "--files", "--force", cwd=work.place, check=0)
        assert "+tulips" in (work.place / name).read_text()


@pytest.mark.parametrize("workdir", ["shared", "worktree"])
def test_a_report_masks_secrets_in_the_changes_of_files(
    rolecall: Rolecall, tmp_path: Path, workdir: str
) -> None:
    secret = "a-key-that-is-in-the-environment"
    work = Work(rolecall, tmp_path, has_git=True)
    work.flow.write_text(json.dumps({**FLOW, "workdir": workdir}))
    ident = work.run(
        writer=[{"edit": {"poem": f"{secret} blooms\n"}, "output": {"status": "done"}}], checker=CHECKER[1:]
    )
    for name in ("report.md", "report.html"):
        words = ("thread", "export", ident, name, "--files")
        rolecall(*words, cwd=tmp_path, env={"MY_API_KEY": secret}, check=0)
        text = (tmp_path / name).read_text()
        assert "***MASKED*** blooms" in text and secret not in text


def test_a_long_list_of_files_is_cut(plain: Work) -> None:
    many = {f"file {number:03}": "x\n" for number in range(120)}
    ident = plain.run(writer=[{"edit": many, "output": {"status": "done"}}], checker=CHECKER[1:])
    [step] = plain.rolecall.json("thread", "show", ident)["files"]
    assert (len(step["changes"]), step["moreChanges"]) == (100, 20)
    assert "and 108 more" in plain.text("thread", "show", ident)
    assert "- and 108 more\n" in plain.text("thread", "read", ident)
    assert "- and 20 more" in plain.text("thread", "step-details", f"{ident}#1")
    assert "120 files" in plain.text("thread", "steps", ident)
    assert len(plain.rolecall.json("thread", "diff", ident, "--files")["parts"][0]["changes"]) == 120


# -- blame --


def test_blame_names_the_step_the_role_the_agent_and_the_prompt(work: Work) -> None:
    ident = work.start()
    work.rolecall("thread", "step", ident, check=0)
    (work.folder / "poem").write_text("my title\nroses\nviolets\nsugar\n")
    work.rolecall("thread", "run", ident, check=0)

    found = work.rolecall.json("thread", "blame", ident, "poem")
    steps = found["steps"]
    assert [
        (line["text"], line["from"], line["step"] and steps[line["step"]]["number"])
        for line in found["lines"]
    ] == [
        ("my title", "between", None),
        ("roses", "before", None),
        ("tulips", "step", 3),
        ("sugar", "step", 1),
    ]
    [third] = [step for step in steps.values() if step["number"] == 3]
    assert third["role"] == "writer" and third["agent"].startswith("scripted") and third["thread"] == ident
    assert third["edgePrompt"] == "Write a better second line." and "Write it well." in third["prompt"]

    text = work.text("thread", "blame", ident, "poem")
    assert "3 writer           3  tulips\n" in text and "before the thread  2  roses\n" in text
    assert "Write a better second line." in text

    text = work.text("thread", "blame", ident, "poem:3")
    assert text.startswith("3 writer  3  tulips\n") and "Write it well." in text
    assert len(work.rolecall.json("thread", "blame", ident, "poem:2-4")["lines"]) == 3
    [second] = work.rolecall.json("thread", "blame", ident, "poem:2", "--at", "1")["lines"]
    assert second["text"] == "violets"
    assert (
        work.rolecall.json("thread", "blame", ident, "poem", "--at", "start")["lines"][0]["from"] == "before"
    )


def test_blame_refuses_what_is_not_there(plain: Work) -> None:
    ident = plain.run()
    assert "there is no file 'prose'" in plain.text("thread", "blame", ident, "prose", check=3)
    assert "there is no file 'notes'" in plain.text("thread", "blame", ident, "notes", check=3)
    assert "poem has only 3 lines" in plain.text("thread", "blame", ident, "poem:4", check=3)


def test_blame_follows_a_file_that_was_renamed(plain: Work) -> None:
    poem = "".join(f"line {number}\n" for number in range(9))
    writer: list[dict[str, Any]] = [
        {"edit": {"poem": poem}, "output": {"status": "done"}},
        {"run": [["mv", "poem", "a song:1"]], "output": {"status": "done"}},
    ]
    ident = plain.run(writer=writer)
    found = plain.rolecall.json("thread", "blame", ident, "a song:1:5")
    assert [step["number"] for step in found["steps"].values()] == [1]


def test_blame_reads_the_newest_files_even_if_they_are_older_ones_again(plain: Work) -> None:
    ident = plain.start()
    plain.rolecall("thread", "step", ident, check=0)
    (plain.folder / "poem").write_text("roses\n")
    (plain.folder / "notes").unlink()
    plain.rolecall("thread", "step", ident, check=0)
    found = plain.rolecall.json("thread", "blame", ident, "poem")
    assert [(line["text"], line["from"]) for line in found["lines"]] == [("roses", "before")]


def test_a_failed_attempt_is_named(plain: Work) -> None:
    failing = {"edit": {"poem": "roses\nhalf\n"}, "fail": {"ending": "failed", "reason": "it broke"}}
    done = {"edit": {"poem": "roses\nhalf\nwhole\n"}, "output": {"status": "done"}}
    ident = plain.start(writer=[{**failing, "again": [done]}], checker=CHECKER[1:])
    plain.rolecall("thread", "run", ident)
    plain.rolecall("thread", "resume", ident, "--run", check=0)
    found = plain.rolecall.json("thread", "blame", ident, "poem")
    assert [line["from"] for line in found["lines"]] == ["before", "attempt", "step"]
    assert "failed writer" in plain.text("thread", "blame", ident, "poem")
    attempt = found["lines"][1]["step"]
    done = plain.rolecall.json("thread", "checkout", ident, str(plain.place / "half"), "--at", attempt)
    assert (done["attempt"], files_in(plain.place / "half")["poem"]) == (attempt, "roses\nhalf\n")
    shown = plain.text("thread", "diff", ident, "--files", "--at", attempt[:6])
    assert shown.startswith(f"failed attempt {attempt}: writer\n") and "+half" in shown
    plain.rolecall("thread", "export", ident, "report.md", "--files", cwd=plain.place, check=0)
    assert (plain.place / "report.md").read_text().count("\n+half\n") == 1


@pytest.mark.parametrize("merge", ["queue", None])
def test_lines_of_members_are_traced_to_the_members(
    rolecall: Rolecall, tmp_path: Path, merge: str | None
) -> None:
    work = Work(rolecall, tmp_path, has_git=True)
    agent = tmp_path / "agent.sh"
    agent.write_text(
        "#!/bin/sh\nnumber=$(grep -o 'Write part [0-9]*' | head -n 1 | grep -o '[0-9]*$')\n"
        '[ -z "$number" ] && seq 30 >> poem && git commit -qam long\n'
        'sed -i "s/^${number}0\\$/part $number/" poem\nprintf -- "---\\nstatus: done\\n---\\nWrote it.\\n"\n'
    )
    agent.chmod(0o755)
    folder = {"workdir": "worktree", "merge": "queue"} if merge else {"at_once": 1}
    writer = {"times": 2, "goal": "Write part {{number}}.", "schema": DONE, **folder}
    flow = {
        "name": "flow",
        "description": "Several write.",
        "roles": {"beginner": {"goal": "Begin.", "schema": DONE}, "writer": writer},
        "graph": {
            "$START": "beginner",
            "beginner": {"done": "writer"},
            "writer": {"done": "$END", "partly": "$END", "failed": "$FAIL"},
        },
    }
    work.flow.write_text(json.dumps(flow))
    git(work.folder, "config", "user.name", "A")
    git(work.folder, "config", "user.email", "a@b")
    words = ("thread", "start", str(work.flow), "-p", "A poem", "--cwd", str(work.folder))
    ident = rolecall.json(*words, "--agent", f"command:{agent}")["thread"]
    rolecall("thread", "run", ident, check=0)

    [group] = rolecall.json("thread", "show", ident, "--members")["groups"]
    one, two = (member["id"] for member in group["members"])
    found = rolecall.json("thread", "blame", ident, "poem")
    writers = {line["text"]: line["step"] and found["steps"][line["step"]] for line in found["lines"]}
    assert writers["part 1"]["thread"] == one and "Write part 1." in writers["part 1"]["prompt"]
    assert writers["part 2"]["thread"] == two and writers["roses"] is None
    assert (writers["5"]["thread"], writers["5"]["role"]) == (ident, "beginner")
    assert f"2 writer of {one}" in work.text("thread", "blame", ident, "poem")

    # A member begins with the files of its parent.
    found = rolecall.json("thread", "blame", two, "poem")
    writers = {line["text"]: line["step"] and found["steps"][line["step"]] for line in found["lines"]}
    assert (writers["5"]["thread"], writers["part 2"]["thread"]) == (ident, two)
    assert rolecall.json("thread", "checkout", two, str(tmp_path / "new"), "--at", "start")["step"] is None
    assert "part 2" not in (tmp_path / "new" / "poem").read_text()


def test_lines_of_a_role_that_another_workflow_played_are_traced_to_its_steps(plain: Work) -> None:
    (plain.place / ".workflows").mkdir()
    inner = {**FLOW, "name": "inner"}
    (plain.place / ".workflows" / "inner.yaml").write_text(json.dumps(inner))
    outer = {
        "name": "outer",
        "description": "Lets others write.",
        "roles": {"lead": {"goal": "Lead.", "agent": "workflow:inner", "schema": STATUS}},
        "graph": {"$START": "lead", "lead": {"done": "$END", "again": "$END"}},
    }
    (plain.place / ".workflows" / "outer.yaml").write_text(json.dumps(outer))
    plain.place.joinpath("script.json").write_text(
        json.dumps({"roles": {"writer": WRITER, "checker": CHECKER}})
    )
    plain.rolecall("config", "set", "defaultAgent", f"scripted:{plain.place / 'script.json'}", check=0)
    ident = plain.rolecall.json("thread", "start", "outer", "-p", "A poem", cwd=plain.place)["thread"]
    plain.rolecall("thread", "run", ident, cwd=plain.place, check=0)
    found = plain.rolecall.json("thread", "blame", ident, "poem")
    [step] = [found["steps"][line["step"]] for line in found["lines"] if line["text"] == "tulips"]
    assert (step["role"], step["number"]) == ("writer", 3) and step["thread"] != ident


def test_a_fork_is_compared_and_traced_in_its_own_folder(work: Work) -> None:
    one = work.run()
    better = [
        *WRITER[:1],
        {"edit": {"poem": {"old": "violets", "new": "lilies"}}, "output": {"status": "done"}},
    ]
    work.start(writer=better)  # another script in the same place
    fork = work.rolecall.json("thread", "fork", one, "--at", "2")["thread"]
    work.rolecall("thread", "run", fork, check=0)
    found = work.rolecall.json("thread", "blame", fork, "poem")
    writers = {
        line["text"]: line["step"] and found["steps"][line["step"]]["number"] for line in found["lines"]
    }
    assert writers == {"roses": None, "lilies": 3, "sugar": 1}
    [part] = work.rolecall.json("thread", "diff", one, fork, "--files")["parts"]
    assert [change["path"] for change in part["changes"]] == ["notes", "poem"]
    assert "-tulips\n+lilies\n" in part["diff"]


# -- nothing else changes --


def test_reading_files_leaves_the_repository_and_the_home_as_they_are(
    rolecall: Rolecall, tmp_path: Path
) -> None:
    work = Work(rolecall, tmp_path, has_git=True)
    ident = work.run()

    def look() -> dict[str, int]:
        places = (work.folder, rolecall.home / "trees")
        return {
            os.path.join(top, name): os.stat(os.path.join(top, name)).st_mtime_ns
            for place in places
            for top, _, files in os.walk(place)
            for name in files
        }

    before = look()
    work.rolecall("thread", "blame", ident, "poem", check=0)
    work.rolecall("thread", "diff", ident, "--files", check=0)
    work.rolecall("thread", "checkout", ident, str(tmp_path / "new"), check=0)
    assert look() == before


def test_the_library_reads_files_too(tmp_path: Path) -> None:
    async def write(prompt: str, context: library.Context) -> str:
        Path(context.workdir, "poem").write_text("roses\n")
        return "---\nstatus: done\n---\nWrote it."

    flow = library.Workflow(
        "write",
        {"writer": library.Role(write, "Write it.", STATUS)},
        lambda context: library.END if context.steps else "writer",
    )
    work = tmp_path / "work"
    work.mkdir()
    with library.open(":memory:", folder=work) as rolecall:
        thread = rolecall.start(flow, "A poem")
        thread.run().wait()
        assert thread.file_changes()[0]["changes"][0]["path"] == "poem"
        assert thread.check_out(tmp_path / "new", at=1)["number"] == 1
        assert files_in(tmp_path / "new") == {"poem": "roses\n"}
        assert "+roses" in thread.diff_files(at=1)[0]["diff"]
        [line] = thread.blame("poem")["lines"]
        assert line["step"] == thread.steps[0].id


def test_why_names_the_first_part_that_differs(plain: Work) -> None:
    writer = {"output": {"status": "done"}}
    checker = {"output": {"status": "done"}}
    first = plain.run(writer=[writer], checker=[checker])
    second = plain.run(writer=[writer], checker=[{**checker, "body": "Fine."}])
    asked = f"asked: differs from step 1 of thread {first}: the version of its program: "
    assert plain.text("thread", "why", second, "--at", "1").startswith(f"step 1 writer · {asked}")
    found = plain.rolecall.json("thread", "why", second)
    assert (found["number"], found["part"], found["differs"]) == (2, "version", ["version"])

"""Members of a group as a person and a script see them: while a thread runs, and afterwards."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import cast

import pytest
from conftest import Rolecall
from terminal import Terminal

from rolecall import Thread
from rolecall.cli.group_view import GroupBlock

AGENT = """
import re, sys
asked = sys.stdin.read()
if "List the files" in asked:
    print("---\\nfiles: [a, b, c, d, e, f]\\n---\\nListed.")
elif found := re.search("Look at ([a-f])", asked):
    said = open(found[1]).read().strip()  # waits until the test lets it go
    if said == "fail":
        sys.exit("the model is overloaded")
    print(f"---\\nfinding: {said} in {found[1]}\\n---\\nI read {found[1]}.")
else:
    print("---\\nsummary: all fine\\n---\\nDone.")
"""
FLOW = """
name: review-files
roles:
  lister:
    prompt: List the files.
    schema: {type: object, properties: {files: {type: array, items: {type: string}}}, required: [files]}
  reviewer:
    each: steps[-1].output.files
    at_once: 3
    workdir: shared
    prompt: Look at {{item}}
    schema: {type: object, properties: {finding: {type: string}}, required: [finding]}
  summarizer:
    prompt: Summarize.
    schema: {type: object, properties: {summary: {type: string}}, required: [summary]}
graph:
  $START: lister
  lister: reviewer
  reviewer: {done: summarizer, partly: summarizer, failed: $FAIL}
  summarizer: $END
"""
GATES = "abcdef"


@pytest.fixture
def project(rolecall: Rolecall, tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "review-files.yaml").write_text(FLOW)
    (folder / "agent.py").write_text(AGENT)
    for gate in GATES:
        os.mkfifo(folder / gate)
    rolecall("config", "set", "defaultAgent", f"command:{sys.executable} agent.py", check=0)
    return folder


def let_go(project: Path, gates: str, said: str = "nothing") -> None:
    for gate in gates:
        (project / gate).write_text(said)


def start(rolecall: Rolecall, project: Path) -> str:
    path = str(project / "review-files.yaml")
    thread: str = rolecall.json("thread", "start", path, "-p", "Review it.", "--cwd", str(project))["thread"]
    return thread


@pytest.fixture
def ended(rolecall: Rolecall, project: Path) -> str:
    """A thread whose group has ended: one of its members failed."""
    for gate in GATES:
        (project / gate).unlink()
        (project / gate).write_text("fail" if gate == "b" else "nothing")
    thread = start(rolecall, project)
    rolecall("thread", "run", thread, check=0)
    return thread


# -- while it runs --


def test_a_terminal_shows_the_members_at_work_and_counts_the_others(
    rolecall: Rolecall, project: Path
) -> None:
    terminal = Terminal(
        "thread", "run", start(rolecall, project), home=rolecall.home, path=os.environ["PATH"]
    )
    terminal.expect("0 of 6 done · 3 running · 3 to come")
    terminal.expect("3 c ·")
    block = terminal.screen()
    assert block[0].startswith("✓ 1 lister")
    assert block[1].startswith("… reviewer · 0 of 6 done · 3 running · 3 to come")
    assert [row.split(" · ")[0] for row in block[2:]] == ["  1 a", "  2 b", "  3 c"]

    let_go(project, "a")
    terminal.expect("1 of 6 done · 3 running · 2 to come")
    let_go(project, "b", "fail")
    terminal.expect("1 of 6 done · 1 failed · 3 running · 1 to come")
    terminal.expect("5 e ·")
    block = terminal.screen()
    assert block[1].startswith("✗ reviewer 2/6: ")
    assert "the model is overloaded" in block[1]
    assert [row.split(" · ")[0] for row in block[3:]] == ["  3 c", "  4 d", "  5 e"]

    let_go(project, "cdef")
    assert terminal.close() == 0
    shown = terminal.screen()
    assert shown[2].startswith("✓ 2 reviewer · partly: 5 of 6 members are done, 1 failed · ")
    assert shown[3].startswith("✓ 3 summarizer")
    assert not [line for line in shown if "running" in line or line.startswith("…")]


def test_a_small_terminal_is_not_overrun(rolecall: Rolecall, project: Path) -> None:
    terminal = Terminal(
        "thread", "run", start(rolecall, project), home=rolecall.home, path=os.environ["PATH"], rows=4
    )
    terminal.expect("0 of 6 done · 3 running · 3 to come")
    terminal.expect("and 2 more running")
    assert [row.split(" · ")[0] for row in terminal.screen()[1:]] == [
        "… reviewer",
        "  1 a",
        "  and 2 more running",
    ]
    let_go(project, GATES)
    assert terminal.close() == 0
    assert "6 of 6 members are done" in terminal.screen()[1]


def test_a_group_that_goes_on_is_counted_from_where_it_was(rolecall: Rolecall, project: Path) -> None:
    thread = start(rolecall, project)
    first = Terminal("thread", "run", thread, home=rolecall.home, path=os.environ["PATH"])
    first.expect("3 c ·")
    let_go(project, "a")
    first.expect("1 of 6 done")
    first.type("\x03")
    assert first.close() == 130
    card = rolecall.json("thread", "show", thread)
    assert card["group"] == {"role": "reviewer", "count": 6, "done": 1, "open": 3}
    assert "members      reviewer: 1 done, 3 not running, of 6" in rolecall("thread", "show", thread).stdout

    second = Terminal("thread", "run", thread, home=rolecall.home, path=os.environ["PATH"])
    second.expect("1 of 6 done · 3 running · 2 to come")
    second.expect("2 b ·")
    let_go(project, "bcdef")
    assert second.close() == 0


def test_a_member_is_counted_once_whatever_becomes_of_it() -> None:
    block = GroupBlock("judge", 3, is_served=True)
    for number, kind, body in (
        (1, "started", {"title": "judge 1/3"}),
        (2, "started", {"title": "judge 2/3"}),
        (1, "suspended", {}),
        (1, "over", {"status": "waits"}),
        (1, "resumed", {}),
        (2, "step", {"reused": {"thread": "T"}}),
        (2, "over", {"status": "done"}),
        (2, "folder_merged", {}),
    ):
        block.event({"number": number, "thread": f"M{number}", "kind": kind, "body": body})
    (head, *_) = block.lines(cast("Thread", None), 1)
    assert "judge · 1 of 3 done · 1 started · 1 to come · 1 reused" in head


def test_a_line_says_that_a_member_waits_for_a_limit() -> None:
    block = GroupBlock("judge", 3, is_served=False)
    event = {"number": 2, "thread": "T", "kind": "limited", "body": {"until": 4_000_000_000_000}}
    assert block.event(event).startswith("◷ judge 2/3: waits until ")


def test_a_script_gets_a_line_for_each_event_of_a_member(rolecall: Rolecall, project: Path) -> None:
    for gate in GATES:
        (project / gate).unlink()
        (project / gate).write_text("nothing")
    thread = start(rolecall, project)
    lines = [
        json.loads(line) for line in rolecall("thread", "run", thread, "--format", "json").stdout.splitlines()
    ]
    group = next(line for line in lines if line.get("event") == "group")
    assert (group["thread"], group["role"], group["count"]) == (thread, "reviewer", 6)
    over = [line for line in lines if line.get("event") == "over"]
    assert sorted(line["member"] for line in over) == [1, 2, 3, 4, 5, 6]
    assert {line["parent"] for line in over} == {thread}
    assert {line["status"] for line in over} == {"done"}
    member = over[0]["thread"]
    assert next(line["event"] for line in lines if line.get("thread") == member) == "started"


ASKING = """
name: ask-people
roles:
  judge:
    times: 2
    agent: human
    prompt: Judge it. You are judge {{number}}.
    schema: {type: object, properties: {verdict: {type: string}}, required: [verdict]}
graph:
  $START: judge
  judge: {done: $END, partly: $FAIL, failed: $FAIL}
"""


def test_people_are_asked_one_by_one_while_no_process_waits(rolecall: Rolecall, tmp_path: Path) -> None:
    (tmp_path / "ask-people.yaml").write_text(ASKING)
    done = rolecall("run", "ask-people.yaml", "-p", "The plan.", cwd=tmp_path, check=7)
    [parent] = rolecall.json("thread", "list")
    assert (parent["status"], parent["reason"]) == ("waiting", "judge: 2 waiting for a person")
    assert "is waiting: The plan.\n  judge: 2 waiting for a person" in done.stdout
    lines = done.stderr.splitlines()[1:]
    members = [line.removeprefix(f"answer judge {number}/2: ") for number, line in enumerate(lines[:2], 1)]
    assert lines[2] == f"continue: rolecall thread run {parent['thread']}"

    assert rolecall.json("status")["next"] == f"rolecall thread show {parent['thread']} --members"
    assert rolecall("thread", "watch", parent["thread"]).returncode == 7
    for command in members:
        answered = rolecall(*command.split()[1:], "--field", "verdict=good", check=0)
        assert (
            answered.stderr.splitlines()[-1] == f"continue its group: rolecall thread run {parent['thread']}"
        )
    assert rolecall.json("status")["next"] == f"rolecall thread run {parent['thread']}"
    rolecall("thread", "run", parent["thread"], check=0)
    assert rolecall.json("thread", "show", parent["thread"])["status"] == "completed"


def test_every_agent_of_a_list_is_checked_and_a_team_needs_none(rolecall: Rolecall, tmp_path: Path) -> None:
    text = ASKING.replace("agent: human", "agent: [human, command:/nowhere/agent]\n    workdir: shared")
    team = (
        "  team: {roles: [helper]}\n  helper: {agent: human, prompt: Help., schema: {type: object}}\ngraph:"
    )
    text = text.replace("graph:", team).replace("done: $END", "done: team") + "  team: $END\n"
    (tmp_path / "ask-people.yaml").write_text(text)
    [report] = rolecall.json("workflow", "validate", "ask-people.yaml", cwd=tmp_path)
    [problem] = report["problems"]
    assert "/nowhere/agent" in problem["message"]
    assert (problem["line"], problem["severity"]) == (6, "warning")


def test_members_that_lead_back_to_their_own_workflow_are_refused_before_anybody_is_asked(
    rolecall: Rolecall, tmp_path: Path
) -> None:
    for name, other in (("ask-first", "ask-second"), ("ask-second", "ask-first")):
        text = ASKING.replace("ask-people", name).replace("human", f"workflow:./{other}.yaml")
        (tmp_path / f"{name}.yaml").write_text(text.replace("times: 2", "times: 2\n    workdir: shared"))
    refused = rolecall("run", "ask-first.yaml", "-p", "The plan.", cwd=tmp_path, check=2)
    assert "members of 'judge' are played by a workflow that leads back to this one" in refused.stderr
    assert rolecall.json("thread", "list", "--all") == []


IN_PYTHON = """
from dataclasses import dataclass
from rolecall import END, Role, RoleResult, ThreadContext, Workflow

@dataclass
class Lines:
    lines: list[str]

@dataclass
class Count:
    words: int

@dataclass
class Total:
    total: int

async def split(context: ThreadContext) -> RoleResult:
    return RoleResult("Split.", {"lines": context.start.split(",")})

async def count(context: ThreadContext) -> RoleResult:
    return RoleResult(f"{context.number} of {context.count}", {"words": len(context.item.split())})

async def total(context: ThreadContext) -> RoleResult:
    joined = counters.read(context.steps[-1])
    return RoleResult("Total.", {"total": sum(one.words for one in joined.outputs)})

counters = Role.each("steps[-1].output.lines", Role.function(count, Count), at_once=2)

def moderator(context: ThreadContext) -> str:
    order = ["split", "counters", "total"]
    done = len(context.steps)
    if done == 2:
        assert counters.read(context.steps[-1]).status == "done"
    return order[done] if done < 3 else END

workflow = Workflow(
    "count-words",
    {"split": Role.function(split, Lines), "counters": counters, "total": Role.function(total, Total)},
    moderator,
)
"""


def test_functions_find_their_item_and_a_moderator_the_joined_result(
    rolecall: Rolecall, tmp_path: Path
) -> None:
    (tmp_path / "count-words.py").write_text(IN_PYTHON)
    done = rolecall("run", "count-words.py", "-p", "a b c,d,e f", cwd=tmp_path, check=0)
    assert "✓ 2 counters · done: 3 of 3 members are done" in done.stdout
    assert "total: 6" in done.stdout


# -- afterwards --


def test_the_list_hides_members_and_shows_them_below_their_thread(rolecall: Rolecall, ended: str) -> None:
    assert [entry["thread"] for entry in rolecall.json("thread", "list", "--all")] == [ended]
    entries = rolecall.json("thread", "list", "--all", "--members")
    assert sorted(entry["member"] for entry in entries if entry["thread"] != ended) == [1, 2, 3, 4, 5, 6]
    assert {entry["parent"] for entry in entries if entry["thread"] != ended} == {ended}
    rows = rolecall("thread", "list", "--all", "--members", env={"COLUMNS": "120"}).stdout.splitlines()[1:]
    assert rows[0].endswith("Review it.")
    assert [row.partition("↳ ")[2] for row in rows[1:3]] == ["reviewer 1/6: a", rows[2].partition("↳ ")[2]]
    assert rows[2].partition("↳ ")[2].startswith("reviewer 2/6: b · ")
    # A member that failed waits for nobody, so it is not among the threads to look after.
    assert rolecall.json("thread", "list") == []


def test_show_and_read_fold_the_members_and_unfold_them_on_request(rolecall: Rolecall, ended: str) -> None:
    assert "reviewer 1/6" not in rolecall("thread", "show", ended).stdout
    [group] = rolecall.json("thread", "show", ended, "--members")["groups"]
    assert [member["status"] for member in group["members"]] == ["done", "failed", *["done"] * 4]
    shown = rolecall("thread", "show", ended, "--members").stdout
    assert "reviewer (step 2): 5 of 6 members are done, 1 failed" in shown
    assert f"\n2  failed  {group['members'][1]['id']}  b · reviewer: " in shown

    steps = rolecall("thread", "steps", ended, env={"COLUMNS": "120"}).stdout.splitlines()
    assert steps[3].endswith("5 of 6 members are done, 1 failed")
    folded = rolecall("thread", "read", ended, "--quota", "20000").stdout
    assert "5 of 6 members are done, 1 failed." in folded
    assert "- 2 b: failed: " in folded
    assert "nothing in a" not in folded
    unfolded = rolecall("thread", "read", ended, "--quota", "20000", "--members").stdout
    assert "### 1 a" in unfolded
    assert '"finding": "nothing in a"' in unfolded
    assert "I read a." in unfolded


def test_a_member_is_read_by_itself_with_its_item_and_its_thread(rolecall: Rolecall, ended: str) -> None:
    [group] = rolecall.json("thread", "show", ended, "--members")["groups"]
    member = group["members"][2]["id"]
    assert f"member       3 of the group of {ended}" in rolecall("thread", "show", member).stdout
    found = rolecall.json("thread", "read", member)
    assert "<prompt>\nLook at c\n</prompt>" in found["text"]
    assert "Review it." in found["text"]
    assert (found["steps"], found["earlier"]) == (1, 0)


@pytest.mark.parametrize("kind", ["html", "md"])
def test_reports_show_the_members(rolecall: Rolecall, tmp_path: Path, ended: str, kind: str) -> None:
    file = tmp_path / f"report.{kind}"
    rolecall("thread", "export", ended, str(file), check=0)
    text = file.read_text()
    assert "5 of 6 members are done, 1 failed." in text
    assert "nothing in a" in text
    assert "the model is overloaded" in text
    assert "I read a." in text
    if kind == "html":
        assert '<summary>2 b <span class="status bad">failed</span></summary>' in text

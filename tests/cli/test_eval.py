"""`rolecall eval` with the installed program: suites, judges, kills, bad input, bundles."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import commands
import pytest
from conftest import SCRIPTS
from ports import held_port
from test_thread_folder import git

from rolecall.api import Rolecall
from rolecall.settings import yaml12

if TYPE_CHECKING:
    import conftest

WORKFLOW: dict[str, Any] = {
    "name": "fix-it",
    "description": "Fixes.",
    "roles": {
        "developer": {
            "prompt": "Fix it.",
            "schema": {"type": "object", "properties": {"status": {"const": "done"}}, "required": ["status"]},
        }
    },
    "graph": {"$START": "developer", "developer": "$END"},
}
PYTHON = (sys.executable, "-IS")
"""Not `python3`, which on some machines is a script that first looks for the version to run."""
TEST = """\
import json, os, sys
sys.path.insert(0, ".")
from calc import f
task = json.load(open(os.environ["ROLECALL_RESULT"]))["task"]
wanted = 5 if task == "add" else -1
with open(os.environ["ROLECALL_REPORT"], "w") as out:
    json.dump({"score": 1 if f(2, 3) == wanted else 0.25, "details": {"got": f(2, 3)}}, out)
sys.exit(f(2, 3) != wanted)
"""
FIX_ADD, FIX_SUB = "s/a - b/a + b/", "s/a \\* b/a - b/"


class Project:
    """A project with a suite of two tasks, which one variant solves and the other only half."""

    def __init__(self, rolecall: conftest.Rolecall, folder: Path) -> None:
        self.rolecall, self.folder = rolecall, folder
        self.asked = folder / "asked"
        self.asked.touch()
        self.suite: dict[str, Any] = {
            "workflow": "fix-it",
            "variants": {
                "good": {"agents": {"developer": "scripted:good.json"}},
                "bad": {"agents": {"developer": "scripted:bad.json"}},
            },
            "tasks": "tasks.jsonl",
            "repeat": 2,
            "judges": {
                "tests": {"command": [*PYTHON, "hidden/test.py"], "files": "hidden/", "gate": True},
                "shape": {"expression": "output.status = 'done'"},
            },
        }
        self.tasks: list[dict[str, Any]] = [
            {"id": "add", "prompt": "f must add", "files": "tasks/add", "tags": ["quick"]},
            {"id": "sub", "prompt": "f must subtract", "files": "tasks/sub"},
        ]
        for path, text in {
            ".workflows/fix-it.yaml": json.dumps(WORKFLOW),
            "hidden/test.py": TEST,
            "tasks/add/calc.py": "def f(a, b):\n    return a - b\n",
            "tasks/sub/calc.py": "def f(a, b):\n    return a * b\n",
        }.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        self.script("good", f"sed -i '{FIX_ADD}; {FIX_SUB}' calc.py", cost=0.02)
        self.script("bad", f"sed -i '{FIX_ADD}' calc.py", cost=0.01)

    def script(self, name: str, command: str, cost: float = 0.01, **visit: Any) -> None:
        work = f"basename $PWD >> {self.asked}; {command}"
        usage = {"input_tokens": 100, "output_tokens": 10, "cost": cost}
        visit = {"run": [["sh", "-c", work]], "output": {"status": "done"}, "usage": usage, **visit}
        (self.folder / f"{name}.json").write_text(json.dumps({"roles": {"developer": [visit]}}))

    def write(self) -> None:
        (self.folder / "suite.yaml").write_text(json.dumps(self.suite, indent=1))
        (self.folder / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in self.tasks))

    def run(self, *words: str, check: int = 0) -> subprocess.CompletedProcess[str]:
        self.write()
        return self.rolecall("eval", "run", "suite.yaml", *words, cwd=self.folder, check=check)

    def spawn(self, *words: str) -> commands.PipedChild:
        self.write()
        env = {**os.environ, "ROLECALL_HOME": str(self.rolecall.home)}
        words = (str(SCRIPTS / "rolecall"), "eval", "run", "suite.yaml", *words)
        return commands.PipedChild(words, env=env, cwd=self.folder)

    def show(self) -> Any:
        return self.rolecall.json("eval", "show")

    def outcomes(self) -> dict[str, list[str]]:
        """The outcomes of each variant and task."""
        found: dict[str, list[str]] = {}
        for cell in self.show()["cells"]:
            found.setdefault(f"{cell['variant']} {cell['task']}", []).append(cell["outcome"])
        return found

    def done(self) -> list[str]:
        """The cells that have a result."""
        shown = self.rolecall("eval", "show", "--json")
        cells = json.loads(shown.stdout)["cells"] if shown.returncode == 0 else []
        return [str(cell["number"]) for cell in cells if cell["outcome"]]

    def numbers(self) -> list[str]:
        """The cells whose agent was asked."""
        return self.asked.read_text().split()


@pytest.fixture
def project(rolecall: conftest.Rolecall, tmp_path: Path) -> Project:
    return Project(rolecall, tmp_path)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_variants_are_run_judged_and_compared_in_a_table(project: Project) -> None:
    shown = project.run().stdout
    assert "suite: 2 variants × 2 tasks × 2 repeats = 8 threads\n" in shown
    assert project.outcomes() == {
        "good add": ["passed"] * 2,
        "good sub": ["passed"] * 2,
        "bad add": ["passed"] * 2,
        "bad sub": ["failed"] * 2,
    }
    assert "done: 6 passed, 2 failed" in shown
    assert max(map(len, shown.splitlines())) <= 80
    *_, good, bad, _, headings, good_used, bad_used = shown.splitlines()
    assert good.split()[:2] == ["good", "100"] and bad.split()[:2] == ["bad", "50"]
    assert headings.split()[1:4] == ["cost/run", "tokens/run", "min/run"]
    assert good_used.split()[1:3] == ["$0.02", "110"] and bad_used.split()[4:6] == ["$0.02", "220"]
    report = project.show()
    assert report["status"] == "done" and report["paid"]["cost"] == pytest.approx(0.12)
    failed = next(cell for cell in report["cells"] if cell["outcome"] == "failed")
    tests, shape = failed["verdicts"]
    assert (tests["score"], tests["details"], shape["outcome"]) == (0.25, {"got": 6}, "passed")
    assert failed["agents"][0]["role"] == "developer" and failed["agents"][0]["version"]
    assert len(project.rolecall.json("thread", "list", "--all")) == 8


def test_unchanged_work_is_reused_and_repeats_are_really_asked(project: Project) -> None:
    project.run()
    assert sorted(map(int, project.numbers())) == list(range(1, 9))
    project.script("bad", f"sed -i '{FIX_SUB}' calc.py")
    project.run()
    assert len(project.numbers()) == 12  # only the changed variant is asked again
    good = project.show()["variants"][0]
    assert good["used"]["cost"] == pytest.approx(0.08)  # what it costs, although nothing was paid this time
    project.run("--fresh")
    assert len(project.numbers()) == 20


def test_a_run_that_was_killed_goes_on_without_asking_again(project: Project) -> None:
    gate = project.folder / "gate"
    project.script("bad", f"while [ ! -e {gate} ]; do sleep 0.05; done; sed -i '{FIX_ADD}' calc.py")
    project.suite["variants"]["good"]["agents"] = {"developer": "scripted:good.json"}
    with project.spawn("--at-once", "6") as child:
        wait_until(lambda: len(project.numbers()) >= 6 and len(project.done()) >= 2)
        child.send_signal(signal.SIGKILL)
        child.wait()
    before, asked = project.done(), project.numbers()
    gate.touch()
    again = project.run()
    assert "continues" in again.stdout and len(project.rolecall.json("eval", "list")) == 1
    assert {one: project.numbers().count(one) for one in before} == {one: asked.count(one) for one in before}
    assert project.outcomes()["bad sub"] == ["failed"] * 2 and project.show()["status"] == "done"


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL, None])
def test_what_was_cut_short_begins_again_with_the_files_of_the_task(
    project: Project, stop: signal.Signals | None
) -> None:
    """Half of a change must not be measured: an agent without a session finds what the first attempt found."""
    project.suite |= {"repeat": 1, "variants": {"good": project.suite["variants"]["good"]}}
    project.tasks = project.tasks[:1]
    gate = project.folder / "gate"
    last = "exit 3" if stop is None else "sleep 600"
    half = f"test -e {gate} && exit; sed -i 's/a - b/a/' calc.py; touch {gate}; {last}"
    project.script("good", f"({half}) && sed -i '{FIX_ADD}' calc.py")
    if stop is None:
        project.run(check=6)
    else:
        with project.spawn() as child:
            wait_until(gate.exists)
            child.send_signal(stop)
            child.wait()
    project.run()
    assert project.outcomes() == {"good add": ["passed"]} and len(project.numbers()) == 2


def test_ctrl_c_ends_a_run_that_a_later_one_continues(project: Project) -> None:
    project.script("bad", "", hang=True)
    with project.spawn("--at-once", "8") as child:
        wait_until(lambda: len(project.numbers()) == 8 and len(project.done()) == 4)
        assert f"is being run by process {child.pid} on " in project.run(check=5).stderr
        child.send_signal(signal.SIGINT)
        assert child.wait() == 130
        assert b"continue: rolecall eval run suite.yaml" in child.stderr.read()
    assert project.show()["counts"] == {"passed": 4, "failed": 0, "infrastructure": 0, "open": 4}
    again = project.spawn()
    with again:
        wait_until(lambda: len(project.numbers()) == 12)
        again.send_signal(signal.SIGTERM)
        assert again.wait() == 130
    assert len(project.rolecall.json("eval", "list")) == 1


BAD: dict[str, tuple[Callable[[Project], object], list[str]]] = {
    "a file that is missing": (
        lambda project: project.suite.update(tasks="other.jsonl"),
        ["suite.yaml:15:11: error: tasks: there is no file 'other.jsonl'"],
    ),
    "files of a task that are missing": (
        lambda project: project.tasks[1].update(files="tasks/nothing"),
        ["tasks.jsonl:2:53: error: files: there is no folder 'tasks/nothing'"],
    ),
    "ids that are not unique": (
        lambda project: project.tasks[1].update(id="add"),
        ["tasks.jsonl:2:1: error: the id 'add' is also that of line 1"],
    ),
    "no tasks": (lambda project: project.tasks.clear(), ["tasks.jsonl:1:1: error: there are no tasks"]),
    "a role that the workflow does not have": (
        lambda project: project.suite["variants"]["bad"].update(agents={"devloper": "scripted:bad.json"}),
        ["suite.yaml:11:5: error: bad: fix-it has no role 'devloper'. Did you mean 'developer'?"],
    ),
    "an agent that does not exist": (
        lambda project: project.suite["variants"]["bad"].update(agent="nobody", agents={}),
        ["error: bad: nobody can play developer: there is no agent 'nobody'"],
    ),
    "a workflow that does not exist": (
        lambda project: project.suite.update(workflow="fix-thta"),
        ["suite.yaml:2:14: error: workflow: there is no workflow 'fix-thta'"],
    ),
    "a judge whose files agents would see": (
        lambda project: project.suite["judges"]["tests"].update(files="tasks/add"),
        ["error: the agents would see the files of tests, because the task 'add' has them"],
    ),
    "a judge that cannot start": (
        lambda project: project.suite["judges"]["tests"].update(command=["pyhton"]),
        ["error: judges.tests: the program 'pyhton' was not found"],
    ),
    "a rubric that is the name of a file": (
        lambda project: (
            (project.folder / "rubric.md").write_text("Is it short?"),
            project.suite["judges"].update(review={"agent": "scripted:bad.json", "rubric": "rubric.md"}),
        ),
        [
            "error: judges.review: the rubric 'rubric.md' is the name of a file. Write `rubric: !include rubric.md`"
        ],
    ),
    "an expression that is none": (
        lambda project: project.suite["judges"]["shape"].update(expression="outptu.status"),
        [
            "error: judges.shape: the expression cannot be used: 'outptu' is not known here, did you mean output?"
        ],
    ),
    "a setup that fails": (
        lambda project: project.tasks[0].update(setup="echo no compiler >&2; exit 3"),
        [
            "nothing was run:",
            "the setup of the task 'add' failed: 'sh' exited with status 3: no compiler. It was: echo no compiler ",
        ],
    ),
    "a judge that writes": (
        lambda project: (project.folder / "hidden" / "test.py").write_text("open('/var/tmp/judged', 'w')"),
        ["nothing was run:", "the judge 'tests' writes outside its folder: ", "'/var/tmp/judged'"],
    ),
    "files that are not recorded": (
        lambda project: project.rolecall("config", "set", "trees.keep", "false", check=0),
        ["files are not recorded, so nothing could be judged", "rolecall config set trees.keep true"],
    ),
    "several problems at once": (
        lambda project: (
            project.suite.update(repeat=0, judge={}),
            project.tasks[0].update(tag="x"),
            project.suite["judges"].update(empty={}),
        ),
        [
            "error: repeat must be a whole number from 1 to 1,000, not 0",
            "error: 'judge' is not a key of a suite. Did you mean 'judges'?",
            "tasks.jsonl:1:80: error: 'tag' is not a key of a task",
            "error: judges.empty has none of command, expression and agent",
        ],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_problems_are_reported_with_their_places_before_anything_runs(project: Project, name: str) -> None:
    spoil, expected = BAD[name]
    spoil(project)
    errors = project.run(check=2).stderr
    assert [text for text in expected if text not in errors] == [], errors
    assert project.numbers() == [] and project.rolecall.json("thread", "list", "--all") == []


def test_a_thread_of_an_evaluation_that_could_not_run_waits_for_no_person(project: Project) -> None:
    del project.suite["variants"]["bad"]
    project.suite |= {"repeat": 1, "tasks": [project.tasks[0]]}
    project.script("good", "true", fail={"ending": "failed", "reason": "no answer"})
    project.run(check=6)
    [stopped] = project.rolecall.json("thread", "list", "--all")
    assert stopped["status"] == "suspended"
    shown = project.rolecall("status", cwd=project.folder, check=0).stdout
    assert "waits for you" not in shown and "none at work" in shown and "thread resume" not in shown
    with Rolecall(str(project.rolecall.home / "store.db"), create=False) as rolecall:
        assert list(rolecall.waiting()) == []


def test_a_thread_of_an_evaluation_that_wants_an_answer_waits_for_a_person(project: Project) -> None:
    roles = {"developer": {**WORKFLOW["roles"]["developer"], "agent": "human"}}
    (project.folder / ".workflows" / "fix-it.yaml").write_text(json.dumps({**WORKFLOW, "roles": roles}))
    project.suite |= {"repeat": 1, "tasks": [project.tasks[0]], "variants": {"good": {}}}
    project.run(check=6)
    [asking] = project.rolecall.json("thread", "list", "--all")
    assert "waits for you" in project.rolecall("status", cwd=project.folder, check=0).stdout
    with Rolecall(str(project.rolecall.home / "store.db"), create=False) as rolecall:
        assert [entry["thread"] for entry in rolecall.waiting()] == [asking["thread"]]


def test_a_judge_that_breaks_is_infrastructure_and_asked_again_later(project: Project) -> None:
    del project.suite["variants"]["bad"]
    judge = project.folder / "hidden" / "test.py"
    breaks = {
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)": "ended by signal 11",
        "import time; time.sleep(600)": "took longer than 1 seconds",
        "import sys; sys.exit(75)": "it cannot tell",
        "import sys; sys.exit(126)": "it could not be started: ",
        "import os; open(os.environ['ROLECALL_REPORT'], 'w').write('?')": "its report cannot be used",
    }
    project.suite |= {"repeat": 1, "tasks": [project.tasks[0]]}
    project.suite["judges"]["tests"]["seconds"] = 1
    for code, reason in breaks.items():
        judge.write_text(code)
        shown = project.run(check=6)
        assert f"not judged, and not counted:\n  good · add 1: tests: {reason}" in shown.stdout.replace(
            "it was ", ""
        ).replace("it took", "took")
        assert project.show()["counts"] == {"passed": 0, "failed": 0, "infrastructure": 1, "open": 0}
        assert not re.search(r":$", shown.stdout.replace("counted:", ""), re.MULTILINE), (
            "a reason without words"
        )
    judge.write_text("import sys; sys.exit(-1)")  # the system calls it 255, and no signal has that number
    assert "✗ 1/1 good · add 1 · failed · reused · tests: exit code 255\n" in project.run().stdout
    assert len(project.numbers()) == 1  # the answer is reused, only the judge is asked again


def test_a_judge_sees_the_result_and_nothing_of_the_agents_surroundings(
    project: Project, tmp_path: Path
) -> None:
    """The result may contain code that an agent has written, and the judge runs it."""
    look = """\
import json, os, socket
found = {"env": sorted(os.environ), "files": sorted(os.listdir(".")), "hidden": sorted(os.listdir("hidden"))}
for what, look in {
    "home": lambda: os.listdir(os.environ["HOME"]),
    "store": lambda: open(STORE).read(1),
    "another's home": lambda: open("/root/.bashrc").read(1),
    "network": lambda: socket.create_connection(("127.0.0.1", PORT), 2),
    "outside": lambda: open(OUTSIDE, "w").write("changed"),
}.items():
    try:
        found[what] = str(look())
    except OSError as error:
        found[what] = type(error).__name__
with open(os.environ["ROLECALL_REPORT"], "w") as out:
    json.dump({"details": found}, out)
"""
    outside = tmp_path / "outside"
    outside.write_text("as it was")
    with held_port() as port:
        fields = {"STORE": str(project.rolecall.home / "store.db"), "PORT": port, "OUTSIDE": str(outside)}
        given = "".join(f"{name} = {value!r}\n" for name, value in fields.items())
        (project.folder / "hidden" / "test.py").write_text(given + look)
        project.script("good", "mkdir hidden; touch hidden/conftest.py; rm -rf calc.py")
        project.suite |= {"repeat": 1, "tasks": [project.tasks[0]]}
        project.suite["judges"]["tests"]["command"][0] = sys.executable
        del project.suite["variants"]["bad"]
        project.run()
    [cell] = project.show()["cells"]
    details = cell["verdicts"][0]["details"]
    assert details["env"] == [
        "HOME",
        "LANG",
        "PATH",
        "PWD",
        "ROLECALL_REPORT",
        "ROLECALL_RESULT",
        "ROLECALL_RUN",
        "TMPDIR",
    ]
    assert (details["files"], details["hidden"], details["home"]) == (["hidden"], ["test.py"], "[]")
    assert all(details[name].endswith("Error") for name in ("store", "another's home", "network"))
    assert outside.read_text() == "as it was"


def test_a_limit_suspends_the_run_and_a_higher_one_continues_it(project: Project) -> None:
    project.suite["limits"] = {"cost": 0.05}
    result = project.run("--at-once", "1", check=7)
    assert "the run has used 0.05 of its limit cost=0.05" in result.stdout
    assert project.show()["status"] == "suspended" and len(project.numbers()) == 3
    assert "--limit NAME=MORE" in result.stderr
    project.run("--limit", "cost=1")
    assert project.show()["status"] == "done" and len(project.numbers()) == 8


def test_check_proves_references_and_cheats_without_asking_anybody(project: Project) -> None:
    fix = f"if grep -q 'a - b' calc.py; then sed -i '{FIX_ADD}' calc.py; else sed -i '{FIX_SUB}' calc.py; fi"
    project.suite |= {
        "reference": {"command": fix},
        "cheat": {"command": "mkdir -p hidden; echo 'raise SystemExit(0)' > hidden/test.py"},
    }
    project.write()
    proofs = project.rolecall.json("eval", "check", "suite.yaml", cwd=project.folder)
    assert {(one["kind"], one["outcome"]) for one in proofs} == {
        ("reference", "passed"),
        ("cheat", "failed"),
        ("untouched", "failed"),
        *((trick, "failed") for trick in ("conftest.py", "pytest.ini", "pytest.py", "Makefile")),
        ("code that ends its process", "passed"),
    }
    # A judge that believes the result's own tests is fooled by it.
    project.suite["judges"]["tests"] = {"command": [*PYTHON, "hidden/test.py"]}
    project.write()
    output = project.rolecall("eval", "check", "suite.yaml", cwd=project.folder, check=1).stdout
    assert "✗ add · cheat · passed" in output and project.numbers() == []


def test_check_warns_of_judges_that_an_agent_can_fool(project: Project) -> None:
    hidden = project.folder / "hidden"
    (hidden / "test_calc.py").write_text("from calc import f\n\ndef test_f():\n    assert f(2, 3) == 5\n")
    (project.folder / "tasks/add/docs.py").mkdir()  # a folder is no code
    (project.folder / "tasks/add/docs.py/index.md").write_text("# calc\n")
    project.tasks = project.tasks[:1]
    naive = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "hidden/"]
    project.suite |= {
        "reference": {"command": f"sed -i '{FIX_ADD}' calc.py"},
        "judges": {"tests": {"command": naive, "files": "hidden/"}},
    }
    project.write()
    shown = project.rolecall("eval", "check", "suite.yaml", cwd=project.folder, check=0).stdout
    tricks = ("conftest.py", "pytest.ini", "pytest.py", "code that ends its process")
    assert [line for line in shown.splitlines() if line.startswith("⚠ add")] == [
        f"⚠ add · {trick} · passed" for trick in tricks
    ]
    assert "✓ add · reference · passed" in shown and "without doing the task" in shown

    (hidden / "pytest.ini").write_text("[pytest]\npythonpath = ..\n")
    guide = (Path(__file__).parents[2] / "docs/evals.md").read_text()
    [block] = [one for one in re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL) if "junitxml" in one]
    robust = yaml12.load(block, source="docs/evals.md")["judges"]["tests"]["command"]
    robust = robust.replace("python3", sys.executable)
    project.suite["judges"]["tests"]["command"] = robust
    project.write()
    shown = project.rolecall("eval", "check", "suite.yaml", cwd=project.folder, check=0).stdout
    assert "✓ add · reference · passed" in shown and "⚠" not in shown


def test_a_run_says_the_same_on_another_machine(project: Project, tmp_path: Path) -> None:
    project.run()
    here = project.show()
    project.rolecall("eval", "export", here["eval"], str(tmp_path / "run.tgz"), check=0)
    there = type(project.rolecall)(tmp_path / "elsewhere")
    there("cas", "import", str(tmp_path / "run.tgz"), check=0)
    assert there.json("eval", "show") == here
    thread = here["cells"][0]["thread"]
    there("thread", "checkout", thread, str(tmp_path / "out"), check=0)
    assert "a + b" in (tmp_path / "out" / "calc.py").read_text()
    there("cas", "verify", check=0)
    there("cas", "gc", "--delete", "--grace", "0", check=0)
    assert there.json("eval", "show") == here


def test_a_thread_becomes_a_task_that_stands_alone(project: Project) -> None:
    work = project.folder / "work"
    work.mkdir()
    (work / "calc.py").write_text("def f(a, b):\n    return a * b\n")
    flow = str(project.folder / ".workflows" / "fix-it.yaml")
    given = ("--cwd", str(work), "--agent", f"scripted:{project.folder / 'bad.json'}")
    project.rolecall("run", flow, "-p", "f must subtract", *given, check=0)
    ident = project.rolecall.json("thread", "list", "--all")[0]["thread"]
    project.tasks.pop()
    project.write()
    suite, shape = project.folder / "suite.yaml", project.suite["judges"]["shape"]["expression"]
    (project.folder / "shape.txt").write_text(shape)
    suite.write_text(suite.read_text().replace(json.dumps(shape), "!include shape.txt"))
    result = project.rolecall(
        "eval", "promote", ident, "--suite", "suite.yaml", "--id", "sub", cwd=project.folder
    )
    assert result.stdout == "sub is a task in tasks.jsonl; its files are in sub\n"
    project.tasks.append(json.loads((project.folder / "tasks.jsonl").read_text().splitlines()[-1]))
    assert project.tasks[-1] == {"id": "sub", "prompt": "f must subtract", "files": "sub"}
    project.run()
    assert project.outcomes()["good sub"] == ["passed"] * 2


def test_an_agent_judges_by_majority_and_says_how_often_it_is_right(project: Project) -> None:
    """The agent is a program that passes answers with the word `splendid`."""
    judge = project.folder / "judge.sh"
    judge.write_text(
        """\
#!/bin/sh
text=$(cat)
echo . >> ASKED
case "$text" in *splendid*) verdict=pass score=0.9;; *) verdict=fail score=0.2;; esac
printf -- '---\\nverdict: %s\\nscore: %s\\nreason: because\\n---\\n' $verdict $score
""".replace("ASKED", str(project.asked))
    )
    judge.chmod(0o755)
    examples = [
        {"prompt": "Say something splendid", "answer": "x", "verdict": "pass"},
        {"prompt": "Say it", "answer": "this is splendid", "verdict": "pass"},
        {"prompt": "Say it", "answer": "splendid, but wrong", "verdict": "fail"},
        {"prompt": "Say it", "answer": "no", "verdict": "fail"},
    ]
    lines = "".join(f"{json.dumps(example)}\n" for example in examples)
    (project.folder / "known.jsonl").write_text(lines)
    project.suite["judges"] = {
        "review": {
            "agent": f"command:{judge}",
            "rubric": "Is it what was asked for?",
            "votes": 3,
            "calibrate": "known.jsonl",
        }
    }
    project.suite["repeat"] = 1
    project.script("good", "true", body="A splendid one.")
    project.script("bad", "true", body="A poor one.")
    shown = project.run().stdout
    assert "review agrees with 3 of 4 known verdicts (75 %, 95 %: 30–95 %); not on 3" in shown
    assert project.outcomes() == {
        "good add": ["passed"],
        "good sub": ["passed"],
        "bad add": ["failed"],
        "bad sub": ["failed"],
    }
    [verdict] = project.show()["cells"][0]["verdicts"]
    assert verdict["details"] == {"votes": 3, "passed": 3, "scores": [0.9] * 3} and verdict["score"] == 0.9
    asked = len(project.numbers())
    assert asked == 4 + 3 * (4 + 4)  # the developers, then each vote on answers and examples
    project.run()
    assert len(project.numbers()) == asked  # all of it is reused

    (project.folder / "known.jsonl").write_text('{"prompt": "x", "verdict": "good"}\n')
    errors = project.run(check=2).stderr
    assert "known.jsonl:1:28: error: verdict must be one of pass, fail, not 'good'" in errors


def test_a_task_begins_with_a_commit_and_nothing_that_came_later(project: Project, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    git(source, "init", "-q")
    (source / "calc.py").write_text("def f(a, b):\n    return a - b\n")
    git(source, "add", ".")
    git(source, "commit", "-qm", "wrong")
    commit = git(source, "rev-parse", "HEAD").strip()
    (source / "calc.py").write_text("def f(a, b):\n    return a + b\n")
    git(source, "commit", "-qam", "the solution")
    project.tasks = [{"id": "add", "prompt": "f", "files": {"repository": "source", "commit": commit[:12]}}]
    seen = tmp_path / "seen"
    project.script(
        "good", f"git log --all --format=%s >> {seen}; git remote >> {seen}; sed -i '{FIX_ADD}' calc.py"
    )
    project.script("bad", f"git cat-file -t $(cat {tmp_path / 'later'}) >> {seen} 2>&1 || true")
    (tmp_path / "later").write_text(git(source, "rev-parse", "HEAD"))
    project.run("--at-once", "1")
    assert project.outcomes() == {"good add": ["passed"] * 2, "bad add": ["failed"] * 2}
    assert [
        line for line in seen.read_text().splitlines() if "wrong" not in line and "could not" not in line
    ] == []
    project.tasks[0]["files"]["commit"] = "abcdef123456"
    errors = project.run(check=2).stderr
    assert "the task 'add': " in errors and "has no commit abcdef123456" in errors


def test_the_repository_of_a_task_has_only_its_own_files(project: Project, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    look = f"git cat-file --batch-all-objects --batch | tr -d '\\0' >> {seen}"
    project.script("good", f"{look}; sed -i '{FIX_ADD}; {FIX_SUB}' calc.py", cost=0.02)
    project.run("--only", "add", "--at-once", "1")
    assert project.outcomes() == {"good add": ["passed"] * 2, "bad add": ["passed"] * 2}
    assert "return a - b" in seen.read_text(errors="replace")
    assert "ROLECALL_REPORT" not in seen.read_text(errors="replace"), "the judge's files"
    assert "return a * b" not in seen.read_text(errors="replace"), "the files of another task"


def test_an_agent_in_a_sandbox_does_not_see_the_files_of_judges(
    rolecall: conftest.Rolecall, disk_path: Path
) -> None:
    project = Project(rolecall, disk_path)
    flow = json.loads(json.dumps(WORKFLOW))
    flow["roles"]["developer"]["sandbox"] = {}
    (project.folder / ".workflows/fix-it.yaml").write_text(json.dumps(flow))
    look = f"cat {project.folder}/hidden/test.py > stolen; cat {project.folder}/suite.yaml > seen"
    project.script("good", f"{look}; sed -i '{FIX_ADD}; {FIX_SUB}' calc.py")
    project.suite["judges"]["tests"]["command"] = ["sh", "-c", "[ -s seen ] && [ ! -s stolen ]"]
    project.run("--only", "add", "--at-once", "1")
    assert project.outcomes()["good add"] == ["passed"] * 2


def test_recorded_threads_are_tasks_with_the_files_that_they_began_with(project: Project) -> None:
    work = project.folder / "work"
    work.mkdir()
    (work / "calc.py").write_text("def f(a, b):\n    return a * b\n")
    flow = str(project.folder / ".workflows" / "fix-it.yaml")
    given = ("--cwd", str(work), "--agent", f"scripted:{project.folder / 'bad.json'}")
    project.rolecall("run", flow, "-p", "f must subtract", *given, check=0)
    [thread] = project.rolecall.json("thread", "list", "--all")
    del project.suite["tasks"]
    project.suite["threads"] = {"workflow": "fix-it", "since": "1d"}
    project.run()
    assert project.outcomes()[f"good {thread['thread']}"] == ["passed"] * 2
    begun = ("thread", "checkout", thread["thread"], str(project.folder / "begun"), "--at", "start")
    found = project.rolecall.json(*begun)["tree"]
    del project.suite["threads"]
    project.suite["tasks"] = [{"id": "sub", "prompt": "f must subtract", "files": {"tree": found}}]
    project.run()
    assert project.outcomes()["good sub"] == ["passed"] * 2


def test_versions_of_a_workflow_are_compared(project: Project) -> None:
    flow = project.folder / ".workflows" / "fix-it.yaml"
    flow.write_text(json.dumps({**WORKFLOW, "version": "1.2"}))
    project.rolecall("workflow", "put", str(flow), check=0)
    changed = {
        **WORKFLOW,
        "roles": {"developer": {**WORKFLOW["roles"]["developer"], "prompt": "Fix it well."}},
    }
    flow.write_text(json.dumps(changed))
    project.suite |= {"workflow": ["fix-it", "fix-it@PREVIOUS"], "repeat": 1}
    project.suite["variants"] = {"good": {"agent": "scripted:good.json"}}
    project.run()
    assert list(project.outcomes()) == [
        *("good/fix-it add", "good/fix-it@PREVIOUS add"),
        *("good/fix-it sub", "good/fix-it@PREVIOUS sub"),
    ]
    variants = project.show()["variants"]
    assert variants[0]["workflow"] != variants[1]["workflow"] and len(project.numbers()) == 4
    project.suite["workflow"] = "fix-it@1.2"
    project.run()
    assert project.show()["variants"][0]["workflow"] == variants[1]["workflow"]
    project.suite["workflow"] = "fix-it@NONE"
    assert (
        "the workflow 'fix-it' has no version 'NONE' (newest versions: fix-it@1.2)"
        in project.run(check=2).stderr
    )


def test_a_run_is_written_as_a_page(project: Project) -> None:
    project.run()
    thread = project.show()["cells"][0]["thread"]
    file = project.folder / "run.html"
    words = ("eval", "show", "--as", "html")
    result = project.rolecall(*words, "-o", "run.html", cwd=project.folder, check=0)
    page = file.read_text()
    assert result.stdout == f"run.html: {file.stat().st_size:,} bytes\n"
    assert page.startswith("<!DOCTYPE html>") and thread in page and "Differences from good" in page
    assert project.rolecall(*words, check=0).stdout == page
    assert project.rolecall.json(*words, "--base", "bad")["html"].count("Differences from bad") == 1
    assert "no variant 'none'" in project.rolecall(*words, "--base", "none", check=2).stderr
    assert "Add --as html." in project.rolecall("eval", "show", "-o", "x.html", check=2).stderr
    assert "cannot be written" in project.rolecall(*words, "-o", "no/such/x.html", check=2).stderr


def test_votes_of_judges_count_towards_the_limits_and_stop_with_the_run(project: Project) -> None:
    reply = {"verdict": "pass", "score": 1, "reason": "fine"}
    visit = {"output": reply, "usage": {"input_tokens": 1, "output_tokens": 1, "cost": 0.5}}
    (project.folder / "judge.json").write_text(json.dumps({"roles": {"judge": [visit]}}))
    lines = [{"prompt": f"Task {number}", "answer": "x", "verdict": "pass"} for number in range(4)]
    (project.folder / "known.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    judge = {"agent": "scripted:judge.json", "rubric": "Is it fine?", "calibrate": "known.jsonl"}
    project.suite |= {"judges": {"review": judge}, "limits": {"cost": 1}}
    output = project.run("--at-once", "1", check=7).stdout
    assert "the run has used 1 of its limit cost=1" in output and project.numbers() == []
    project.run("--limit", "cost=20", "--at-once", "1")
    report = project.show()
    assert report["status"] == "done" and report["calibrations"][0]["total"] == 4
    # Both variants leave the same files for `add`, so the judge is asked about them once for each repeat.
    assert report["paid"]["cost"] == pytest.approx(0.5 * (4 + 6) + 0.12)


def test_votes_count_once_if_a_result_is_judged_again(rolecall: conftest.Rolecall, disk_path: Path) -> None:
    project = Project(rolecall, disk_path)
    reply = {"verdict": "pass", "score": 1, "reason": "fine"}
    visit = {"output": reply, "usage": {"input_tokens": 1, "output_tokens": 1, "cost": 0.5}}
    (project.folder / "judge.json").write_text(json.dumps({"roles": {"judge": [visit]}}))
    ready = project.folder / "ready"
    judges = {
        "review": {"agent": "scripted:judge.json", "rubric": "Is it fine?"},
        "tests": {"command": ["sh", "-c", f"test -e {ready} || exit 75"]},
    }
    project.suite |= {"judges": judges, "limits": {"cost": 1.5}, "repeat": 1}
    del project.suite["variants"]["bad"]
    project.run("--at-once", "1", check=6)
    ready.touch()
    project.run("--at-once", "1")
    assert project.show()["paid"]["cost"] == pytest.approx(0.5 * 2 + 0.02 * 2)

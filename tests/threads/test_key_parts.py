"""The keys of real steps: in another thread, folder or order they are the same; other files, words or agents change
them."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fakeagent import executable
from stage import LOOP, answer, book, engine, open_store, run, says, start, state, steps

from rolecall.agents import resolve
from rolecall.agents.identity import identify, identify_code
from rolecall.agents.protocol import Context, Reply
from rolecall.errors import AgentError, ExtractError
from rolecall.files.tree import Trees
from rolecall.settings.mask import Mask
from rolecall.store.files import FilesBackend
from rolecall.store.store import Store
from rolecall.threads import lifecycle, thread
from rolecall.threads.key import Parts, differences, key_name, key_of
from rolecall.threads.key_parts import find_step
from rolecall.threads.state import read_threads
from rolecall.threads.thread import Chain, Step
from rolecall.threads.why import explain

GROUP = """
name: fan-out
description: Reviews each file
roles:
  lister:
    goal: List the issues.
    schema:
      type: object
      properties:
        $status: {enum: [listed]}
        issues: {type: array, items: {type: object, properties: {number: {type: integer}}}}
      required: [$status, issues]
  reviewer:
    each: steps[-1].output.issues.number
    workdir: shared
    goal: Review issue {{item}}.
    schema: {type: object, properties: {$status: {enum: [fine]}}, required: [$status]}
graph:
  $START: lister
  lister: {listed: reviewer}
  reviewer: {done: $END, partly: $END, failed: {role: $FAIL, prompt: nobody}}
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


def play(
    store: Store, place: Path, agent: Any, text: str = LOOP, *, task: str = "Do it", files: Any = ("a",)
) -> list[Step]:
    """The steps of a thread in a new folder with these files."""
    place.mkdir()
    for name in files:
        (place / name).write_text("x")
    name = start(store, book(text), place, task)
    run(engine(store, agent, trees=Trees(str(place.parent / "trees"))), name)
    return steps(store, name)


def ended(*more: str) -> Any:
    return says(*more, answer("done", body="Worked."), answer("end"))


def keys(found: list[Step]) -> list[str]:
    return [key_of(step.parts) for step in found if step.parts]


def test_another_thread_in_another_folder_has_the_same_keys(store: Store, tmp_path: Path) -> None:
    first, second = (play(store, tmp_path / name, ended()) for name in ("one", "two"))
    assert keys(first) == keys(second) and len(set(keys(first))) == 2
    known = find_step(store, keys(first)[0])
    assert known is not None and known.step.id == second[0].id
    assert thread.find(store, known.thread).head == second[1].id
    assert find_step(store, "f" * 32) is None


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"files": ("a", "b")}, "tree"),
        ({"task": "Do more"}, "task"),
        ({"text": LOOP.replace("goal: Work.", "goal: Work hard.")}, "role"),
        ({"text": LOOP.replace("$START: worker", "$START: {role: worker, prompt: Begin.}")}, "instruction"),
    ],
)
def test_the_part_that_differs_is_named(store: Store, tmp_path: Path, change: Any, part: str) -> None:
    before = play(store, tmp_path / "one", ended())[0].parts
    after = play(store, tmp_path / "two", ended(), **change)[0].parts
    assert before and after and differences(before, after) == [part]


def test_a_later_role_depends_on_what_an_earlier_one_said(store: Store, tmp_path: Path) -> None:
    first = play(store, tmp_path / "one", ended())
    second = play(store, tmp_path / "two", says(answer("done", body="Worked hard."), answer("end")))
    assert first[0].parts == second[0].parts
    assert first[1].parts and second[1].parts
    assert differences(first[1].parts, second[1].parts) == ["history"]


def test_a_corrected_answer_belongs_to_the_files_that_the_first_question_found(
    store: Store, tmp_path: Path
) -> None:
    class Worker:
        can_resume = True

        async def __call__(self, _prompt: str, context: Any) -> Any:
            if context.role == "checker":
                return answer("end")
            (context.workdir / "a").write_text("changed")
            return Reply(answer("done") if context.attempt else "$status: nothing of the kind", session="s")

    plain = play(store, tmp_path / "one", ended())[0]
    corrected = play(store, tmp_path / "two", Worker())[0]
    assert corrected.tree and [change.path for change in corrected.tree.changed] == ["a"]
    assert corrected.parts and plain.parts and corrected.parts.tree == plain.parts.tree
    assert corrected.parts.tree == corrected.tree.found.tree


def test_a_role_without_a_key_has_its_second_turn_in_a_folder_store(tmp_path: Path) -> None:
    with Store(FilesBackend(str(tmp_path / "store"))) as store:
        name = start(store, book(LOOP), tmp_path)
        run(engine(store, says(answer("done"), answer("again", "more"), answer("done"), answer("end"))), name)
        assert [step.role for step in steps(store, name)] == ["worker", "checker"] * 2
        assert state(store, name)["status"] == "completed"


def test_steps_by_people_suspensions_and_unrecorded_files_are_not_found_by_key(
    store: Store, tmp_path: Path
) -> None:
    asks = "---\n$status: $SUSPEND\nreason: which one?\n---\n"
    (step,) = play(store, tmp_path / "one", says(asks))
    assert step.parts and store.ref(key_name(key_of(step.parts))) is None
    name = start(store, book(LOOP), tmp_path / "two")
    run(engine(store, ended()), name)
    assert [step.parts and key_of(step.parts) for step in steps(store, name)] == ["", ""]
    assert store.refs("key/") == []


def fan_out(store: Store, place: Path, issues: list[dict[str, Any]]) -> dict[int, str]:
    """The keys of the members of a group, by their numbers."""

    async def agent(prompt: str, context: Any) -> str:
        if context.role == "lister":
            return f"---\n$status: listed\nissues: {issues}\n---\nListed.\n"
        assert "title" not in prompt
        return answer("fine")

    group = play(store, place, agent, GROUP)[-1].payload["group"]
    found = {}
    for ref in read_threads(store):
        member, last = Chain(store, ref.head).start.member, Chain(store, ref.head).last
        if member and member.group.id == group and last and last.parts:
            found[member.number] = key_of(last.parts)
    assert len(found) == len(issues)
    return found


def test_a_member_has_the_same_key_whatever_its_siblings_are(store: Store, tmp_path: Path) -> None:
    issues = [{"number": 7, "title": "a"}, {"number": 8, "title": "b"}]
    one = fan_out(store, tmp_path / "one", issues)
    two = fan_out(store, tmp_path / "two", [{"number": 9, "title": "c"}, *reversed(issues)])
    assert (two[3], two[2]) == (one[1], one[2]) and two[1] not in one.values()
    # Equal items are repetitions.
    three = fan_out(store, tmp_path / "three", [issues[0], issues[1], issues[0]])
    assert (three[1], three[2]) == (one[1], one[2]) and three[3] not in one.values()


def test_the_same_question_again_in_a_thread_is_a_repetition(store: Store, tmp_path: Path) -> None:
    # Reports so long that a prompt shows only the newest step.
    loud = "x" * 9_000
    said = [answer("done", body=loud), answer("again", "n", body=loud)] * 3
    found = play(store, tmp_path / "one", says(*said, answer("done", body=loud), answer("end")))
    assert len(set(keys(found))) == len(found) == 8
    assert [step.parts.repetition for step in found if step.parts] == [0, 0, 0, 1, 1, 2, 2, 3]


def test_an_identity_depends_on_options_and_content_and_not_on_paths(tmp_path: Path) -> None:
    def identity(spec: str, options: Any = None, folder: Path = tmp_path) -> Any:
        env = {"PATH": "/usr/bin:/bin"}
        agent = resolve(spec, options)
        return asyncio.run(
            identify(agent, env=env, folder=folder, mask=Mask(["s3cret-key"]), cache=str(tmp_path / "cache"))
        )

    scripts = [executable(tmp_path / name / "agent.sh", "echo hi") for name in ("one", "two")]
    one, two = (identity(f"command:{script} --fast") for script in scripts)
    assert one == two and one.agent == "command agent.sh --fast"
    assert identity("command:./agent.sh --fast", folder=scripts[0].parent) == one
    scripts[1].write_text("#!/bin/sh\necho hello\n")
    assert identity(f"command:{scripts[1]} --fast").version != one.version
    assert identity(f"command:{scripts[0]} --slow").agent != one.agent
    assert identity("command:cat", {"timeout": 5}) == identity("command:cat")
    envs = [identity("command:cat", {"env": {"K": value}}) for value in ("1", "2", "s3cret-key")]
    assert len({each.agent for each in envs}) == 3 and not any("s3cret" in each.agent for each in envs)


def test_variables_that_choose_the_model_belong_to_an_agent(tmp_path: Path) -> None:
    def identity(**env: str) -> str:
        agent = resolve("command:cat")
        env = {"PATH": "/usr/bin:/bin", **env}
        return asyncio.run(identify(agent, env=env, folder=tmp_path, mask=Mask([]))).agent

    received = [
        identity(**env) for env in ({}, {"ANTHROPIC_MODEL": "opus"}, {"OPENAI_BASE_URL": "http://a.b"})
    ]
    assert len({*received}) == 3 and identity(EDITOR="vi") == received[0]
    assert not any("opus" in each or "http" in each for each in received)


def test_code_counts_by_its_name_its_file_and_its_fields() -> None:
    @dataclass
    class Model:
        name: str
        path: str = ""

        async def __call__(self, _prompt: str, _context: Any) -> str:
            return self.name

    def identity(agent: Any) -> Any:
        return asyncio.run(identify(agent, env={}, folder=Path("/"), mask=Mask([])))

    assert identity(Model("a")) == identity(Model("a")) != identity(Model("b"))
    assert identity(Model("a")) != identity(Model("a", "b"))
    assert identity(Model("a")).version
    typed: dict[str, Any] = {}
    exec("async def one(p, c): return '1'\nasync def two(p, c): return '2'", typed)
    versions = [identity(typed[name]).version for name in ("one", "two", "one")]
    assert versions[0] == versions[2] != versions[1]
    fast, slow = (partial(typed["one"], speed) for speed in (1, 2))
    assert identity(fast) == identity(partial(typed["one"], 1)) != identity(slow)


class Plain:
    """An agent whose class is not a dataclass."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.asked = 0

    async def __call__(self, _prompt: str, _context: Any) -> str:
        self.asked += 1
        return ""


def test_an_object_counts_by_its_classes_and_the_plain_values_it_begins_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, client = Plain("a"), Plain("a"), Plain(object())
    assert identify_code(first) == identify_code(second) != identify_code(Plain("b"))
    asyncio.run(first("", None))
    assert identify_code(first) == identify_code(second)
    assert identify_code(second.__call__).agent != identify_code(Plain("b").__call__).agent
    assert identify_code(client).version == ""  # whether two of them are the same is not known

    found = []
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, number in (("derived_1", 1), ("derived_2", 2)):
        text = f"from {__name__} import Plain\nclass Derived(Plain): n = {number}\n"
        (tmp_path / f"{name}.py").write_text(text)
        found.append(identify_code(import_module(name).Derived("a")))
    assert found[0] != found[1]


def test_a_coding_agent_is_asked_for_its_version_once(tmp_path: Path) -> None:
    log, env = tmp_path / "log", {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    script = f'echo "$@" >> {log}; echo "%s (Claude Code)"'
    program = executable(tmp_path / "claude", script % "2.1.3")

    def ask() -> Any:
        agent = resolve("claude:opus")
        return asyncio.run(
            identify(agent, env=env, folder=tmp_path, mask=Mask([]), cache=str(tmp_path / "c"))
        )

    assert [ask(), ask()] == [("claude:opus", "2.1.3")] * 2
    assert log.read_text() == "--version\n"
    executable(program, script % "2.1.40")
    assert ask().version == "2.1.40"


def test_programs_behind_one_launcher_have_versions_of_their_own(tmp_path: Path) -> None:
    launcher = executable(
        tmp_path / "launcher",
        f'test -e {tmp_path}/broken && exit 1; echo "$(basename $0)-$(cat {tmp_path}/v)"',
    )
    for name in ("claude", "codex"):
        (tmp_path / name).symlink_to(launcher)

    def ask(name: str) -> str:
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        found = identify(resolve(name), env=env, folder=tmp_path, mask=Mask([]), cache=str(tmp_path / "c"))
        return asyncio.run(found).version

    (tmp_path / "v").write_text("word")
    (tmp_path / "broken").touch()
    assert ask("claude") == "" and key_of(Parts("r", {}, "claude", "", tree="ab")) == ""
    (tmp_path / "broken").unlink()
    assert (ask("claude"), ask("codex")) == ("claude-word", "codex-word")


def test_a_subfolder_is_part_of_the_files_that_a_role_finds(store: Store, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path / "repo")], check=True)
    found = []
    for below in ("repo/a", "repo/b"):
        os.makedirs(tmp_path / below)
    for below in ("repo/a", "repo/b"):
        name = start(store, book(LOOP), tmp_path / below)
        run(engine(store, ended(), trees=Trees(str(tmp_path / "trees"))), name)
        found.append(steps(store, name)[0].parts)
    assert found[0] and found[1] and differences(found[0], found[1]) == ["tree"]


def test_a_step_that_finds_uncommitted_files_in_a_nested_repository_has_no_key(
    store: Store, tmp_path: Path
) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", "init", "-q", str(tmp_path / "work")], check=True)
    subprocess.run(["git", "init", "-q", str(tmp_path / "work/lib")], check=True)
    subprocess.run(
        ["git", *who, "commit", "-qm", "a", "--allow-empty"], check=True, cwd=tmp_path / "work/lib"
    )

    async def work(_prompt: str, context: Any) -> str:
        (tmp_path / "work/lib/code.py").write_text("x")
        return answer("done" if context.role == "worker" else "end")

    name, trees = start(store, book(LOOP), tmp_path / "work"), Trees(str(tmp_path / "trees"))
    run(engine(store, work, trees=trees), name)
    first, second = steps(store, name)
    assert first.parts and second.parts and key_of(first.parts)
    assert (second.parts.tree, key_of(second.parts)) == ("", "")
    message = "the nested repository lib has files that are not committed"
    assert explain(store, trees, thread.find(store, name))["text"] == f"it has no key: {message}"


PERSISTENT = LOOP.replace("goal: Work.", "goal: Work.\n    resume: persistent")


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_turn_of_a_session_has_the_same_key_whether_the_session_could_be_continued(
    store: Store, tmp_path: Path, is_lost: bool
) -> None:
    class Worker:
        can_resume = True

        forgets = False

        def __init__(self) -> None:
            self.said = [answer("done"), answer("again", "n"), answer("done"), answer("end")]

        async def __call__(self, _prompt: str, context: Context) -> Reply:
            if self.forgets and context.session:
                raise AgentError("no such session", ending="failed", is_session_lost=True)
            return Reply(self.said.pop(0), session="s")

    one = play(store, tmp_path / "one", Worker(), PERSISTENT)
    Worker.forgets = is_lost
    two = play(store, tmp_path / "two", Worker(), PERSISTENT)
    assert two[2].payload["session_reason"].startswith("new: the agent" if is_lost else "resumed")
    assert keys(one) == keys(two) and one[2].parts and one[2].parts.session
    # The earlier turn counts, although the prompt of the second shows only what happened since.
    other = play(store, tmp_path / "three", Worker(), PERSISTENT, task="Do more")
    assert other[2].parts and differences(one[2].parts, other[2].parts) == ["task", "session"]


def test_a_turn_of_a_session_depends_on_what_the_turn_before_answered(store: Store, tmp_path: Path) -> None:
    class Worker:
        can_resume = True
        draft = ""

        async def __call__(self, _prompt: str, context: Context) -> Reply:
            turn = sum(step.role == "worker" for step in context.steps)
            if context.role == "checker":
                return Reply(answer("again" if turn == 1 else "end", "n"))
            return Reply(answer("done", body=self.draft if turn == 0 else "Final."), session="s")

    found = []
    for draft in ("One.", "Another."):
        Worker.draft = draft
        found.append(play(store, tmp_path / draft, Worker(), PERSISTENT)[2].parts)
    assert found[0] and found[1] and differences(found[0], found[1]) == ["session"]


@pytest.mark.parametrize("ending", ["limit", "refused"])
def test_an_answer_that_was_cut_short_is_not_found_by_its_key(
    store: Store, tmp_path: Path, ending: Any
) -> None:
    async def stop(_prompt: str, _context: Context) -> Reply:
        return Reply(answer("stop"), ending=ending)

    (step,) = play(store, tmp_path / "one", stop)
    assert step.parts and key_of(step.parts) and store.refs("key/") == []


def test_a_role_that_may_start_threads_is_not_found_by_its_key(store: Store, tmp_path: Path) -> None:
    text = LOOP.replace("goal: Work.", "goal: Work.\n    may_start_threads: true")
    found = play(store, tmp_path / "one", ended(), text)
    assert [store.ref(key_name(key)) is None for key in keys(found)] == [True, False]


def test_an_answer_that_arrived_before_a_crash_keeps_the_parts_of_its_question(
    store: Store, tmp_path: Path
) -> None:
    async def is_down(raw: str, _schema: Any, _overrides: Any) -> Any:
        raise ExtractError("no model can be reached", raw=raw, is_outage=True)

    async def read(_raw: str, _schema: Any, _overrides: Any) -> Any:
        return {"$status": "done"}, {}

    trees = Trees(str(tmp_path / "trees"))
    plain = play(store, tmp_path / "one", ended())[0]
    name = start(store, book(LOOP), tmp_path / "two")
    (tmp_path / "two" / "a").write_text("x")
    run(engine(store, says("nothing that can be read"), trees=trees, extract=is_down), name)
    (tmp_path / "two" / "later").write_text("y")
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    run(engine(store, says(), trees=trees, extract=read), name, steps=1)
    assert plain.parts and steps(store, name)[0].parts == plain.parts


def test_a_function_depends_on_the_files_that_its_workflow_imports(store: Store, tmp_path: Path) -> None:
    async def work(_context: Any) -> Any:
        return {"body": "", "output": {"$status": "done"}}

    found = []
    for place, helper in (("one", "x = 1"), ("two", "x = 1"), ("three", "x = 2")):
        (tmp_path / place / "code").mkdir(parents=True)
        (tmp_path / place / "code" / "flow.py").write_text("from .helper import x\n")
        (tmp_path / place / "code" / "helper.py").write_text(helper)
        where = f"{tmp_path / place / 'code' / 'flow.py'}:flow"
        plain = book(LOOP)
        flow = plain._replace(workflow=plain.workflow._replace(python=where), functions={"worker": work})
        name = start(store, plain, tmp_path / "work")
        run(engine(store, says(answer("end")), workflow=flow, trees=Trees(str(tmp_path / "trees"))), name)
        found.append(steps(store, name)[0].parts)
    one, two, three = found
    assert one and two and three
    assert (differences(one, two), differences(one, three)) == ([], ["version"])


def test_a_function_depends_on_every_earlier_step(store: Store, tmp_path: Path) -> None:
    async def work(context: Any) -> Any:
        return {"body": "x" * 9_000, "output": {"$status": "done", "note": str(len(context.steps))}}

    loud = "y" * 9_000  # a prompt shows only the newest step
    found = []
    for place, first in (("one", loud), ("two", loud), ("three", loud.upper())):
        (tmp_path / place).mkdir()
        flow = book(LOOP)._replace(functions={"worker": work})
        name = start(store, flow, tmp_path / place)
        checker = says(answer("again", "n", first), answer("again", "n", loud), answer("end"))
        run(engine(store, checker, workflow=flow, trees=Trees(str(tmp_path / "trees"))), name)
        found.append(steps(store, name))
    one, two, three = found
    assert keys(one) == keys(two) and len(set(keys(one))) == 6
    assert one[4].parts and three[4].parts and differences(one[4].parts, three[4].parts) == ["steps"]
    assert one[5].parts == three[5].parts

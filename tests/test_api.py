"""The Python front door: everything a program does with threads, through `import rolecall` alone."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest
from fakeagent import fake_claude

import rolecall
from rolecall import END, Context, Role, RoleResult, ThreadContext, Workflow
from rolecall.api import Crew, Evals, Knowledge, run_loop
from rolecall.errors import CALLS, UsageError
from rolecall.threads import perform

DOCS = Path(__file__).parents[1] / "docs"
VERDICT = {
    "type": "object",
    "properties": {"status": {"enum": ["done", "ship", "hold"]}},
    "required": ["status"],
}


@pytest.fixture
def rc(tmp_path: Path) -> Iterator[rolecall.Rolecall]:
    with rolecall.open(":memory:", folder=tmp_path) as opened:
        yield opened


async def count(context: ThreadContext) -> RoleResult:
    return RoleResult(
        content=f"{len(context.start.split())} words.", meta={"words": len(context.start.split())}
    )


async def speak(prompt: str, context: Context) -> str:
    return "---\nstatus: done\n---\nSaid it."


def workflow(agent: Any = speak, **more: Any) -> Workflow:
    """A workflow object that is no module-level variable of any file."""
    roles = {"counter": Role.function(count), "speaker": Role(agent, "Say it.", VERDICT)}
    return Workflow("count-words", roles, order, **more)


def order(context: ThreadContext) -> str:
    said = [step.role for step in context.steps]
    return "counter" if not said else END if said[-1] == "speaker" else "speaker"


def test_a_workflow_object_runs_to_its_end(rc: rolecall.Rolecall) -> None:
    thread = rc.start(workflow(), "one two three")
    assert (thread.status, thread.role, thread.steps) == ("idle", "counter", [])

    kinds = [event.kind for event in thread.run()]

    assert kinds.count("step") == 2
    assert thread.status == "completed" and thread.has_ended and thread.role is None
    assert [step.role for step in thread.steps] == ["counter", "speaker"]
    assert thread.steps[0].output == {"words": 3}
    assert thread.steps[-1].body == "Said it."
    assert thread.usage["steps"] == 2
    assert "Said it." in thread.read() and "Said it." in thread.export()


def test_members_of_a_group_are_threads_and_the_moderator_sees_them_joined(rc: rolecall.Rolecall) -> None:
    seen: list[Any] = []

    def decide(context: ThreadContext) -> str:
        seen.extend(step.output for step in context.steps)
        return END if context.steps else "counters"

    counters = Role.times(3, Role.function(count))
    thread = rc.start(Workflow("count-often", {"counters": counters}, decide), "one two")
    thread.run().wait()
    assert thread.status == "completed"
    assert [(one["number"], one["output"]) for one in seen[0]["members"]] == [
        (n, {"words": 2}) for n in (1, 2, 3)
    ]
    assert [(member.status, member.steps[0].role) for member in thread.members] == [
        ("completed", "counters")
    ] * 3
    assert thread.usage["steps"] == 3


def test_whoever_follows_a_group_reads_the_events_of_its_members_and_no_others(
    rc: rolecall.Rolecall, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Workflow(
        "count-often",
        {"counters": Role.times(3, Role.function(count)), "counter": Role.function(count)},
        lambda context: ["counters", "counter", END][len(context.steps)],
    )
    thread = rc.start(flow, "one two")
    events = thread.tail(members=True)
    thread.step()
    rc.start(flow, "three").run().wait()
    thread.step()
    read: list[str | None] = []
    ask = rc.store.events

    def ask_and_note(stream: str | None = None, **wanted: Any) -> Any:
        read.append(stream)
        return ask(stream, **wanted)

    monkeypatch.setattr(rc.store, "events", ask_and_note)
    bodies = [(event.kind, event.body) for event in iter(lambda: next(events), None)]
    assert {*read} == {thread.id, *(member.id for member in thread.members)}
    kinds = [body["kind"] if kind == "member" else kind.upper() for kind, body in bodies]
    assert kinds[:2] == ["STARTED", "GROUP"] and kinds[-3:] == ["STEP", "STEP_STARTED", "STEP"]
    assert Counter(kinds[2:-3]) == {"started": 3, "step_started": 3, "step": 3, "over": 3}


def test_a_run_goes_on_when_nobody_follows_it(rc: rolecall.Rolecall) -> None:
    thread = rc.start(workflow(), "go")
    run = thread.run()
    assert run.wait() is thread
    assert thread.status == "completed"


def test_one_step_at_a_time(rc: rolecall.Rolecall) -> None:
    thread = rc.start(workflow(), "go")
    assert len(thread.step().steps) == 1
    assert len(thread.step().steps) == 2


def test_events_arrive_in_a_running_event_loop(rc: rolecall.Rolecall) -> None:
    async def follow() -> list[str]:
        return [str(event) async for event in rc.start(workflow(), "go").arun()]

    assert [line for line in asyncio.run(follow()) if line.startswith("step ·")] == [
        "step · counter · idle",
        "step · speaker · completed",
    ]


def test_leaving_the_loop_ends_the_agent_and_the_thread_goes_on_later(
    rc: rolecall.Rolecall, tmp_path: Path
) -> None:
    mark, started = tmp_path / "second-call", tmp_path / "started"
    os.mkfifo(started)
    script = tmp_path / "agent.sh"
    script.write_text(
        f"if [ -e {mark} ]; then printf -- '---\\nstatus: done\\n---\\nHere.\\n'; exit; fi\n"
        f"touch {mark}; echo started >{started}; exec sleep 600\n"
    )
    thread = rc.start(workflow(f"command:sh {script}"), "go")

    for event in thread.run():
        if event.kind == "process":
            pid = int(event.body["pid"])
            assert started.read_text() == "started\n"
            break

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert thread.status == "idle" and thread.role == "speaker"
    assert thread.run().wait().status == "completed"


def test_an_agent_that_is_a_plain_function_is_an_error_with_its_signature(rc: rolecall.Rolecall) -> None:
    thread = rc.start(workflow(lambda prompt, context: "---\nstatus: done\n---\n"), "go").run().wait()
    assert thread.status == "suspended"
    assert "'speaker' is a plain function, not an async one. An adapter is `async def" in thread.reason


def test_an_agent_that_does_not_exist_is_an_error(rc: rolecall.Rolecall) -> None:
    thread = rc.start(workflow("no-such-agent"), "go")
    with pytest.raises(rolecall.RolecallError, match="no-such-agent"):
        list(thread.run())
    assert thread.status == "idle"


@pytest.mark.parametrize("agent", ["calude", "command:no-such-program", "scripted:no-such-file.yaml"])
def test_an_agent_that_cannot_be_had_starts_no_thread(rc: rolecall.Rolecall, agent: str) -> None:
    with pytest.raises(rolecall.RolecallError) as found:
        rc.start(workflow(), "one", agent=agent)
    assert found.value.hint in "".join(format_exception(found.value))
    assert list(rc.threads()) == []

    thread = rc.start(workflow(), "one")
    with pytest.raises(rolecall.RolecallError):
        thread.fork(agent=agent)
    with pytest.raises(rolecall.RolecallError):
        thread.resume("go on", agent=agent)
    assert len(list(rc.threads())) == 1 and thread.steps == []


def test_single_roles_can_have_agents_of_their_own(rc: rolecall.Rolecall, tmp_path: Path) -> None:
    script = tmp_path / "speak.sh"
    script.write_text("printf -- '---\\nstatus: done\\n---\\nHere.\\n'\n")
    own = f"command:sh {script}"
    thread = rc.start(workflow("no-such-agent"), "go", agents={"speaker": own})
    assert thread.run().wait().status == "completed"
    assert [step.agent for step in thread.steps if step.role == "speaker"] == [own]
    for agents, said in (({"speeker": own}, "no role 'speeker'"), ({"speaker": "calude"}, "calude")):
        with pytest.raises(rolecall.RolecallError, match=said):
            rc.start(workflow(), "go", agents=agents)
    assert len(list(rc.threads())) == 1


def test_an_agent_that_is_missing_is_told_before_any_role_is_asked(rc: rolecall.Rolecall) -> None:
    thread = rc.start(workflow(rolecall.command(["no-such-program"])), "one")
    with pytest.raises(rolecall.RolecallError, match="no-such-program"):
        thread.run()
    assert thread.steps == []


def test_a_thread_that_has_ended_is_not_run_again(rc: rolecall.Rolecall) -> None:
    thread = rc.start(workflow(), "one")
    thread.run().wait()
    with pytest.raises(rolecall.UsageError, match="completed"):
        thread.run()


def test_a_script_is_found_from_any_folder(
    rc: rolecall.Rolecall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script.yaml").write_text("roles: {speaker: [{output: {status: done}, body: Said.}]}\n")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    thread = rc.start(workflow(None), "one", agent="scripted:script.yaml")
    assert thread.run().wait().status == "completed"
    assert re.fullmatch(r"\[<Step \w{13} counter>, <Step \w{13} speaker>\]", str(thread.steps))


def test_a_person_answers_and_a_wrong_answer_changes_nothing(rc: rolecall.Rolecall) -> None:
    thread = rc.start(workflow("human"), "Release?")
    thread.run().wait()
    assert thread.status == "suspended" and thread.role == "speaker"

    with pytest.raises(rolecall.RolecallError, match="status"):
        thread.answer({"status": "perhaps"})
    assert thread.status == "suspended"

    assert thread.answer({"status": "ship"}, "Go.").status == "completed"
    assert thread.steps[-1].agent == "human" and thread.steps[-1].output == {"status": "ship"}


def test_a_question_is_answered_in_words(rc: rolecall.Rolecall) -> None:
    async def ask(prompt: str, context: Context) -> str:
        if "PostgreSQL" in prompt:
            return "---\nstatus: done\n---\nThen that."
        return "---\n$status: $SUSPEND\nreason: Which database?\n---\n"

    thread = rc.start(workflow(ask), "go")
    thread.run().wait()
    assert (thread.status, thread.reason) == ("suspended", "Which database?")
    assert thread.resume("PostgreSQL").run().wait().status == "completed"


def test_words_continue_a_thread_whoever_waits_for_them(rc: rolecall.Rolecall) -> None:
    async def ask(prompt: str, context: Context) -> str:
        if "PostgreSQL" in prompt:
            return "---\nstatus: done\n---\nThen that."
        return "---\n$status: $SUSPEND\nreason: Which database?\n---\n"

    asked = rc.start(workflow(ask), "go")
    asked.run().wait()
    assert asked.asking is asked
    assert asked.say("PostgreSQL").run().wait().status == "completed"
    later = asked.say("And now?")
    assert later.id != asked.id and later.status == "idle" and later.state.title == "And now?"
    assert later.prompt.startswith("And now?") and "Then that." in later.prompt
    assert asked.next is not None and asked.next.id == later.id and later.next is None
    # Further words to the ended thread go to the thread that followed it, with the person who said them.
    assert asked.say("PostgreSQL", by={"person": "Ada"}).id == later.id
    assert later.step_page(max=1)["steps"][0]["output"]["by"] == {"person": "Ada"}

    person = rc.start(workflow("human"), "Release?")
    person.run().wait()
    with pytest.raises(rolecall.RolecallError, match="must begin with done or ship or hold"):
        person.say("I am not sure.")
    with pytest.raises(rolecall.UsageError, match="nothing was said"):
        person.say(" ")
    with pytest.raises(rolecall.RolecallError, match="has moved on"):
        person.say("Ship", head="0000000000000")
    assert person.say("Ship: the tests are green.", by={"door": "test"}).status == "completed"
    last = person.steps[-1]
    assert (last.output, last.body) == ({"status": "ship"}, "the tests are green.")


def test_words_for_another_head_have_no_effect(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    with rolecall.open(str(tmp_path / "store.db"), folder=tmp_path) as rc:
        thread = rc.talk("Hello", agent="command:true")
        thread.kill()
        with pytest.raises(rolecall.RolecallError, match="has moved on"):
            thread.say("[plan] Use SQLite?", head="0000000000000")
        assert thread.next is None and not (tmp_path / ".nexus").exists()
        thread.say("[plan] Use SQLite?", head=thread.head)
        assert (tmp_path / ".nexus").exists()


def test_words_reach_the_member_that_waits(rc: rolecall.Rolecall) -> None:
    judges = Role.times(2, Role("human", "Say it.", VERDICT))
    judged = Workflow("judged", {"judges": judges}, lambda context: END if context.steps else "judges")
    thread = rc.start(judged, "Release?")
    thread.run().wait()
    first = thread.asking
    assert thread.needs_person and first.id == thread.members[0].id
    thread.say("ship")
    assert first.status == "completed"
    second = thread.asking
    assert second.id == thread.members[1].id
    thread.say("hold\nTomorrow is better.")
    assert second.steps[-1].body == "Tomorrow is better."
    assert thread.run().wait().status == "completed"


def test_a_limit_suspends_and_a_higher_one_lets_go_on(rc: rolecall.Rolecall) -> None:
    thread = rc.start(workflow(), "go", limits={"steps": 1})
    assert thread.run().wait().status == "suspended"
    assert thread.resume(limits={"steps": 5}).run().wait().status == "completed"
    with pytest.raises(rolecall.UsageError, match="unknown limit 'hours'"):
        rc.start(workflow(), "go", limits={"hours": 1})
    with pytest.raises(rolecall.UsageError, match="above 0"):
        rc.start(workflow(), "go", limits={"steps": 0})


def test_a_fork_shares_steps_and_differs_from_there(rc: rolecall.Rolecall) -> None:
    thread = rc.start(workflow(), "go").run().wait()
    fork = thread.fork(at=1, prompt="go elsewhere")
    assert fork.steps[0].id == thread.steps[0].id
    fork.run().wait()
    assert fork.diff(thread)["common"] == thread.steps[0].id
    assert {found.id for found in rc.threads()} == {thread.id, fork.id}
    assert rc.thread(fork.id[-6:]).id == fork.id


def test_threads_are_found_by_status_and_words(rc: rolecall.Rolecall) -> None:
    done = rc.start(workflow(), "mend the parser").run().wait()
    idle = rc.start(workflow(), "mend the printer")
    assert [one.id for one in rc.threads(status="idle")] == [idle.id]
    assert [one.id for one in rc.threads(text="parser")] == [done.id]
    with pytest.raises(rolecall.UsageError, match="unknown status"):
        list(rc.threads(status="asleep"))


def test_killing_a_thread_ends_the_process_that_runs_it(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'store.db'}"
    with rolecall.open(store, folder=tmp_path) as rc:
        (tmp_path / "wait-long.py").write_text(
            "from rolecall import END, Role, Workflow\n"
            "roles = {'waiter': Role('command:sleep 600', 'Wait.', {'type': 'object'})}\n"
            "workflow = Workflow('wait-long', roles, lambda context: END if context.steps else 'waiter')\n"
        )
        thread = rc.start("./wait-long.py", "wait")
        program = [
            str(Path(sys.executable).parent / "rolecall"),
            "thread",
            "run",
            thread.id,
            "--store",
            store,
        ]
        with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as runner:
            watched = thread.watch()
            while next(watched).kind != "process":
                pass
            assert thread.status == "running"
            thread.kill("enough")
            assert runner.wait(timeout=60) == 8
        assert (thread.status, thread.reason) == ("killed", "enough")
        assert "killed" in [event.kind for event in watched]


def test_workflows_are_stored_named_and_checked(rc: rolecall.Rolecall, tmp_path: Path) -> None:
    assert rc.workflows() == []
    rc.put(workflow())
    assert rc.workflows() == ["count-words"]
    assert set(rc.workflow("count-words")["roles"]) == {"counter", "speaker"}
    assert rc.start("count-words", "go").run().wait().status == "completed"

    (tmp_path / "odd.yaml").write_text("name: odd\nroles: {}\n")
    problems = rc.validate("./odd.yaml")
    assert any(problem.severity == "error" and problem.line for problem in problems)
    assert rc.validate(workflow()) == []


def test_the_project_has_a_plan_tasks_and_lessons(rc: rolecall.Rolecall) -> None:
    subprocess.run(["git", "init", "-q", rc.folder], check=True)
    project = rc.project()
    project.start_plan("Storage", ["Which header?"], research="Two formats.")
    project.decide(1, "No header")
    assert project.plan()["issues"][0]["decision"] == "No header"
    project.add_task("Write it", "Format 2", acceptance="Reads back")
    with pytest.raises(rolecall.UsageError, match="no task has the id 99"):
        project.add_task("Test it", "Both ways", deps=[1, 99])
    project.update_task(1, "completed")
    assert [task["status"] for task in project.tasks()["tasks"]] == ["completed"]
    project.close_cycle()
    assert project.history("Storage")["total"] == 1
    project.remember("pattern-format-headers", "Formats without a header are told apart by their length.")
    assert "length" in project.recall("pattern-format-headers")
    assert len(project.memories()) == 1


def test_the_repository_is_indexed_and_searched(rc: rolecall.Rolecall) -> None:
    subprocess.run(["git", "init", "-q", rc.folder], check=True)
    Path(rc.folder, "guide.md").write_text(
        "# Guide\n\n## Install\n\nRun the installer with elevated rights.\n"
    )
    received: list[str] = []
    with rc.knowledge(tell=received.append) as knowledge:
        with pytest.raises(rolecall.RolecallError) as caught:
            knowledge.sync()
        assert "rc.knowledge().init()" in "".join(format_exception(caught.value))
        assert knowledge.init().include == ["*.md"]
        assert knowledge.sync().indexed == ["guide.md"] and not received
        [found, *_] = knowledge.query("elevated rights", path="*.md").answers
        assert found.path == "guide.md" and "elevated" in found.text
        assert (
            knowledge.query("elevated", by_words=True, everywhere=True).answers[0].repository
            == knowledge.root
        )
        assert rc.query("elevated rights")[0].text == found.text
        assert knowledge.status().changed == [] and list(knowledge.files()) == ["guide.md"]
        assert "elevated" in knowledge.passages("guide.md", line=5)[0].text
        with pytest.raises(rolecall.UsageError, match="the pattern"):
            knowledge.query("rights", path="[")
        for most in (0, -1, 2.5):
            with pytest.raises(rolecall.UsageError, match="max must be a whole number above 0"):
                knowledge.query("rights", max=most)  # type: ignore[arg-type]
        assert Knowledge.repositories() == {knowledge.root: True}
        assert knowledge.forget() and not knowledge.forget() and Knowledge.repositories() == {}


def test_secrets_are_masked_in_what_a_program_writes_to_a_project(
    rc: rolecall.Rolecall, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "a-key-that-nobody-may-read"
    monkeypatch.setenv("SERVICE_API_KEY", key)
    project = rolecall.Project(rc.folder)
    project.start_plan("Storage", [f"Why {key}?"], research=key)
    project.decide(1, f"Not {key}", agents=["architect"], advice={"architect": key})
    project.add_task("Write it", f"with {key}", goal=key, decisions=[key], owner="engineer")
    project.write_artifact("notes.md", key)
    state = Path(rc.folder, ".nexus", "state")
    written = [file.read_text() for file in state.rglob("*") if file.is_file()]
    assert len(written) > 2 and not [text for text in written if key in text]
    assert project.context()["goal"] == project.tasks()["goal"] != key


def test_the_store_in_memory_is_gone_when_closed() -> None:
    with rolecall.open(":memory:") as rc:
        folder = Path(rc.store.backend.path).parent  # type: ignore[attr-defined]
        rc.start(workflow(), "go")
        assert folder.is_dir()
    assert not folder.exists()


def test_wrong_arguments_are_errors_that_say_what_to_give(rc: rolecall.Rolecall, tmp_path: Path) -> None:
    thread = rc.start(workflow(), "go")
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: rolecall.open(":memory:", folder=tmp_path / "gone"), "the folder .* does not exist"),
        (lambda: rc.start(tmp_path, "go"), "a workflow must be .*, not PosixPath"),  # type: ignore[arg-type]
        (lambda: rc.validate(3), "a workflow must be .*, not 3"),  # type: ignore[arg-type]
        (lambda: rc.start(workflow(), None), "a prompt is text, not None"),  # type: ignore[arg-type]
        (lambda: rc.start(workflow(), "go", agent=speak), "an agent must be given as a name"),  # type: ignore[arg-type]
        (lambda: rc.start(workflow(), "go", agents={"speaker": speak}), "an agent must be given as a name"),  # type: ignore[dict-item]
        (lambda: thread.run(agent=speak), "an agent must be given as a name"),  # type: ignore[arg-type]
        (lambda: rc.start(workflow(), "go", limits={"cost": "2"}), "limit cost must be"),  # type: ignore[dict-item]
        (lambda: rc.start(workflow(), "go", limits=rolecall.Limits(steps=3)), "limits are a mapping"),  # type: ignore[arg-type]
        (lambda: rc.start(workflow(), "go", priority=10), "a priority is .* 0 to 9, not 10"),
        (lambda: rc.start(workflow(), "go", ident="mine"), "'mine' is not a thread id"),
        (lambda: rc.start(workflow(), "go", ident=thread.id), f"the thread {thread.id} exists already"),
        (lambda: thread.run(steps=0), "steps must be a whole number above 0, not 0"),
        (lambda: thread.run(steps="2"), "steps must be a whole number"),  # type: ignore[arg-type]
        (lambda: thread.answer("done"), "the fields of an answer are a mapping, not 'done'"),  # type: ignore[arg-type]
        (lambda: thread.diff(thread.id), "another thread is given as a Thread, not '"),  # type: ignore[arg-type]
        (lambda: thread.diff_files(thread.id), "another thread is given as a Thread, not '"),  # type: ignore[arg-type]
        (lambda: rc.thread(None), "a thread is named by its id, not None"),  # type: ignore[arg-type]
        (lambda: rolecall.open(5), "a store is named by its address, not 5"),  # type: ignore[arg-type]
        (lambda: thread.export("pdf"), "'pdf' is not a format"),  # type: ignore[arg-type]
        (lambda: rc.cost(since=0, by="moon"), "costs cannot be listed by 'moon'"),
    ]
    for call, words in wrong:
        with pytest.raises(rolecall.UsageError, match=words) as caught:
            call()
        assert caught.value.hint
    assert [known.id for known in rc.threads()] == [thread.id]


def test_a_workflow_in_a_script_of_any_name_continues_in_another_process(tmp_path: Path) -> None:
    store, script = f"sqlite:{tmp_path}/store.db", tmp_path / "my_script.py"
    script.write_text(
        "import rolecall\n"
        "async def speak(prompt, context):\n"
        "    return '---\\nstatus: done\\n---\\nSaid it.'\n"
        "schema = {'type': 'object', 'properties': {'status': {'const': 'done'}}}\n"
        "workflow = rolecall.Workflow('greet-user', {'greeter': rolecall.Role(speak, 'Greet.', schema)},\n"
        "    lambda context: rolecall.END if len(context.steps) > 1 else 'greeter')\n"
        "if __name__ == '__main__':\n"
        f"    rolecall.open({store!r}).start(workflow, 'hello').step()\n"
    )
    subprocess.run([sys.executable, str(script)], check=True, timeout=120)

    with rolecall.open(store) as rc:
        (thread,) = rc.threads()
        assert thread.run().wait().status == "completed" and len(thread.steps) == 2

        script.write_text(script.read_text().replace("greet-user", "greet-guest"))
        with pytest.raises(UsageError, match="is not what it was when the thread started"):
            thread.fork(at=1).run()


def test_a_store_opened_in_another_python_thread_says_so(rc: rolecall.Rolecall) -> None:
    with ThreadPoolExecutor() as pool, pytest.raises(UsageError, match="in another Python thread") as caught:
        pool.submit(lambda: rc.start(workflow(), "one")).result()
    assert "in each Python thread" in caught.value.hint


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    with rolecall.open(str(tmp_path / "store.db"), folder=tmp_path) as rc:
        thread = rc.start(workflow(), "go")
    with pytest.raises(rolecall.UsageError, match="this Rolecall is closed"):
        rc.start(workflow(), "go")
    with pytest.raises(rolecall.UsageError, match="this Rolecall is closed"):
        _ = thread.status


def test_ctrl_c_in_a_with_block_stops_its_runs(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        rolecall.open(str(tmp_path / "store.db"), folder=tmp_path) as rc,
    ):
        rc.start(workflow("command:sleep 600"), "go").run()
        raise KeyboardInterrupt
    with rolecall.open(str(tmp_path / "store.db"), folder=tmp_path) as rc:
        assert [thread.status for thread in rc.threads()] == ["idle"]


def test_handles_of_one_thread_are_equal(rc: rolecall.Rolecall, tmp_path: Path) -> None:
    thread = rc.start(workflow(), "go")
    again = rc.thread(thread.id)
    assert again == thread and {again, thread} == {thread}
    assert thread != thread.fork() and thread != thread.id
    with rolecall.open(str(tmp_path / "store.db"), folder=tmp_path) as first:
        thread = first.start(workflow(), "go")
        with rolecall.open(str(tmp_path / "store.db"), folder=tmp_path) as second:
            assert second.thread(thread.id) == thread


def test_hints_name_verbs_of_python(rc: rolecall.Rolecall) -> None:
    kinds = (rolecall, rolecall.api, rolecall.Rolecall, rolecall.Thread, rolecall.Project, Knowledge, Evals)
    for call in CALLS.values():
        for name in re.findall(r"\.(\w+)", call):
            assert any(hasattr(kind, name) for kind in kinds), call
    thread = rc.start(workflow(), "go").run().wait()
    with pytest.raises(rolecall.RolecallError) as caught:
        thread.run()
    assert f"rc.thread('{thread.id}').fork()" in "".join(format_exception(caught.value))
    assert f"rc.thread('{thread.id}').read(before=" in thread.read(max_chars=20)
    with pytest.raises(rolecall.UsageError) as caught:
        rc.start(workflow(), " ")
    assert "prompt='…'" in "".join(format_exception(caught.value))


async def hang(_prompt: str, _context: Context) -> str:
    await asyncio.Event().wait()
    raise AssertionError("nothing sets it")


class Hanging:
    async def method(self, prompt: str, context: Context) -> str:
        return await hang(prompt, context)


@pytest.mark.parametrize("agent", [hang, Hanging().method, partial(hang)])
def test_an_agent_that_is_a_function_is_cancelled(
    rc: rolecall.Rolecall, monkeypatch: pytest.MonkeyPatch, agent: Any
) -> None:
    monkeypatch.setattr(perform, "_GRACE", 0.1)
    thread = rc.start(workflow(agent), "go")
    for event in thread.run():
        if event.kind == "step_started" and event.body["role"] == "speaker":
            break
    assert thread.status == "idle" and thread.role == "speaker"


def test_an_error_is_raised_once(
    rc: rolecall.Rolecall, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perform, "_GRACE", 0.1)
    thread = rc.start(workflow(hang), "go")
    first = thread.run()
    for event in first:
        if event.kind == "step_started" and event.body["role"] == "speaker":
            with pytest.raises(rolecall.RolecallError, match="is being run by"):
                thread.run().wait()
            break
    assert capfd.readouterr() == ("", "")


def test_a_run_needs_no_current_folder(
    rc: rolecall.Rolecall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = rc.start(workflow(), "Count these words.")
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert thread.run().wait().status == "completed"


@pytest.mark.filterwarnings("ignore:coroutine 'Run._play' was never awaited")
def test_a_run_that_cannot_begin_says_why(rc: rolecall.Rolecall, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("Too many open files")

    thread = rc.start(workflow(), "Count these words.")
    monkeypatch.setattr(run_loop, "RunLoop", fail)
    for follow in (rolecall.Run.wait, list):
        with pytest.raises(OSError, match="Too many open files"):
            follow(thread.run())


# As if Ctrl-C had come just before the main thread began to wait: nothing interrupts the wait.
CTRL_C_MISSED = (
    "interrupt = lambda: (open('interrupt').read(), signal.pthread_kill(threading.get_ident(), signal.SIGINT))\n"
    "threading.Thread(target=interrupt, daemon=True).start()\n"
)
whether_noticed = pytest.mark.parametrize("is_noticed", [True, False], ids=["", "missed by the main thread"])


FOLLOW = """
for event in run:
    if event.kind == "text":  # the last event before Ctrl-C
        print(event.body["text"], file=open("started", "w"))
"""


@whether_noticed
@pytest.mark.parametrize(("begin", "wait"), [("echo $$ >'{}'", "run.wait()"), ("echo $$", FOLLOW)])
def test_ctrl_c_while_waiting_ends_the_agent(tmp_path: Path, begin: str, wait: str, is_noticed: bool) -> None:
    os.mkfifo(started := tmp_path / "started")
    os.mkfifo(tmp_path / "interrupt")
    (tmp_path / "agent.sh").write_text(f"{begin.format(started)}; exec sleep 600\n")
    program = (
        "import rolecall, signal, threading\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it\n"
        f"{'' if is_noticed else CTRL_C_MISSED}"
        f"agent = 'command:sh {tmp_path}/agent.sh'\n"
        "role = rolecall.Role(agent, 'Wait.', {'type': 'object'})\n"
        "workflow = rolecall.Workflow('wait-long', {'waiter': role}, lambda context: 'waiter')\n"
        f"rc = rolecall.open({str(tmp_path / 'store.db')!r})\n"
        "run = rc.start(workflow, 'go').run()\n"
        f"{wait}\n"
    )
    running = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stderr=subprocess.PIPE)
    pid = int(started.read_text())
    press_ctrl_c(running, tmp_path, is_noticed)
    assert b"KeyboardInterrupt" in running.communicate(timeout=60)[1]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def press_ctrl_c(running: subprocess.Popen[bytes], folder: Path, is_noticed: bool) -> None:
    if is_noticed:
        running.send_signal(signal.SIGINT)
    else:
        (folder / "interrupt").write_text("")


def leave(folder: Path, end: str) -> str:
    """Return a program that ends without waiting for its run. The program is at its end before the run takes its second
    step, which a command plays."""
    return (
        "import asyncio, rolecall, signal, threading\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it\n"
        "is_left = threading.Event()\n"
        "async def linger(prompt, context):\n"
        "    while not is_left.is_set() and threading.main_thread().is_alive():\n"
        "        await asyncio.sleep(0.01)\n"
        "    return '---\\nstatus: done\\n---\\nLeft.'\n"
        f"command = rolecall.Role('command:sh {folder}/agent.sh', 'Go on.', {VERDICT})\n"
        f"roles = {{'first': rolecall.Role(linger, 'Begin.', {VERDICT}), 'second': command}}\n"
        "names = ['first', 'second', rolecall.END]\n"
        "workflow = rolecall.Workflow('leave-early', roles, lambda context: names[len(context.steps)])\n"
        f"{end}\n"
    )


at_each_end = pytest.mark.parametrize(
    "end",
    [
        pytest.param(
            "rolecall.open('store.db').start(workflow, 'go').run()",
            id="of the program",
            marks=pytest.mark.skipif(
                (3, 12) <= sys.version_info < (3, 12, 2),
                reason="this Python starts no thread once the main thread has ended",
            ),
        ),
        pytest.param(
            "class Leaving(rolecall.Rolecall):\n"
            "    def close(self):\n"
            "        is_left.set()\n"
            "        super().close()\n"
            "with Leaving('store.db') as rc:\n"
            "    rc.start(workflow, 'go').run()",
            id="of a with block",
        ),
    ],
)


@at_each_end
def test_a_program_that_ends_waits_for_its_runs(tmp_path: Path, end: str) -> None:
    (tmp_path / "agent.sh").write_text("printf -- '---\\nstatus: done\\n---\\nHere.\\n'\n")
    program = [sys.executable, "-c", leave(tmp_path, end)]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with rolecall.open(str(tmp_path / "store.db"), folder=tmp_path) as rc:
        assert [thread.status for thread in rc.threads()] == ["completed"]


@at_each_end
@whether_noticed
def test_ctrl_c_stops_the_runs_for_which_a_program_waits_at_its_end(
    tmp_path: Path, end: str, is_noticed: bool
) -> None:
    os.mkfifo(started := tmp_path / "started")
    (tmp_path / "agent.sh").write_text(f"echo $$ >{started}; exec sleep 600\n")
    os.mkfifo(tmp_path / "interrupt")
    program = leave(tmp_path, end)
    if not is_noticed:
        program = program.replace("is_left =", f"{CTRL_C_MISSED}is_left =", 1)
    running = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stderr=subprocess.PIPE)
    pid = int(started.read_text())
    press_ctrl_c(running, tmp_path, is_noticed)
    assert b"KeyboardInterrupt" in running.communicate(timeout=60)[1]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with rolecall.open(str(tmp_path / "store.db"), folder=tmp_path) as rc:
        (thread,) = rc.threads()
        assert thread.status == "idle" and thread.role == "second"


# -- this machine --


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project on a machine on which Claude Code is installed and signed in, and no other agent."""
    fake_claude(tmp_path / "bin")
    for name, value in (
        ("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin"),
        ("HOME", str(tmp_path / "user")),
        ("ROLECALL_HOME", str(tmp_path / "home")),
        ("ANTHROPIC_API_KEY", "sk-test-0123456789"),
    ):
        monkeypatch.setenv(name, value)
    (tmp_path / "user").mkdir()
    project = tmp_path / "project"
    subprocess.run(["git", "init", "--quiet", project], check=True)
    person = ("-c", "user.name=p", "-c", "user.email=p@example.com")
    subprocess.run(
        ["git", "-C", project, *person, "commit", "--quiet", "--allow-empty", "-m", "x"], check=True
    )
    return project


def test_a_program_learns_which_agents_are_ready_and_starts_a_thread_with_them(machine: Path) -> None:
    with rolecall.open(":memory:", folder=machine) as rc:
        found = rc.agents()
        assert [name for name, finding in found.items() if finding.is_ready] == ["claude"]
        assert (found["claude"].version, found["codex"].state) == ("2.1.325", "not installed")
        assert [*rc.agents(["acp:codex-acp"])] == ["acp:codex-acp"]
        with pytest.raises(rolecall.RolecallError, match="unknown agent 'claud'") as caught:
            rc.agents(["claud"])
        assert "'claude'" in caught.value.hint

        chosen = {role: one.agent for role, one in rc.choose_agents("fix-test").items()}
        assert set(chosen.values()) == {"claude"}
        assert rc.start("fix-test", "The test fails.", agents=chosen).status == "idle"
        (machine.parent / "home" / "config.yaml").write_text("defaultAgent: claude\n")
        assert rc.choose_agents("fix-test") == {}


def test_a_program_gets_the_diagnosis_of_the_machine(machine: Path) -> None:
    (machine / "workflows").mkdir()
    (machine / "workflows" / "say-it.yaml").write_text(
        "name: say-it\ngraph: {$START: speaker, speaker: $END}\nroles:\n  speaker:\n    prompt: Say it.\n"
        "    agent: codex\n    schema: {type: object, properties: {text: {type: string}}, required: [text]}\n"
    )
    with rolecall.open(":memory:", folder=machine) as rc:
        found = rc.diagnose()
        assert not found.is_ready
        assert [one.text for one in found.troubles()] == [
            "codex: the agent 'codex' needs the program 'codex', which was not found"
        ]
        assert found.others["claude"] and "claude" in rc.diagnose(all_agents=True).findings
        book = rc.load_workflow("say-it").playbook
        (problem,) = rc.check_agents(book, str(machine / "workflows" / "say-it.yaml"))
        assert "speaker: the agent 'codex' needs the program 'codex'" in problem.message


def test_a_program_installs_in_a_host_and_uninstalls(machine: Path) -> None:
    project = rolecall.Project(machine)
    planned = project.install("claude", is_dry=True)
    assert {change.state for change in planned.changes} == {"new"}
    assert sorted(os.listdir(machine)) == [".git"] and not (machine.parent / "home").exists()

    done = project.install("claude", exclude=True)
    assert done.is_excluded and done.next_steps and done.elsewhere is None
    assert (machine / ".mcp.json").exists()
    assert project.install("claude").change_count == 0

    with rolecall.open(":memory:", folder=machine) as rc:
        user = rc.install_for_user("claude")
        assert user.elsewhere is not None and user.elsewhere.project == str(machine)
        project.uninstall("claude")
        assert sorted(os.listdir(machine)) == [".git"]
        assert rc.uninstall_for_user("claude").change_count == user.change_count
    assert not [*(machine.parent / "user").rglob("*.json")]


def test_only_a_project_in_a_git_repository_can_exclude_files(machine: Path) -> None:
    with pytest.raises(UsageError, match="only in a git repository"):
        rolecall.Project(machine.parent).install("claude", exclude=True)
    with pytest.raises(UsageError, match="is your home, not a project"):
        rolecall.Project(machine.parent / "user").install("claude")


# -- documentation --


def test_the_tutorial_begins_with_a_program_that_runs(tmp_path: Path) -> None:
    first = re.search(r"```python\n(.*?)```", (DOCS / "python.md").read_text(), re.DOTALL)
    assert first is not None
    file = tmp_path / "first.py"
    file.write_text(first[1])
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "completed" in done.stdout


def test_every_public_name_and_verb_is_in_the_reference() -> None:
    text = (DOCS / "api.md").read_text()
    classes = [rolecall.Rolecall, rolecall.Thread, rolecall.Run, rolecall.Project, Knowledge, Crew, Evals]
    verbs = [
        f"{kind.__name__}.{name}"
        for kind in classes
        for name, _ in inspect.getmembers(kind)
        if not name.startswith("_")
    ]
    missing = [name for name in (*verbs, *rolecall.__all__) if f"`{name}" not in text]
    assert not missing


def test_the_reference_has_the_arguments_of_each_verb() -> None:
    names = [rolecall.Rolecall, rolecall.Thread, rolecall.Run, rolecall.Project, Knowledge, Crew, Evals]
    classes: list[type] = list(names)
    kinds = {kind.__name__: kind for kind in classes}
    wrong = []
    for kind, name, given in re.findall(
        r"`(\w+)\.(\w+)\(([^`…]*(?:=…[^`…]*)*)\)`", (DOCS / "api.md").read_text()
    ):
        if kind in kinds:
            known = [*inspect.signature(getattr(kinds[kind], name)).parameters][1:]
            named = re.findall(r"(?:^|, )(\w+)", re.sub(r"=\([^)]*\)", "", given))
            wrong += [f"{kind}.{name}({given})"] if named != known else []
    assert not wrong


def test_type_checkers_see_the_public_names() -> None:
    stub = Path(rolecall.__file__).with_suffix(".pyi").read_text()
    assert sorted(re.findall(r"import \w+ as (\w+)", stub)) == sorted(rolecall.__all__)
    assert all(getattr(rolecall, name) is not None for name in rolecall.__all__)

"""What starts threads by itself: once for each thing that happens, whatever restarts and clocks do in between."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolecall.errors import StorageError
from rolecall.service import project_file
from rolecall.service.project_file import ProjectFile
from rolecall.service.triggers import memory as memories
from rolecall.service.triggers.memory import TriggerMemory
from rolecall.service.triggers.run import Triggers
from rolecall.service.triggers.trigger import WatchedFiles
from rolecall.settings.mask import Mask
from rolecall.store.backend import Change, Ref
from rolecall.store.schema import glob_test
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads import thread
from rolecall.workflow import registry

WORKFLOW = """\
name: hello
roles:
  greeter:
    goal: Greet.
    agent: command:cat
    meta: {type: object, properties: {text: {type: string}}}
graph: {$START: greeter, greeter: $END}
"""
NOON = 4_102_488_000_000
"""Later than the time of any file that is written here, unless it is given one."""


class Stage:
    """A project, a store and a clock that only moves when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        (self.folder / "workflows").mkdir(parents=True)
        (self.folder / "workflows" / "hello.yaml").write_text(WORKFLOW)
        self.url = str(folder / "store.db")
        self.now = NOON
        self.store = self.opened()
        node = registry.register(
            self.store, registry.load_file(str(self.folder / "workflows" / "hello.yaml"))
        )
        self.workflows = {"hello": node}
        self.env = {
            **os.environ,
            "HOME": str(folder),
            "ROLECALL_HOME": str(folder / "home"),
            "ROLECALL_STORE": self.url,
            "HOOK_SECRET": "a-secret-of-some-length",
        }
        self.said: list[str] = []

    def opened(self) -> Store:
        return Store(SqliteBackend(self.url), now=lambda: self.now)

    def project(self, triggers: str, policy: str = "concurrency: 1") -> ProjectFile:
        text = (
            f"name: shop\nhooks: {{port: 0}}\nworkflows:\n  hello: {{{policy}, triggers: {{{triggers}}}}}\n"
        )
        return project_file.parse(text, path=str(self.folder / "rolecall.yaml")).require()

    def triggers(self, triggers: str | ProjectFile, store: Store | None = None) -> Triggers:
        """As the service has them after a start."""
        made = Triggers(store or self.store, env=self.env, mask=Mask(()), say=self.said.append)
        made.update(triggers if isinstance(triggers, ProjectFile) else self.project(triggers), self.workflows)
        return made

    def memory(self, name: str) -> TriggerMemory:
        ref = self.store.ref(f"trigger/shop/hello/{name}")
        return memories.from_state(ref.state) if ref else TriggerMemory()

    def threads(self) -> list[Ref]:
        return self.store.refs("thread/")

    def prompts(self) -> list[str]:
        return [thread.Chain(self.store, ref.target or "").start.prompt for ref in self.threads()]

    def pass_time(self, seconds: float) -> None:
        self.now += round(seconds * 1000)

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def outlast_tick(self) -> None:
        """Wait until a file that changes now has a later time than those that changed before: their clock ticks."""
        now = time.time_ns() // 1_000_000
        self.write("later", "")
        while (self.folder / "later").stat().st_ctime_ns // 1_000_000 <= now + 5:
            self.write("later", "")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.store.close()


async def settled(triggers: Triggers) -> int:
    """Begin what is due and wait for its end; how many looks there were."""
    triggers.begin_due()
    looks = asyncio.all_tasks() - {asyncio.current_task()}
    async with asyncio.timeout(90):
        await asyncio.gather(*looks)
    return len(looks)


def played(play: Callable[[], Any]) -> Any:
    return asyncio.run(play())


def test_what_one_look_costs_does_not_grow_with_the_number_of_triggers(stage: Stage) -> None:
    """A thousand of them, of which one is due."""
    reads: list[str] = []

    class Counting(SqliteBackend):
        def ref(self, name: str) -> Ref | None:
            reads.append(name)
            return super().ref(name)

    def others(count: int) -> str:
        return ", ".join(f"t{number}: {{every: 1d, prompt: x}}" for number in range(count))

    async def play(count: int) -> int:
        store = Store(Counting(stage.url), now=lambda: stage.now)
        triggers = stage.triggers(f"{TICK}, {others(count)}", store)
        await settled(triggers)
        stage.pass_time(3600)
        await settled(triggers)  # every trigger is asked about after so long
        reads.clear()
        stage.pass_time(1)
        await settled(triggers)
        stage.pass_time(1)
        await settled(triggers)
        store.close()
        return len(reads)

    assert asyncio.run(play(1000)) == asyncio.run(play(1))


def test_a_look_whose_end_cannot_be_written_down_is_not_repeated_at_once(stage: Stage) -> None:
    """As on a full disk: the command must not run again and again because nobody can note that it did."""

    class Full(SqliteBackend):
        is_full = False

        def commit(self, change: Change, *, now: int, durable: bool) -> list[Ref]:
            if self.is_full:
                raise StorageError("no room to write")
            return super().commit(change, now=now, durable=durable)

    stage.write("count.sh", "echo x >> runs")

    async def play() -> None:
        backend = Full(stage.url)
        triggers = stage.triggers(
            "moved: {command: [sh, count.sh], every: 1h, prompt: x}", Store(backend, now=lambda: stage.now)
        )
        await settled(triggers)
        stage.pass_time(3600)
        backend.is_full = True
        assert [await settled(triggers) for _ in range(3)] == [1, 0, 0]
        backend.is_full = False
        stage.pass_time(15)
        assert [await settled(triggers) for _ in range(2)] == [1, 0]
        backend.close()

    played(play)
    assert (stage.folder / "runs").read_text() == "x\nx\n"


# -- schedules --

TICK = 'tick: {every: 1h, prompt: "It is {{scheduled}}, {{workflow}}/{{trigger}} of {{project}}."}'


def test_an_interval_starts_a_queued_thread_with_its_prompt_and_priority(stage: Stage) -> None:
    async def play() -> None:
        triggers = stage.triggers(stage.project(TICK, "priority: 7"))
        assert await settled(triggers) == 0
        stage.pass_time(3600)
        assert await settled(triggers) == 1
        assert await settled(triggers) == 0

    played(play)
    [ref] = stage.threads()
    assert ref.state["status"] == "queued"
    assert ref.state["service"]["priority"] == 7
    assert ref.state["cwd"] == str(stage.folder)
    assert stage.prompts() == ["It is 2100-01-01T13:00:00Z, hello/tick of shop."]
    remembered = stage.memory("tick")
    assert (remembered.fired, remembered.thread) == (1, ref.name[7:])
    assert [event.kind for event in stage.store.events("trigger/shop/hello/tick")] == ["fired"]
    [triggered] = [event for event in stage.store.events(ref.name[7:]) if event.kind == "triggered"]
    assert triggered.body == {"trigger": "shop/hello/tick"}


def test_after_a_restart_nothing_is_started_twice_and_nothing_is_forgotten(stage: Stage) -> None:
    async def play() -> list[int]:
        first = stage.triggers(TICK)
        await settled(first)
        stage.pass_time(3600)
        looks = [await settled(first), await settled(stage.triggers(TICK))]
        stage.pass_time(3600)
        return [*looks, await settled(stage.triggers(TICK))]

    assert played(play) == [1, 0, 1]
    assert len(stage.threads()) == 2


def test_a_week_without_the_service_is_made_up_for_once(stage: Stage) -> None:
    async def play() -> list[int]:
        await settled(stage.triggers(TICK))
        stage.pass_time(7 * 86_400 + 1800)
        after = stage.triggers(TICK)
        return [await settled(after), await settled(after)]

    assert played(play) == [1, 0]
    assert stage.prompts() == ["It is 2100-01-08T12:00:00Z, hello/tick of shop."]


def test_a_clock_that_jumps_a_year_ahead_and_back_starts_one_thread(stage: Stage) -> None:
    async def play() -> list[int]:
        triggers = stage.triggers(TICK)
        looks = [await settled(triggers)]
        stage.pass_time(365 * 86_400)
        looks.append(await settled(triggers))
        stage.pass_time(-365 * 86_400)
        looks.append(await settled(triggers))  # begins anew: an hour from now
        stage.pass_time(3599)
        looks.append(await settled(triggers))
        stage.pass_time(1)
        return [*looks, await settled(triggers)]

    assert played(play) == [0, 1, 0, 0, 1]


def test_two_services_that_are_due_at_once_start_one_thread(stage: Stage) -> None:
    async def play() -> None:
        other = stage.opened()
        both = [stage.triggers(TICK), stage.triggers(TICK, store=other)]
        await settled(both[0])
        stage.pass_time(3600)
        for triggers in both:
            triggers.begin_due()
        looks = asyncio.all_tasks() - {asyncio.current_task()}
        assert len(looks) == 2
        async with asyncio.timeout(90):
            await asyncio.gather(*looks)
        other.close()

    played(play)
    assert len(stage.threads()) == 1
    assert stage.memory("tick").fired == 1


def test_another_schedule_under_the_same_name_begins_anew(stage: Stage) -> None:
    async def play() -> list[int]:
        await settled(stage.triggers(TICK))
        stage.pass_time(7200)
        other = stage.triggers('tick: {every: 3h, prompt: "x"}')
        looks = [await settled(other)]
        stage.pass_time(10_799)
        looks.append(await settled(other))
        stage.pass_time(1)
        return [*looks, await settled(other)]

    assert played(play) == [0, 0, 1]


def test_only_what_is_configured_now_is_looked_at(stage: Stage) -> None:
    async def play() -> int:
        triggers = stage.triggers(TICK)
        await settled(triggers)
        triggers.update(stage.project(""), stage.workflows)
        stage.pass_time(7200)
        assert triggers.lines() == []
        return await settled(triggers)

    assert played(play) == 0


# -- pause, cool-down, dedupe --


def test_a_paused_trigger_does_nothing_and_makes_nothing_up(stage: Stage) -> None:
    project = stage.project(TICK)
    [trigger] = project.triggers

    def change(moved: Callable[[TriggerMemory], TriggerMemory]) -> None:
        ref, memory = memories.recall(stage.store, "shop", trigger, now=stage.now)
        memories.save(stage.store, "shop", trigger, ref, moved(memory))

    async def play() -> list[int]:
        triggers = stage.triggers(project)
        await settled(triggers)
        change(lambda memory: replace(memory, is_paused=True))
        stage.pass_time(36_000)
        looks = [await settled(triggers)]
        change(lambda memory: memories.resume(memory, stage.now))
        looks.append(await settled(triggers))
        stage.pass_time(3600)
        return [*looks, await settled(triggers)]

    assert played(play) == [0, 0, 1]


@pytest.mark.parametrize(
    "source", ['files: ["src/*.py"]', "command: [cat, src/a.py], every: 1h"], ids=["files", "command"]
)
def test_what_changes_after_a_trigger_was_resumed_counts_and_what_changed_before_does_not(
    stage: Stage, source: str
) -> None:
    project = stage.project(f"edited: {{{source}, prompt: x}}")
    [trigger] = project.triggers

    def change(moved: Callable[[TriggerMemory], TriggerMemory]) -> None:
        ref, memory = memories.recall(stage.store, "shop", trigger, now=stage.now)
        memories.save(stage.store, "shop", trigger, ref, moved(memory))

    async def play() -> list[int]:
        triggers, found = stage.triggers(project), []
        stage.write("src/a.py", "1")
        await settled(triggers)
        stage.pass_time(3600)
        await settled(triggers)
        change(lambda memory: replace(memory, is_paused=True))
        stage.write("src/a.py", "22")
        change(lambda memory: memories.resume(memory, stage.now))
        stage.pass_time(20)
        await settled(triggers)
        found.append(len(stage.threads()))
        stage.write("src/a.py", "333")
        triggers.update(project, stage.workflows)  # looks at files again, as a change does
        stage.pass_time(3600)
        await settled(triggers)
        return [*found, len(stage.threads())]

    assert played(play) == [0, 1]


@pytest.mark.parametrize("is_cooling", [False, True])
def test_a_file_that_changes_before_the_first_look_after_a_trigger_was_resumed_counts(
    stage: Stage, is_cooling: bool
) -> None:
    project = stage.project(EDITED)
    [trigger] = project.triggers
    stage.write("src/a.py", "1")

    async def play() -> int:
        triggers = stage.triggers(project)
        await settled(triggers)
        ref, memory = memories.recall(stage.store, "shop", trigger, now=stage.now)
        memory = replace(memory, fired_at=stage.now if is_cooling else 0)
        memories.save(stage.store, "shop", trigger, ref, memories.resume(memory, stage.now))
        stage.write("src/a.py", "22")
        set_time(stage.folder / "src/a.py", stage.now / 1000 + 5)
        stage.pass_time(20)
        looks = await settled(triggers)
        looks += await settled(triggers)
        if is_cooling:
            assert stage.threads() == []
            stage.pass_time(600)
            await settled(triggers)
        return looks

    assert played(play) == 1
    assert stage.prompts() == ["Changed: src/a.py"]


def test_within_the_cool_down_no_second_thread_is_started(stage: Stage) -> None:
    async def play() -> None:
        triggers = stage.triggers("tick: {every: 1m, cooldown: 150s, prompt: x}")
        for _ in range(6):
            await settled(triggers)
            stage.pass_time(60)

    played(play)
    assert stage.memory("tick").fired == 2
    assert stage.memory("tick").skipped == "it is cooling down"


def test_a_clock_put_back_does_not_make_a_cool_down_longer(stage: Stage) -> None:
    [trigger] = stage.project("tick: {every: 1m, cooldown: 1h, prompt: x}").triggers
    memory = TriggerMemory(fired_at=NOON)
    signal = memories.Signal({})
    assert memories.refusal(trigger, memory, signal, NOON + 1000) == memories.COOLING
    assert memories.refusal(trigger, memory, signal, NOON - 86_400_000) == ""


def test_only_as_many_dedupe_keys_are_remembered_as_need_be() -> None:
    memory = TriggerMemory()
    for number in range(1000):
        memory = memories.after_start(memory, memories.Signal({}, key=str(number)), "T", NOON)
    assert len(memory.keys) == memories.MOST_KEYS
    assert memories.digest_of("999") in memory.keys


# -- commands --

MOVED = 'moved: {command: [cat, value], every: 1m, prompt: "Now {{output}}."}'


def looks_of(stage: Stage, triggers: Triggers, *values: str | None) -> Any:
    async def play() -> None:
        await settled(triggers)
        for value in values:
            if value is None:
                (stage.folder / "value").unlink()
            else:
                stage.write("value", value)
            stage.pass_time(60)
            await settled(triggers)

    return play


def test_a_command_starts_a_thread_when_its_output_is_another(stage: Stage) -> None:
    triggers = stage.triggers(MOVED)
    played(looks_of(stage, triggers, "1", "1", "2", "2", "1"))
    assert stage.prompts() == ["Now 2.", "Now 1."]


def test_a_change_while_nothing_ran_is_found_after_a_restart(stage: Stage) -> None:
    played(looks_of(stage, stage.triggers(MOVED), "1"))
    stage.write("value", "2")
    stage.pass_time(86_400)

    async def play() -> None:
        await settled(stage.triggers(MOVED))

    played(play)
    assert stage.prompts() == ["Now 2."]


def test_a_command_that_fails_is_told_once_and_changes_nothing(stage: Stage) -> None:
    triggers = stage.triggers(MOVED)
    played(looks_of(stage, triggers, "1", None, "1", "2"))
    assert stage.prompts() == ["Now 2."]
    assert len([line for line in stage.said if "No such file" in line]) == 1
    assert stage.memory("moved").problem == ""


def test_a_program_that_is_not_there_is_a_problem_of_its_trigger(stage: Stage) -> None:
    async def play() -> None:
        triggers = stage.triggers("moved: {command: [no-such-program], every: 1m, prompt: x}")
        await settled(triggers)
        for _ in range(3):
            stage.pass_time(60)
            await settled(triggers)

    played(play)
    assert "'no-such-program' was not found" in stage.memory("moved").problem
    assert len(stage.said) == 1
    assert stage.threads() == []


def test_a_command_gets_its_words_as_they_are_and_no_shell(stage: Stage) -> None:
    word = "$(touch hacked); `id` && *"
    triggers = stage.triggers(f'moved: {{command: [echo, "{word}"], every: 1m, prompt: "{{{{output}}}}"}}')

    async def play() -> None:
        await settled(triggers)
        stage.pass_time(60)
        await settled(triggers)

    played(play)
    assert not (stage.folder / "hacked").exists()
    assert stage.memory("moved").seen


def test_a_command_that_takes_too_long_is_ended(stage: Stage) -> None:
    triggers = stage.triggers("moved: {command: [sleep, '600'], every: 1m, timeout: 0.2s, prompt: x}")

    async def play() -> None:
        await settled(triggers)
        stage.pass_time(60)
        await settled(triggers)

    played(play)
    assert "0.2 s" in stage.memory("moved").problem


def test_megabytes_of_output_are_bounded_and_their_change_is_seen(stage: Stage) -> None:
    program = (
        "import pathlib; n = pathlib.Path('value').read_text(); print('x' * 3_000_000 + n + 'y' * 3_000_000)"
    )
    triggers = stage.triggers(
        f'moved: {{command: ["{sys.executable}", -c, "{program}"], every: 1m, prompt: "{{{{output}}}}"}}'
    )
    stage.write("value", "0")
    played(looks_of(stage, triggers, "1", "2"))
    [prompt] = stage.prompts()
    assert len(prompt) < 100_000
    assert "bytes dropped" in prompt


# -- senses --


def sensed(
    stage: Stage,
    body: str,
    *,
    times: int = 1,
    extra: str = 'prompt: "{{what}}"',
    file: str = "senses/feel.py",
) -> None:
    stage.write(file, body)
    triggers = stage.triggers(f"felt: {{sense: feel, every: 1m, {extra}}}")

    async def play() -> None:
        await settled(triggers)
        for _ in range(times):
            stage.pass_time(60)
            await settled(triggers)

    played(play)


def test_a_sense_starts_a_thread_for_each_signal_and_none_for_nothing(stage: Stage) -> None:
    sensed(stage, "def sense():\n    print('noise')\n    return {'what': 'smoke'}\n", times=2)
    assert stage.prompts() == ["smoke", "smoke"]
    sensed(stage, "def sense():\n    return None\n", times=2)
    assert len(stage.threads()) == 2


def test_a_sense_may_lie_in_a_folder_of_its_own(stage: Stage) -> None:
    stage.write("senses/feel/words.py", "WORD = 'smoke'\n")
    body = "from .words import WORD\ndef sense():\n    return {'what': WORD}\n"
    sensed(stage, body, file="senses/feel/index.py")
    assert stage.prompts() == ["smoke"]
    sensed(stage, "def sense():\n    return 1 / 0\n", file="senses/feel/index.py")
    assert "senses/feel/index.py:2: ZeroDivisionError" in stage.memory("felt").problem


def test_a_sense_may_bring_its_own_prompt_and_a_key(stage: Stage) -> None:
    body = "def sense():\n    return {'prompt': 'Put out {{the}} fire.', 'key': 'fire-1'}\n"
    sensed(stage, body, times=3, extra="cooldown: 1s")
    assert stage.prompts() == ["Put out {{the}} fire."]
    assert "'fire-1' was already handled" in stage.memory("felt").skipped


def test_a_sense_is_as_it_lies_there_each_time_it_is_called(stage: Stage) -> None:
    sensed(stage, "def sense():\n    return 'first'\n", extra="cooldown: 1s")
    sensed(stage, "def sense():\n    return 'other'\n", extra="cooldown: 1s")
    assert stage.prompts() == ["first", "other"]
    assert not list(stage.folder.rglob("__pycache__"))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("def sense():\n    return 1 / 0\n", "senses/feel.py:2: ZeroDivisionError: division by zero"),
        ("def sense():\n    return [1]\n", "returned a list; a signal is a dict, a text or None"),
        ("def sense():\n    return {'x': {1}}\n", "returned something that is not plain data"),
        ("async def sense():\n    return 'x'\n", "must be a plain function, not an async one"),
        ("def sense(a, b=1):\n    return 'x'\n", "is called without arguments, but requires a"),
        ("import os\nos._exit(9)\n", "its process ended without an answer (exit code 9)"),
        ("import sys\nsys.exit('bye')\n", "senses/feel.py:2: SystemExit: bye"),
        ("x = 1\n", "it has no function `sense`"),
        ("def sense(:\n", "senses/feel.py:1: SyntaxError"),
        ("def sense():\n    return {'where': 'here'}\n", "{{what}} has no value"),
    ],
)
def test_a_sense_that_misbehaves_is_a_problem_and_starts_nothing(stage: Stage, body: str, told: str) -> None:
    sensed(stage, body)
    assert told in stage.memory("felt").problem
    assert told in stage.said[-1]
    assert stage.threads() == []


def test_a_sense_that_takes_too_long_is_ended_and_starts_nothing(stage: Stage) -> None:
    body = "import time\ndef sense():\n    time.sleep(600)\n"
    sensed(stage, body, extra='timeout: 2s, prompt: "{{what}}"')
    assert "it took longer than 2 s" in stage.memory("felt").problem
    assert "it took longer than 2 s" in stage.said[-1]
    assert stage.threads() == []


# -- files --

PLAIN = 'edited: {files: ["src/**/*.py"], prompt: "Changed: {{files}}"}'
EDITED = 'edited: {files: ["src/**/*.py"], prompt: "Changed: {{files}}", cooldown: 10m}'


def set_time(path: Path, seconds: float) -> None:
    os.utime(path, (seconds, seconds))


def test_files_that_changed_while_nothing_ran_are_found_after_a_restart(stage: Stage) -> None:
    stage.write("src/a.py", "1")
    stage.write("src/deep/b.py", "1")
    set_time(stage.folder / "src/a.py", NOON / 1000 - 60)
    set_time(stage.folder / "src/deep/b.py", NOON / 1000 - 60)

    async def play() -> None:
        await settled(stage.triggers(EDITED))
        assert stage.threads() == []
        stage.pass_time(3600)
        stage.write("src/deep/b.py", "2")
        set_time(stage.folder / "src/deep/b.py", stage.now / 1000 - 5)
        stage.write("src/ignored.txt", "2")
        await settled(stage.triggers(EDITED))
        await settled(stage.triggers(EDITED))

    played(play)
    assert stage.prompts() == ["Changed: src/deep/b.py"]


def test_a_file_whose_name_is_no_text_starts_a_thread_like_any_other(stage: Stage) -> None:
    async def play() -> None:
        stage.write("src/a.py", "1")
        await settled(stage.triggers(EDITED))
        stage.pass_time(3600)
        stage.write(os.fsdecode(b"src/\xff.py"), "1")
        set_time(stage.folder / os.fsdecode(b"src/\xff.py"), stage.now / 1000 - 5)
        await settled(stage.triggers(EDITED))

    played(play)
    assert stage.prompts() == ["Changed: src/\ufffd.py"]


def test_a_change_within_the_cool_down_is_not_lost(stage: Stage) -> None:
    stage.write("src/a.py", "1")

    async def play() -> None:
        triggers = stage.triggers(EDITED)
        await settled(triggers)
        for text in ("22", "333"):
            stage.write("src/a.py", text)
            stage.pass_time(30)
            triggers.update(stage.project(EDITED), stage.workflows)  # looks at files again, as a change does
            await settled(triggers)
        assert len(stage.threads()) == 1
        assert await settled(triggers) == 0
        stage.pass_time(600)
        assert await settled(triggers) == 1

    played(play)
    assert len(stage.threads()) == 2


def started_after(stage: Stage, *changes: Callable[[], object]) -> int:
    """How many threads there are after `changes` of the files, which nobody tells the triggers of; each is waited
    for."""

    async def play() -> None:
        started = asyncio.Event()
        triggers = Triggers(
            stage.store, env=stage.env, mask=Mask(()), say=stage.said.append, on_start=started.set
        )
        triggers.update(stage.project(EDITED), stage.workflows)
        task = asyncio.create_task(triggers.run())
        async with asyncio.timeout(90):
            while not stage.memory("edited").seen:
                await asyncio.sleep(0.01)  # the first look
            for change in changes:
                started.clear()
                change()
                await started.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    played(play)
    return len(stage.threads())


def test_a_file_that_is_saved_starts_a_thread_without_being_asked_for(stage: Stage) -> None:
    stage.write("src/a.py", "1")
    assert started_after(stage, lambda: stage.write("src/new/b.py", "1")) == 1


@pytest.mark.parametrize(("origin", "goal"), [("other", "src/new"), ("src/old", "other")])
def test_a_folder_that_comes_or_goes_with_all_its_files_starts_a_thread(
    stage: Stage, origin: str, goal: str
) -> None:
    """The kernel tells of the folder alone, as it does of files that are made before a new folder is watched."""
    stage.write("src/a.py", "1")
    stage.write(f"{origin}/b.py", "1")
    assert started_after(stage, lambda: os.rename(stage.folder / origin, stage.folder / goal)) == 1


@pytest.mark.parametrize("change", ["renamed", "removed and made", "a link to another"])
def test_a_watched_folder_that_another_takes_the_place_of_is_watched_from_then_on(
    stage: Stage, change: str
) -> None:
    stage.write("first/a.py", "1")
    os.symlink("first", stage.folder / "src")
    if change != "a link to another":
        (stage.folder / "src").unlink()
        (stage.folder / "first").rename(stage.folder / "src")

    def replaced() -> None:
        if change == "a link to another":
            stage.write("second/a.py", "22")
            (stage.folder / "src").unlink()
            os.symlink("second", stage.folder / "src")
            return
        if change == "renamed":
            (stage.folder / "src").rename(stage.folder / "old")
        else:
            shutil.rmtree(stage.folder / "src")
        stage.write("src/a.py", "22")

    def edited() -> None:
        stage.pass_time(600)
        stage.write("src/a.py", "333")

    assert started_after(stage, replaced, edited) == 2


def test_a_change_that_the_file_system_does_not_tell_of_is_found_all_the_same(stage: Stage) -> None:
    stage.write("src/a.py", "1")

    async def play() -> None:
        triggers = stage.triggers(PLAIN)
        await settled(triggers)
        stage.write("src/a.py", "22")
        assert await settled(triggers) == 0
        stage.pass_time(36_000)  # far longer than a look takes
        assert await settled(triggers) == 1

    played(play)
    assert len(stage.threads()) == 1


def test_files_that_came_from_elsewhere_as_they_are_are_named(stage: Stage) -> None:
    for path in ("src/a.py", "elsewhere/b.py", "elsewhere/below/c.py", "d.py"):
        stage.write(path, "1")
        set_time(stage.folder / path, 1_000_000_000)
    stage.outlast_tick()

    async def play() -> None:
        for origin, goal in (("elsewhere", "src/new"), ("d.py", "src/d.py")):
            stage.now = time.time_ns() // 1_000_000
            await settled(stage.triggers(PLAIN))
            stage.outlast_tick()
            os.rename(stage.folder / origin, stage.folder / goal)
            stage.outlast_tick()
            stage.now = time.time_ns() // 1_000_000
            await settled(stage.triggers(PLAIN))

    played(play)
    assert sorted(stage.prompts()) == ["Changed: src/d.py", "Changed: src/new/b.py, src/new/below/c.py"]


def test_a_look_that_finds_nothing_new_writes_nothing(stage: Stage) -> None:
    """The store may lie among the files, and be the next thing that changes."""
    stage.write("src/a.py", "1")

    async def play() -> list[Ref]:
        await settled(stage.triggers(EDITED))
        before = stage.store.refs("trigger/")
        stage.pass_time(60)
        assert await settled(stage.triggers(EDITED)) == 1
        return before

    assert played(play) == stage.store.refs("trigger/")


def test_what_is_gone_is_looked_at_only_if_it_held_files_that_fit(stage: Stage) -> None:
    from rolecall.service.triggers import sources

    stage.write("src/deep/within/a.py", "1")
    stage.write("src/other/b.txt", "1")
    look = sources.look_at_files(WatchedFiles(("src/**/*.py",)), str(stage.folder), since_ms=0)
    shutil.rmtree(stage.folder / "src")

    def concerns(path: str) -> bool:
        return sources.concerns(str(stage.folder / path), str(stage.folder), ("src/**/*.py",), look.folders)

    assert all(map(concerns, ("src", "src/deep", "src/deep/within", "src/gone.py")))
    assert not any(map(concerns, ("src/other", "src/x.tmp", "elsewhere")))


def test_files_are_named_also_where_the_stores_clock_is_ahead_of_theirs(stage: Stage) -> None:
    class Ahead(SqliteBackend):
        clock = staticmethod(lambda: time.time_ns() // 1_000_000 + 3_600_000)

    stage.write("src/a.py", "1")
    stage.outlast_tick()

    async def play() -> None:
        with Store(Ahead(stage.url)) as store:
            await settled(stage.triggers(EDITED, store))
            stage.write("src/b.py", "1")  # in the tick of the look, if the machine is fast
            await settled(stage.triggers(EDITED, store))

    played(play)
    assert stage.prompts() == ["Changed: src/b.py"]


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("src/**/*.py", ["src/a.py", "src/x/y/b.py"], ["a.py", "src/a.pyc", "other/src/a.py"]),
        ("*.md", ["README.md"], ["docs/README.md"]),
        ("**", ["a", "b/c"], []),
        ("data-[0-9]?.csv", ["data-1x.csv"], ["data-a1.csv", "data-1.csv"]),
        ("[!a]*", ["b", "bc"], ["a", "ab"]),
        ("a+b(c).txt", ["a+b(c).txt"], ["aab(c).txt"]),
    ],
)
def test_patterns_mean_what_they_mean_elsewhere(pattern: str, fitting: list[str], others: list[str]) -> None:
    fits = glob_test(pattern)
    assert [path for path in [*fitting, *others] if fits(path)] == fitting


# -- trouble --


def test_a_workflow_that_cannot_be_used_is_a_problem_and_the_next_time_counts(stage: Stage) -> None:
    async def play() -> None:
        triggers = stage.triggers(TICK)
        await settled(triggers)
        triggers.update(stage.project(TICK), {})
        stage.pass_time(3600)
        await settled(triggers)
        assert "the workflow 'hello' is missing" in stage.memory("tick").problem
        triggers.update(stage.project(TICK), stage.workflows)
        assert await settled(triggers) == 0
        stage.pass_time(3600)
        await settled(triggers)

    played(play)
    assert len(stage.threads()) == 1
    assert stage.memory("tick").problem == ""


def test_a_store_that_refuses_for_a_while_costs_no_planned_time(stage: Stage) -> None:
    """As a server does that is just away, or a disk that is full: only whoever makes the thread meets it here."""

    async def play() -> list[int]:
        triggers = stage.triggers(TICK)
        await settled(triggers)
        stage.pass_time(3600)
        stage.env["ROLECALL_STORE"] = "/dev/null/store.db"
        found = [await settled(triggers), await settled(triggers)]
        stage.env["ROLECALL_STORE"] = stage.url
        stage.pass_time(20)
        return [*found, await settled(triggers)]

    assert played(play) == [1, 0, 1]
    assert len(stage.threads()) == 1
    assert "/dev/null" in stage.said[0]


def test_a_prompt_without_end_is_refused(stage: Stage) -> None:
    body = "def sense():\n    return {'what': 'x' * 500_000}\n"
    sensed(stage, body)
    assert "more than 200,000 characters" in stage.memory("felt").problem
    assert stage.threads() == []


def test_what_will_be_run_is_told_line_by_line(stage: Stage) -> None:
    triggers = stage.triggers(f"{TICK}, {MOVED}, {EDITED}, called: {{http: {{secret_env: S}}, prompt: x}}")
    assert triggers.lines() == [
        "hello/tick: every 1h",
        "hello/moved: runs `cat value` and fires when its output changes, every 1m",
        "hello/edited: when a file changes: src/**/*.py, at most every 10m",
        "hello/called: by a request with the secret as a bearer token (secret in $S) at "
        "http://127.0.0.1:0/hooks/hello/called",
    ]


# -- sandboxes --


@pytest.mark.parametrize(("sandbox", "is_seen"), [("", False), ("sandbox: off, ", True)])
def test_a_command_of_the_project_sees_no_secrets_unless_its_trigger_says_so(
    stage: Stage, sandbox: str, is_seen: bool
) -> None:
    program = "cat $HOME/.ssh/key; echo $HOOK_SECRET | wc -c; cat value"
    triggers = stage.triggers(
        f'moved: {{command: [sh, -c, "{program}"], {sandbox}every: 1m, prompt: "{{{{output}}}}"}}'
    )
    key = Path(stage.env["HOME"], ".ssh", "key")
    key.parent.mkdir()
    key.write_text("the key\n")
    stage.write("value", "0")
    played(looks_of(stage, triggers, "1", "2"))
    [prompt] = stage.prompts()
    assert prompt.splitlines()[-1] == "2"
    assert ("the key" in prompt, "24\n" in prompt) == (is_seen, is_seen)

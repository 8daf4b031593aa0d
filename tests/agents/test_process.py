from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pytest
from processes import wait_for_environment

from rolecall.agents import process
from rolecall.agents.process import Exit, Started
from rolecall.errors import AgentError

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
BOUND = 120.0
Program = Callable[[str], list[str]]

WAITS_FOR_EVER = "import signal\nwhile True: signal.pause()\n"


def run(argv: Sequence[str], cwd: Path, **options: Any) -> Exit:
    async def bounded() -> Exit:
        return await asyncio.wait_for(process.run(argv, cwd=cwd, **{"env": ENV, **options}), BOUND)

    return asyncio.run(bounded())


class Cancelling:
    """Sets the cancel signal when the child has printed what the test waits for."""

    def __init__(self, word: str) -> None:
        self.cancel = asyncio.Event()
        self.seen = ""
        self._word = word

    def __call__(self, text: str) -> None:
        self.seen += text
        if self._word in self.seen:
            self.cancel.set()


def test_the_prompt_goes_to_stdin_and_stdout_comes_back(tmp_path: Path) -> None:
    ended = run(["cat"], tmp_path, prompt="grüße\n")
    assert (ended.ending, ended.code, ended.stdout) == ("completed", 0, "grüße\n")


def test_a_prompt_and_an_answer_of_megabytes_flow_at_the_same_time(tmp_path: Path) -> None:
    prompt = "0123456789abcde\n" * 200_000
    assert run(["cat"], tmp_path, prompt=prompt).stdout == prompt


def test_a_child_that_does_not_read_its_prompt_answers_all_the_same(tmp_path: Path) -> None:
    ended = run(["echo", "no need"], tmp_path, prompt="x" * 3_000_000)
    assert (ended.ending, ended.stdout) == ("completed", "no need\n")


def test_a_child_that_closes_its_stdin_and_goes_on_answers_all_the_same(
    tmp_path: Path, program: Program
) -> None:
    argv = program("import os; os.read(0, 10); os.close(0); print('enough')")
    assert run(argv, tmp_path, prompt="x" * 3_000_000).stdout == "enough\n"


def test_stdin_can_be_opened_again_by_its_name(tmp_path: Path) -> None:
    assert run(["cat", "/dev/stdin"], tmp_path, prompt="by name").stdout == "by name"


def test_text_is_passed_on_while_the_child_still_runs(tmp_path: Path, program: Program) -> None:
    argv = program("print('ready', flush=True)\n" + WAITS_FOR_EVER)
    watching = Cancelling("ready")
    ended = run(argv, tmp_path, on_text=watching, cancel=watching.cancel)
    assert (ended.ending, watching.seen) == ("interrupted", "ready\n")


def test_ctrl_c_that_reaches_a_child_before_it_has_its_own_session_interrupts_it(tmp_path: Path) -> None:
    class Unnoticed(asyncio.Event):
        """Is set, but the end of the child is noticed first."""

        async def wait(self) -> Literal[True]:
            await asyncio.Event().wait()
            return True

    cancel = Unnoticed()

    def press(started: Started) -> None:
        os.kill(started.pid, signal.SIGINT)
        cancel.set()

    ended = run(["sleep", "60"], tmp_path, on_start=press, cancel=cancel)
    assert (ended.ending, ended.reason) == ("interrupted", "'sleep' was cancelled")


def test_a_character_split_between_two_reads_is_passed_on_whole(tmp_path: Path, program: Program) -> None:
    argv = program(
        """
        import os
        os.write(1, b"a\\xc3")
        while not os.path.exists("first-half-was-read"): pass
        os.write(1, b"\\xbc")
        """
    )
    pieces: list[str] = []

    def hear(text: str) -> None:
        pieces.append(text)
        (tmp_path / "first-half-was-read").touch()

    assert run(argv, tmp_path, on_text=hear).stdout == "aü"
    assert pieces == ["a", "ü"]


def test_the_child_gets_the_given_environment_its_folder_and_the_mark_of_its_run_only(tmp_path: Path) -> None:
    started: list[Started] = []
    ended = run(["env"], tmp_path, env={"PATH": ENV["PATH"], "GIVEN": "yes"}, on_start=started.append)
    assert sorted(ended.stdout.splitlines()) == sorted(
        [f"PATH={ENV['PATH']}", "GIVEN=yes", f"PWD={tmp_path}", f"ROLECALL_RUN={started[0].run}"]
    )


def test_a_run_inside_a_run_carries_both_marks(tmp_path: Path) -> None:
    started: list[Started] = []
    ended = run(["env"], tmp_path, env={**ENV, "ROLECALL_RUN": "outer"}, on_start=started.append)
    assert f"ROLECALL_RUN=outer/{started[0].run}" in ended.stdout.splitlines()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_run_is_told_from_one_of_the_same_name_in_another_run(tmp_path: Path) -> None:
    found: dict[str, list[int]] = {}
    own: list[int] = []
    thread = f"thread-{uuid4().hex}"  # the same test may run elsewhere on the machine
    here = f"here-{thread}"

    def look(child: Started) -> None:
        own.append(child.pid)
        wait_for_environment(child.pid)
        for path in (
            thread,
            f"{here}/{thread}",
            here,
            f"there/{thread}",
            f"{here[1:]}/{thread}",
            f"{here}/{thread}/{child.run}",
        ):
            found[path] = process.survivors(path)

    run(["cat"], tmp_path, env={**ENV, "ROLECALL_RUN": f"outer/{here}/{thread}"}, on_start=look)
    assert {path for path, pids in found.items() if pids == own} == {
        thread, here, f"{here}/{thread}", next(reversed(found)),
    }  # fmt: skip
    assert found[f"there/{thread}"] == found[f"{here[1:]}/{thread}"] == []


def test_a_flood_of_100_mb_keeps_head_and_tail_and_says_what_it_dropped(
    tmp_path: Path, program: Program
) -> None:
    argv = program(
        """
        import os
        os.write(1, b"HEAD")
        block = b"x" * 65536
        for _ in range(1600): os.write(1, block)
        os.write(1, b"TAIL")
        """
    )
    ended = run(argv, tmp_path, max_output=1_000_000)
    assert ended.stdout.startswith("HEADx")
    assert ended.stdout.endswith("xTAIL")
    assert f"[{1600 * 65536 + 8 - 1_000_000} bytes dropped]" in ended.stdout
    assert len(ended.stdout) < 1_000_100


def test_a_flood_on_both_pipes_does_not_grow_our_memory(tmp_path: Path, program: Program) -> None:
    flood = program(
        """
        import os
        block = b"x" * 65536
        for _ in range(1600): os.write(1, block); os.write(2, block)
        """
    )
    runner = program(
        """
        import asyncio, resource, sys
        from pathlib import Path
        from rolecall.agents import process

        def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        async def main():
            await process.run(["true"], cwd=Path("."), env={"PATH": "/usr/bin:/bin"})
            before = peak()
            ended = await process.run(sys.argv[1:], cwd=Path("."), env={}, max_output=1 << 20, on_text=len)
            is_dropped = f"[{1600 * 65536 - (1 << 20)} bytes dropped]" in ended.stdout
            print(ended.ending, is_dropped, peak() - before)

        asyncio.run(main())
        """
    )
    child = subprocess.run([*runner, *flood], cwd=tmp_path, capture_output=True, text=True, timeout=BOUND)
    ending, is_dropped, grown_kb = child.stdout.split()
    assert (ending, is_dropped) == ("completed", "True")
    assert int(grown_kb) < 30_000


def test_an_endless_flood_can_be_cancelled(tmp_path: Path) -> None:
    watching = Cancelling("yy")
    ended = run(["sh", "-c", "yes yy"], tmp_path, on_text=watching, cancel=watching.cancel, max_output=1000)
    assert ended.ending == "interrupted"


def test_binary_output_is_decoded_with_replacement(tmp_path: Path, program: Program) -> None:
    argv = program("import os; os.write(1, bytes(range(256)) + 'ü'.encode())")
    ended = run(argv, tmp_path)
    assert ended.stdout.startswith("\x00\x01")
    assert ended.stdout.endswith("�ü")


def test_a_failing_child_is_reported_with_the_end_of_its_stderr(tmp_path: Path, program: Program) -> None:
    argv = program(
        "import sys; sys.stderr.write('noise ' * 50_000 + 'the reason'); print('part'); sys.exit(3)"
    )
    ended = run(argv, tmp_path)
    assert (ended.ending, ended.code, ended.stdout) == ("failed", 3, "part\n")
    assert "exited with status 3" in ended.reason
    assert ended.reason.endswith("the reason")
    assert len(ended.reason) < 3000


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGTERM"])
def test_death_by_signal_names_the_signal(tmp_path: Path, name: str) -> None:
    ended = run(["sh", "-c", f"echo part; kill -{name[3:]} $$"], tmp_path)
    assert (ended.ending, ended.stdout) == ("killed", "part\n")
    assert name in ended.reason


def test_a_hanging_child_is_ended_by_the_timeout_and_keeps_what_it_said(
    tmp_path: Path, program: Program
) -> None:
    for seconds in (1.5, 20.5):
        ended = run(["sh", "-c", "echo part; exec tail -f /dev/null"], tmp_path, timeout=seconds)
        if ended.stdout:  # else the machine is so busy that it had not even begun
            break
    assert (ended.ending, ended.stdout) == ("timeout", "part\n")
    assert f"{seconds:g} s" in ended.reason


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path, program: Program) -> None:
    argv = program(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\n"
        + WAITS_FOR_EVER
    )
    watching = Cancelling("deaf")
    ended = run(argv, tmp_path, on_text=watching, cancel=watching.cancel, grace=0.05)
    assert (ended.ending, ended.code, ended.left) == ("interrupted", -signal.SIGKILL, ())


def test_a_child_gets_the_chance_to_end_properly(tmp_path: Path, program: Program) -> None:
    argv = program(
        """
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        print("ready", flush=True)
        signal.sigwait({signal.SIGTERM})
        print("bye")
        """
    )
    watching = Cancelling("ready")
    ended = run(argv, tmp_path, on_text=watching, cancel=watching.cancel, grace=BOUND)
    assert (ended.ending, ended.stdout, ended.code) == ("interrupted", "ready\nbye\n", 0)


FORKS_AND_LEAVES = """
    import os, signal, sys
    def child(depart):
        ready, tell = os.pipe()
        pid = os.fork()
        if pid:
            os.read(ready, 1)
            print(pid, flush=True)
            return
        depart()
        signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in sys.argv else signal.SIG_DFL)
        os.write(tell, b"x")
        while True: signal.pause()
    child(lambda: None)
    child(os.setpgrp)
    child(os.setsid)
    """


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("manner", ["polite", "deaf"])
def test_children_that_outlive_their_parent_and_hold_its_pipes_are_ended(
    tmp_path: Path, program: Program, manner: str
) -> None:
    ended = run([*program(FORKS_AND_LEAVES), manner], tmp_path, grace=0.1)
    pids = [int(word) for word in ended.stdout.split()]
    assert len(pids) == 3
    assert (ended.ending, ended.left) == ("completed", ())
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_cancelling_ends_children_in_groups_and_sessions_of_their_own(
    tmp_path: Path, program: Program
) -> None:
    argv = program(FORKS_AND_LEAVES + "\n    print('all', flush=True)\n    while True: signal.pause()\n")
    watching = Cancelling("all")
    ended = run(argv, tmp_path, on_text=watching, cancel=watching.cancel)
    pids = [int(word) for word in ended.stdout.split()[:3]]
    assert ended.ending == "interrupted"
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_child_that_cleared_its_environment_is_ended_with_its_session(tmp_path: Path) -> None:
    ended = run(["sh", "-c", "env -i tail -f /dev/null 2>&1 & echo $!"], tmp_path)
    assert ended.ending == "completed"
    assert not is_running(int(ended.stdout))


def test_a_helper_that_writes_after_its_parent_exited_is_still_heard(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_LINGER", BOUND)  # the helper can be slow on a busy machine
    argv = program(
        """
        import os
        parent = os.getpid()
        if os.fork() == 0:
            while os.getppid() == parent: pass
            os.write(1, b"last words")
        """
    )
    assert run(argv, tmp_path).stdout == "last words"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_what_a_killed_runner_left_behind_can_be_ended_by_its_run(tmp_path: Path, program: Program) -> None:
    hanging = program(WAITS_FOR_EVER)
    runner = program(
        """
        import asyncio, os, signal, sys
        from pathlib import Path
        from rolecall.agents import process

        def tell(child):
            print(child.pid, child.run, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(process.run(sys.argv[1:], cwd=Path("."), env={}, on_start=tell))
        """
    )
    dead = subprocess.run([*runner, *hanging], cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=BOUND)
    assert dead.returncode == -signal.SIGKILL
    pid, run_id = dead.stdout.split()
    wait_for_environment(int(pid))
    assert process.survivors(run_id) == [int(pid)]
    assert asyncio.run(process.end_leftovers(run_id)) == ()
    assert not is_running(int(pid))


def test_nothing_is_given_up_before_it_was_killed_however_late_that_is(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_KILL_PATIENCE", -1.0)  # as after a stall that took all the time there is
    run_id = os.urandom(8).hex()
    argv = program(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(flush=True)\n" + WAITS_FOR_EVER
    )
    with subprocess.Popen(argv, env=process.add_mark(ENV, run_id), stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        asyncio.run(process.end_leftovers(run_id, grace=0))
        try:
            assert child.wait(BOUND) == -signal.SIGKILL
        finally:
            child.kill()


def test_a_cancelled_task_ends_the_child_before_it_is_gone(tmp_path: Path, program: Program) -> None:
    argv = program("print('ready', flush=True)\n" + WAITS_FOR_EVER)
    started: list[Started] = []

    async def scene() -> None:
        ready = asyncio.Event()
        running = process.run(
            argv, cwd=tmp_path, env=ENV, on_start=started.append, on_text=lambda _: ready.set()
        )
        task = asyncio.ensure_future(running)
        await asyncio.wait_for(ready.wait(), BOUND)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, BOUND)

    asyncio.run(scene())
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)


def test_a_task_cancelled_twice_kills_at_once(tmp_path: Path, program: Program) -> None:
    argv = program(
        """
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        print("ready", flush=True)
        signal.sigwait({signal.SIGTERM})
        print("asked", flush=True)
        while True: signal.pause()
        """
    )
    started: list[Started] = []

    async def scene() -> None:
        words = {"ready": asyncio.Event(), "asked": asyncio.Event()}

        def hear(text: str) -> None:
            for word in text.split():
                words[word].set()

        running = process.run(argv, cwd=tmp_path, env=ENV, on_start=started.append, on_text=hear, grace=BOUND)
        task = asyncio.ensure_future(running)
        for word in ("ready", "asked"):
            await asyncio.wait_for(words[word].wait(), BOUND)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, BOUND)

    asyncio.run(scene())
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)


def test_a_callback_that_fails_ends_the_child_and_is_raised(tmp_path: Path, program: Program) -> None:
    argv = program("print('ready', flush=True)\n" + WAITS_FOR_EVER)
    started: list[Started] = []

    def fail(text: str) -> None:
        raise OSError(f"the disk is full: {text}")

    with pytest.raises(OSError, match="the disk is full: ready"):
        run(argv, tmp_path, on_start=started.append, on_text=fail)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)


def test_a_start_that_cannot_be_noted_ends_the_child_and_is_raised(tmp_path: Path, program: Program) -> None:
    started: list[Started] = []

    def fail(child: Started) -> None:
        started.append(child)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        run(program(WAITS_FOR_EVER), tmp_path, on_start=fail)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)


def test_a_callback_that_fails_on_the_last_words_is_raised(tmp_path: Path) -> None:
    def fail(text: str) -> None:
        raise OSError(text)

    with pytest.raises(OSError, match="last"):
        run(["echo", "last"], tmp_path, on_text=fail)


def test_a_child_may_delete_its_own_work_folder(tmp_path: Path, program: Program) -> None:
    work = tmp_path / "work"
    work.mkdir()
    ended = run(program("import os, shutil; shutil.rmtree(os.getcwd()); print('gone')"), work)
    assert (ended.ending, ended.stdout, work.exists()) == ("completed", "gone\n", False)


def test_a_missing_program_is_named_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="'no-such-agent' was not found") as caught:
        run(["no-such-agent"], tmp_path)
    assert caught.value.ending == "failed"
    assert ENV["PATH"] in caught.value.hint


def test_a_program_is_looked_for_on_the_path_of_the_child_not_on_ours(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="'cat' was not found"):
        run(["cat"], tmp_path, env={"PATH": str(tmp_path)})


def test_a_program_with_a_slash_is_looked_for_from_the_work_folder(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho here\n")
    tool.chmod(0o755)
    assert run(["./tool"], tmp_path).stdout == "here\n"


def test_a_program_that_is_not_executable_is_named(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    with pytest.raises(AgentError, match=r"'\./tool' is not executable") as caught:
        run(["./tool"], tmp_path)
    assert caught.value.hint == "chmod +x ./tool"


def test_an_executable_that_the_system_cannot_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "tool").write_bytes(b"no first line")
    (tmp_path / "tool").chmod(0o755)
    with pytest.raises(AgentError, match=r"'\./tool' cannot be started"):
        run(["./tool"], tmp_path)


def test_a_missing_work_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"work folder .*nowhere' does not exist"):
        run(["true"], tmp_path / "nowhere")


def test_an_argument_with_a_null_byte_is_refused_clearly(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="'echo' cannot be started"):
        run(["echo", "a\0b"], tmp_path)


def test_arguments_never_meet_a_shell(tmp_path: Path) -> None:
    assert run(["echo", "$HOME; `id` > x"], tmp_path).stdout == "$HOME; `id` > x\n"
    assert list(tmp_path.iterdir()) == []


def test_twenty_children_at_once_lose_nothing(tmp_path: Path) -> None:
    async def scene() -> list[Exit]:
        runs = (process.run(["cat"], cwd=tmp_path, env=ENV, prompt=f"{n}," * 50_000) for n in range(20))
        return await asyncio.wait_for(asyncio.gather(*runs), BOUND)

    for number, ended in enumerate(asyncio.run(scene())):
        assert ended.stdout == f"{number}," * 50_000


def test_a_loop_outside_the_main_thread_runs_children_too(tmp_path: Path) -> None:
    found: list[Exit] = []
    thread = threading.Thread(target=lambda: found.append(run(["echo", "aside"], tmp_path)))
    thread.start()
    thread.join(BOUND)
    assert found[0].stdout == "aside\n"


def test_no_descriptor_stays_open_after_a_run(tmp_path: Path) -> None:
    script = (
        "import asyncio, os; from pathlib import Path; from rolecall.agents import process\n"
        "async def main():\n"
        "    counts = []\n"
        "    for _ in range(5):\n"
        "        await process.run(['cat'], cwd=Path('.'), env={'PATH': '/usr/bin:/bin'}, prompt='x')\n"
        "        counts.append(len(os.listdir('/dev/fd')))\n"
        "    print(len(set(counts)))\n"
        "asyncio.run(main())\n"
    )
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert (child.stdout, child.stderr) == ("1\n", "")

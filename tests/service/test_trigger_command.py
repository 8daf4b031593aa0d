"""`rolecall trigger`, and triggers in a real service: as somebody meets them who configures one."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import held_port
from servicestage import PATIENCE, Service

from rolecall.threads import thread

HELLO = """\
name: hello
roles:
  greeter:
    goal: Greet.
    agent: 'command:printf %b "---\\ntext: hello\\n---\\n"'
    meta: {type: object, properties: {text: {type: string}}, required: [text]}
graph: {$START: greeter, greeter: $END}
"""


class Home(Service):
    """A service whose folder is a project."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "workflows").mkdir()
        (folder / "workflows" / "hello.yaml").write_text(HELLO)

    def configure(self, triggers: str, more: str = "") -> None:
        text = f"name: shop\n{more}workflows: {{hello: {{concurrency: 4, triggers: {{{triggers}}}}}}}\n"
        self.save("rolecall.yaml", text)

    def save(self, name: str, text: str) -> None:
        """Whole at once: somebody may be reading it."""
        draft = self.folder / ".draft"
        draft.write_text(text)
        draft.rename(self.folder / name)

    def json(self, *args: str) -> Any:
        done = self.rolecall(*args, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def listed(self) -> dict[str, Any]:
        return {row["trigger"]: row for row in self.json("trigger", "list")}

    def until_so(self, is_so: Callable[[], Any]) -> None:
        """Wait for what rings no bell: that a file was read."""
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def prompts(self) -> list[str]:
        return [thread.Chain(self.store, ref.target or "").start.prompt for ref in self.store.refs("thread/")]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


NIGHTLY = 'nightly: {cron: "0 3 * * *", prompt: "It is {{scheduled}}."}'
MOVED = 'moved: {command: [cat, value], every: 1s, prompt: "Now {{output}}."}'


# -- without a service --


def test_what_is_configured_is_listed_before_anything_ever_ran(home: Home) -> None:
    home.configure(f"{NIGHTLY}, {MOVED}")
    listed = home.listed()
    assert list(listed) == ["hello/nightly", "hello/moved"]
    assert listed["hello/nightly"] | {"next": None} == {
        "trigger": "hello/nightly",
        "does": "cron 0 3 * * * (UTC)",
        "state": "on",
        "fired": 0,
        "last": None,
        "next": None,
        "thread": None,
        "skipped": None,
        "problem": None,
    }
    assert listed["hello/nightly"]["next"].endswith("T03:00:00Z")
    assert not (home.home / "store.db").exists()


def test_a_trigger_fired_by_hand_queues_its_thread_for_a_service(home: Home) -> None:
    home.configure(NIGHTLY)
    shown = home.json("trigger", "fire", "nightly")
    assert shown["service"] is False
    assert home.thread_status(shown["thread"]) == "queued"
    row = home.listed()["hello/nightly"]
    assert (row["fired"], row["thread"]) == (1, shown["thread"])


def test_by_hand_neither_pause_nor_cool_down_nor_dedupe_key_keeps_a_thread_back(home: Home) -> None:
    home.configure('nightly: {every: 1h, prompt: x, cooldown: 1h, dedupe: "always"}')
    home.json("trigger", "pause", "hello/nightly")
    threads = {home.json("trigger", "fire", "nightly")["thread"] for _ in range(2)}
    assert len(threads) == 2


def test_a_command_is_looked_at_when_its_trigger_is_fired(home: Home) -> None:
    home.configure(MOVED)
    (home.folder / "value").write_text("7\n")
    home.json("trigger", "fire", "moved")
    assert home.prompts() == ["Now 7."]


def test_data_can_be_given_in_place_of_a_signal(home: Home) -> None:
    home.configure('called: {http: {secret_env: S}, prompt: "Fix {{body.id}}."}')
    done = home.rolecall("trigger", "fire", "called")
    assert (done.returncode, done.stdout) == (2, "")
    assert "{{body.id}} has no value" in done.stderr
    assert "--data" in done.stderr
    home.json("trigger", "fire", "called", "--data", '{"body": {"id": 7}}')
    assert home.prompts() == ["Fix 7."]


def test_names_that_are_wrong_are_told_with_the_right_ones(home: Home) -> None:
    home.configure(NIGHTLY)
    done = home.rolecall("trigger", "pause", "nightyl")
    assert done.returncode == 3
    assert "Did you mean 'hello/nightly'?" in done.stderr or "hello/nightly" in done.stderr
    assert home.rolecall("trigger", "fire", "nightly", "--data", "[1]").returncode == 2


def test_without_a_project_there_is_no_trigger(home: Home) -> None:
    done = home.rolecall("trigger", "list")
    assert (done.returncode, done.stdout) == (3, "")
    assert "rolecall init" in done.stderr


def test_a_paused_trigger_is_listed_as_paused_until_it_is_resumed(home: Home) -> None:
    home.configure(NIGHTLY)
    assert home.json("trigger", "pause", "nightly") == {"trigger": "hello/nightly", "state": "paused"}
    assert (home.listed()["hello/nightly"]["state"], home.listed()["hello/nightly"]["next"]) == (
        "paused",
        None,
    )
    home.json("trigger", "resume", "nightly")
    assert home.listed()["hello/nightly"]["state"] == "on"


# -- in a service --


def threads_of(home: Home, count: int) -> list[str]:
    """Once there are as many, all of them ended: their ids."""

    def found() -> list[str] | None:
        names = [ref.name.removeprefix("thread/") for ref in home.store.refs("thread/")]
        return names if len(names) >= count else None

    names: list[str] = home.until(found)
    assert set(home.ended(*names)) == {"completed"}
    return names


def test_serve_says_what_it_will_run_and_runs_that(home: Home) -> None:
    home.configure(f"{NIGHTLY}, {MOVED}")
    (home.folder / "value").write_text("1")
    home.start()
    home.until_so(lambda: "runs `cat value`" in home.log())
    lines = [line.partition(" trigger ")[2] for line in home.log().splitlines() if " trigger " in line]
    assert lines == [
        "hello/nightly: cron 0 3 * * * (UTC)",
        "hello/moved: runs `cat value` and fires when its output changes, every 1s",
    ]
    home.until_so(lambda: home.store.ref("trigger/shop/hello/moved") and _seen(home))
    home.save("value", "2")
    threads_of(home, 1)
    assert home.prompts() == ["Now 2."]
    home.stop()
    home.assert_clean()


def _seen(home: Home) -> bool:
    ref = home.store.ref("trigger/shop/hello/moved")
    return bool(ref and ref.state.get("seen"))


def test_a_service_that_was_started_where_no_project_is_says_that_nothing_is_triggered(home: Home) -> None:
    home.start()
    home.until_so(lambda: "has no rolecall.yaml" in home.output())
    assert "nothing is triggered" in home.log()


def test_a_thread_fired_by_hand_runs_at_once_in_the_service(home: Home) -> None:
    home.configure(NIGHTLY)
    home.start()
    shown = home.json("trigger", "fire", "nightly")
    assert shown["service"] is True
    assert home.ended(shown["thread"]) == ["completed"]


def test_a_trigger_that_is_added_to_the_file_works_without_a_restart(home: Home) -> None:
    home.configure(NIGHTLY)
    home.start()
    home.until_so(lambda: "trigger hello/nightly" in home.log())
    home.configure(f"{NIGHTLY}, often: {{every: 1s, cooldown: 1h, prompt: Added.}}")
    threads_of(home, 1)
    assert home.prompts() == ["Added."]


def test_an_invalid_change_stands_in_the_status_until_it_is_put_right(home: Home) -> None:
    home.configure(NIGHTLY)
    home.start()
    home.until_so(lambda: "trigger hello/nightly" in home.log())
    home.configure("nightly: {every: never, prompt: x}")
    home.until_so(lambda: home.status()["problems"])
    [problem] = home.status()["problems"].values()
    assert "rolecall.yaml:2:" in problem
    assert "must be a duration" in problem
    home.configure(NIGHTLY)
    home.until_so(lambda: not home.status()["problems"])


def test_a_changed_policy_counts_for_threads_that_come_later(home: Home) -> None:
    home.configure(NIGHTLY, "service: {limit: 3}\n")
    home.start()
    home.until_so(lambda: "trigger hello/nightly" in home.log())
    assert home.status()["limit"] == 3
    home.configure(NIGHTLY, "service: {limit: 5}\n")
    home.until_so(lambda: home.status()["limit"] == 5)


def sense_processes(home: Home) -> list[int]:
    return [pid for pid in home.processes() if b"sensechild" in command_of(pid)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:  # it has just ended
        return b""


def test_a_service_killed_again_and_again_fires_no_time_twice_and_leaves_nothing(home: Home) -> None:
    (home.folder / "senses").mkdir()
    called = home.folder / "called"
    (home.folder / "senses" / "slow.py").write_text(
        f"import time\ndef sense():\n    print('x', file=open({str(called)!r}, 'a'))\n    time.sleep(600)\n"
    )
    called.touch()
    slow = "slow: {sense: slow, every: 1s, timeout: 10m, prompt: x}"
    home.configure(f'tick: {{every: 1s, prompt: "{{{{scheduled}}}}"}}, {slow}')
    for count in (1, 2, 3, 4):
        home.start()
        threads_of(home, count)
        home.until_so(lambda calls=count: called.read_text().count("x") >= calls)  # type: ignore[misc]
        home.kill()
    assert sense_processes(home)
    home.configure('tick: {every: 1h, prompt: "{{scheduled}}"}')
    home.start()
    threads_of(home, 4)
    home.stop()  # from here on nothing fires
    prompts = home.prompts()
    assert len(set(prompts)) == len(prompts)
    ref = home.store.ref("trigger/shop/hello/tick")
    assert ref is not None
    assert ref.state["fired"] == len(prompts)
    home.assert_clean()  # the senses that hung in the killed services are gone


def test_a_service_in_the_background_reports_that_the_port_of_its_hooks_is_taken(home: Home) -> None:
    with held_port() as port:
        home.configure('called: {http: {secret_env: S}, prompt: "Called."}', f"hooks: {{port: {port}}}\n")
        with socket.create_server(("127.0.0.1", port)):
            done = home.rolecall("serve", "--detach", "--json")
            try:
                assert done.returncode == 0, done.stderr
                (problem,) = json.loads(done.stdout)["problems"]
                assert f"127.0.0.1:{port}: Address already in use" in problem
                assert done.stderr.strip() == f"warning: {problem}"
            finally:
                assert home.rolecall("serve", "stop").returncode == 0
        again = home.rolecall("serve", "--detach", "--json")
        assert home.rolecall("serve", "stop").returncode == 0
    assert (json.loads(again.stdout)["problems"], again.stderr) == ([], "")

"""The verbs of `rolecall thread` that read, driven through the real command on threads built in process."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import sqlite3
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from rolecall import errors
from rolecall.settings import stores
from rolecall.settings.mask import Mask
from rolecall.store.backend import NodeRecord, Ref
from rolecall.store.ids import thread_id
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads import compose, lifecycle, thread, views
from rolecall.threads.listing import Filter, list_threads
from rolecall.threads.state import ThreadRef, load
from rolecall.threads.thread import START_SCHEMA
from rolecall.workflow import registry

if TYPE_CHECKING:
    from conftest import Rolecall

WORKFLOW = """
name: write-text
description: A writer and an editor
roles:
  writer:
    description: writes
    goal: You write the text.
    capabilities: []
    procedure: Write.
    output: The text.
    meta:
      type: object
      properties: {$status: {enum: [done]}, words: {type: integer}}
      required: [$status, words]
  editor:
    description: edits
    goal: You judge the text.
    capabilities: []
    procedure: Judge.
    output: A verdict.
    meta:
      type: object
      properties: {$status: {enum: [good, bad]}}
      required: [$status]
graph:
  $START: {_: {role: writer, prompt: Begin.}}
  writer: {done: {role: editor, prompt: Judge it.}}
  editor: {good: {role: $END}, bad: {role: writer, prompt: Again.}}
"""

SCRIPT: dict[str, Any] = {
    "roles": {
        "writer": [
            {
                "output": {"$status": "done", "words": 2},
                "body": "First text.",
                "edit": {"text.md": "First text.\n"},
                "session": "s-1",
                "usage": {"input_tokens": 900, "output_tokens": 100, "cost": 0.25, "turns": 3},
            },
            {"output": {"$status": "done", "words": 3}, "body": "Second text here."},
        ],
        "editor": [
            {"output": {"$status": "bad"}, "body": "Too short."},
            {"output": {"$status": "good"}, "body": "Fine <script>alert(1)</script>."},
        ],
    }
}


EVERYTHING = Filter(frozenset({*thread.STATUSES, "crashed", "damaged"}), None, 0, None, ())


class Shelf:
    """A store in the command's home, and quick ways to fill it."""

    def __init__(self, rolecall: Rolecall, folder: Path) -> None:
        self.folder = folder
        self.store = stores.open_store(str(rolecall.home / "store.db"))
        (folder / "work").mkdir()
        (folder / "write-text.yaml").write_text(WORKFLOW)
        self.book = registry.load_file(str(folder / "write-text.yaml"))

    def start(self, prompt: str = "Write about rain.\nBriefly.", **options: Any) -> str:
        cwd = str(self.folder / "work")
        return lifecycle.start(self.store, self.book, prompt, cwd=cwd, mask=Mask([]), **options).id

    def run(self, name: str, script: dict[str, Any] = SCRIPT, *, steps: int | None = None) -> str:
        path = self.folder / "script.json"
        path.write_text(json.dumps(script))
        engine = compose.engine(self.store, agent=f"scripted:{path}")

        async def play() -> None:
            async for _ in engine.run(name, cancel=asyncio.Event(), steps=steps):
                pass

        asyncio.run(play())
        return name

    def ref(self, name: str) -> Ref:
        return thread.find(self.store, name).ref

    def set_state(self, name: str, **changes: Any) -> None:
        ref = self.ref(name)
        self.store.move(ref.name, ref, ref.target, {**ref.state, **changes})

    def long_thread(self, count: int, body: str = "Words and more words. " * 10) -> str:
        """A thread of `count` steps in one transaction, as an engine would have written it."""
        ref = self.ref(self.start(f"A thread of {count} steps."))
        draft = self.store.draft()
        output_type = draft.put_schema({"type": "object"})
        previous, totals = None, dict[str, Any]()
        for number in range(1, count + 1):
            totals = thread.add_totals(totals, "writer", {"steps": 1, "tokens": 10})
            fields = {
                "start": ref.target, "prev": previous, "number": number, "role": "writer", "raw": f"{number}: {body}",
                "output": draft.put(output_type, {"$status": "done", "words": number}), "agent": "test",
                "body_at": 0, "started_at": 1_000 * number, "completed_at": 1_000 * number + 500, "cwd": "/",
                "totals": totals,
            }  # fmt: skip
            previous = thread.put_step(draft, fields)
        draft.move(ref.name, ref, previous, {**ref.state, "steps": count})
        draft.commit()
        return ref.name[7:]

    def many(self, count: int, *, first_ms: int = 1_700_000_000_000, **state: Any) -> list[str]:
        """Bare threads, one per second, oldest first."""
        draft = self.store.draft()
        workflow = registry.add_workflow(draft, self.book)
        head = draft.put_as(START_SCHEMA, {"workflow": workflow, "prompt": "p", "cwd": "/"})
        names = [thread_id(first_ms + 1000 * index, index.to_bytes(10, "big")) for index in range(count)]
        known = {"status": "idle", "workflow": workflow, "name": "write-text", "title": "p"} | state
        for name in names:
            draft.move(thread.ref_name(name), None, head, known)
        draft.commit()
        return names


@pytest.fixture
def shelf(rolecall: Rolecall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("ROLECALL_HOME", str(rolecall.home))
    made = Shelf(rolecall, tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def done(shelf: Shelf) -> str:
    return shelf.run(shelf.start())


# -- show --


def test_show_tells_how_a_thread_stands_and_what_it_used(rolecall: Rolecall, shelf: Shelf, done: str) -> None:
    card = rolecall.json("thread", "show", done)
    ref = shelf.ref(done)
    expected = {
        "thread": done, "workflow": ref.state["workflow"], "head": ref.target, "status": "completed",
        "currentRole": None, "done": True, "background": None, "name": "write-text", "steps": 4,
        "title": "Write about rain.", "cwd": str(shelf.folder / "work"), "continue": None, "lease": None,
    }  # fmt: skip
    assert {key: card[key] for key in expected} == expected
    assert card["usage"]["tokens"] == 1000
    assert card["usage"]["roles"]["writer"]["cost"] == 0.25
    assert card["usage"]["roles"]["editor"]["steps"] == 2


def test_show_as_text_is_a_card_with_usage_by_role(rolecall: Rolecall, done: str) -> None:
    text = rolecall("thread", "show", done, "--format", "text", check=0).stdout
    assert re.search(r"^status +completed$", text, re.MULTILINE)
    assert re.search(r"^writer +2 +3 +1,000 +\$0\.25", text, re.MULTILINE)
    assert re.search(r"^all +4 +3 +1,000 +\$0\.25", text, re.MULTILINE)
    # No tokens and no cost; a busy machine takes long enough for a time to be shown.
    assert re.search(r"^editor +2(?: +[\d.hms ]+)?$", text, re.MULTILINE)


def test_show_names_the_role_that_is_due_and_the_command_that_goes_on(
    rolecall: Rolecall, shelf: Shelf
) -> None:
    name = shelf.start(limits={"steps": 9})
    card = rolecall.json("thread", "show", name)
    assert (card["status"], card["currentRole"], card["steps"]) == ("idle", "writer", 0)
    assert card["limits"] == {"steps": 9}
    shelf.run(name, steps=1)
    card = rolecall.json("thread", "show", name)
    assert (card["currentRole"], card["steps"]) == ("editor", 1)
    assert card["continue"] == f"rolecall thread run {name}"


def test_a_thread_whose_process_died_is_shown_as_crashed_with_the_command_that_goes_on(
    rolecall: Rolecall, shelf: Shelf
) -> None:
    from rolecall.store import holder

    name = shelf.start()
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    shelf.set_state(
        name, status="running", lease={**holder.identify_self("t"), "pid": gone.pid, "deadline": 0}
    )
    card = rolecall.json("thread", "show", name)
    assert (card["status"], card["continue"]) == ("crashed", f"rolecall thread run {name}")
    assert card["lease"]["alive"] is False
    listed = [(entry["status"], entry["continue"]) for entry in rolecall.json("thread", "list")]
    assert listed == [("crashed", f"rolecall thread run {name}")]
    text = rolecall("thread", "list", "--format", "text", check=0).stdout
    assert text.splitlines()[-1].strip() == f"rolecall thread run {name}"
    assert [entry["thread"] for entry in rolecall.json("thread", "list", "--status", "crashed")] == [name]
    shelf.set_state(name, lease={**holder.identify_self("t"), "deadline": 0})
    card = rolecall.json("thread", "show", name)
    assert (card["status"], card["continue"]) == ("running", f"rolecall thread watch {name}")
    assert f"process {os.getpid()}" in card["lease"]["holder"]


def failing(error: str = "the model is away") -> dict[str, Any]:
    entry = {"fail": {"ending": "failed", "reason": error}, "answer": "Half a sent"}
    fine = [{"output": {"$status": "done", "words": 1}, "body": "At last."}]
    return {"roles": {"writer": [{**entry, "again": fine}]}}


def test_a_failed_attempt_is_shown_with_its_error_and_counted(rolecall: Rolecall, shelf: Shelf) -> None:
    name = shelf.run(shelf.start(), failing())
    card = rolecall.json("thread", "show", name)
    assert card["status"] == "suspended"
    assert card["currentRole"] == "writer"
    assert [attempt["error"] for attempt in card["attempts"]] == ["the model is away"]
    assert "the model is away" in card["reason"]
    assert card["continue"].startswith(f"rolecall thread resume {name}")
    text = rolecall("thread", "show", name, "--format", "text").stdout
    assert text.rstrip().endswith(card["continue"])


def test_a_thread_whose_head_is_missing_is_shown_as_damaged(
    rolecall: Rolecall, shelf: Shelf, done: str
) -> None:
    head = shelf.ref(done).target
    with sqlite3.connect(rolecall.home / "store.db") as db:
        db.execute("DELETE FROM nodes WHERE id = ?", (head,))
    db.close()
    shown = rolecall("thread", "show", done, "--json", check=4)
    assert json.loads(shown.stdout)["status"] == "damaged"
    assert head is not None
    assert head in json.loads(shown.stdout)["reason"]
    other = shelf.start()
    rows = rolecall.json("thread", "list", "--all")
    assert [(row["thread"], row["status"]) for row in rows] == [(other, "idle"), (done, "damaged")]
    assert (head in rows[1]["reason"], rows[1]["continue"]) == (True, None)
    for status in ("damaged", "completed"):
        rows = rolecall.json("thread", "list", "--status", status)
        assert [(row["thread"], row["status"]) for row in rows] == [(done, "damaged")]


def test_a_thread_that_is_not_there_is_not_found(rolecall: Rolecall, shelf: Shelf) -> None:
    shelf.start()
    for verb in ("show", "steps", "read"):
        assert "there is no thread" in rolecall("thread", verb, "0" * 26, check=3).stderr


# -- list --


def test_list_shows_what_has_not_ended_newest_first(rolecall: Rolecall, shelf: Shelf, done: str) -> None:
    older, newer = shelf.many(2)
    recent = shelf.start("Write about snow.")
    entries = rolecall.json("thread", "list")
    assert [entry["thread"] for entry in entries] == [recent, newer, older]
    kept = {"thread", "workflow", "head", "status", "currentRole", "name", "title", "updated", "steps"}
    assert kept <= entries[0].keys()
    assert [entry["thread"] for entry in rolecall.json("thread", "list", "--all")] == [
        recent,
        done,
        newer,
        older,
    ]
    assert [entry["thread"] for entry in rolecall.json("thread", "list", "--status", "completed")] == [done]


def test_list_filters_combine(rolecall: Rolecall, shelf: Shelf) -> None:
    rain, snow = shelf.start("Write about rain."), shelf.start("Write about snow.")
    old = shelf.many(1, name="other-flow", title="rain long ago")[0]

    def listed(*args: str) -> list[str]:
        return [entry["thread"] for entry in rolecall.json("thread", "list", *args)]

    assert listed("--text", "RAIN write") == [rain]
    assert listed("--workflow", "other-flow") == [old]
    assert listed("--workflow", shelf.ref(rain).state["workflow"], "--since", "7d") == [snow, rain]
    assert listed("--before", "2024-01-01") == [old]
    assert listed("--since", "2023-01-01", "--before", "1h") == [old]
    assert listed("--text", "rain", "--status", "active") == [rain, old]
    assert listed("--text", "rain", "--status", "suspended,killed") == []
    assert "unknown status 'sleeping'" in rolecall("thread", "list", "--status", "sleeping", check=2).stderr
    assert "'soon' is not a time" in rolecall("thread", "list", "--since", "soon", check=2).stderr


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_a_time_without_a_zone_is_the_time_here(rolecall: Rolecall, shelf: Shelf, zone: str) -> None:
    rain = shelf.start("Write about rain.")
    began = rolecall.json("thread", "show", rain)["created"]
    here = datetime.fromtimestamp(began / 1000, ZoneInfo(zone)).replace(tzinfo=None)
    env = {"TZ": zone}
    for since, found in ((here, [rain]), (here + timedelta(minutes=1), [])):
        entries = rolecall.json("thread", "list", "--since", since.isoformat(), env=env)
        assert [entry["thread"] for entry in entries] == found
    assert rolecall.json("cost", "--since", here.isoformat(), env=env)["since"] == began


def test_pages_follow_each_other_without_a_gap(rolecall: Rolecall, shelf: Shelf) -> None:
    names = shelf.many(7)
    # The predecessor's form of ids: the time bits are shifted, so they sort beyond all of ours.
    old = [as_predecessor(1_700_000_000_500), as_predecessor(1_700_000_003_000)]
    ref = shelf.ref(names[0])
    for name in old:
        shelf.store.move(thread.ref_name(name), None, ref.target, {**ref.state, "title": "old"})
    expected = [*names[:0:-1], names[0]]
    expected.insert(expected.index(names[0]), old[0])
    expected.insert(expected.index(names[3]) + 1, old[1])
    seen: list[str] = []
    while True:
        page = ["--page", seen[-1]] if seen else []
        done = rolecall("thread", "list", "--max", "2", *page, "--json", check=0)
        found = [entry["thread"] for entry in json.loads(done.stdout)]
        seen += found
        if "there are more" not in done.stderr:
            break
    assert seen == expected
    skipped = rolecall.json("thread", "list", "--skip", "3", "--max", "2")
    assert [entry["thread"] for entry in skipped] == expected[3:5]


def as_predecessor(ms: int) -> str:
    alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    number = (ms << 80 | 12345) << 2
    return "".join(alphabet[number >> shift & 31] for shift in range(125, -1, -5))


@pytest.mark.parametrize("state", ["{broken", "[]"])
def test_a_damaged_thread_is_listed_as_damaged_among_the_others(
    rolecall: Rolecall, shelf: Shelf, state: str
) -> None:
    names = shelf.many(3)
    with sqlite3.connect(rolecall.home / "store.db") as db:
        db.execute("UPDATE refs SET state = ? WHERE name = ?", (state, thread.ref_name(names[1])))
    db.close()
    entries = rolecall.json("thread", "list", "--all")
    assert [(entry["thread"], entry["status"]) for entry in entries] == [
        (names[2], "idle"), (names[1], "damaged"), (names[0], "idle"),
    ]  # fmt: skip
    assert names[1] in entries[1]["reason"]
    assert len(rolecall.json("thread", "list", "--status", "idle")) == 2


def test_a_damaged_thread_shows_up_in_the_plain_list(rolecall: Rolecall, shelf: Shelf) -> None:
    names = shelf.many(2)
    with sqlite3.connect(rolecall.home / "store.db") as db:
        db.execute("UPDATE refs SET state = '{broken' WHERE name = ?", (thread.ref_name(names[0]),))
    db.close()
    text = rolecall("thread", "list", "--format", "text", check=0).stdout
    assert re.search(rf"^{names[0][-6:]} .*damaged", text, re.MULTILINE)
    assert re.search(rf"^{names[1][-6:]} .*idle", text, re.MULTILINE)


def test_ten_thousand_threads_page_without_reading_them_all(rolecall: Rolecall, shelf: Shelf) -> None:
    names = shelf.many(10_000)
    entries = rolecall.json("thread", "list", "--max", "3")
    assert [entry["thread"] for entry in entries] == names[:-4:-1]
    far = rolecall.json("thread", "list", "--max", "2", "--page", names[5000])
    assert [entry["thread"] for entry in far] == [names[4999], names[4998]]


def test_large_limits_are_shown_with_their_thousands_apart(rolecall: Rolecall, shelf: Shelf) -> None:
    name = shelf.start(limits={"tokens": 1_500_000, "cost": 0.25, "minutes": 90.0})
    text = rolecall("thread", "show", name, "--format", "text", check=0).stdout
    assert re.search(r"^limits +tokens 1,500,000, cost 0\.25, minutes 90$", text, re.MULTILINE)


def test_the_outputs_of_steps_have_room_in_a_narrow_terminal(rolecall: Rolecall, shelf: Shelf) -> None:
    name = shelf.run(shelf.start("Write about rain, " * 20), steps=1)
    heading, first, _ = rolecall("thread", "steps", name, env={"COLUMNS": "60"}, check=0).stdout.splitlines()
    assert heading.split() == ["step", "role", "status", "output"] and len(first) == 60


@pytest.mark.parametrize("verb", ["list", "steps"])
def test_a_row_of_a_table_fits_into_the_terminal(rolecall: Rolecall, shelf: Shelf, verb: str) -> None:
    name = shelf.run(shelf.start("Write about rain, " * 20), steps=1)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 110, 0, 0))
    words = ["thread", verb, *([name] if verb == "steps" else [])]
    program = str(Path(sys.executable).parent / "rolecall")
    with subprocess.Popen([program, *words], stdout=slave, stderr=slave) as child:
        os.close(slave)
        seen = b""
        with suppress(OSError):  # how Linux says that nobody holds the other end any more
            while data := os.read(master, 65536):
                seen += data
    os.close(master)
    lines = seen.decode().splitlines()
    assert child.returncode == 0
    assert max(map(len, lines)) <= 110
    assert lines[1].endswith("…")


# -- steps --


def test_steps_lists_the_start_and_every_step_oldest_first(
    rolecall: Rolecall, shelf: Shelf, done: str
) -> None:
    found = rolecall.json("thread", "steps", done)
    start, *steps = found["steps"]
    assert found["thread"] == done
    assert found["workflow"] == start["workflow"] == shelf.ref(done).state["workflow"]
    assert start["prompt"] == "Write about rain.\nBriefly."
    assert [(step["number"], step["role"], step["status"]) for step in steps] == [
        (1, "writer", "done"), (2, "editor", "bad"), (3, "writer", "done"), (4, "editor", "good"),
    ]  # fmt: skip
    assert steps[0]["output"] == {"$status": "done", "words": 2}
    assert steps[0]["session"] == "s-1"
    assert steps[0]["usage"]["input_tokens"] == 900
    assert steps[-1]["hash"] == shelf.ref(done).target
    assert all(step["durationMs"] >= 0 and step["agent"].startswith("scripted:") for step in steps)
    text = rolecall("thread", "steps", done, "--format", "text", check=0).stdout
    assert len(text.splitlines()) == 6
    assert text.splitlines()[2].endswith("  words: 2")


# -- read --


def test_read_shows_the_whole_of_a_short_thread_in_order(rolecall: Rolecall, done: str) -> None:
    text = rolecall("thread", "read", done, check=0).stdout
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == ["Step 1: writer", "Step 2: editor", "Step 3: writer", "Step 4: editor"]
    assert text.startswith("# write-text\n")
    assert "Write about rain.\nBriefly." in text
    assert text.count("You write the text.") == text.count("You judge the text.") == 1
    assert "<output>\nSecond text here.\n</output>" in text
    assert "earlier" not in text


@pytest.mark.parametrize("quota", [700, 1000, 1500, 4000, 10_000])
def test_read_stays_within_the_quota_and_says_how_to_go_on(
    rolecall: Rolecall, shelf: Shelf, quota: int
) -> None:
    name = shelf.long_thread(60)
    text = rolecall("thread", "read", name, "--quota", str(quota), check=0).stdout.rstrip("\n")
    numbers = [int(number) for number in re.findall(r"^## Step (\d+):", text, re.MULTILINE)]
    assert len(text) <= quota
    assert numbers == list(range(61 - len(numbers), 61))
    notice = re.search(r"\*\((\d+) earlier steps, load with `rolecall (thread read .*)`\)\*", text)
    assert notice is not None
    assert int(notice[1]) == numbers[0] - 1
    earlier = rolecall(*notice[2].split(), "--quota", str(quota), check=0).stdout
    assert "A thread of 60 steps." not in earlier
    assert int(re.findall(r"^## Step (\d+):", earlier, re.MULTILINE)[-1]) == numbers[0] - 1


def test_read_always_shows_one_step_and_shortens_a_long_task(rolecall: Rolecall, shelf: Shelf) -> None:
    name = shelf.run(shelf.start("Write. " * 2000), steps=2)
    text = rolecall("thread", "read", name, "--quota", "200", check=0).stdout
    assert re.findall(r"^## Step (\d+):", text, re.MULTILINE) == ["2"]
    assert "more characters" in text
    assert len(text) < 1000


def test_read_before_a_step_takes_its_number_too_and_the_task_on_request(
    rolecall: Rolecall, shelf: Shelf, done: str
) -> None:
    text = rolecall("thread", "read", done, "--before", "3", "--start", check=0).stdout
    assert re.findall(r"^## Step (\d+):", text, re.MULTILINE) == ["1", "2"]
    assert "Write about rain." in text
    other = shelf.run(shelf.start("Write about snow."), steps=1)
    foreign = shelf.ref(other).target or ""
    assert f"is not in thread {done}" in rolecall("thread", "read", done, "--before", foreign, check=3).stderr


def test_read_shows_attempts_answers_and_forks_in_words(rolecall: Rolecall, shelf: Shelf) -> None:
    name = shelf.run(shelf.start(), failing())
    lifecycle.resume(shelf.store, load(shelf.ref(name)), mask=Mask([]), answer="Try once more.")
    shelf.run(name, failing(), steps=1)
    forked = rolecall.json("thread", "fork", name, "-p", "Write about fog.")["thread"]
    text = rolecall("thread", "read", forked, check=0).stdout
    assert "## Step 1: a person answered" in text
    assert "Try once more." in text
    assert "the model is away" in text
    assert "*Attempt failed: the model is away*" in text
    assert "## Step 3: forked" in text
    assert "Write about fog." in text


def test_what_can_be_read_is_read_when_an_earlier_step_is_missing(
    rolecall: Rolecall, shelf: Shelf, done: str
) -> None:
    steps = rolecall.json("thread", "steps", done)["steps"]
    missing = [steps[2]["hash"], shelf.ref(done).state["workflow"]]
    with sqlite3.connect(rolecall.home / "store.db") as db:
        db.executemany("DELETE FROM nodes WHERE id = ?", [(node,) for node in missing])
    db.close()
    text = rolecall("thread", "read", done, check=4).stdout
    assert re.findall(r"^## Step (\d+):", text, re.MULTILINE) == ["3", "4"]
    assert f"*(2 earlier steps cannot be read: node {missing[0]}" in text


def test_a_thread_without_steps_can_be_read_and_listed(rolecall: Rolecall, shelf: Shelf) -> None:
    name = shelf.start()
    assert "Write about rain." in rolecall("thread", "read", name, check=0).stdout
    assert len(rolecall.json("thread", "steps", name)["steps"]) == 1
    assert "(start)" in rolecall("thread", "steps", name, "--format", "text", check=0).stdout
    assert rolecall.json("thread", "diff", name, name)["steps"] == []


class Counting(SqliteBackend):
    """Counts the nodes that are read."""

    reads = 0

    def record(self, node: str) -> NodeRecord | None:
        self.reads += 1
        return super().record(node)


@pytest.mark.parametrize(
    "look",
    [
        lambda store, ref: views.card(store, ref),
        lambda store, ref: views.read(store, ref, quota=4000),
        lambda store, _ref: list(islice(list_threads(store, EVERYTHING), 1)),
    ],
    ids=["show", "read", "list"],
)
def test_what_a_look_at_a_thread_reads_does_not_grow_with_its_length(
    rolecall: Rolecall, shelf: Shelf, look: Callable[[Store, ThreadRef], object]
) -> None:
    lengths = {count: shelf.ref(shelf.long_thread(count)) for count in (40, 1000)}
    reads = {}
    for count, ref in lengths.items():
        with Store(Counting(str(rolecall.home / "store.db"), create=False)) as store:
            look(store, load(ref))
            assert isinstance(store.backend, Counting)
            reads[count] = store.backend.reads
    assert reads[40] == reads[1000] > 0


# -- step-details --


def test_step_details_expands_everything(rolecall: Rolecall, shelf: Shelf, done: str) -> None:
    found = rolecall.json("thread", "step-details", f"{done}#1")
    assert (found["number"], found["role"], found["body"]) == (1, "writer", "First text.")
    assert found["files"] == ["text.md"]
    assert "You write the text." in found["prompt"]
    assert found["turns"][-1]["role"] == "assistant"
    assert found["turns"][-1]["tool_calls"][0]["name"] == "edit"
    by_id = rolecall.json("thread", "step-details", found["id"])
    assert by_id == found
    assert rolecall.json("thread", "step-details", done)["number"] == 4
    text = rolecall("thread", "step-details", found["id"], "--prompt", "--format", "text", check=0).stdout
    assert "### Prompt" in text
    assert "Tool `edit`" in text
    assert "has no step '9'" in rolecall("thread", "step-details", f"{done}#9", check=3).stderr
    workflow = shelf.ref(done).state["workflow"]
    assert "neither a step nor" in rolecall("thread", "step-details", workflow, check=2).stderr


def test_step_details_shows_failed_attempts_with_what_the_agent_gave(
    rolecall: Rolecall, shelf: Shelf
) -> None:
    name = shelf.run(shelf.start(), failing("x" * 5000))
    lifecycle.resume(shelf.store, load(shelf.ref(name)), mask=Mask([]))
    shelf.run(name, failing(), steps=1)
    found = rolecall.json("thread", "step-details", f"{name}#1")
    assert [attempt["raw"] for attempt in found["attempts"]] == ["Half a sent"]
    short = rolecall("thread", "step-details", f"{name}#1", "--format", "text", check=0).stdout
    whole = rolecall("thread", "step-details", f"{name}#1", "--format", "text", "--full", check=0).stdout
    assert "Half a sent" in short
    assert "x" * 5000 not in short
    assert "x" * 5000 in whole
    attempt = rolecall.json("thread", "step-details", found["attempts"][0]["id"])
    assert attempt["error"] == "x" * 5000


# -- fork and diff --


def test_fork_shares_the_chain_up_to_the_step(rolecall: Rolecall, shelf: Shelf, done: str) -> None:
    steps = rolecall.json("thread", "steps", done)["steps"]
    for at in (["--at", "2"], ["--at", steps[2]["hash"]]):
        forked = rolecall.json("thread", "fork", done, *at)
        assert forked["forkedFrom"] == {"step": steps[2]["hash"]}
        card = rolecall.json("thread", "show", forked["thread"])
        assert (card["status"], card["steps"], card["currentRole"]) == ("idle", 2, "writer")
        assert card["forkedFrom"] == steps[2]["hash"]
    by_step = rolecall.json("thread", "fork", steps[1]["hash"])
    assert by_step["forkedFrom"] == {"step": steps[1]["hash"]}
    fresh = rolecall.json("thread", "fork", done, "--at", "start")
    assert fresh["forkedFrom"] == {"step": steps[0]["hash"]}
    shelf.run(fresh["thread"])
    assert rolecall.json("thread", "show", fresh["thread"])["status"] == "completed"
    assert "has no step '7'" in rolecall("thread", "fork", done, "--at", "7", check=3).stderr


def test_fork_with_another_workflow_goes_on_with_it(rolecall: Rolecall, shelf: Shelf, done: str) -> None:
    changed = shelf.folder / "changed" / "write-text.yaml"
    changed.parent.mkdir()
    changed.write_text(WORKFLOW.replace("You judge the text.", "You judge it harshly."))
    forked = rolecall.json("thread", "fork", done, "--at", "2", "--workflow", str(changed))["thread"]
    card = rolecall.json("thread", "show", forked)
    assert card["workflow"] != shelf.ref(done).state["workflow"]
    assert (card["currentRole"], card["steps"]) == ("writer", 3)


def test_diff_shows_where_two_threads_part_and_how(rolecall: Rolecall, shelf: Shelf, done: str) -> None:
    forked = rolecall.json("thread", "fork", done, "--at", "2")["thread"]
    other = json.loads(json.dumps(SCRIPT))
    other["roles"]["writer"][1] = {"output": {"$status": "done", "words": 9}, "body": "Another text."}
    shelf.run(forked, other, steps=1)
    found = rolecall.json("thread", "diff", done, forked)
    steps = rolecall.json("thread", "steps", done)["steps"]
    assert (found["common"], found["commonSteps"]) == (steps[2]["hash"], 2)
    third, fourth = found["steps"]
    assert third["number"] == 3
    assert third["steps"][0] == {"id": steps[3]["hash"], "role": "writer", "number": 3}
    assert {'-  "words": 3,', '+  "words": 9,'} <= set(third["output"])
    assert {"-Second text here.", "+Another text."} <= set(third["body"])
    assert fourth["steps"][1] is None
    text = rolecall("thread", "diff", done, forked, "--format", "text", check=0).stdout
    assert f"the same up to {steps[2]['hash']} (2 steps)" in text
    stranger = shelf.start("Something else.")
    assert rolecall.json("thread", "diff", done, stranger)["common"] is None


def test_diff_compares_steps_of_the_same_role_also_where_a_fork_has_another_prompt(
    rolecall: Rolecall, shelf: Shelf, done: str
) -> None:
    forked = rolecall.json("thread", "fork", done, "--at", "2", "-p", "Write about snow.")["thread"]
    other = json.loads(json.dumps(SCRIPT))
    other["roles"]["writer"][1] = {"output": {"$status": "done", "words": 9}, "body": "Another text."}
    shelf.run(forked, other)
    found = rolecall.json("thread", "diff", done, forked)
    roles = [[step["role"] if step else None for step in pair["steps"]] for pair in found["steps"]]
    assert roles == [["writer", "writer"], ["editor", "editor"]]
    numbers = [[step["number"] for step in pair["steps"]] for pair in found["steps"]]
    assert numbers == [[3, 4], [4, 5]]
    text = rolecall("thread", "diff", done, forked, "--format", "text", check=0).stdout
    assert "\nstep 3 / 4: writer\n" in text
    assert "$FORK" not in text


# -- export --


@pytest.mark.parametrize("kind", ["html", "md"])
def test_export_writes_a_report_and_never_over_another_file(
    rolecall: Rolecall, tmp_path: Path, done: str, kind: str
) -> None:
    path = tmp_path / f"report.{kind}"
    reported = rolecall.json("thread", "export", done, str(path))
    text = path.read_text()
    assert reported == {"thread": done, "file": str(path), "steps": 4, "bytes": len(text.encode())}
    assert done in text
    assert "Second text here." in text
    if kind == "html":
        assert "<script" not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    path.write_text("mine")
    assert "exists" in rolecall("thread", "export", done, str(path), check=2).stderr
    assert path.read_text() == "mine"
    rolecall("thread", "export", done, str(path), "--force", check=0)
    assert path.read_text() == text
    assert sorted(found.name for found in tmp_path.glob("report.*")) == [path.name]


def test_export_refuses_a_format_it_does_not_write(rolecall: Rolecall, tmp_path: Path, done: str) -> None:
    assert "neither" in rolecall("thread", "export", done, str(tmp_path / "x.pdf"), check=2).stderr
    missing = tmp_path / "nowhere" / "x.md"
    assert "cannot be written" in rolecall("thread", "export", done, str(missing), check=2).stderr


# -- imports --

HEAVY = {
    "asyncio",
    "dataclasses",
    "yaml",
    "jsonschema_rs",
    "pathlib",
    "shutil",
    "subprocess",
    "tarfile",
    "psycopg",
}

DUMP = """
import sys
before = set(sys.modules)
from rolecall.__main__ import main
status = main(sys.argv[1:])
print(*sorted(set(sys.modules) - before), sep="\\n", file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.parametrize("verb", ["show", "steps", "read", "list"])
def test_the_reading_verbs_import_nothing_heavy(rolecall: Rolecall, shelf: Shelf, verb: str) -> None:
    name = shelf.run(shelf.start(), steps=1)
    source = Path(errors.__file__).parents[1]
    site = [path for path in sys.path if path.endswith("site-packages")]
    # -S leaves out what an environment's own start-up files import, which is not ours to answer for.
    child = subprocess.run(
        [sys.executable, "-S", "-c", DUMP, "thread", verb, *([name] if verb != "list" else [])],
        env={"ROLECALL_HOME": str(rolecall.home), "PYTHONPATH": ":".join([str(source), *site])},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert child.stdout
    assert not set(child.stderr.split()) & HEAVY

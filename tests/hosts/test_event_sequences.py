"""Two sessions side by side, events told twice, left out and in any order: the state stays whole, nothing is lost."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from hook_stage import (
    OURS,
    SESSIONS,
    TASKS,
    TRACKER,
    at,
    known_hooks,
    plan,
    read,
    side_by_side,
    task,
    tasks,
    tell,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.hosts import project_summary, sessions, tool_log
from rolecall.hosts.event import (
    LEAD,
    ContextCompact,
    Event,
    HostCaller,
    HostToolCall,
    PostToolUse,
    PreToolUse,
    SessionEnd,
    SessionStart,
    SubagentComplete,
    SubagentSpawn,
    UserMessage,
)
from rolecall.nexus import memory_access, tools, tracker
from rolecall.store import holder

SESSION_IDS = st.sampled_from(["s1", "s2"])
AGENTS = st.sampled_from(
    [HostCaller("engineer", "e1"), HostCaller("tester", "t1"), HostCaller("Explore", "x1")]
)
MESSAGES = st.sampled_from(
    ["hello", "[plan] go", "[run] go", "[d] 1: yes", "[d] no", "[m] a-note: text", "[m:gc]"]
)
PATHS = st.sampled_from(
    ["a.py", "src/b.py", ".nexus/memory/a-b.md", ".nexus/state/tasks.json", "/etc/passwd"]
)


def tool_calls(project: Path) -> st.SearchStrategy[HostToolCall]:
    paths = PATHS.map(lambda name: (str(project / name),))
    return st.one_of(
        paths.map(lambda found: HostToolCall("Write", ("file_modification",), found)),
        paths.map(lambda found: HostToolCall("Read", reads=found)),
        st.just(HostToolCall("Task", starts="engineer")),
        st.just(HostToolCall("mcp__rolecall__nx_task_add")),
    )


def events(project: Path) -> st.SearchStrategy[Event]:
    who = st.one_of(st.just(LEAD), AGENTS)
    return st.one_of(
        st.builds(SessionStart, SESSION_IDS, st.booleans()),
        st.builds(UserMessage, SESSION_IDS, MESSAGES, st.sampled_from(["", "p1", "p2"])),
        st.builds(SubagentSpawn, SESSION_IDS, AGENTS),
        st.builds(SubagentComplete, SESSION_IDS, AGENTS, st.sampled_from(["", "Done."])),
        st.builds(PreToolUse, SESSION_IDS, who, tool_calls(project)),
        st.builds(PostToolUse, SESSION_IDS, who, tool_calls(project), st.sampled_from(["", "failed"])),
        st.builds(SessionEnd, SESSION_IDS, st.booleans()),
        st.builds(ContextCompact, SESSION_IDS),
    )


class Model:
    """What has to be true, kept apart from what the hooks keep: which agents of which open session are running."""

    def __init__(self) -> None:
        self.running: dict[str, str] = {}
        """By agent the session that answers for it."""
        self._known: set[str] = set()
        self._ended_first: dict[str, int] = {}
        """When an agent ended whose start was not told: a start right after that is the late one."""

    def tell(self, event: Event, minute: int) -> None:
        match event:
            case SubagentSpawn(session, who):
                is_late = minute - self._ended_first.get(who.id, -9) < 2
                if not is_late:
                    self.running[who.id] = session
                    self._ended_first.pop(who.id, None)
                    self._known.add(who.id)
            case SubagentComplete(_, who):
                self.running.pop(who.id, None)
                if who.id not in self._known:
                    self._ended_first.setdefault(who.id, minute)
            case SessionEnd(session, True):
                self.running = {agent: owner for agent, owner in self.running.items() if owner != session}

    def see(self, tracked: set[str]) -> None:
        """Agents that are forgotten with their session begin anew."""
        self._known &= tracked
        self._ended_first = {agent: at for agent, at in self._ended_first.items() if agent in tracked}


HOOKS = known_hooks()._replace(process=holder.process(os.getpid()))


def check(project: Path) -> None:
    """Everything that lies there can be read and has its shape."""
    found = read(project, TRACKER)
    if found is not None:
        assert tracker.problem_of(found) == ""
        ids = Counter(entry["agent_id"] for entry in found)
        assert not ids or max(ids.values()) == 1
    sessions.load(str(project))
    memory_access.read(project)
    assert len(tools.task_list(project)["tasks"]) == 3
    assert tools.plan_status(project)["active"]
    for path in (project / OURS).glob("touched/*"):
        assert path.read_text().endswith("\n")


def prepared(project: Path) -> None:
    plan(project, "Which format?", "Who pays?")
    tasks(
        project,
        task(1, owner="engineer", status="in_progress", acceptance="It runs."),
        task(2, owner="tester", deps=[1]),
        task(3),
    )
    write(project, ".nexus/memory/a-b.md", "x")


@given(st.data())
@settings(max_examples=150)
def test_any_sequence_leaves_a_state_that_is_whole_and_loses_no_agent_that_runs(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        project, model = Path(name), Model()
        prepared(project)
        for minute, event in enumerate(data.draw(st.lists(events(project), max_size=25))):
            answer = tell(project, event, HOOKS, at(minute))
            assert project_summary.count_tokens(answer.context) <= 2_600
            check(project)
            model.tell(event, minute)
            entries = read(project, TRACKER) or []
            model.see({entry["agent_id"] for entry in entries})
            running = {entry["agent_id"] for entry in entries if entry["status"] == "running"}
            assert running >= set(model.running)


@given(st.data())
@settings(max_examples=60)
def test_telling_every_event_twice_is_the_same_as_telling_it_once(data: st.DataObject) -> None:
    def told(count: int, found: list[Any]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as name:
            project = Path(name)
            prepared(project)
            for minute, make in enumerate(found):
                for _ in range(count):
                    tell(project, make(project), HOOKS, at(minute))
            records = sessions.load(str(project))
            return {
                "tracker": read(project, TRACKER),
                "tasks": read(project, TASKS),
                "sessions": {name: one._replace(told="") for name, one in records.items()},
                "notes": sorted(path.name for path in (project / ".nexus/memory").iterdir()),
                "touched": sorted(tool_log.read_touched(name, agent) for agent in ("e1", "t1", "x1")),
            }

    anywhere = Path("/nowhere")
    found = data.draw(st.lists(events(anywhere), max_size=12))
    makers = [lambda project, event=event: moved(event, anywhere, project) for event in found]
    assert told(1, makers) == told(2, makers)


def moved(event: Event, old: Path, new: Path) -> Event:
    """The same event in another project."""
    if not isinstance(event, (PreToolUse, PostToolUse)):
        return event
    deed = event.call
    writes, reads = (
        tuple(path.replace(str(old), str(new)) for path in paths) for paths in (deed.writes, deed.reads)
    )
    return event._replace(call=deed._replace(writes=writes, reads=reads))


def test_two_processes_that_tell_at_once_lose_nothing_of_each_other(tmp_path: Path) -> None:
    tasks(
        tmp_path,
        *(task(n, owner="engineer", owner_agent_id=f"e{n}", status="in_progress") for n in range(1, 41)),
    )

    def tell_half(half: int) -> None:
        session = f"s{half}"
        tell(tmp_path, SessionStart(session), HOOKS)
        for number in range(1 + half, 41, 2):
            who, file = HostCaller("engineer", f"e{number}"), str(tmp_path / f"{number}.py")
            tell(tmp_path, SubagentSpawn(session, who), HOOKS)
            tell(tmp_path, PostToolUse(session, who, HostToolCall("Write", (), (file,))), HOOKS)
            if number % 4 < 2:
                tell(tmp_path, SubagentComplete(session, who), HOOKS)

    side_by_side(partial(tell_half, 0), partial(tell_half, 1))
    entries = {entry["agent_id"]: entry for entry in read(tmp_path, TRACKER)}
    done = {f"e{number}" for number in range(1, 41) if number % 4 < 2}
    assert entries.keys() == {f"e{number}" for number in range(1, 41)}
    assert {agent for agent, entry in entries.items() if entry["status"] == "completed"} == done
    assert all(entries[agent]["files_touched"] == [f"{agent[1:]}.py"] for agent in done)
    statuses = {f"e{one['id']}": one["status"] for one in read(tmp_path, TASKS)["tasks"]}
    assert {agent for agent, status in statuses.items() if status == "completed"} == done
    assert set(read(tmp_path, SESSIONS)) == {"s0", "s1"}

"""The list of a session's agents keeps to the contract's shape, whatever order events come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hook_stage import TRACKER, at, read, write

from rolecall.errors import Damaged, UsageError
from rolecall.nexus import knowledge_files, project_paths, tracker
from rolecall.nexus.reply import TrackedAgent


def spawned(project: Path, agent_id: str = "e1", minute: int = 0, **more: Any) -> TrackedAgent:
    return tracker.record_start(project, agent_name="engineer", agent_id=agent_id, at=at(minute), **more)


def test_an_agent_that_starts_is_running(tmp_path: Path) -> None:
    spawned(tmp_path)
    assert read(tmp_path, TRACKER) == [
        {
            "harness_id": "rolecall",
            "started_at": at(),
            "agent_name": "engineer",
            "agent_id": "e1",
            "resume_count": 0,
            "status": "running",
        }
    ]


def test_a_start_that_is_told_twice_is_one_start(tmp_path: Path) -> None:
    first = spawned(tmp_path)
    assert spawned(tmp_path, minute=1) == first
    assert tracker.entries(tmp_path) == [first]


def test_an_agent_that_ends_says_when_and_what_it_touched(tmp_path: Path) -> None:
    spawned(tmp_path)
    tracker.record_end(tmp_path, agent_id="e1", at=at(5), last_message="Done.", files=["a", "b", "a"])
    (entry,) = read(tmp_path, TRACKER)
    assert (entry["status"], entry["stopped_at"], entry["last_message"]) == ("completed", at(5), "Done.")
    assert entry["files_touched"] == ["a", "b"]


def test_an_end_that_is_told_twice_keeps_its_time_and_adds_what_is_new(tmp_path: Path) -> None:
    spawned(tmp_path)
    tracker.record_end(tmp_path, agent_id="e1", at=at(5), files=["a"])
    tracker.record_end(tmp_path, agent_id="e1", at=at(9), last_message="Done.", files=["b"])
    (entry,) = read(tmp_path, TRACKER)
    assert (entry["stopped_at"], entry["last_message"], entry["files_touched"]) == (
        at(5),
        "Done.",
        ["a", "b"],
    )


def test_an_agent_that_starts_again_was_resumed(tmp_path: Path) -> None:
    spawned(tmp_path)
    tracker.record_end(tmp_path, agent_id="e1", at=at(5), files=["a"])
    entry = spawned(tmp_path, minute=7)
    assert (entry["status"], entry["resume_count"], entry["last_resumed_at"]) == ("running", 1, at(7))
    assert "stopped_at" not in entry and entry["files_touched"] == ["a"]
    tracker.record_end(tmp_path, agent_id="e1", at=at(9), files=["b"])
    assert spawned(tmp_path, minute=11)["resume_count"] == 2


def test_an_end_that_is_told_before_the_start_leaves_the_agent_ended(tmp_path: Path) -> None:
    tracker.record_end(tmp_path, agent_id="e1", at=at(5), agent_name="engineer")
    late = spawned(tmp_path, minute=6)
    assert (late["status"], late["started_at"], late["stopped_at"]) == ("completed", at(5), at(5))
    assert spawned(tmp_path, minute=8)["status"] == "running"


def test_an_entry_of_another_harness_that_ended_is_resumed_from_nothing(tmp_path: Path) -> None:
    entry = {
        "harness_id": "x",
        "agent_id": "e1",
        "started_at": at(),
        "stopped_at": at(2),
        "status": "completed",
    }
    write(tmp_path, TRACKER, [entry])
    assert spawned(tmp_path, minute=3)["resume_count"] == 1


@pytest.mark.parametrize(
    ("name", "kept"),
    [("Explore", "explore"), ("my_agent 2", "my-agent-2"), ("9", None), ("é!", None), ("", None)],
)
def test_a_name_that_the_shape_has_no_place_for_is_made_to_fit(
    tmp_path: Path, name: str, kept: str | None
) -> None:
    tracker.record_start(tmp_path, agent_name=name, agent_id="x", at=at())
    assert tracker.entries(tmp_path)[0].get("agent_name") == kept


def test_two_harnesses_have_a_list_each(tmp_path: Path) -> None:
    spawned(tmp_path)
    project_paths.use_harness("claude-nexus")
    try:
        spawned(tmp_path, "c1")
        assert [entry["harness_id"] for entry in tracker.entries(tmp_path)] == ["claude-nexus"]
        for name in ("../x", "", "A", "a/b", "1a"):
            with pytest.raises(UsageError, match="not the name of a harness"):
                project_paths.use_harness(name)
    finally:
        project_paths.use_harness(project_paths.HARNESS)
    assert [entry["harness_id"] for entry in tracker.entries(tmp_path)] == [project_paths.HARNESS]


def test_a_reset_keeps_whom_it_is_told_to(tmp_path: Path) -> None:
    for agent in ("a", "b", "c"):
        spawned(tmp_path, agent)
    assert tracker.reset(tmp_path, keep=["b"]) == ""
    assert [entry["agent_id"] for entry in tracker.entries(tmp_path)] == ["b"]
    tracker.remove(tmp_path)
    assert tracker.entries(tmp_path) == [] and not (tmp_path / TRACKER).exists()


@pytest.mark.parametrize("content", ["{", "{}", '[{"harness_id": "A"}]', "[" * 100_000, '[{"odd": 1}]'])
def test_a_list_that_is_damaged_is_an_error_until_it_is_reset_and_then_there_is_a_copy(
    tmp_path: Path, content: str
) -> None:
    write(tmp_path, TRACKER, content)
    for act in (lambda: tracker.entries(tmp_path), lambda: spawned(tmp_path)):
        with pytest.raises(Damaged, match="the list of agents"):
            act()
    assert (tmp_path / TRACKER).read_text() == content
    said = tracker.reset(tmp_path)
    assert "was replaced" in said
    assert Path(said.rpartition("A copy is in ")[2]).read_text() == content
    assert read(tmp_path, TRACKER) == []


def test_very_many_agents_are_not_kept_but_those_that_run_are(tmp_path: Path) -> None:
    ended = {"harness_id": "rolecall", "started_at": at(), "status": "completed"}
    running = {**ended, "status": "running"}
    many = [{**ended, "agent_id": f"d{n}"} for n in range(600)]
    write(tmp_path, TRACKER, [{**running, "agent_id": "r"}, *many])
    spawned(tmp_path)
    found = [entry["agent_id"] for entry in tracker.entries(tmp_path)]
    assert len(found) == 100
    assert found[0] == "r" and found[-1] == "e1" and found[-2] == "d599"


def test_a_list_does_not_grow_with_what_agents_have_touched_but_the_last_one_is_kept(tmp_path: Path) -> None:
    """A host waits while it is read, at every start and end of an agent."""
    files = [f"src/folder/{number}.py" for number in range(500)]
    for number in range(40):
        spawned(tmp_path, f"e{number}")
        tracker.record_end(tmp_path, agent_id=f"e{number}", at=at(), files=files)
    assert (tmp_path / TRACKER).stat().st_size < 60_000
    found = tracker.entries(tmp_path)
    assert [entry["agent_id"] for entry in found][-1] == "e39"
    assert all(entry["files_touched"] == files for entry in found)
    tracker.record_end(tmp_path, agent_id="huge", agent_name="engineer", at=at(), files=["x" * 200_000])
    assert [entry["agent_id"] for entry in tracker.entries(tmp_path)] == ["huge"]


def test_an_id_is_needed_and_may_hold_anything(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="without an id"):
        spawned(tmp_path, "")
    with pytest.raises(UsageError, match="without an id"):
        tracker.record_end(tmp_path, agent_id="", at=at())
    odd = "../\n\udc80\0é"
    spawned(tmp_path, odd)
    assert tracker.entries(tmp_path)[0]["agent_id"] == odd


def test_our_check_and_the_given_schema_agree(shared_data: Path) -> None:
    path = shared_data / "nexus-0.10.0" / "conformance" / "state-schemas" / "agent-tracker.schema.json"
    judge = jsonschema_rs.validator_for(json.loads(path.read_text()), validate_formats=True)
    entry = {"harness_id": "rolecall", "started_at": at()}
    good: list[Any] = [
        [],
        [entry],
        [{**entry, "agent_name": "a-b", "resume_count": 2, "files_touched": ["x"]}],
    ]
    bad: list[Any] = [
        *(
            {},
            [{}],
            [1],
            [{**entry, "odd": 1}],
            [{**entry, "status": "gone"}],
            [{**entry, "resume_count": -1}],
        ),
        *([{**entry, "agent_id": ""}], [{**entry, "harness_id": "A"}], [{**entry, "files_touched": [1]}]),
        [{**entry, "stopped_at": "yesterday"}],
    ]
    for document, is_good in [*((one, True) for one in good), *((one, False) for one in bad)]:
        assert judge.is_valid(document) is is_good, document
        assert (tracker.problem_of(document) == "") is is_good, document


# -- files of knowledge --


def test_the_index_names_plain_markdown_files_from_the_project_on(tmp_path: Path) -> None:
    for name in (
        "memory/b-note.md",
        "memory/a-note.md",
        "rules/style.md",
        "memory/.hidden.md",
        "memory/x.txt",
    ):
        write(tmp_path, f".nexus/{name}", "x")
    (tmp_path / ".nexus/memory/link.md").symlink_to("/etc/passwd")
    (tmp_path / "outside").mkdir()
    (tmp_path / ".nexus/context").symlink_to(tmp_path / "outside")
    write(tmp_path, "outside/secret.md", "x")
    assert knowledge_files.index(tmp_path) == {
        "memory": [".nexus/memory/a-note.md", ".nexus/memory/b-note.md"],
        "context": [],
        "rules": [".nexus/rules/style.md"],
    }
    assert knowledge_files.counts(tmp_path) == {"memory": 2, "context": 0, "rules": 1}
    assert (
        knowledge_files.as_text(tmp_path, 1)
        == ".nexus/memory/: a-note.md and 1 more\n.nexus/rules/: style.md"
    )


def test_the_index_is_bounded_and_a_project_without_knowledge_has_none(tmp_path: Path) -> None:
    assert knowledge_files.as_text(tmp_path) == ""
    assert knowledge_files.format_counts(knowledge_files.counts(tmp_path)) == ""
    for number in range(130):
        write(tmp_path, f".nexus/memory/note-{number:03d}.md", "x")
    assert len(knowledge_files.index(tmp_path)["memory"]) == knowledge_files.MOST
    assert knowledge_files.as_text(tmp_path).endswith("note-099.md and 30 more")
    assert knowledge_files.format_counts(knowledge_files.counts(tmp_path)) == "130 memory"

"""The key of a step: whatever its result depends on changes it, and nothing else does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.threads.key import (
    NAMES,
    PROMPT_PARTS,
    Parts,
    describe_step,
    differences,
    digest_prompt,
    digest_role,
    key_of,
    load_parts,
)
from rolecall.threads.prompt import ShownStep
from rolecall.workflow.model import Group, Limits, Recall, Sandbox, StoredRole, sandbox_payload

ROLE = StoredRole(
    description="Reviews",
    prompt="Review it.",
    capabilities=("read-only",),
    procedure="Read, then judge.",
    output="A verdict.",
    schema={"type": "object", "properties": {"status": {"const": "good"}}},
)
TASK: dict[str, Any] = {
    "task": "Fix it",
    "item": "a.py",
    "instruction": "Look at it",
    "knowledge": "Passages",
    "history": [ShownStep(1, "developer", {"status": "done"}, "Fixed.", "claude")],
}
TREE = "ab" * 20

digests = st.text("0123456789abcdef", min_size=4, max_size=6)
texts = st.text(min_size=1, max_size=6)
parts = st.builds(
    Parts,
    role=digests,
    prompt=st.dictionaries(st.sampled_from(PROMPT_PARTS), digests),
    agent=texts,
    version=texts,
    restrictions=st.lists(texts, max_size=2).map(tuple),
    tree=digests,
    session=st.just("") | digests,
    repetition=st.integers(0, 3),
)


@given(parts, parts)
def test_any_change_of_a_part_changes_the_key_and_is_named(one: Parts, other: Parts) -> None:
    for name in NAMES:
        if name in PROMPT_PARTS:
            kept = {key: value for key, value in one.prompt.items() if key != name}
            changed = one._replace(
                prompt=kept | {key: other.prompt[key] for key in [name] if key in other.prompt}
            )
        else:
            changed = one._replace(**{name: other.get(name)})
        is_same = changed.get(name) == one.get(name)
        assert (key_of(changed) == key_of(one)) is is_same
        assert differences(one, changed) == ([] if is_same else [name])
    assert (key_of(one) == key_of(other)) is (differences(one, other) == [])


@given(parts, st.sampled_from(["", TREE]))
def test_parts_are_stored_and_read_again(one: Parts, found: str) -> None:
    assert load_parts(one.dump(found), found) == one
    assert load_parts(one.dump(one.tree), one.tree) == one
    assert key_of(one._replace(prompt=dict(list(one.prompt.items())[::-1]))) == key_of(one)


def test_without_recorded_files_there_is_no_key() -> None:
    assert key_of(Parts("r", {}, "a", "v")) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"description": "Checks"},
        {"prompt": "Check it."},
        {"capabilities": ("network",)},
        {"procedure": ""},
        {"output": ""},
        {"schema": {"type": "object"}},
        {"resume": "persistent"},
        {"extract": {"model": "small"}},
        {"knowledge": Recall(100)},
        {"may_start_threads": True},
    ],
)
def test_what_a_role_is_asked_belongs_to_its_definition(change: Any) -> None:
    assert digest_role("reviewer", ROLE._replace(**change)) != digest_role("reviewer", ROLE)
    assert digest_role("checker", ROLE) != digest_role("reviewer", ROLE)


@pytest.mark.parametrize(
    "change",
    [
        {"limits": Limits(cost=1.0)},
        {"agent": "claude"},
        {"on_crash": "restore"},
        {"workdir": "worktree"},
        {"group": Group(times=3)},
    ],
)
def test_how_a_role_is_played_does_not(change: Any) -> None:
    assert digest_role("reviewer", ROLE._replace(**change)) == digest_role("reviewer", ROLE)


def test_a_sandbox_belongs_to_the_definition_only_where_there_is_one() -> None:
    before = "a6dd51355b95dad8c1150a9b"  # as it was when roles had no sandboxes
    assert digest_role("reviewer", ROLE) == before
    written = [None, *map(sandbox_payload, (Sandbox(), Sandbox(is_off=True), Sandbox(network="none")))]
    assert len({digest_role("reviewer", ROLE, one) for one in written}) == len(written)


def test_a_changed_text_changes_its_own_part_of_the_prompt() -> None:
    before = digest_prompt(**TASK)
    for name in TASK:
        other = [ShownStep(1, "developer", {"status": "done"}, "Fixed it.")] if name == "history" else "other"
        after = digest_prompt(**{**TASK, name: other})
        assert [key for key in before if before[key] != after[key]] == [name]
    assert digest_prompt(task="Fix it") == {"task": before["task"]}


def test_an_earlier_step_counts_without_its_number_its_agent_and_the_ids_of_members() -> None:
    def join(number: int, thread: str, *, hunk: str = "-a\n+b") -> ShownStep:
        conflict = {
            "files": [{"path": "a.py", "hunks": [hunk], "changed_by": [{"thread": thread}]}],
            "left": f"/work/{thread}",
        }
        members = [
            {
                "number": 1,
                "status": "done",
                "output": {"id": 7},
                "id": thread,
                "branch": f"rolecall/{thread}",
            },
            {"number": 2, "status": "set_aside", "output": {}, "id": thread, "conflict": conflict},
        ]
        return ShownStep(number, "reviewers", {"status": "partly", "members": members}, "Report.\n", "group")

    assert describe_step(join(2, "01A")) == describe_step(join(9, "01B"))
    assert describe_step(join(2, "01A")) != describe_step(join(2, "01A", hunk="-a\n+c"))
    # Members whose items are the members of an earlier group do not see that list.
    cut = ShownStep(2, "reviewers", {"status": "partly", "members": "(left out)"}, "Report.", "group")
    assert describe_step(cut) == ["reviewers", {"status": "partly", "members": "(left out)"}, "Report."]
    # Ids in the output of any other role are its own words.
    one, other = ({"members": [{"id": name}]} for name in "ab")
    assert describe_step(ShownStep(1, "r", one)) != describe_step(ShownStep(1, "r", other))

"""The decision whether an agent goes on in a session, as rules that hold for every combination."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rolecall.nexus.overview import REUSE_POLICIES
from rolecall.nexus.resume import Prior, ResumeDecision, Touch, decide

FILES = some.frozensets(some.sampled_from(["a.py", "b.py", "c.md"]))
TIMES = some.sampled_from([f"2026-01-01T00:00:0{second}.000Z" for second in range(6)])
AGENTS = some.sampled_from(["engineer", "researcher", "tester"])
IDS = some.sampled_from(["i1", "i2", "i3"])
TIERS = some.sampled_from([None, "ephemeral", "bounded", "persistent"])
POLICIES = some.sampled_from([None, *REUSE_POLICIES])
PRIORS = some.none() | some.builds(
    Prior, agent=AGENTS, id=IDS, session=some.sampled_from(["", "s1", "s2"]), files=FILES, at=TIMES
)
TOUCHES = some.lists(some.builds(Touch, id=IDS, files=FILES, at=TIMES), max_size=4)


def asked(**fields: object) -> ResumeDecision:
    prior = Prior("engineer", "i1", "s1", frozenset({"a.py"}), "2026-01-01T00:00:01.000Z")
    given = {"agent": "engineer", "tier": "bounded", "files": ["a.py"], "prior": prior, **fields}
    return decide(**given)  # type: ignore[arg-type]


@given(
    agent=AGENTS,
    tier=TIERS,
    policy=POLICIES,
    files=FILES,
    prior=PRIORS,
    others=TOUCHES,
    can_resume=some.booleans(),
)
def test_the_rules_hold_whatever_comes_together(
    agent: str,
    tier: str | None,
    policy: str | None,
    files: frozenset[str],
    prior: Prior | None,
    others: list[Touch],
    can_resume: bool,
) -> None:
    found = decide(
        agent=agent, tier=tier, policy=policy, files=files, prior=prior, others=others, can_resume=can_resume
    )
    assert found.reasons
    assert all(found.reasons)
    assert found.reasons[-1].startswith("resumed: " if found.session else "fresh: ")
    is_bounded = tier == "bounded" or policy == "resume_if_same_artifact"
    assert found.must_reread == (found.session is not None and is_bounded)
    if found.session is None:
        return
    # Only a session of this agent's own, where the host can go on in one.
    assert prior is not None
    assert (prior.agent, prior.session) == (agent, found.session)
    assert can_resume
    assert policy != "fresh"
    if is_bounded:
        known = files | prior.files
        assert not any(one.id != prior.id and one.at > prior.at and one.files & known for one in others)
    if policy is None:
        assert tier in ("bounded", "persistent")
    if is_bounded and policy != "resume":
        assert files
        assert files <= prior.files


@given(agent=AGENTS, tier=TIERS, policy=POLICIES, files=FILES, prior=PRIORS, others=TOUCHES)
def test_a_host_that_cannot_resume_gets_no_error_and_no_session(
    agent: str,
    tier: str | None,
    policy: str | None,
    files: frozenset[str],
    prior: Prior | None,
    others: list[Touch],
) -> None:
    found = decide(
        agent=agent, tier=tier, policy=policy, files=files, prior=prior, others=others, can_resume=False
    )
    assert found.session is None


@pytest.mark.parametrize(
    ("fields", "session", "reasons"),
    [
        ({}, "s1", ("resumed: bounded, about the same files",)),
        ({"policy": "fresh"}, None, ("fresh: the task says so",)),
        ({"policy": "resume"}, "s1", ("resumed: the task says so",)),
        ({"policy": "resume", "files": ["b.py"]}, "s1", ("resumed: the task says so",)),
        ({"tier": "ephemeral"}, None, ("fresh: ephemeral",)),
        ({"tier": None}, None, ("fresh: no tier, which counts as ephemeral",)),
        ({"tier": "ephemeral", "policy": "resume"}, "s1", ("resumed: the task says so",)),
        (
            {"tier": "ephemeral", "policy": "resume_if_same_artifact"},
            "s1",
            ("resumed: the task's policy, about the same files",),
        ),
        ({"tier": "persistent", "files": ["b.py"]}, "s1", ("resumed: persistent",)),
        (
            {"files": ["b.py"]},
            None,
            ("fresh: bounded, and b.py was not among the files of its last session",),
        ),
        ({"files": []}, None, ("fresh: bounded, and the task names no file",)),
        ({"prior": None}, None, ("bounded", "fresh: engineer has no session yet")),
        ({"agent": "writer"}, None, ("bounded", "fresh: writer has no session yet")),
        ({"can_resume": False}, None, ("bounded, about the same files", "fresh: it cannot be resumed here")),
    ],
)
def test_each_case_is_decided_by_its_rule(
    fields: dict[str, object], session: str | None, reasons: tuple[str, ...]
) -> None:
    found = asked(**fields)
    assert (found.session, found.reasons) == (session, reasons)


@pytest.mark.parametrize("policy", [None, *REUSE_POLICIES])
def test_an_edit_by_another_since_wins_over_any_policy(policy: str | None) -> None:
    edit = Touch("i2", frozenset({"a.py"}), "2026-01-01T00:00:02.000Z")
    found = asked(policy=policy, others=[edit])
    assert found.reasons == ("fresh: a.py was touched by i2 since",)
    assert found.session is None


@pytest.mark.parametrize(
    "touch",
    [
        Touch("i2", frozenset({"a.py"}), "2026-01-01T00:00:00.000Z"),
        Touch("i2", frozenset({"b.py"}), "2026-01-01T00:00:02.000Z"),
        Touch("i1", frozenset({"a.py"}), "2026-01-01T00:00:02.000Z"),
    ],
    ids=["before", "another file", "its own"],
)
def test_what_is_no_edit_by_another_since_is_no_hindrance(touch: Touch) -> None:
    assert asked(others=[touch]).session == "s1"


def test_a_persistent_agent_does_not_mind_edits() -> None:
    edit = Touch("i2", frozenset({"a.py"}), "2026-01-01T00:00:02.000Z")
    assert asked(tier="persistent", others=[edit]).session == "s1"

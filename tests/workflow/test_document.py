"""Workflows written out again: what is read back is the same, and differences are named."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.errors import Hint
from rolecall.settings import yaml12
from rolecall.threads.state import Status
from rolecall.workflow import document, yaml
from rolecall.workflow.model import END, START, Condition, Edge, Limits, StoredRole, StoredWorkflow

META = {
    "type": "object",
    "properties": {"$status": {"enum": ["ok", "bad"]}, "note": {"type": "string"}},
    "required": ["$status", "note"],
}
BASE = StoredWorkflow(
    "check-text",
    description="Two roles\nand a loop",
    version="1e3",
    roles={
        "writer": StoredRole(
            prompt="Write.", agent="human", limits=Limits(turns=3), schema={"type": "object"}
        ),
        "critic": StoredRole(
            prompt="Criticize.", capabilities=("012", "yes"), extract={"model": "0o14"}, schema=META
        ),
    },
    graph={
        START: (Edge("writer"),),
        "writer": (Edge("critic", prompt="Look at it.", location="/tmp"),),
        "critic": (Edge(END, "ok"), Edge("writer", "bad", prompt="{{note}}")),
    },
    limits=Limits(steps=9, cost=0.5),
)


def read(text: str) -> StoredWorkflow:
    found = yaml.parse(text, source="x.yaml")
    assert found.workflow is not None, found.problems
    return found.workflow


def test_reading_what_was_written_gives_the_same_workflow() -> None:
    once = read(document.to_yaml(BASE))
    assert once.graph == BASE.graph
    assert once.limits == BASE.limits
    assert once.version == "1e3"
    assert once.roles["critic"].capabilities == ("012", "yes")
    assert read(document.to_yaml(once)) == once


def test_lists_of_conditions_are_written_in_their_order() -> None:
    looped = BASE._replace(
        graph={**BASE.graph, "critic": (Edge("writer", condition="isShort"), Edge(END, prompt="Done."))},
        conditions={"isShort": Condition("steps_count < 4", "early")},
    )
    assert read(document.to_yaml(looped)).graph == looped.graph


def test_the_order_of_keys_does_not_show() -> None:
    turned = BASE._replace(
        roles=dict(reversed([*BASE.roles.items()])), graph=dict(reversed([*BASE.graph.items()]))
    )
    assert document.to_yaml(turned) == document.to_yaml(BASE)
    assert document.diff(BASE, turned, names=("a", "b")) == ""


def test_changes_name_roles_schemas_edges_conditions_and_limits() -> None:
    critic = BASE.roles["critic"]._replace(prompt="Be kind.", schema={**META, "title": "x"})
    after = BASE._replace(
        version="2",
        roles={"critic": critic, "editor": StoredRole(schema=META)},
        graph={
            START: (Edge("critic"),),
            "critic": (Edge(END, "ok"), Edge("editor", "bad", prompt="{{note}}")),
            "editor": (Edge(END, condition="isShort"), Edge(END)),
        },
        conditions={"isShort": Condition("steps_count < 4")},
        limits=Limits(steps=10),
    )
    assert sorted(map(str, document.changes(BASE, after))) == [
        "added condition isShort",
        "added edge editor",
        "added edge editor (isShort)",
        "added role editor",
        "changed edge $START: role",
        "changed edge critic (bad): role",
        "changed limits: steps, cost",
        "changed role critic: prompt",
        "changed schema critic",
        "changed workflow: version",
        "removed edge writer",
        "removed role writer",
    ]
    assert document.changes(BASE, BASE) == []


ODD = ["1e3", "0o14", "0x1f", ".5", "-1", "+.inf", ".nan", "08", "yes", "null", "~", "12:30", "- a", "<<"]
texts = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(ODD)
keys = st.text("ab1", min_size=1, max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(value=values)
@settings(max_examples=300, deadline=None)
def test_what_is_dumped_reads_the_same_by_yaml_1_2(value: object) -> None:
    assert yaml12.load(document.dump({"value": value})) == {"value": value}


def test_a_text_of_a_type_of_its_own_is_dumped_as_text() -> None:
    hint = Hint("Run it", "run_thread", thread="01")
    assert yaml12.load(document.dump({"status": Status.IDLE, "hint": hint})) == {
        "status": "idle",
        "hint": "Run it.",
    }

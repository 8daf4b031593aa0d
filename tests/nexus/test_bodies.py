"""The prompts of our own catalogue: short, complete, true to the capabilities, their macros sound."""

from __future__ import annotations

import re

import pytest

from rolecall.nexus import catalog, dispatch, macros, tags
from rolecall.nexus.catalog import CatalogAgent, Skill
from rolecall.settings.capabilities import denied_classes

CATALOG = catalog.load()
AGENTS = CATALOG.agents.values()
SKILLS = CATALOG.skills.values()
TOOLS = {
    f"nx_{name}"
    for name in (
        "plan_start", "plan_status", "plan_update", "plan_decide", "task_add", "task_list", "task_update",
        "task_close", "history_search", "context", "artifact_write",
    )
}  # fmt: skip
SECTIONS = ["You get", "Work", "Deliver", "Not yours", "Stop and ask"]


def tokens(text: str) -> float:
    """An estimate that is rather too high: 1.35 for a word or one for four characters, whichever is more."""
    return max(len(text.split()) * 1.35, len(text) / 4)


def on_one_line(text: str) -> str:
    return " ".join(text.split())


def sections(body: str) -> dict[str, str]:
    parts = re.split(r"^## (.+)$", body, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


agents = pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.id)
skills = pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.id)


# -- agents --


def denied_tools(agent: CatalogAgent) -> list[str]:
    """The tools of our server that the agent's capabilities deny it."""
    classes = set(denied_classes(agent.capabilities))
    return [f"nx_{name}" for name, tool in dispatch.TOOLS.items() if classes.intersection(tool.denied_as)]


@agents
def test_an_agent_body_stays_under_900_tokens(agent: CatalogAgent) -> None:
    assert tokens(agent.body) < 900


@agents
def test_an_agent_body_says_what_comes_in_what_goes_out_and_when_to_stop(agent: CatalogAgent) -> None:
    assert agent.body.startswith(f"# {agent.id.capitalize()}\n\nYou ")
    parts = sections(agent.body)
    assert list(parts) == SECTIONS
    for part in ("TASK", "CONTEXT", "APPROACH", "ACCEPTANCE"):
        assert f"- {part}: " in parts["You get"]
    assert "1. " in parts["Work"]
    assert "one precise question" in parts["Stop and ask"]


@agents
def test_an_agent_delivers_a_form_that_ends_with_a_word_lead_can_act_on(agent: CatalogAgent) -> None:
    delivered = sections(agent.body)["Deliver"]
    form = delivered.split("```")[1]
    words = {
        "how": "STATUS: done | blocked",
        "do": "STATUS: done | partial | blocked",
        "check": "VERDICT: ",
    }
    assert words[agent.category] in form
    stop = sections(agent.body)["Stop and ask"]
    assert ("`VERDICT: BLOCKED`" if agent.category == "check" else "`STATUS: blocked`") in stop


@agents
def test_an_agent_is_told_what_its_capabilities_deny(agent: CatalogAgent) -> None:
    denied = sections(agent.body)["Not yours"]
    for tool in denied_tools(agent):
        assert f"`{tool}`" in denied
    cannot_edit = "You do not create, change or delete files of the project" in denied
    assert cannot_edit == ("no_file_edit" in agent.capabilities)
    assert "ou do not talk to the user or to other agents. Everything goes through Lead." in on_one_line(
        denied
    )


@agents
def test_an_agent_is_not_sent_to_a_tool_it_is_denied(agent: CatalogAgent) -> None:
    parts = sections(agent.body)
    elsewhere = " ".join(text for name, text in parts.items() if name != "Not yours")
    for tool in (*denied_tools(agent), *dispatch.LEAD_ONLY):
        assert tool not in elsewhere


@agents
def test_an_agent_body_has_no_macros_because_nobody_expands_them(agent: CatalogAgent) -> None:
    assert list(macros.find(agent.body)) == []


def test_only_agents_bound_to_their_files_are_told_to_read_them_again() -> None:
    for agent in AGENTS:
        is_told = re.search("read (it|them) again: others may have changed", on_one_line(agent.body))
        assert bool(is_told) == (agent.resume_tier == "bounded"), agent.id


# -- skills --

ACTS = {
    "nx-plan": {"subagent_spawn", "user_question"},
    "nx-run": {"skill_activation", "subagent_spawn", "task_register", "user_question"},
    "nx-sync": {"subagent_spawn", "task_register", "user_question"},
    "nx-init": {"skill_activation", "subagent_spawn", "user_question"},
}


@skills
def test_a_skill_acts_through_macros(skill: Skill) -> None:
    assert {macro.primitive for macro in macros.find(skill.body)} == ACTS[skill.id]


@skills
def test_macros_name_agents_skills_modes_states_and_tiers_that_exist(skill: Skill) -> None:
    words = CATALOG.vocabulary
    for macro in macros.find(skill.body):
        arguments = macro.arguments
        if macro.primitive == "subagent_spawn":
            agent = CATALOG.agents[str(arguments["target_role"])]
            assert arguments["resume_tier_hint"] == agent.resume_tier
            assert str(arguments["prompt"]).startswith("TASK: ")
            assert "ACCEPTANCE:\n" in str(arguments["prompt"])
        elif macro.primitive == "skill_activation":
            target = CATALOG.skills[str(arguments["skill"])]
            assert not target.manual_only
            modes = {mode for one in target.triggers for mode in words.tags[one].variants}
            assert arguments.get("mode") in {None, *modes}
        elif macro.primitive == "task_register":
            assert arguments["state"] in ("pending", "in_progress", "completed")
        elif macro.primitive == "user_question":
            options = arguments["options"]
            assert all(not isinstance(one, str) and set(one) == {"label", "description"} for one in options)


@skills
def test_a_skill_can_be_followed_by_a_host_without_means(skill: Skill) -> None:
    words = CATALOG.vocabulary
    text = macros.expand(
        skill.body, macros.prose(words.tags), invocations=words.invocations, choices=CATALOG.choices
    )
    assert "{{" not in text
    assert "}}" not in text
    assert "<<" not in text
    assert text.startswith(f"# {skill.id}: ")


@skills
def test_a_skill_stays_short_and_says_how_it_ends(skill: Skill) -> None:
    assert tokens(skill.body) < 2000
    assert "The skill ends " in on_one_line(skill.body.split("\n## ")[-1])


@skills
def test_examples_of_tags_in_a_skill_do_not_activate_anything(skill: Skill) -> None:
    assert tags.detect(skill.body, CATALOG.vocabulary.tags) == tags.Detection(())


def test_bodies_name_only_tools_that_exist() -> None:
    for body in (*(agent.body for agent in AGENTS), *(skill.body for skill in SKILLS)):
        assert set(re.findall(r"\bnx_\w+", body)) <= TOOLS


def test_planning_knows_every_exception_tier_and_owner() -> None:
    body = CATALOG.skills["nx-plan"].body
    for id in (
        *CATALOG.vocabulary.task_exceptions,
        *CATALOG.vocabulary.resume_tiers,
        *CATALOG.agents,
        "lead",
    ):
        assert id in body
    for policy in ("fresh", "resume_if_same_artifact", "resume"):
        assert policy in body


def test_running_escalates_each_owner_to_the_agent_of_the_contract() -> None:
    body = CATALOG.skills["nx-run"].body
    rows = [row.strip("| ").split(" | ") for row in body.splitlines() if row.startswith("| ")]
    found = {owner: row[1] for row in rows for owner in row[0].split(", ")}
    assert found == {
        "failed owner": "diagnosis by",
        "engineer": "architect",
        "tester": "architect",
        "writer": "strategist",
        "researcher": "postdoc",
    }


def test_running_plans_by_itself_when_there_is_nothing_to_run() -> None:
    first = next(iter(macros.find(CATALOG.skills["nx-run"].body)))
    assert (first.primitive, dict(first.arguments)) == (
        "skill_activation",
        {"skill": "nx-plan", "mode": "auto"},
    )


def test_skills_that_change_files_add_a_task_first() -> None:
    for id in ("nx-sync", "nx-init"):
        body = CATALOG.skills[id].body
        assert body.index("nx_task_add") < body.index("target_role=writer")

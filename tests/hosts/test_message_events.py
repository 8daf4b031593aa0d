"""A message of the user: tags are obeyed, decisions recorded, and how the project stands is told when it is news."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from hook_stage import PLAN, SESSIONS, at, known_hooks, plan, read, side_by_side, task, tasks, tell, write

from rolecall.hosts import hook_context, project_summary
from rolecall.hosts.claude import events
from rolecall.hosts.event import (
    LEAD,
    ContextCompact,
    HostAnswer,
    HostCaller,
    HostToolCall,
    PostToolUse,
    SessionEnd,
    SessionStart,
    SubagentSpawn,
    UserMessage,
)
from rolecall.nexus import catalog, memory, tools
from rolecall.nexus.tags import NO_PLAN
from rolecall.settings.mask import Mask


def say(project: Path, text: str, id: str = "") -> HostAnswer:
    return tell(project, UserMessage("s1", text, id))


def decisions(project: Path) -> dict[int, str]:
    return {issue["id"]: issue["decision"] for issue in read(project, PLAN)["issues"] if "decision" in issue}


# -- how the project stands --


def test_a_message_without_tags_in_a_project_without_state_gets_nothing_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    assert say(tmp_path, "hello") == HostAnswer()
    assert list(tmp_path.iterdir()) == []


def test_plan_tasks_and_knowledge_are_told(tmp_path: Path) -> None:
    plan(tmp_path, "Which format?", "Who pays?", i1="JSON.")
    tasks(
        tmp_path,
        task(1, status="completed"),
        task(2, deps=[1]),
        task(3, deps=[2]),
        task(4, status="in_progress"),
    )
    write(tmp_path, ".nexus/memory/a-b.md", "x")
    write(tmp_path, ".nexus/rules/r.md", "x")
    assert say(tmp_path, "hello").context.splitlines() == [
        "Where the project stands:",
        "Plan 'Storage': 1 of 2 decided. Pending: 2 Who pays?.",
        "Tasks 'Ship it': 1 of 4 completed, 2 pending, 1 in progress. Ready: 2.",
        "Knowledge in .nexus/: 1 memory, 1 rules.",
    ]


def test_the_same_is_not_told_twice_until_it_changes_or_was_forgotten(tmp_path: Path) -> None:
    tasks(tmp_path, task(1))
    assert say(tmp_path, "hello").context
    assert say(tmp_path, "hello again") == HostAnswer()
    tasks(tmp_path, task(1), task(2))
    assert "2 pending" in say(tmp_path, "and now?").context
    assert say(tmp_path, "and now?") == HostAnswer()
    for forgotten in (ContextCompact("s1"), SessionStart("s1", is_new=False)):
        tell(tmp_path, forgotten)
        assert say(tmp_path, "hello").context
    assert tell(tmp_path, UserMessage("s2", "hello")).context  # another session knows nothing


def test_a_message_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    tasks(tmp_path, task(1))
    say(tmp_path, "hello")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    say(tmp_path, "hello")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_what_is_told_beside_a_message_is_small(tmp_path: Path) -> None:
    plan(tmp_path, *("A title that goes on for quite a while " * 20 for _ in range(100)))
    tasks(
        tmp_path, *(task(n, title="T" * 500, acceptance="a" * 500) for n in range(1, 1001)), goal="G" * 5_000
    )
    assert project_summary.count_tokens(say(tmp_path, "hello").context) <= project_summary.SHORT


# -- skills --


def test_a_tag_puts_the_body_before_the_model_with_mode_and_words(tmp_path: Path) -> None:
    context = say(tmp_path, "[plan:auto] add a login").context
    assert context.startswith("The user activated the skill nx-plan in the mode auto.")
    assert known_hooks().skills["nx-plan"].strip() in context
    assert context.endswith("What the user said with it: add a login")
    record = read(tmp_path, SESSIONS)["s1"]
    assert (record["skill"], record["mode"]) == ("nx-plan", "auto")


@pytest.mark.parametrize(
    "place", [".claude/skills/nx-plan/SKILL.md", "home/.claude/skills/nx-plan/SKILL.md", ""]
)
def test_a_skill_longer_than_the_host_takes_ends_at_a_section_and_names_the_file(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    sections = "".join(
        f"## {number}. Part\n\n```\n# no section\n```\n{'x' * 900}\n\n" for number in range(1, 30)
    )
    hooks = hook_context.load("claude")._replace(skills={"nx-plan": f"# Plan\n\n{sections}"})
    file = write(tmp_path, place, "x") if place else Path(catalog.OWN_FOLDER) / "skills/nx-plan/body.md"
    plan(tmp_path, "Which format?")
    shown_context = tell(tmp_path, UserMessage("s1", f"[plan] {'w' * 500}"), hooks).context
    context = json.loads(events.output("UserPromptSubmit", HostAnswer(context=shown_context)).stdout)
    assert context["hookSpecificOutput"]["additionalContext"] == shown_context  # nothing more was cut
    assert 8_000 < len(shown_context) < 9_900
    kept, _, rest = shown_context.partition("\n\n(The skill is longer than the host allows. ")
    number = kept.count("## ") + 1
    assert rest.startswith(f'Read {file} from "{number}. Part" on before you act on it.)')
    assert kept.endswith("x" * 900) and "Which format?" in rest and "w" * 500 in rest
    again = tell(tmp_path, ContextCompact("s1"), hooks).context
    assert f"Read {file} from" in again and len(again) < 9_900


def test_another_skill_replaces_it_and_an_inline_tag_does_not(tmp_path: Path) -> None:
    say(tmp_path, "[plan:auto] x")
    say(tmp_path, "[d] yes")
    assert read(tmp_path, SESSIONS)["s1"]["skill"] == "nx-plan"
    assert "It replaces the skill nx-plan." in say(tmp_path, "[run] x").context
    record = read(tmp_path, SESSIONS)["s1"]
    assert record["skill"] == "nx-run" and "mode" not in record


def test_planning_is_over_when_all_is_decided_and_tasks_were_added(tmp_path: Path) -> None:
    plan(tmp_path, "Which format?", i1="JSON")
    tasks(tmp_path, task(1, created_at=at()))
    tell(tmp_path, UserMessage("s1", "[plan] more"), now=at(5))
    tell(tmp_path, SessionEnd("s1", is_over=False), now=at(6))
    assert read(tmp_path, SESSIONS)["s1"]["skill"] == "nx-plan"  # what there is comes from before
    plan(tmp_path, "Which format?")
    tasks(tmp_path, task(1, created_at=at()), task(2, created_at=at(7)))
    tell(tmp_path, UserMessage("s1", "and now?"), now=at(8))
    assert read(tmp_path, SESSIONS)["s1"]["skill"] == "nx-plan"
    plan(tmp_path, "Which format?", i1="YAML")
    tell(tmp_path, SessionEnd("s1", is_over=False), now=at(9))
    assert "skill" not in read(tmp_path, SESSIONS)["s1"]
    assert "Active skill" not in tell(tmp_path, ContextCompact("s1"), now=at(10)).context


def test_a_run_is_over_when_its_cycle_was_closed(tmp_path: Path) -> None:
    tasks(tmp_path, task(1, status="completed"))
    say(tmp_path, "[run]")
    say(tmp_path, "how far?")
    assert read(tmp_path, SESSIONS)["s1"]["skill"] == "nx-run"
    tools.task_close(tmp_path)
    say(tmp_path, "thanks")
    assert "skill" not in read(tmp_path, SESSIONS)["s1"]


def test_a_skill_that_the_model_calls_is_on_record(tmp_path: Path) -> None:
    tell(tmp_path, PostToolUse("s1", LEAD, HostToolCall("Skill", skill="nx-plan", words="auto")), now=at(3))
    active = read(tmp_path, SESSIONS)["s1"]
    assert (active["skill"], active["mode"], active["since"]) == ("nx-plan", "auto", at(3))
    for who, skill, error in (
        (LEAD, "other", ""),
        (LEAD, "nx-run", "no"),
        (HostCaller("engineer", "e1"), "nx-run", ""),
    ):
        tell(tmp_path, PostToolUse("s1", who, HostToolCall("Skill", skill=skill), error))
    assert read(tmp_path, SESSIONS)["s1"]["skill"] == "nx-plan"


@pytest.mark.parametrize(
    ("host", "words"), [("claude", "SendMessage"), ("codex", "followup_task"), ("opencode", "task_id")]
)
def test_what_a_skill_leaves_to_the_host_is_told_with_it_and_to_the_agents_it_starts(
    tmp_path: Path, host: str, words: str
) -> None:
    hooks = hook_context.load(host)
    context = tell(tmp_path, UserMessage("s1", "[run] go"), hooks).context
    assert "## In this host" in context and words in context.partition("## In this host")[2]
    context = tell(tmp_path, SubagentSpawn("s1", HostCaller("engineer", "e1")), hooks).context
    assert words in context.partition("## In this host")[2]
    tell(tmp_path, UserMessage("s1", "[sync]"), hooks)
    assert (
        "In this host" not in tell(tmp_path, SubagentSpawn("s1", HostCaller("engineer", "e2")), hooks).context
    )


def test_of_several_skills_the_last_one_counts(tmp_path: Path) -> None:
    context = say(tmp_path, "[plan] x\n\n[sync] y").context
    assert "the skill nx-sync" in context and "nx-plan: from" not in context


def test_tags_in_code_and_quotations_are_nothing(tmp_path: Path) -> None:
    assert say(tmp_path, "what does `[plan]` do?\n> [run]\n```\n[sync]\n```") == HostAnswer()


def test_a_slip_is_pointed_out_to_both(tmp_path: Path) -> None:
    answer = say(tmp_path, "[paln] go")
    assert answer.notice == answer.context == "[paln] is not a tag. Did you mean [plan]?"


def test_a_command_activates_a_skill_and_the_body_comes_from_where_the_host_has_none(tmp_path: Path) -> None:
    context = say(tmp_path, "/nx-init now").context
    assert known_hooks().skills["nx-init"].strip() in context
    hooks = known_hooks()._replace(has_skill_commands=True)
    assert tell(tmp_path, UserMessage("s1", "/nx-plan auto go"), hooks) == HostAnswer()
    record = read(tmp_path, SESSIONS)["s1"]
    assert (record["skill"], record["mode"]) == ("nx-plan", "auto")
    assert say(tmp_path, "/unknown thing") == HostAnswer()


def test_a_skill_that_is_not_there_is_said(tmp_path: Path) -> None:
    hooks = known_hooks()._replace(skills={})
    assert "which is not installed" in tell(tmp_path, UserMessage("s1", "[plan] x"), hooks).context


# -- [d] --


def test_a_decision_without_a_plan_is_refused(tmp_path: Path) -> None:
    assert NO_PLAN.startswith("No active plan session")
    assert NO_PLAN in say(tmp_path, "[d] JSON it is").context
    assert not (tmp_path / PLAN).exists()


def test_a_decision_on_the_only_pending_issue_is_recorded_at_once(tmp_path: Path) -> None:
    plan(tmp_path, "Which format?", "Who pays?", i1="JSON.")
    context = say(tmp_path, "[d] Nobody pays.").context
    assert decisions(tmp_path) == {1: "JSON.", 2: "Nobody pays."}
    assert (
        'The user\'s decision on issue 2 (Who pays?) was recorded: "Nobody pays." Every issue is decided.'
        in context
    )


@pytest.mark.parametrize(
    "text", ["2: Nobody", "#2 Nobody", "issue 2: Nobody", "2. Nobody", "2) Nobody", "2 - Nobody"]
)
def test_a_decision_that_names_its_issue_is_recorded_at_once(tmp_path: Path, text: str) -> None:
    plan(tmp_path, "Which format?", "Who pays?", "When?")
    assert "Still pending: 1, 3." in say(tmp_path, f"[d] {text}").context
    assert decisions(tmp_path) == {2: "Nobody"}


@pytest.mark.parametrize("text", ["yes", "3 replicas are enough", "2nd option"])
def test_a_decision_that_names_no_issue_is_on_the_first_that_is_pending(tmp_path: Path, text: str) -> None:
    plan(tmp_path, "Which format?", "Who pays?", "When?", i1="JSON.")
    context = say(tmp_path, f"[d] {text}", "p1").context
    assert "decision on issue 2 (Who pays?) was recorded" in context and "Still pending: 3." in context
    assert "if the user meant another, reopen it" in context
    say(tmp_path, f"[d] {text}", "p2")
    assert decisions(tmp_path) == {1: "JSON.", 2: text, 3: text}


@pytest.mark.parametrize("text", ["", "2", "9: no such issue"])
def test_a_decision_without_words_or_on_no_issue_is_the_models_to_place(tmp_path: Path, text: str) -> None:
    plan(tmp_path, "Which format?", "Who pays?", "When?")
    context = say(tmp_path, f"[d] {text}").context
    assert "Call nx_plan_decide at once" in context
    assert "Pending: 1 Which format?; 2 Who pays?; 3 When?." in context
    assert decisions(tmp_path) == {}


def test_decisions_of_one_message_are_on_the_issues_in_their_order(tmp_path: Path) -> None:
    plan(tmp_path, "Which format?", "Who pays?", "When?")
    say(tmp_path, "[d] JSON.\n\n[d] 3: Now.\n\n[d] Nobody.")
    assert decisions(tmp_path) == {1: "JSON.", 2: "Nobody.", 3: "Now."}


def test_hooks_that_are_told_of_one_message_at_once_decide_one_issue(tmp_path: Path) -> None:
    plan(tmp_path, "Which format?", "Who pays?", "When?")
    message = UserMessage("s1", "[d] yes", "p1")
    side_by_side(*[partial(tell, tmp_path, message)] * 4)
    assert decisions(tmp_path) == {1: "yes"}


def test_a_decision_can_be_replaced_by_naming_its_issue(tmp_path: Path) -> None:
    plan(tmp_path, "Which format?", "Who pays?", i1="JSON.")
    say(tmp_path, "[d] 1: YAML after all.")
    assert decisions(tmp_path) == {1: "YAML after all."}


def test_a_message_that_comes_twice_is_acted_upon_once(tmp_path: Path) -> None:
    plan(tmp_path, "Which format?", "Who pays?", i1="JSON.")
    say(tmp_path, "[d] Nobody.", "p1")
    plan(tmp_path, "Which format?", "Who pays?", i1="JSON.")  # reopened meanwhile
    again = say(tmp_path, "[d] Nobody.", "p1").context
    assert "[d] was handled when this message came first" in again
    assert decisions(tmp_path) == {1: "JSON."}
    say(tmp_path, "[d] Nobody.", "p2")
    assert decisions(tmp_path) == {1: "JSON.", 2: "Nobody."}


def test_a_hook_killed_before_it_wrote_the_message_down_does_no_harm_when_it_comes_again(
    tmp_path: Path,
) -> None:
    plan(tmp_path, "Which format?", "Who pays?", i1="JSON.")
    say(tmp_path, "[d] Nobody.")
    (tmp_path / SESSIONS).unlink()
    assert "The user's decision is on record" in say(tmp_path, "[d] Nobody.").context
    assert decisions(tmp_path) == {1: "JSON.", 2: "Nobody."}


def test_a_plan_that_cannot_be_read_takes_no_decision(tmp_path: Path) -> None:
    write(tmp_path, PLAN, "{")
    assert "[d] was not recorded, because the plan cannot be read" in say(tmp_path, "[d] yes").context


# -- [m], [rule], [m:gc] --


def test_a_lesson_with_a_name_is_kept_at_once(tmp_path: Path) -> None:
    context = say(tmp_path, "[m] retry-limits: The API answers 429 after 60 calls.").context
    assert "The user's words were kept in .nexus/memory/retry-limits.md." in context
    note = tmp_path / ".nexus/memory/retry-limits.md"
    assert note.read_text() == "The API answers 429 after 60 calls.\n"
    (tmp_path / SESSIONS).unlink()  # as if the hook had been killed before it wrote the message down
    assert "were kept in" in say(tmp_path, "[m] retry-limits: The API answers 429 after 60 calls.").context
    assert [path.name for path in note.parent.iterdir()] == [note.name]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("The billing API answers 429 after 60 calls.", "billing-api-answers-calls.md"),
        ("note: one word is no name", "note-word-name.md"),
        ("In 2025 we moved to Python 3.12 for the parser", "moved-python-parser.md"),
    ],
)
def test_a_lesson_without_a_name_is_kept_under_its_first_words(tmp_path: Path, text: str, name: str) -> None:
    context = say(tmp_path, f"[m] {text}").context
    assert f"kept in .nexus/memory/{name}." in context
    assert (tmp_path / ".nexus/memory" / name).read_text() == f"{text}\n"


@pytest.mark.parametrize("text", ["", "재시도는 세 번까지", "Retry"])
def test_a_lesson_whose_words_make_no_name_is_the_models_to_name(tmp_path: Path, text: str) -> None:
    context = say(tmp_path, f"[m] {text}").context
    assert "memory_add" in context and (not text or text in context)
    assert not (tmp_path / ".nexus/memory").exists()


def test_what_may_be_kept_is_told_with_a_lesson_and_with_a_look(tmp_path: Path) -> None:
    guidance = " ".join(catalog.load().vocabulary.tags["m"].prose_guidance.split())
    for text in ("[m] retry-limits: Sixty calls.", "[m]"):
        assert f"Guidance for [m]: {guidance}" in say(tmp_path, text).context
    assert "Guidance for [m-gc]: Show each candidate" in say(tmp_path, "[m:gc]").context
    assert "Guidance" not in say(tmp_path, "[rule] no-tabs: Use blanks.").context


def test_a_lesson_on_a_subject_that_has_a_note_goes_into_that_one(tmp_path: Path) -> None:
    lesson = "The billing API answers 429 after sixty calls a minute, so wait before calling again."
    note = write(tmp_path, ".nexus/memory/billing-limits.md", lesson + " Retries double the wait.\n")
    for _ in range(2):
        assert "kept in .nexus/memory/billing-limits.md" in say(tmp_path, f"[m] {lesson}").context
        (tmp_path / SESSIONS).unlink()  # as if the hook had been killed before it wrote the message down
    assert note.read_text().count(lesson) == 2
    assert [path.name for path in note.parent.iterdir()] == [note.name]


def test_a_lesson_under_the_name_of_a_note_goes_into_that_one(tmp_path: Path) -> None:
    for text in ("Sixty calls a minute.", "Wait twice as long each time."):
        assert "kept in .nexus/memory/retry-limits.md" in say(tmp_path, f"[m] retry-limits: {text}").context
    note = (tmp_path / ".nexus/memory/retry-limits.md").read_text()
    assert note.startswith("Sixty calls a minute.\n") and note.endswith("\nWait twice as long each time.\n")


def test_from_how_much_on_notes_are_on_one_subject_is_a_setting(tmp_path: Path) -> None:
    hooks = known_hooks()._replace(thresholds=lambda: memory.Thresholds(overlap=100))
    lesson = "The billing API answers 429 after sixty calls a minute, so wait before calling again."
    write(
        tmp_path, ".nexus/memory/billing-limits.md", lesson.replace("sixty", "seventy") + " Retries wait.\n"
    )
    context = tell(tmp_path, UserMessage("s1", f"[m] billing-retries: {lesson}"), hooks).context
    assert "kept in .nexus/memory/billing-retries.md" in context


def test_where_there_are_many_notes_the_model_has_them_compared(tmp_path: Path) -> None:
    for number in range(201):
        write(tmp_path, f".nexus/memory/note-number-{number:03d}.md", "x")
    assert "Call memory_add" in say(tmp_path, "[m] retry-limits: Sixty calls.").context
    assert len(list((tmp_path / ".nexus/memory").iterdir())) == 201


def test_a_secret_is_not_kept_and_not_said_again_by_the_refusal(tmp_path: Path) -> None:
    hooks = known_hooks()._replace(mask=lambda: Mask(["swordfish-secret-77"]))
    context = tell(tmp_path, UserMessage("s1", "[m] api-access: use swordfish-secret-77"), hooks).context
    assert "It was not kept under the name api-access" in context
    assert "swordfish" not in context.partition("It was not kept")[2]
    assert not (tmp_path / ".nexus/memory").exists()


def test_a_rule_is_kept_with_the_suffix_as_its_tag(tmp_path: Path) -> None:
    assert "kept in .nexus/rules/" in say(tmp_path, "[rule:frontend] no-inline-styles: Use classes.").context
    text = (tmp_path / ".nexus/rules/no-inline-styles.md").read_text()
    assert text == "<!-- tags: frontend -->\n\nUse classes.\n"
    say(tmp_path, "[rule:frontend] Components never fetch data themselves.")
    text = (tmp_path / ".nexus/rules/components-fetch-data-themselves.md").read_text()
    assert text == "<!-- tags: frontend -->\n\nComponents never fetch data themselves.\n"
    assert "rule_add with a name and tags ['frontend']" in say(tmp_path, "[rule:frontend] So.").context


def test_a_look_at_memory_lists_and_deletes_nothing(tmp_path: Path) -> None:
    assert "no memory notes" in say(tmp_path, "[m:gc]").context
    for number in range(20):
        write(tmp_path, f".nexus/memory/note-number-{number:02d}.md", "x")
    context = say(tmp_path, "[m:gc] please").context
    assert "- note-number-00.md: never read, 1 bytes" in context
    assert "- and 5 more" in context and "Nothing was deleted" in context
    assert len(list((tmp_path / ".nexus/memory").iterdir())) == 20


def test_several_tags_in_one_message_are_all_obeyed(tmp_path: Path) -> None:
    plan(tmp_path, "Which format?")
    context = say(tmp_path, "[d] JSON.\n\n[m] file-formats: JSON everywhere.\n\n[run] go").context
    assert "was recorded" in context and "kept in .nexus/memory/file-formats.md" in context
    assert "activated the skill nx-run" in context

"""What a role may not do, asked of every verb of the command line: one table decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import SCRIPTS, Rolecall

from rolecall.cli import NOUNS
from rolecall.cli.parser import verb_parser, verbs_of
from rolecall.settings.capabilities import RESTRICTIONS
from rolecall.settings.verbs import LEADS, OPTIONS, READS, VERBS, find_action

EVERY = {f"{noun} {name}".strip(): verb for noun in NOUNS for name, verb in verbs_of(noun).items()}
ALL_RESTRICTIONS = {"ROLECALL_RESTRICTIONS": ",".join(RESTRICTIONS)}


def test_every_verb_is_classed_and_nothing_else() -> None:
    assert set(VERBS) == set(EVERY)


def test_options_that_change_what_a_verb_does_are_options_of_it() -> None:
    for verb, option in OPTIONS:
        parser = verb_parser(EVERY[verb])
        assert f"--{option}" in parser.format_help()
        assert option in {action.dest for action in parser._actions}


@pytest.mark.parametrize(
    "words",
    [
        ["run", "fix-bug", "-p", "x", "--agent", "command:touch worked"],
        ["agents", "test", "command:touch worked", "--yes"],
        ["config", "set", "defaultAgent", "claude"],
        ["config", "unset", "defaultAgent"],
        ["install", "claude"],
        ["init", "."],
        ["workflow", "graph", "fix-bug", "-o", "drawn.svg"],
        ["workflow", "graph", "fix-bug", "--outp=drawn.svg"],
        ["workflow", "put", ".workflows/fix-bug.yaml"],
        ["serve", "--detach"],
        ["setup", "--provider", "openai", "--model", "m", "--api-key", "k" * 20],
        ["cas", "put-text", "x"],
        ["thread", "start", "fix-bug", "-p", "x"],
        ["doctor"],
        ["workflow", "validate"],
    ],
    ids=" ".join,
)
def test_a_role_that_may_do_nothing_is_refused_and_nothing_happens(
    rolecall: Rolecall, tmp_path: Path, words: list[str]
) -> None:
    project = tmp_path / "project"
    (project / ".workflows").mkdir(parents=True)
    workflow = {
        "name": "fix-bug",
        "roles": {"fixer": {"goal": "Fix it.", "outputs": {"status": ["done"]}}},
        "edges": {"$START": "fixer", "fixer": {"done": "$END"}},
    }
    (project / ".workflows" / "fix-bug.yaml").write_text(json.dumps(workflow))
    before = sorted(tmp_path.rglob("*"))
    done = rolecall(*words, cwd=project, env=ALL_RESTRICTIONS, check=2)
    assert "this role" in done.stderr and "no_" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_verb_that_nobody_classed_is_the_leads() -> None:
    assert find_action("brand new", lambda _: False) == ("brand new", LEADS)
    assert find_action("workflow graph", lambda _: False) == ("workflow graph", READS)


# -- inside a step --

STEP = {"ROLECALL_RUN": "run-of-a-step"}


@pytest.mark.parametrize(
    "words",
    [
        ["thread", "start", "solve-issue", "-p", "x"],
        ["thread", "resume", "x"],
        ["thread", "kill", "x"],
        ["run", "solve-issue", "-p", "x"],
        ["serve", "--detach"],
        ["trigger", "fire", "x"],
        ["plan", "run"],
        ["agents", "test", "command:touch worked", "--yes"],
    ],
    ids=" ".join,
)
def test_a_role_starts_and_moves_no_threads_unless_it_may(
    rolecall: Rolecall, tmp_path: Path, words: list[str]
) -> None:
    done = rolecall(*words, cwd=tmp_path, env=STEP, check=2)
    assert "starts or moves threads, which this role may not do" in done.stderr
    assert "may_start_threads: true" in done.stderr
    assert list(tmp_path.iterdir()) == []
    restricted = {**STEP, "ROLECALL_MAY_START_THREADS": "1", "ROLECALL_RESTRICTIONS": "no_task_create"}
    assert "held to no_task_create" in rolecall(*words, cwd=tmp_path, env=restricted, check=2).stderr


@pytest.mark.parametrize("says", [False, True])
def test_an_agent_starts_a_thread_only_where_its_role_says_that_it_may(
    rolecall: Rolecall, tmp_path: Path, says: bool
) -> None:
    project = tmp_path / "project"
    (project / ".workflows").mkdir(parents=True)
    role = {
        "goal": "Work.",
        "frontmatter": {
            "type": "object",
            "properties": {"$status": {"enum": ["done"]}},
            "required": ["$status"],
        },
        **({"may_start_threads": True} if says else {}),
    }
    for name in ("start-other", "do-nothing"):
        workflow = {"name": name, "description": "x", "roles": {"worker": role}}
        graph = {"$START": "worker", "worker": {"done": "$END"}}
        (project / ".workflows" / f"{name}.yaml").write_text(json.dumps({**workflow, "graph": graph}))
    agent = tmp_path / "agent.sh"
    agent.write_text(
        f"#!/bin/sh\n{SCRIPTS}/rolecall thread start do-nothing -p x 2> {tmp_path}/said\n"
        "printf -- '---\\n$status: done\\n---\\n'\n"
    )
    agent.chmod(0o755)
    rolecall("run", "start-other", "-p", "x", "--agent", f"command:{agent}", cwd=project, check=0)
    listed = rolecall.json("thread", "list", "--all", cwd=project)
    assert sorted(thread["name"] for thread in listed) == ["do-nothing", "start-other"][not says :]
    assert ("which this role may not do" in (tmp_path / "said").read_text()) is not says

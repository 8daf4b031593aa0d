"""`run:PROGRAM`: a command whose exit code is the answer, with words from earlier steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolecall.api import Rolecall
from rolecall.errors import UsageError
from rolecall.workflow import yaml
from rolecall.workflow.command import expand

WORKFLOW = """\
name: check-it
description: Runs what the scout names
roles:
  scout:
    prompt: Name a command.
    schema:
      type: object
      properties: {words: {type: array, items: {type: string}}, name: {type: string}}
      required: [words, name]
  tests: {agent: "run:{{steps.scout.words}} {{steps.scout.name}}"}
graph:
  $START: scout
  scout: tests
  tests: {passed: $END, failed: $FAIL}
"""
SCRIPT = """\
roles:
  scout:
    - output: {words: [sh, -c, 'printf "<%s>" "$0"; echo bad >&2; exit 3'], name: "a b; $(id)"}
"""


def test_the_exit_code_is_the_answer_and_no_shell_sees_a_word(tmp_path: Path) -> None:
    (tmp_path / "check-it.yaml").write_text(WORKFLOW)
    (tmp_path / "script.yaml").write_text(SCRIPT)
    with Rolecall(folder=tmp_path) as rolecall:
        thread = rolecall.start("./check-it.yaml", "Go", agent=f"scripted:{tmp_path}/script.yaml")
        thread.run().wait()
        scout, tests = thread.steps
        assert tests.agent.startswith("run:") and scout.agent.startswith("scripted:")
        assert tests.output == {
            "status": "failed",
            "command": [*scout.output["words"], "a b; $(id)"],
            "exit_code": 3,
            "output": "<a b; $(id)>\nbad",
        }


def test_a_word_must_be_a_text_or_a_list_of_texts() -> None:
    outputs = {"a": {"words": ["make", "test"], "deep": {"n": 3}, "no": {}, "nul": "x\0y", "none": []}}
    assert expand(["{{steps.a.words}}", "-j", "{{steps.a.deep.n}}"], outputs.get) == (
        "make",
        "test",
        "-j",
        "3",
    )
    for wrong in ("{{steps.a.no}}", "{{steps.a.gone}}", "{{steps.b.words}}", "{{steps.a.nul}}"):
        with pytest.raises(UsageError, match="neither a text nor a list"):
            expand(["make", wrong], outputs.get)
    with pytest.raises(UsageError, match="has no program"):
        expand(["{{steps.a.none}}"], outputs.get)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("steps.scout.words", "steps.scout.wrds", "is not a field of the output of scout"),
        ("steps.scout.words", "steps.tests.words", "cannot have run by then"),
        ("{{steps.scout.words}}", "x{{steps.scout.words}}", "cannot be a word of a command"),
        (
            "prompt: Name a command.",
            "prompt: Name.\n    capabilities: [read_only]",
            "cannot choose the program",
        ),
        ("tests: {agent", "tests: {schema: {type: object}, agent", "runs a command, so its schema is known"),
    ],
)
def test_what_a_command_cannot_be(old: str, new: str, problem: str) -> None:
    assert yaml.parse(WORKFLOW, source="check-it.yaml").problems == ()
    found = yaml.parse(WORKFLOW.replace(old, new), source="check-it.yaml").problems
    assert any(problem in one.message and one.severity == "error" for one in found), found


@pytest.mark.parametrize(
    ("words", "is_code"),
    [
        ("sh -c {{steps.scout.words}}", True),
        ("env LANG=C /bin/bash -lc {{steps.scout.words}}", True),
        ("python3 -c {{steps.scout.words}}", True),
        ("bash -euo pipefail -c {{steps.scout.words}}", True),
        ("python3 -m pytest -c {{steps.scout.words}}", False),
        ("bash build.sh -c {{steps.scout.words}}", False),
        ("git push -r {{steps.scout.words}}", False),
        ("sh -c 'test -e \"$0\"' {{steps.scout.words}}", False),
        ("grep -e {{steps.scout.words}}", False),
        ("{{steps.scout.words}}", False),
    ],
)
def test_a_shell_that_reads_data_as_a_program_is_seen(words: str, is_code: bool) -> None:
    agent = WORKFLOW.split('agent: "run:')[1].split('"')[0]
    text = WORKFLOW.replace(agent, words.replace('"', '\\"'))
    messages = [(one.severity, one.message) for one in yaml.parse(text, source="check-it.yaml").problems]
    assert [severity for severity, message in messages if "as a program" in message] == ["warning"] * is_code
    text = text.replace("prompt: Name a command.", "prompt: Name.\n    capabilities: [read_only]")
    problems = yaml.parse(text, source="check-it.yaml").problems
    is_refused = any("cannot choose the program" in one.message for one in problems)
    assert is_refused == (is_code or words.startswith("{{"))

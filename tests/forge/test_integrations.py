"""The action and the template are what GitHub and GitLab expect, and texts of events are never part of a script."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from forge_jobs import ACTION, ROOT, TEMPLATE

from rolecall.errors import UsageError
from rolecall.forge.comment import escape_markup
from rolecall.settings.forge import read_job


def load(path: Any) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_action_is_a_composite_one_whose_scripts_get_inputs_as_variables() -> None:
    action = load(ACTION)
    assert set(action) == {"name", "description", "author", "branding", "inputs", "outputs", "runs"}
    assert action["runs"]["using"] == "composite"
    for step in action["runs"]["steps"]:
        assert set(step) <= {"name", "id", "if", "shell", "env", "run"} and step["shell"] == "bash"
        assert "${{" not in step["run"]
        for text in step["env"].values():
            found = re.fullmatch(r"\$\{\{ inputs\.(\w+) \}\}", text)
            assert found and found[1] in action["inputs"]
    used = {text for step in action["runs"]["steps"] for text in step["env"].values()}
    assert used == {f"${{{{ inputs.{name} }}}}" for name in action["inputs"]}
    assert all(set(entry) <= {"description", "required", "default"} for entry in action["inputs"].values())
    assert {entry["value"] for entry in action["outputs"].values()} == {
        f"${{{{ steps.rolecall.outputs.{name} }}}}" for name in action["outputs"]
    }


def test_the_example_uses_the_action_with_inputs_that_it_has() -> None:
    example = load(ROOT / "integrations" / "github" / "example.yml")
    [job] = example["jobs"].values()
    [used] = [step for step in job["steps"] if "rolecall" in step.get("uses", "")]
    assert set(used["with"]) <= set(load(ACTION)["inputs"])
    [checkout] = [step for step in job["steps"] if "checkout" in step.get("uses", "")]
    assert checkout["with"]["persist-credentials"] is False
    # For the whole workflow it would make comments that are not for Rolecall wait, and cancel answers that wait.
    assert "concurrency" not in example and job["concurrency"]["queue"] == "max"
    assert example["permissions"] == {"contents": "write", "issues": "write", "pull-requests": "write"}
    assert set(example[True]) == {"issues", "issue_comment"}  # YAML 1.1 reads `on` as true


def test_the_template_declares_every_variable_that_its_scripts_use() -> None:
    template = load(TEMPLATE)
    assert set(template) == {".rolecall"}
    hidden = template[".rolecall"]
    assert all(isinstance(line, str) for line in [*hidden["before_script"], *hidden["script"]])
    scripts = "\n".join([*hidden["before_script"], *hidden["script"]])
    named = {name for name in re.findall(r"\$(\w+)", scripts) if name.startswith("ROLECALL_")}
    assert named == {name for name in hidden["variables"] if name.startswith("ROLECALL_")}
    assert all(set(rule) == {"if"} for rule in hidden["rules"])


@pytest.mark.parametrize("forge", ["github", "gitlab"])
def test_inputs_stay_the_words_that_they_are(forge: str, tmp_path: Path) -> None:
    (tmp_path / "rolecall").write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    (tmp_path / "rolecall").chmod(0o755)
    task = "$(touch a) `touch b`; 'c' \"d\" *\n-- --open"
    given = {"WORKFLOW": "a b", "PROMPT": task, "AGENT": "", "LIMITS": "cost=5\n steps=*  ", "ALLOW": "x, y"}
    given |= {"OPEN": "yes", "REQUEST": "true", "SETUP": "", "PACKAGE": ""}
    if forge == "github":
        script, shell, prefix = load(ACTION)["runs"]["steps"][-1]["run"], ["bash", "-eo", "pipefail"], "INPUT"
    else:
        lines = load(TEMPLATE)[".rolecall"]
        script = "\n".join([*lines["before_script"], *lines["script"]])
        shell, prefix = ["sh", "-e"], "ROLECALL"
    env = {f"{prefix}_{name}": value for name, value in given.items()}
    done = subprocess.run(
        [*shell, "-c", script],
        env=env | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    words = ["ci", "run", f"--prompt={task}", "--setup=", "--allow=x, y", "--request"]
    words += ["--limit=cost=5", "--limit=steps=*", "--", "a b"]
    assert done.stdout.split("\0")[:-1] == words and os.listdir(tmp_path) == ["rolecall"]


def test_what_others_wrote_does_nothing_on_the_forge() -> None:
    text = "/merge\n  /close\n> /assign @bob\n- /label x\nmail a@b.c @alice, (/@carol) `@x` <!-- rolecall -->\na/b"
    shown = escape_markup(text)
    assert not re.search(r"(?m)^[\s>-]*/\w", shown)
    assert not re.search(r"@(alice|bob|carol)", shown) and "`@x`" in shown and "<!--" not in shown
    assert "a@b.c" in shown and shown.endswith("a/b")


def test_outside_a_job_or_without_a_token_there_is_a_hint() -> None:
    with pytest.raises(UsageError, match="not a job"):
        read_job({})
    with pytest.raises(UsageError, match=r"GITHUB_API_URL.*a token"):
        read_job({"GITHUB_ACTIONS": "true"})
    with pytest.raises(UsageError, match="CI_API_V4_URL"):
        read_job({"GITLAB_CI": "true", "ROLECALL_FORGE_TOKEN": "x"})

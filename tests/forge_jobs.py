"""A repository on a stand-in of a forge, and jobs on empty machines that run the steps of our integrations."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import commands
import forgestage
import pytest
import yaml
from forgestage import TOKEN, Forge

ROOT = Path(__file__).parents[1]
ACTION = ROOT / "integrations" / "github" / "action.yml"
TEMPLATE = ROOT / "integrations" / "gitlab" / "rolecall.gitlab-ci.yml"
COMMAND = (commands.SCRIPT, "ci", "run", "fix", "--agent", "scripted:script.yaml")
KEY = "model-key-1234567890"

WORKFLOW = """
name: fix
description: Fix it, ask a person, finish.
roles:
  developer:
    prompt: Fix it.
    schema:
      properties: {status: {const: done}}
      required: [status]
  approver:
    agent: human
    description: Decides whether the change is right.
    prompt: Is this right?
    schema:
      oneOf:
        - properties: {status: {const: approved}}
          required: [status]
        - properties: {status: {const: rejected}, comments: {type: string}}
          required: [status, comments]
graph:
  $START: developer
  developer: {done: approver}
  approver:
    approved: $END
    rejected: {role: developer, prompt: "{{comments}}"}
"""
SCRIPT = """
roles:
  developer:
    - edit: {calc.py: "first\\n", new/file.txt: "new\\n"}
      run: [[sh, -c, "env | sort > seen.txt; git config --list >> seen.txt"]]
      output: {status: done}
      body: "Changed it.\\n\\n/merge\\n\\nThanks to @bob. <!-- rolecall -->"
      usage: {input_tokens: 100, output_tokens: 10, cost: 0.25}
    - run: [[grep, -q, new, new/file.txt]]
      edit: {calc.py: {old: first, new: second}}
      output: {status: done}
      body: Changed it again.
"""


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout.strip()


class Stage:
    """The forge, its repository, and a machine for each job."""

    def __init__(self, folder: Path, forge: Forge) -> None:
        self.forge, self._folder = forge, folder
        self.remote = folder / "remote.git"
        self.jobs = 0
        work = folder / "work"
        subprocess.run(["git", "init", "-q", "-b", "main", str(work)], check=True)
        for name, value in (("user.name", "Somebody"), ("user.email", "somebody@localhost")):
            git(work, "config", name, value)
        (work / ".workflows").mkdir()
        self.work = work
        self.commit(**{".workflows/fix.yaml": WORKFLOW, "script.yaml": SCRIPT, "calc.py": "old\n"})
        subprocess.run(["git", "clone", "-q", "--bare", str(work), str(self.remote)], check=True)
        git(work, "remote", "add", "origin", str(self.remote))

    def commit(self, **files: str) -> None:
        for name, text in files.items():
            (self.work / name).write_text(text)
        git(self.work, "add", ".")
        git(self.work, "commit", "-q", "-m", "Change the project")
        if self.remote.exists():
            git(self.work, "push", "-q", "origin", "main")

    def ref(self, name: str) -> str:
        """The commit of a ref on the forge; empty if there is none."""
        return git(self.work, "ls-remote", str(self.remote), name).partition("\t")[0]

    def show(self, ref: str, path: str) -> str:
        return git(self.remote, "show", f"{ref}:{path}")

    def machine(self, *, depth: int = 0) -> tuple[Path, dict[str, str]]:
        """A checkout in an empty home, and the variables that every job has."""
        self.jobs += 1
        place = self._folder / f"machine-{self.jobs}"
        (place / "home").mkdir(parents=True)
        (place / "tmp").mkdir()
        shallow = ["--depth", str(depth)] if depth else []
        address = self.remote.as_uri() if depth else str(self.remote)
        subprocess.run(["git", "clone", "-q", *shallow, address, str(place / "checkout")], check=True)
        env = {
            "HOME": str(place / "home"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            "TMPDIR": str(place / "tmp"),
            "ROLECALL_CI_FOLDER": str(self._folder / "jobs"),
            "ANTHROPIC_API_KEY": KEY,
            "no_proxy": "127.0.0.1",
        }
        return place, env

    # -- GitHub --

    def github(
        self,
        name: str,
        payload: dict[str, Any],
        *words: str,
        run: str = "",
        depth: int = 0,
        inputs: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run the steps of the action in a job if it has `inputs`, otherwise the command with these `words`."""
        place, env = self.github_machine(name, payload, run=run, depth=depth)
        if inputs is None:
            return commands.run([*COMMAND, *words], env=env, cwd=place / "checkout")
        del env["ROLECALL_FORGE_TOKEN"]
        action = yaml.safe_load(ACTION.read_text())
        given = {key: value.get("default", "") for key, value in action["inputs"].items()}
        given |= {"workflow": "fix", "agent": "scripted:script.yaml", "token": TOKEN, "package": "", **inputs}
        for step in action["runs"]["steps"]:
            condition = step.get("if")
            assert condition in (None, "inputs.package != ''")
            if condition and not given["package"]:
                continue
            more = {
                key: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: given[found[1]], text)
                for key, text in step["env"].items()
            }
            done = self.bash(step["run"], env | more, place / "checkout")
            if done.returncode:
                break
        return done

    def start_job(
        self, name: str, payload: dict[str, Any], *, run: str, script: str
    ) -> subprocess.Popen[bytes]:
        """Start a job whose agent follows another script."""
        place, env = self.github_machine(name, payload, run=run)
        (place / "checkout" / "script.yaml").write_text(script)
        return subprocess.Popen(COMMAND, env=env, cwd=place / "checkout", stdin=subprocess.DEVNULL)

    def wait_for_file(self, pattern: str) -> None:
        until = time.monotonic() + commands.PATIENCE
        while not list(self._folder.glob(pattern)):
            assert time.monotonic() < until, f"there is no {pattern}"
            time.sleep(0.05)

    def github_machine(
        self, name: str, payload: dict[str, Any], *, run: str = "", depth: int = 0
    ) -> tuple[Path, dict[str, str]]:
        place, env = self.machine(depth=depth)
        payload = {"repository": {"full_name": "o/r", "default_branch": "main"}, **payload}
        (place / "event.json").write_text(json.dumps(payload))
        for file in ("output", "summary.md", "env"):
            (place / file).touch()
        env |= {
            "GITHUB_ACTIONS": "true",
            "GITHUB_API_URL": self.forge.address,
            "GITHUB_SERVER_URL": self.forge.address,
            "GITHUB_REPOSITORY": "o/r",
            "GITHUB_EVENT_NAME": name,
            "GITHUB_EVENT_PATH": str(place / "event.json"),
            "GITHUB_RUN_ID": run or f"{1000 + self.jobs}",
            "GITHUB_OUTPUT": str(place / "output"),
            "GITHUB_STEP_SUMMARY": str(place / "summary.md"),
            "GITHUB_ENV": str(place / "env"),
            "ACTIONS_RUNTIME_TOKEN": "runtime-token-1234567890",
            "ROLECALL_FORGE_TOKEN": TOKEN,
        }
        return place, env

    def bash(
        self,
        script: str,
        env: dict[str, str],
        cwd: Path,
        shell: tuple[str, ...] = ("bash", "-eo", "pipefail"),
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*shell, "-c", script],
            env=env,
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
            timeout=commands.PATIENCE,
            stdin=subprocess.DEVNULL,
        )

    def issue(self, **more: Any) -> dict[str, Any]:
        about = {"number": 12, "title": "It is `broken`; $(touch pwned)", "body": "Please fix it.", **more}
        return {"action": "labeled", "issue": about, "sender": {"login": "alice"}}

    def comment(self, text: str, *, by: str = "alice", ident: int = 1, **more: Any) -> dict[str, Any]:
        said = {"id": ident, "body": text, "user": {"login": by}, "author_association": "NONE"}
        return {**self.issue(), "action": "created", "comment": said, "sender": {"login": by}, **more}

    # -- GitLab --

    def gitlab(
        self, source: str, payload: dict[str, Any] | None = None, variables: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the scripts of the template in a job."""
        place, env = self.machine()
        template = yaml.safe_load(TEMPLATE.read_text())[".rolecall"]
        env |= {key: str(value) for key, value in template["variables"].items()}
        env |= {
            "GITLAB_CI": "true",
            "CI_API_V4_URL": self.forge.address,
            "CI_PROJECT_ID": "5",
            "CI_PIPELINE_SOURCE": source,
            "CI_PIPELINE_ID": f"{2000 + self.jobs}",
            "CI_JOB_URL": f"{self.forge.address}/jobs/{self.jobs}",
            "CI_DEFAULT_BRANCH": "main",
            "CI_JOB_TOKEN": "job-token-1234567890",
            "CI_REPOSITORY_URL": "https://gitlab-ci-token:job-token-1234567890@gitlab.example/o/r.git",
            "ROLECALL_FORGE_TOKEN": TOKEN,
            "ROLECALL_WORKFLOW": "fix",
            "ROLECALL_AGENT": "scripted:script.yaml",
            "ROLECALL_PACKAGE": "",
            **(variables or {}),
        }
        if payload is not None:
            (place / "payload.json").write_text(json.dumps(payload))
            env["TRIGGER_PAYLOAD"] = str(place / "payload.json")
        script = "\n".join([*template["before_script"], *template["script"]])
        return self.bash(script, env, place / "checkout", shell=("sh", "-e"))

    def note(self, text: str, *, by: str = "alice", ident: int = 1) -> dict[str, Any]:
        ids = {**self.forge.writers, **self.forge.readers}
        return {
            "object_kind": "note",
            "user": {"username": by, "id": ids.get(by, "99")},
            "object_attributes": {"id": ident, "note": text, "action": "create"},
            "issue": {"iid": 12, "title": "It is broken", "description": "Please fix it."},
        }


@pytest.fixture
def forge() -> Iterator[Forge]:
    with forgestage.serve_forge() as forge:
        yield forge


@pytest.fixture
def stage(tmp_path: Path, forge: Forge) -> Stage:
    if shutil.which("bash") is None:
        pytest.skip("the action needs bash")
    return Stage(tmp_path, forge)

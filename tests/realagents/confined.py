"""What every coding agent does inside a sandbox: the same scenes with each program.

A module of a program subclasses `Confined` and says how its model calls the shell, and which file of its settings a
command could change to run something later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import pytest
from modelserver import Calls, ModelServer

from realagents.stage import FOLDER, Stage, file_text
from rolecall.agents import sandbox
from rolecall.agents.contract import ANSWER
from rolecall.agents.protocol import Reply
from rolecall.agents.sandbox import Policy
from rolecall.workflow.model import Sandbox

LAYERS = sandbox.find_layers()
SECRET = "planted-secret"
KEY = "the-real-key-of-the-model"
TRY = """
env
(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && expr 50000 + 2042 || expr 60000 + 2042
expr 40000 + 2042
"""


@pytest.mark.skipif(not LAYERS.namespaces, reason="no namespaces can be made here")
class Confined:
    key: ClassVar[str]
    """The variable with its key."""
    is_wrapped: ClassVar[bool] = False
    """Whether scripts/install-agents puts a script before it, with a newer node, that nobody else has."""
    settings: ClassVar[str]
    """A file of its settings in the home that may run commands."""

    def run(self, stage: Any, prompt: str = "Go on.", **context: Any) -> Reply:
        raise NotImplementedError

    def shell(self, command: str) -> Calls:
        raise NotImplementedError

    @pytest.fixture
    def tmp_path(self) -> Iterator[Path]:
        """A folder outside of /tmp, because a sandbox has its own /tmp, which can be written everywhere."""
        with TemporaryDirectory(prefix="rolecall-test-", dir="/var/tmp") as folder:
            yield Path(folder)

    def plan(self, stage: Stage, *restrictions: str, **more: Any) -> Policy:
        (stage.folder / "rolecall").mkdir(exist_ok=True)
        for path in (stage.home / ".ssh/key", stage.folder / "rolecall/key", stage.folder / "outside/key"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{SECRET} {path.parent.name}\n")
        made = sandbox.plan(
            Sandbox(**more),
            restrictions,
            workdir=stage.work,
            env=stage.env,
            private=[str(stage.folder / "rolecall")],
            layers=LAYERS,
        )
        assert made is not None
        if not self.is_wrapped:
            return made
        execute = None if made.execute is None else (FOLDER, "/usr/bin/env")
        return replace(made, keep=(*made.keep, FOLDER), execute=execute)

    def test_it_works_in_its_folder_and_reaches_no_secret(self, stage: Any, model: ModelServer) -> None:
        stage.env["OTHER_TOKEN"] = f"{SECRET} token"
        policy = self.plan(stage)
        settings = stage.home / self.settings
        before = file_text(settings)
        commands = [
            "echo shell > b.txt",
            f"cat {stage.home}/.ssh/key {stage.folder}/rolecall/key; env",
            f"echo changed > {stage.folder}/outside/key",
            f"echo changed > {stage.home}/new.txt",
            f"echo changed > {settings}",
            "expr 40000 + 2042",
        ]
        # Some agents read commands and refuse what looks dangerous, so it is in a script.
        (stage.work / "try.sh").write_text("\n".join(commands))
        model.add(self.shell("sh try.sh"), ANSWER)
        reply = self.run(stage, sandbox=policy)
        assert reply.text == ANSWER
        assert file_text(stage.work / "b.txt") == "shell\n"
        assert "42042" in model.turns[-1].text
        assert SECRET not in model.turns[-1].text
        assert file_text(stage.folder / "outside/key") == f"{SECRET} outside\n"
        assert not (stage.home / "new.txt").exists()
        assert file_text(settings) == before or (before is None and file_text(settings) in ("", "{}\n"))
        assert "files: mounts" in policy.enforced

    def test_a_role_that_may_only_read_has_a_shell_that_cannot_write(
        self, stage: Any, model: ModelServer
    ) -> None:
        (stage.work / "a.txt").write_text("kept\n")
        (stage.work / "try.sh").write_text("rm a.txt\n(echo shell > a.txt)\ncat a.txt\nexpr 40000 + 2042\n")
        model.add(self.shell("sh try.sh"), ANSWER)
        restrictions = ("read_only",)
        reply = self.run(stage, capabilities=restrictions, sandbox=self.plan(stage, *restrictions))
        assert (reply.text, reply.files) == (ANSWER, ())
        assert file_text(stage.work / "a.txt") == "kept\n"
        assert sorted(path.name for path in stage.work.iterdir()) == ["a.txt", "try.sh"]
        assert all(said in model.turns[-1].text for said in ("42042", "kept", "Read-only file system"))

    def test_a_role_without_commands_is_played(self, stage: Any, model: ModelServer) -> None:
        model.add(self.shell("echo shell > b.txt"), ANSWER)
        restrictions = ("no_shell_exec",)
        reply = self.run(stage, capabilities=restrictions, sandbox=self.plan(stage, *restrictions))
        assert reply.text == ANSWER
        assert list(stage.work.iterdir()) == []

    def test_a_session_is_continued(self, stage: Any, model: ModelServer) -> None:
        model.add("The word is elm.", "elm")
        first = self.run(stage, "Choose a word.", sandbox=self.plan(stage))
        second = self.run(stage, "Which word?", session=first.session, sandbox=self.plan(stage))
        assert (second.text, second.session) == ("elm", first.session)
        assert "The word is elm." in model.turns[1].text

    @pytest.mark.parametrize("network", ["none", "all"])
    def test_the_model_is_reached_with_a_stand_in_for_the_key(
        self, stage: Any, model: ModelServer, network: str
    ) -> None:
        stage.env[self.key] = KEY
        (stage.work / "try.sh").write_text(TRY.format(port=model.port))
        model.add(self.shell("bash try.sh"), ANSWER)
        policy = self.plan(stage, network=network)
        assert self.run(stage, sandbox=policy).text == ANSWER
        said = model.turns[-1].text
        assert KEY not in said
        assert ("52042" if network == "all" else "62042") in said
        assert "42042" in said
        assert all(KEY in str(turn.headers) for turn in model.turns)
        assert f"keys: a placeholder for {self.key}" in policy.enforced
        assert ("network: a namespace" in policy.enforced) == (network == "none")


def planted(stage: Stage, name: str, text: str) -> Path:
    """A file in the home."""
    path = stage.home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path

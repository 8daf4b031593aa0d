"""`rolecall agents` as a user meets it: the programs it tries are stand-ins that cost nothing."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fakeagent import claude_says, executable, fake_claude

from rolecall.agents import ADAPTERS
from rolecall.agents.acp_presets import PRESETS
from rolecall.settings.capabilities import RESTRICTIONS

if TYPE_CHECKING:
    from conftest import Rolecall

PROGRAM = str(Path(sys.executable).parent / "rolecall")
KEY = "sk-test-0123456789"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "user").mkdir()
    return {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path / "user")}


# -- list --


def listed(rolecall: Rolecall, env: dict[str, str], *args: str) -> dict[str, Any]:
    return {row["agent"]: row for row in rolecall.json("agents", "list", *args, env=env)}


def test_list_has_every_adapter_with_what_it_is(rolecall: Rolecall, env: dict[str, str]) -> None:
    rows = listed(rolecall, env)
    assert set(rows) == {*ADAPTERS, *(f"acp:{name}" for name in PRESETS)}
    assert all(row["about"] for row in rows.values())
    assert rows["claude"]["about"].startswith("Claude Code")
    assert not rows["claude"]["installed"]
    assert rows["claude"]["install"] == "npm install -g @anthropic-ai/claude-code"
    assert rows["command"]["installed"] is None
    assert not rolecall.home.exists()


def test_list_tells_what_is_installed_and_its_version(
    rolecall: Rolecall, env: dict[str, str], tmp_path: Path
) -> None:
    path = fake_claude(tmp_path / "bin")
    row = listed(rolecall, env, "claude")["claude"]
    assert (row["installed"], row["path"], row["version"]) == (True, str(path), "2.1.325")
    text = rolecall("agents", "list", "--format", "text", env=env, check=0).stdout
    assert ["claude", "2.1.325", "Claude"] in [line.split()[:3] for line in text.splitlines()]


def test_list_has_options_with_their_types(rolecall: Rolecall, env: dict[str, str]) -> None:
    rows = listed(rolecall, env, "claude", "command")
    assert set(rows) == {"claude", "command"}
    options = {option["name"]: option for option in rows["claude"]["options"]}
    assert options["timeout"] == {"name": "timeout", "type": "float | None", "default": 3600.0}
    assert options["tools"]["type"] == "tuple[str, ...]"
    assert [option["name"] for option in rows["command"]["options"]] == ["timeout", "env"]
    text = rolecall("agents", "list", "claude", "--options", "--format", "text", env=env, check=0).stdout
    assert "  timeout: float | None = 3600.0" in text.splitlines()


def test_list_has_the_restrictions_that_each_can_enforce(rolecall: Rolecall, env: dict[str, str]) -> None:
    assert listed(rolecall, env)["command"]["restrictions"]["read_only"] is True  # the kernel does
    env["ROLECALL_SANDBOX"] = "off"
    rows = listed(rolecall, env)
    assert rows["claude"]["restrictions"] == dict.fromkeys(RESTRICTIONS, True)
    assert rows["command"]["restrictions"]["read_only"] is False
    text = rolecall("agents", "list", "--restrictions", "--format", "text", env=env, check=0).stdout
    cells = dict(re.split("  +", line) for line in text.splitlines())
    assert (cells["agent"], cells["claude"]) == ("enforces", "all")
    assert cells["cursor"] == "all but no_shell_exec"
    assert cells["command"] == "no_task_create, no_task_update"
    assert "acp:claude-agent-acp" in cells and "…" not in text


def test_list_refuses_a_name_that_is_no_adapter(rolecall: Rolecall, env: dict[str, str]) -> None:
    done = rolecall("agents", "list", "clade", env=env)
    assert done.returncode == 3
    assert "Did you mean 'claude'?" in done.stderr


# -- test --


def test_a_try_says_what_it_costs_and_runs_nothing_unasked(
    rolecall: Rolecall, env: dict[str, str], tmp_path: Path
) -> None:
    fake_claude(tmp_path / "bin", run=f"touch '{tmp_path}/was-run'")
    done = rolecall("agents", "test", "claude", env=env)
    assert done.returncode == 2
    assert "costs money" in done.stderr
    assert "--yes" in done.stderr
    assert not (tmp_path / "was-run").exists()


def test_a_try_shows_answer_session_usage_and_cost(
    rolecall: Rolecall, env: dict[str, str], tmp_path: Path
) -> None:
    fake_claude(tmp_path / "bin", run=f"pwd >'{tmp_path}/folder'; {claude_says('ready', session='s-7')}")
    shown = rolecall.json("agents", "test", "claude:haiku", "--yes", env=env)
    assert shown.pop("seconds") >= 0
    usage = shown.pop("usage")
    assert (usage["input_tokens"], usage["output_tokens"], usage["cost"]) == (12, 3, 0.25)
    assert shown == {
        "agent": "claude:haiku",
        "ok": True,
        "ending": "completed",
        "reason": "",
        "hint": "",
        "answer": "ready",
        "session": "s-7",
    }
    folder = Path((tmp_path / "folder").read_text().strip())
    assert folder.name.startswith("rolecall-")
    assert not folder.exists()
    done = rolecall("agents", "test", "claude", "--yes", "--format", "text", env=env, check=0)
    assert done.stderr == "… ready\n"
    for part in ("answer   ready", "ending   completed", "12 in, 3 out", "$0.2500"):
        assert part in done.stdout


def test_an_agent_that_fails_ends_with_six_and_everything_it_said(
    rolecall: Rolecall, env: dict[str, str], tmp_path: Path
) -> None:
    fake_claude(tmp_path / "bin", run='echo "no access with $MY_API_KEY" >&2; exit 1')
    done = rolecall("agents", "test", "claude", "--yes", "--json", env={**env, "MY_API_KEY": KEY}, check=6)
    shown = json.loads(done.stdout)
    assert (shown["ok"], shown["ending"]) == (False, "failed")
    assert "no access with ***MASKED***" in shown["reason"]
    assert KEY not in done.stdout + done.stderr


def test_an_answer_without_words_is_none(rolecall: Rolecall, env: dict[str, str], tmp_path: Path) -> None:
    fake_claude(tmp_path / "bin", run=claude_says(""))
    assert not json.loads(rolecall("agents", "test", "claude", "--yes", "--json", env=env, check=6).stdout)[
        "ok"
    ]


def test_an_alias_and_a_command_can_be_tried(rolecall: Rolecall, env: dict[str, str], tmp_path: Path) -> None:
    path = executable(tmp_path / "agent.sh", 'cat >/dev/null; echo "$WORD and ready"')
    rolecall.home.mkdir()
    (rolecall.home / "config.yaml").write_text(
        f"agents: {{mine: {{adapter: 'command:{path}', env: {{WORD: well}}}}}}\n"
    )
    assert rolecall.json("agents", "test", "mine", "--yes", env=env)["answer"].strip() == "well and ready"
    shown = rolecall.json("agents", "test", f"command:{path}", "--yes", env={**env, "WORD": "good"})
    assert shown["answer"].strip() == "good and ready"


@pytest.mark.parametrize(
    ("name", "code", "part"),
    [
        ("human", 2, "a person"),
        ("workflow:solve-issue", 2, "rolecall thread start"),
        ("external:true", 2, "rolecall thread start"),
        ("command:./agent.sh", 2, "whole path"),
        ("claude", 3, "npm install -g @anthropic-ai/claude-code"),
        ("clade", 3, "Did you mean 'claude'?"),
    ],
)
def test_what_cannot_be_tried_is_refused_before_anything_runs(
    rolecall: Rolecall, env: dict[str, str], name: str, code: int, part: str
) -> None:
    done = rolecall("agents", "test", name, "--yes", env=env)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert part in done.stderr
    assert done.stdout == ""


def test_an_interrupt_ends_the_agent(rolecall: Rolecall, env: dict[str, str], tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    fake_claude(tmp_path / "bin", run=f"echo $$ >'{started}'; sleep 600")
    child = subprocess.Popen(
        [PROGRAM, "agents", "test", "claude", "--yes"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **env, "ROLECALL_HOME": str(rolecall.home)},
        text=True,
    )
    agent = int(started.read_text())  # waits until the agent runs
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (130, "", "rolecall: interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.kill(agent, 0)


def answered(rolecall: Rolecall, env: Mapping[str, str], answer: str) -> tuple[str, int]:
    """A try on a terminal, whose question is answered as soon as it stands there."""
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [PROGRAM, "agents", "test", "claude"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, **env, "ROLECALL_HOME": str(rolecall.home)},
    )
    os.close(follower)
    shown, is_answered = b"", False
    try:
        while piece := os.read(leader, 65536):
            shown += piece
            if b"[y/N]" in shown and not is_answered:
                os.write(leader, answer.encode() + b"\n")
                is_answered = True
    except OSError:  # the terminal's other end is closed: the program is done
        pass
    finally:
        os.close(leader)
    return shown.decode(), child.wait(120)


def test_on_a_terminal_it_asks_first_and_takes_no_for_an_answer(
    rolecall: Rolecall, env: dict[str, str], tmp_path: Path
) -> None:
    fake_claude(tmp_path / "bin", run=f"touch '{tmp_path}/was-run'; {claude_says('ready')}")
    shown, code = answered(rolecall, env, "")
    assert "costs money" in shown
    assert code == 1
    assert not (tmp_path / "was-run").exists()
    shown, code = answered(rolecall, env, "y")
    assert "answer   ready" in shown
    assert code == 0
    assert (tmp_path / "was-run").exists()

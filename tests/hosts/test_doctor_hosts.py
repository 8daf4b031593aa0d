"""What `rolecall doctor` says of what is installed in hosts: what works, what would not, what to do about it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fakeagent import executable
from usermachine import SCRIPT, Machine

from rolecall.hosts.claude.events import EVENTS

if TYPE_CHECKING:
    from conftest import Rolecall

HOSTS = ("claude", "codex", "opencode")
NOTHING: dict[str, list[str]] = {"ok": [], "warning": [], "problem": []}


@pytest.fixture
def machine(rolecall: Rolecall, tmp_path: Path) -> Machine:
    found = Machine(rolecall, tmp_path)
    found.claude()
    found.trust()
    return found


def test_every_server_is_started_and_every_hook_fired(machine: Machine) -> None:
    machine.run("install", "claude")
    before = machine.files()
    result = machine.doctor()
    assert (result["warning"], result["problem"]) == ([], [])
    program, files, servers, hooks = result["ok"]
    assert program.endswith("claude, version 2.1.325")
    assert files == "15 files are up to date"
    assert re.fullmatch(r"10 servers answer, with up to \d+ tools", servers)
    assert hooks.startswith(f"{len(EVENTS)} hooks answer (slowest ")
    assert machine.files() == before  # nothing happened in the real project


def test_also_within_claude_nothing_happens_to_the_real_project(machine: Machine) -> None:
    machine.run("install", "claude", "--user")
    machine.keep_one_server()
    (machine.project / ".nexus").mkdir()
    before = machine.files()
    machine.env["CLAUDE_PROJECT_DIR"] = str(machine.project)
    assert any("hooks answer" in text for text in machine.doctor(check=1)["ok"])
    assert machine.files() == before


@pytest.mark.parametrize("host", ["codex", "opencode"])
def test_the_other_hosts_are_looked_at_alike(machine: Machine, host: str) -> None:
    machine.run("install", host)
    result = machine.doctor(host)
    assert result["problem"] == []
    assert [text for text in result["ok"] if text.startswith("1 server answers, with up to ")]
    assert [text for text in result["ok"] if "hooks answer" in text]


def test_a_path_of_any_characters_works(machine: Machine) -> None:
    folder = machine.make_repository(machine.folder / "a'b\"c $x `y` \u2028\x85 ü \\ z")
    for host in HOSTS:
        machine.run("install", host, cwd=folder)
    result = machine.doctor_of(*HOSTS, cwd=folder)
    for host in HOSTS:
        assert result[host]["problem"] == []
        assert any("hooks answer" in text for text in result[host]["ok"])
    assert any(text.startswith("10 servers answer") for text in result["claude"]["ok"])


# -- which installations it looks at --


def test_of_hosts_that_have_nothing_of_ours_it_says_nothing(machine: Machine) -> None:
    assert machine.doctor() == NOTHING


@pytest.mark.parametrize("text", ["{", '{"mcpServers": {"rolecall": {"command": "true"}}}'])
def test_nor_where_there_are_only_files_of_others(machine: Machine, text: str) -> None:
    (machine.project / ".mcp.json").write_text(text)
    assert machine.doctor() == NOTHING


def test_a_folder_without_git_is_looked_at_where_it_is(machine: Machine) -> None:
    plain = machine.folder / "plain"
    plain.mkdir()
    machine.run("install", "codex", "--project", str(plain))
    assert any("hooks answer" in text for text in machine.doctor("codex", cwd=plain)["ok"])


def test_a_home_that_is_a_repository_is_no_project(machine: Machine) -> None:
    machine.make_repository(machine.user)
    machine.run("install", "claude", "--user")
    result = machine.doctor(cwd=machine.user)
    assert (result["warning"], result["problem"]) == ([], [])


def test_in_both_scopes_it_says_that_hooks_run_twice(machine: Machine) -> None:
    machine.run("install", "codex")
    machine.run("install", "codex", "--user")
    assert any("so each runs twice" in text for text in machine.doctor("codex")["warning"])


# -- what it does not run --


def mark(machine: Machine, path: Path) -> Path:
    """A program that leaves a trace when it is run."""
    return executable(path, f"touch '{machine.folder}/ran'; exit 1")


@pytest.mark.parametrize(
    "words", [["sh", "-c", "touch ran"], ["{}", "mcp"], ["{}", "-P", "-m", "rolecall", "mcp"]]
)
def test_no_server_is_run_that_a_repository_brings_along(machine: Machine, words: list[str]) -> None:
    machine.run("install", "claude")
    machine.keep_one_server()
    program, *args = [word.format(mark(machine, machine.project / "tools" / "rolecall")) for word in words]
    args = [word.replace("touch ran", f"touch '{machine.folder}/ran'") for word in args]
    machine.edit(machine.project / ".mcp.json", mcpServers={"rolecall": {"command": program, "args": args}})
    result = machine.doctor(check=1)
    refused = (
        "the server rolecall went missing",
        "rolecall is inside the project and does not belong to the Rolecall installation that is running",
    )
    assert result["problem"][-1].endswith(refused)
    assert not any("server answers" in text for text in result["ok"])
    assert not (machine.folder / "ran").exists()


def test_no_hook_is_run_that_a_repository_brings_along(machine: Machine) -> None:
    machine.run("install", "claude")
    machine.keep_one_server()
    own = mark(machine, machine.project / "rolecall")
    machine.settings.write_text(machine.settings.read_text().replace(str(SCRIPT), shlex.quote(str(own))))
    problems = machine.doctor(check=1)["problem"]
    assert any(
        "is inside the project and does not belong to the Rolecall installation that is running" in text
        for text in problems
    )
    assert not (machine.folder / "ran").exists()


# -- what would not work --


def test_rolecall_is_no_longer_where_it_was(machine: Machine) -> None:
    moved = machine.folder / "old place" / "rolecall"
    moved.parent.mkdir()
    moved.symlink_to(SCRIPT)
    machine.run_with(moved, "install", "claude")
    moved.unlink()
    problems = machine.doctor(check=1)["problem"]
    assert any(
        text.startswith("the servers rolecall, ") and "old place/rolecall" in text for text in problems
    )
    assert any(
        text.startswith("the hooks SessionStart, ") and "could not be started" in text for text in problems
    )


@pytest.mark.parametrize("host", HOSTS)
def test_in_a_project_that_was_copied_or_moved_commands_for_the_old_place_are_named(
    machine: Machine, host: str
) -> None:
    machine.run("install", host)
    copy = machine.folder / "copy"
    shutil.copytree(machine.project, copy)
    old = f" would act on {machine.project}, not on this project"
    result = machine.doctor(host, check=1, cwd=copy)
    assert [text.partition(" ")[2].split()[0] for text in result["problem"] if text.endswith(old)] == [
        *("servers" if host == "claude" else "server", "hooks")
    ]
    assert not any("answer" in text for text in result["ok"])
    machine.run("install", host, cwd=copy)
    assert machine.doctor(host, cwd=copy)["problem"] == []


def test_commands_for_one_project_do_not_belong_to_the_user(machine: Machine) -> None:
    machine.run("install", "claude", "--user")
    machine.keep_one_server()
    settings = machine.user / ".claude" / "settings.json"
    line = json.loads(settings.read_text())["hooks"]["Stop"][0]["hooks"][0]["command"]
    settings.write_text(
        settings.read_text().replace("claude Stop", f"claude Stop --project {machine.user}/shop")
    )
    assert "--project" not in line
    problems = machine.doctor(check=1)["problem"]
    assert f"the hook Stop would act on {machine.user}/shop alone" in problems
    assert not [text for text in problems if text.startswith("the hook") and "Stop" not in text]


def test_another_rolecall_that_works_is_only_named(machine: Machine) -> None:
    other = machine.folder / "other place" / "rolecall"
    other.parent.mkdir()
    other.symlink_to(SCRIPT)
    machine.run_with(other, "install", "codex")
    result = machine.doctor("codex")
    assert result["problem"] == []
    assert any(text.startswith("other than this Rolecall (") for text in result["warning"])


def test_an_installation_without_the_key_of_this_home_is_to_be_installed_again(machine: Machine) -> None:
    def hosts_in_doubt() -> list[str]:
        machine.keep_one_server()
        result = machine.doctor_of(*HOSTS, check=1)
        return [
            host
            for host in HOSTS
            if any("other than this Rolecall (" in one for one in result[host]["warning"])
        ]

    for host in HOSTS:
        machine.run("install", host)
    for key in (machine.rolecall.home / "hosts").iterdir():
        key.unlink()
    machine.trust()
    assert hosts_in_doubt() == [*HOSTS]
    for host in HOSTS:
        machine.run("install", host)
    assert hosts_in_doubt() == []


def test_a_hook_or_a_server_that_somebody_took_out_is_named(machine: Machine) -> None:
    machine.run("install", "claude")
    hooks = json.loads(machine.settings.read_text())["hooks"]
    del hooks["PreToolUse"]
    machine.edit(machine.settings, hooks=hooks)
    tester = machine.project / ".claude" / "agents" / "tester.md"
    lines = tester.read_text().splitlines(keepends=True)
    tester.write_text("".join(line for line in lines if not line.startswith("mcpServers")))
    problems = machine.doctor(check=1)["problem"]
    assert "the hook PreToolUse went missing" in problems
    assert "the server rolecall-tester went missing" in problems


def test_files_that_are_gone_or_were_changed_are_named(machine: Machine) -> None:
    machine.run("install", "claude")
    agents = machine.project / ".claude" / "agents"
    (agents / "writer.md").unlink()
    (agents / "tester.md").write_text((agents / "tester.md").read_text() + "More.\n")
    text = (agents / "engineer.md").read_text()
    (agents / "engineer.md").write_text(text.replace('name: "engineer"\n', ""))
    result = machine.doctor(check=1)
    assert any(one.startswith("missing: ") and one.endswith("writer.md") for one in result["problem"])
    unloadable = "engineer.md was changed so that no host can load it: it has no name"
    assert any(unloadable in one for one in result["problem"])
    assert any("tester.md: changed by hand" in one for one in result["warning"])
    assert not any("tester.md" in one for one in result["problem"])


def test_an_agent_of_codex_that_is_no_toml_any_more_is_named(machine: Machine) -> None:
    machine.run("install", "codex")
    path = machine.project / ".codex" / "agents" / "tester.toml"
    path.write_text(path.read_text() + "= 1\n")
    problems = machine.doctor("codex", check=1)["problem"]
    assert any("tester.toml was changed so that no host can load it" in one for one in problems)


def test_a_gate_that_lets_unplanned_edits_pass_is_seen(machine: Machine) -> None:
    machine.run("install", "claude")
    machine.keep_one_server()
    hooks = json.loads(machine.settings.read_text())["hooks"]
    silent = executable(machine.folder / "silent" / "rolecall", "cat > /dev/null")
    _, *words = shlex.split(hooks["PreToolUse"][0]["hooks"][0]["command"])
    hooks["PreToolUse"][0]["hooks"][0]["command"] = f"{silent} {shlex.join(words[:-3])} || exit 0"
    machine.edit(machine.settings, hooks=hooks)
    seen = "the hook PreToolUse let an unplanned edit pass"
    assert seen in machine.doctor(check=1)["problem"]
    machine.run("config", "set", "project.unplannedEdits", "off")
    assert seen not in machine.doctor(check=1)["problem"]


# -- what the host would leave out --


def test_the_host_is_not_there_or_was_not_told_to_trust_the_project(machine: Machine) -> None:
    (machine.user / ".claude.json").unlink()
    (machine.bin / "claude").unlink()
    machine.run("install", "claude")
    machine.keep_one_server()
    missing, untrusted = machine.doctor(check=1)["warning"]
    assert "the program claude was not found" in missing
    assert f"does not trust {machine.project} yet" in untrusted


def test_claude_was_told_to_run_no_hooks_and_not_to_start_the_server(machine: Machine) -> None:
    machine.run("install", "claude")
    machine.keep_one_server()
    own = machine.project / ".claude"
    files = [machine.user / ".claude" / "settings.json", own / "settings.json", own / "settings.local.json"]
    for file in files:
        machine.edit(file, disableAllHooks=True, disabledMcpjsonServers=["rolecall"])
    assert machine.doctor(check=1)["warning"] == [
        *(f"Claude Code runs no hooks: disableAllHooks in {file}" for file in files),
        *(f"Claude Code does not start our server: disabledMcpjsonServers in {file}" for file in files),
    ]


def test_codex_was_told_to_run_no_hooks_and_not_to_start_the_server(machine: Machine) -> None:
    executable(machine.bin / "codex", "echo 'codex-cli 0.166.0'")
    machine.run("install", "codex")
    own = machine.user / ".codex" / "config.toml"
    own.parent.mkdir()
    own.write_text(
        f'[projects.{json.dumps(str(machine.project))}]\ntrust_level = "trusted"\n[features]\nhooks = false\n'
    )
    path = machine.project / ".codex" / "config.toml"
    path.write_text(path.read_text().replace("required = true", "required = true\nenabled = false"))
    result = machine.doctor("codex")
    assert any(text.startswith("Codex runs no hooks") and str(own) in text for text in result["warning"])
    assert any(text.startswith("Codex does not start our server") for text in result["warning"])
    assert not any("other than this" in text for text in result["warning"])

"""`rolecall install` and `uninstall`, as a user meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from terminal import Terminal, shown_by
from usermachine import SCRIPT, Machine, states

from rolecall.hosts.claude.events import EVENTS
from rolecall.hosts.installation import host_module
from rolecall.hosts.setup import HostSetup
from rolecall.nexus import catalog

if TYPE_CHECKING:
    from conftest import Rolecall

every_host = pytest.mark.parametrize("host", ["claude", "codex", "opencode"])
every_scope = pytest.mark.parametrize("scope", ["--project", "--user"])


@pytest.fixture
def machine(rolecall: Rolecall, tmp_path: Path) -> Machine:
    return Machine(rolecall, tmp_path)


# -- installing --


@every_host
@every_scope
def test_installing_twice_changes_nothing_the_second_time_and_says_so(
    machine: Machine, host: str, scope: str
) -> None:
    first = machine.run("install", host, scope)
    project = str(machine.project) if scope == "--project" else None
    assert (first["project"], states(first)) == (project, {"new"})
    assert first["next"]
    before = machine.files()
    second = machine.run("install", host, scope)
    assert (states(second), second["next"]) == ({"same"}, [])
    assert machine.files() == before


@every_host
@every_scope
def test_every_command_of_a_host_shows_the_key_of_the_installation(
    machine: Machine, host: str, scope: str
) -> None:
    machine.run("install", host, scope, "--dry-run")
    assert not (machine.rolecall.home / "hosts").exists()
    machine.run("install", host, scope)
    (key,) = (machine.rolecall.home / "hosts").iterdir()
    assert len(key.name) == 32 and key.parent.stat().st_mode & 0o077 == 0
    setup = HostSetup(
        scope.removeprefix("--"),  # type: ignore[arg-type]
        str(machine.project) if scope == "--project" else "",
        str(machine.user),
        (str(SCRIPT),),
        catalog.load(),
        {},
    )
    found = host_module(host).commands(setup)
    commands = [*found.servers.values(), *found.hooks.values()]
    assert len(commands) > 5
    assert all(words[words.index("--host-key") + 1] == str(key) for words in commands)


@every_host
def test_the_tier_of_an_agent_becomes_the_model_in_its_file(machine: Machine, host: str) -> None:
    machine.run("install", host)
    assert "large-one" not in "".join(map(str, machine.files().values()))
    machine.rolecall("config", "set", f"modelTiers.{host}.high", "large-one", check=0)
    mistyped = machine.rolecall("config", "set", f"modelTiers.{host}x.high", "large-one", check=2)
    assert f"there is no agent '{host}x'. Did you mean '{host}'?" in mistyped.stderr
    changed = [one["path"] for one in machine.run("install", host)["changes"] if one["state"] != "same"]
    assert sorted(Path(path).stem for path in changed) == ["architect", "designer", "postdoc", "strategist"]
    assert all('"large-one"' in Path(path).read_text() for path in changed)
    assert states(machine.run("install", host)) == {"same"}


@every_host
@every_scope
def test_uninstalling_leaves_no_trace(machine: Machine, host: str, scope: str) -> None:
    machine.run("install", host, scope)
    assert states(machine.run("uninstall", host, scope)) == {"removed"}
    assert machine.run("uninstall", host, scope)["changes"] == []
    assert sorted(one.name for one in machine.project.iterdir()) == [".git"]
    assert list(machine.user.rglob("*")) == []


@every_scope
def test_a_dry_run_shows_the_difference_and_writes_nothing(machine: Machine, scope: str) -> None:
    before = machine.files()
    result = machine.run("install", "claude", scope, "--dry-run")
    assert result["dryRun"]
    assert '+      "command": "' in result["diff"]
    assert machine.files() == before
    machine.run("install", "claude", scope)
    installed = machine.files()
    result = machine.run("uninstall", "claude", scope, "--dry-run")
    assert "+++ /dev/null" in result["diff"]
    assert machine.files() == installed


def test_two_projects_have_nothing_to_do_with_each_other(machine: Machine) -> None:
    other = machine.make_repository(machine.folder / "other")
    machine.run("install", "claude")
    before = machine.files()
    machine.run("install", "claude", cwd=other)
    assert str(machine.project) not in (other / ".mcp.json").read_text()
    machine.run("uninstall", "claude", cwd=other)
    assert machine.files() == before
    assert [one.name for one in other.iterdir()] == [".git"]


def test_a_project_that_is_named_by_a_link_is_the_project(machine: Machine) -> None:
    (machine.folder / "link").symlink_to(machine.project)
    assert machine.run("install", "claude", "--project", "../link")["project"] == str(machine.project)
    assert states(machine.run("install", "claude")) == {"same"}


@every_host
def test_in_both_scopes_it_says_that_hooks_run_twice(machine: Machine, host: str) -> None:
    machine.run("install", host)
    (step,) = [one for one in machine.run("install", host, "--user")["next"] if "twice" in one]
    assert step.endswith(f"rolecall uninstall {host} --project '{machine.project}'")
    machine.run("uninstall", host)
    (step,) = [one for one in machine.run("install", host)["next"] if "twice" in one]
    assert step.endswith(f"rolecall uninstall {host} --user")


@every_host
def test_uninstalling_in_the_wrong_scope_says_where_it_is(machine: Machine, host: str) -> None:
    machine.run("install", host, "--user")
    result = machine.run("uninstall", host)
    assert result["changes"] == []
    assert result["next"] == [f"It is installed --user: rolecall uninstall {host} --user"]
    machine.run("uninstall", host, "--user")
    assert machine.run("uninstall", host)["next"] == []


# -- the command --


def test_the_installed_commands_run_from_anywhere_with_another_home_and_path(machine: Machine) -> None:
    machine.run("install", "claude")
    hooks = json.loads(machine.settings.read_text())["hooks"]
    assert set(hooks) == set(EVENTS)
    payload = {
        "session_id": "s1",
        "cwd": str(machine.project),
        "tool_name": "Write",
        "tool_input": {"file_path": str(machine.project / "a.txt"), "content": "x"},
    }
    done = subprocess.run(
        ["/bin/sh", "-c", hooks["PreToolUse"][0]["hooks"][0]["command"]],
        input=json.dumps(payload),
        env={"PATH": "/nowhere", "HOME": str(machine.folder), "ROLECALL_HOME": str(machine.folder / "rh")},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["hookSpecificOutput"]["permissionDecision"] == "deny"


@pytest.mark.parametrize("script", ["", "#!/gone/bin/python\n"])
def test_without_a_script_that_runs_python_and_the_module_are_the_command(
    machine: Machine, script: str
) -> None:
    python = machine.folder / "moved" / "python"
    python.parent.mkdir()
    python.symlink_to(os.path.realpath(sys.executable))
    if script:  # what is left in an environment that was moved
        (python.parent / "rolecall").write_text(script)
        (python.parent / "rolecall").chmod(0o755)
    machine.env["PYTHONPATH"] = ":".join(path for path in sys.path if path)
    machine.run_with(python, "-P", "-m", "rolecall", "install", "claude")
    server = json.loads((machine.project / ".mcp.json").read_text())["mcpServers"]["rolecall"]
    assert [server["command"], *server["args"][:4]] == [str(python), "-P", "-m", "rolecall", "mcp"]
    assert states(machine.run("uninstall", "claude")) == {"removed"}


# -- on a terminal --


def test_a_terminal_gets_a_table_and_what_to_do_next(machine: Machine) -> None:
    first = on_terminal(machine, "install", "claude")
    assert "new    " in first
    assert "next:" in first
    assert "Claude Code: nothing to change" in on_terminal(machine, "install", "claude")
    tried = on_terminal(machine, "uninstall", "claude", "--dry-run")
    assert "--- " in tried
    assert "15 files would change; nothing was written" in tried
    assert "removed" in on_terminal(machine, "uninstall", "claude")
    assert "Claude Code: nothing to change" in on_terminal(machine, "uninstall", "claude")


def on_terminal(machine: Machine, *args: str) -> str:
    env = {**machine.env, "ROLECALL_HOME": str(machine.rolecall.home)}
    return shown_by([str(SCRIPT), *args], cwd=machine.project, env=env)


def test_it_says_in_two_lines_what_is_refused_and_how_to_soften_it(machine: Machine) -> None:
    refused, softer = machine.run("install", "claude")["gate"]
    assert "refuses edits of a project's files while it has no tasks" in refused
    words = softer.partition("`")[2].partition("`")[0].split()
    assert words[-1] == "warn"
    machine.rolecall(*words[1:], check=0)
    assert machine.run("install", "claude")["gate"] == []
    machine.run("uninstall", "claude")
    assert "the host warns the model about edits" in machine.run("install", "claude")["gate"][0]


# -- out of git --


def git(machine: Machine, *args: str) -> str:
    argv = ["git", "-C", str(machine.project), *args]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(machine: Machine) -> Machine:
    """The machine with a project that git knows as a repository."""
    git(machine, "init", "--quiet")
    return machine


@every_host
def test_excluded_files_are_not_seen_by_git_until_they_are_uninstalled(
    repository: Machine, host: str
) -> None:
    exclude = repository.project / ".git" / "info" / "exclude"
    exclude.write_text("*.log\n")
    result = repository.run("install", host, "--exclude")
    assert {change["path"] for change in result["changes"]} > {str(exclude)}
    assert not any("out of git" in step for step in result["next"])
    assert git(repository, "status", "--short") == ""
    assert states(repository.run("install", host)) == {"same"}
    (repository.project / "mine.md").touch()
    assert git(repository, "status", "--short") == "?? mine.md\n"
    repository.run("uninstall", host)
    assert exclude.read_text() == "*.log\n"


def test_a_folder_inside_of_a_repository_is_excluded_by_its_whole_path(repository: Machine) -> None:
    inner = repository.project / "a [b]" / "#c"
    inner.mkdir(parents=True)
    repository.run("install", "claude", "--project", str(inner), "--exclude")
    assert git(repository, "status", "--short") == ""


def test_without_a_terminal_nothing_is_excluded_and_the_option_is_named(repository: Machine) -> None:
    (step,) = [step for step in repository.run("install", "claude")["next"] if "out of git" in step]
    assert "`rolecall install claude --exclude`" in step
    assert git(repository, "status", "--short") != ""


@pytest.mark.parametrize(("answer", "is_seen"), [("", False), ("n", True)])
def test_on_a_terminal_it_asks(repository: Machine, answer: str, is_seen: bool) -> None:
    words = ("install", "claude", "--project", str(repository.project))
    terminal = Terminal(*words, home=repository.rolecall.home, path=os.environ["PATH"])
    terminal.expect("[Y/n] ")
    listed, _, _ = terminal.seen.partition("Keep these")
    assert f"new    {repository.project}/.claude/settings.local.json" in listed
    terminal.type(f"{answer}\n")
    assert terminal.close() == 0
    assert "To relax this: `rolecall config set project.unplannedEdits warn`" in terminal.seen
    assert (git(repository, "status", "--short") != "") == is_seen


def test_outside_of_a_repository_nothing_can_be_excluded(machine: Machine) -> None:
    assert "--exclude needs a project in a git repository" in machine.run(
        "install", "claude", "--user", "--exclude", check=2
    )


# -- refusing --


def test_a_damaged_file_is_refused_and_nothing_is_written(machine: Machine) -> None:
    machine.settings.parent.mkdir()
    machine.settings.write_text('{"hooks": ')
    before = machine.files()
    result = machine.run("install", "claude", check=2)
    assert "settings.local.json: it is not JSON, and was left unchanged" in result
    assert machine.files() == before
    machine.run("uninstall", "claude", check=2)


def test_an_agent_of_the_users_own_is_not_written_over(machine: Machine) -> None:
    mine = machine.project / ".claude" / "agents" / "tester.md"
    mine.parent.mkdir(parents=True)
    mine.write_text("---\nname: tester\ndescription: mine\n---\n")
    assert "tester.md: this file exists and is not Rolecall's" in machine.run("install", "claude", check=2)
    assert not (machine.project / ".mcp.json").exists()
    machine.run("uninstall", "claude", "--force")
    assert mine.exists()


def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(machine: Machine) -> None:
    os.mkfifo(machine.project / ".mcp.json")
    assert ".mcp.json is not a regular file" in machine.run("install", "claude", check=2)


def test_folders_pipes_and_links_beside_our_agents_are_nobodys_business(machine: Machine) -> None:
    agents = machine.project / ".claude" / "agents"
    (agents / "notes.md").mkdir(parents=True)
    os.mkfifo(agents / "pipe.md")
    (agents / "link.md").symlink_to("tester.md")
    (agents / "nowhere.md").symlink_to("gone")
    machine.run("install", "claude")
    assert states(machine.run("uninstall", "claude")) == {"removed"}
    assert sorted(os.listdir(agents)) == ["link.md", "notes.md", "nowhere.md", "pipe.md"]


@every_host
def test_a_path_that_is_no_text_is_refused(machine: Machine, host: str) -> None:
    folder = machine.folder / os.fsdecode(b"p\xff")
    machine.make_repository(folder)
    assert "is not UTF-8" in machine.run("install", host, check=2, cwd=folder)
    assert [one.name for one in folder.iterdir()] == [".git"]


@pytest.mark.parametrize("words", [[], ["--project", "."]])
def test_the_home_is_no_project(machine: Machine, words: list[str]) -> None:
    machine.make_repository(machine.user)
    result = machine.run("install", "claude", *words, check=2, cwd=machine.user)
    assert "is your home" in result
    assert "--user" in result


def test_outside_of_a_repository_the_project_has_to_be_named(machine: Machine) -> None:
    plain = machine.folder / "plain"
    plain.mkdir()
    assert "--project DIR" in machine.run("install", "claude", check=2, cwd=plain)
    result = machine.run("install", "claude", "--project", "nowhere", check=2)
    assert "the folder 'nowhere' does not exist" in result
    machine.run("install", "claude", "--project", str(plain))
    assert (plain / ".mcp.json").exists()


def test_uninstalling_needs_neither_the_catalogue_nor_the_configuration(machine: Machine) -> None:
    machine.run("install", "claude")
    machine.rolecall.home.mkdir(exist_ok=True)
    (machine.rolecall.home / "config.yaml").write_text("catalog: /nowhere\n")
    assert "/nowhere is not a catalogue" in machine.run("install", "claude", check=3)
    (machine.rolecall.home / "config.yaml").write_text("catalog: [")
    assert states(machine.run("uninstall", "claude")) == {"removed"}

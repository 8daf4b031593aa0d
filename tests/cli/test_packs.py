"""Workflows from other folders and repositories: taken, refused until looked at, compared and updated."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import Rolecall
from terminal import Terminal

import rolecall as package
from rolecall.cli.hints import word as phrase
from rolecall.errors import UsageError
from rolecall.mcp.hints import word
from rolecall.mcp.thread_verbs import start_thread
from rolecall.mcp.tools import Caller, ToolContext
from rolecall.service.reload import Definitions
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.workflow.pack import Untrusted

WORK = """\
name: {name}
description: Says that it works.
roles:
  worker:
    prompt: Work.
    agent: "{agent}"
    schema: {{type: object, properties: {{ok: {{type: boolean}}}}, required: [ok]}}
graph:
  $START: worker
  worker: $END
"""
SAYS_OK = r"command:printf %b '---\\nok: true\\n---\\nDone.\\n'"
CODE = "from pathlib import Path\nPath({ran!r}).touch()\n"


def git(folder: Path, *words: str) -> str:
    options = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", *options, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


class Stage:
    """A project, and a repository with workflows."""

    def __init__(self, folder: Path, rolecall: Rolecall) -> None:
        self.rolecall, self.ran = rolecall, folder / "ran"
        self.project, self.remote = folder / "project", folder / "flows"
        for place in (self.project, self.remote):
            place.mkdir()
            git(place, "init", "-q", "-b", "main", ".")
        self.publish("workflows/do-work.yaml", WORK.format(name="do-work", agent=SAYS_OK))
        git(self.remote, "tag", "v1")

    def publish(self, name: str, text: str) -> None:
        path = self.remote / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.commit()

    def commit(self) -> None:
        git(self.remote, "add", "-A")
        git(self.remote, "commit", "-q", "-m", "A change")

    def __call__(self, *words: str, check: int = 0) -> subprocess.CompletedProcess[str]:
        return self.rolecall(*words, cwd=self.project, check=check)

    def own(self, name: str, agent: str) -> Path:
        path = self.project / ".workflows" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(WORK.format(name=name, agent=agent))
        return path


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path  # which a sandboxed workflow sees


@pytest.fixture
def stage(tmp_path: Path, rolecall: Rolecall, monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage(tmp_path, rolecall)
    monkeypatch.chdir(made.project)
    monkeypatch.setenv("ROLECALL_HOME", str(rolecall.home))
    return made


def test_a_workflow_of_a_tag_is_pinned_shown_and_asked_for_once(stage: Stage) -> None:
    stage.publish("workflows/run-code.py", CODE.format(ran=str(stage.ran)))
    git(stage.remote, "tag", "v2")
    url = f"file://{stage.remote}#v2"
    added = stage.rolecall.json("workflow", "add", url, cwd=stage.project)
    assert [one["name"] for one in added["added"]] == ["do-work", "run-code"]
    assert added["added"][0]["commit"] == git(stage.remote, "rev-parse", "v2")
    assert stage.rolecall.json("workflow", "add", url, cwd=stage.project)["added"] == []
    lock = (stage.project / ".workflows" / "lock.yaml").read_text()
    assert added["added"][0]["content"] in lock
    names = [entry["name"] for entry in stage.rolecall.json("workflow", "list", cwd=stage.project)]
    assert {"do-work", "run-code"} <= set(names) and "lock" not in names

    # Looking at it needs no permission, as long as no code runs.
    stage("workflow", "show", "do-work")
    refused = stage("run", "do-work", "-p", "x", check=2)
    assert (
        "nobody here has looked" in refused.stderr and "`rolecall workflow trust do-work`" in refused.stderr
    )
    assert "without a terminal" in stage("workflow", "trust", "do-work", check=2).stderr
    for words in (("run", "run-code", "-p", "x"), ("workflow", "show", "run-code"), ("workflow", "validate")):
        stage(*words, check=2)
    assert not stage.ran.exists()

    assert "runs the command: printf %b" in stage("workflow", "trust", "do-work", "--yes").stderr
    stage("run", "do-work", "-p", "x")
    assert "runs its own code, 2 lines" in stage("workflow", "trust", "run-code", "--yes").stderr
    assert not stage.ran.exists()


def test_a_terminal_shows_what_it_may_do_and_asks(stage: Stage) -> None:
    stage("workflow", "add", "../flows")
    words = ("run", "do-work", "-p", "x")
    path = os.environ["PATH"]
    declined = Terminal(*words, home=stage.rolecall.home, path=path)
    declined.expect("do-work, from ../flows:")
    declined.expect("May it run? [y/N] ")
    declined.type("n\n")
    assert declined.close() == 1
    assert stage.rolecall.json("thread", "list", "--all") == []
    allowed = Terminal(*words, home=stage.rolecall.home, path=path)
    allowed.expect("May it run? [y/N] ")
    allowed.type("y\n")
    assert allowed.close() == 0
    stage(*words)


def test_every_door_refuses_what_nobody_has_looked_at(stage: Stage) -> None:
    stage("workflow", "add", "../flows#main")
    file = stage.project / ".workflows" / "do-work.yaml"
    stage.own("ask-pack", "workflow:do-work")
    with package.open(folder=stage.project) as rolecall:
        starts: list[Callable[[], object]] = [
            lambda: rolecall.start("do-work", "x"),
            lambda: rolecall.start(str(file), "x"),
            lambda: rolecall.start("ask-pack", "x"),
            lambda: rolecall.put(str(file)),
            lambda: rolecall.look_ahead("do-work", "x"),
            lambda: start_thread(ToolContext(str(stage.project)), Caller(), "do-work", "x"),
        ]
        for start in starts:
            with pytest.raises(Untrusted, match="nobody here has looked") as refused:
                start()
        assert "Ask the user to run" in word(refused.value.hint, ())
    stage("workflow", "put", str(file), check=2)
    store = Store(SqliteBackend(":memory:"))
    definitions = Definitions(store, str(stage.project), env=os.environ, keep="", say=lambda _text: None)
    assert asyncio.run(definitions.refresh())
    assert "do-work" not in definitions.workflows and "nobody here" in definitions.problems[0].message

    # A workflow that plays a role is asked for with the one that names it, and checked again at its turn.
    assert "do-work, from ../flows#main" in stage("workflow", "trust", "ask-pack", "--yes").stderr
    assert asyncio.run(definitions.refresh()) and definitions.workflows.keys() == {"ask-pack", "do-work"}
    assert [ref.name for ref in store.refs("workflow/")] == ["workflow/ask-pack"]
    with package.open(folder=stage.project) as rolecall:
        thread = rolecall.start("ask-pack", "x")
        file.write_text(file.read_text().replace("Work.", "Work harder."))
        thread.run().wait()
        assert thread.status == "suspended" and "has changed since" in thread.state.reason


def publish_folder(stage: Stage, agents: dict[str, str], *, extract: str = "") -> None:
    """Publish `do-much`, a folder: its index file has a role for each agent."""
    schema = "{type: object, properties: {ok: {type: boolean}}, required: [ok]}"
    roles = [
        f"  {role}: {{prompt: Work., agent: {agent!r}, schema: {schema}{extract}}}\n"
        for role, agent in agents.items()
    ]
    names = ["$START", *agents, "$END"]
    graph = [f"  {before}: {after}\n" for before, after in pairwise(names)]
    text = "name: do-much\ndescription: Does much.\nroles:\n" + "".join(roles) + "graph:\n" + "".join(graph)
    stage.publish("workflows/do-much/index.yaml", text)


def test_no_command_touches_what_an_untrusted_pack_names(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its code, nor a program, nor an address, to which a key would be sent."""
    program = stage.remote / "program"
    program.write_text(f"#!/bin/sh\ntouch {stage.ran}\n")
    program.chmod(0o755)
    stage.publish("workflows/do-much/inner.py", CODE.format(ran=str(stage.ran)))
    monkeypatch.setenv("SOME_KEY", "secret-of-mine")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        agents = {
            "coder": "workflow:./.workflows/do-much/inner.py",
            "runner": f"claude:executable={program}",
        }
        extract = f", extract: {{baseUrl: '{url}', apiKeyEnv: SOME_KEY, model: m}}"
        publish_folder(stage, agents, extract=extract)
        stage("workflow", "add", "../flows", "do-much")
        output = stage("doctor").stdout
        assert "do-much comes from ../flows" in output and "`rolecall workflow trust do-much`" in output
        stage("workflow", "validate")
        for words in (
            ("validate",),
            ("workflow", "validate", ".workflows/do-much/inner.py"),
            ("run", "do-much", "-p", "x", "--dry"),
            ("doctor", "do-much"),
        ):
            stage(*words, check=2)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert not stage.ran.exists()


def test_the_list_has_every_file_program_and_address_of_a_pack(stage: Stage) -> None:
    agents = {
        "caller": "workflow:./.workflows/do-much/do-inner.yaml",
        "tester": "command:make test",
        "friend": "acp:./friend --fast",
        "coder": "claude:opus executable=./coder",
    }
    extract = ", extract: {baseUrl: 'https://example.com/v1', apiKeyEnv: SOME_KEY, model: m}"
    publish_folder(stage, agents, extract=extract)
    stage.publish(
        "workflows/do-much/do-inner.yaml", WORK.format(name="do-inner", agent="command:touch inner-ran")
    )
    stage.publish("workflows/do-much/never-named.yml", WORK.format(name="never-named", agent="command:true"))
    stage.publish("workflows/do-much/notes/how.sh", "true\n")
    stage("workflow", "add", "../flows", "do-much")
    stage.own("ask-pack", "workflow:do-much")
    reply = stage("workflow", "trust", "ask-pack", "--yes")
    errors = " ".join(reply.stderr.split())
    sent = "; sends its answers to https://example.com/v1 with the value of SOME_KEY"
    for line in (
        "ask-pack: worker is played by the workflow do-much",
        f"runs the command: make test{sent}",
        f"runs the program of its choice: acp:./friend --fast{sent}",
        f"runs the program of its choice: claude:opus executable=./coder{sent}",
        "files do-much/notes/how.sh",
        "runs the command: touch inner-ran",
        "never-named.yml",
    ):
        assert line in errors, errors
    assert reply.stdout == "do-much may run until its files change.\n"

    (stage.project / ".workflows/do-much/notes/how.sh").write_text("false\n")
    with package.open(folder=stage.project) as rolecall, pytest.raises(Untrusted, match="has changed"):
        rolecall.start(".workflows/do-much/do-inner.yaml", "x")


def test_the_list_says_which_roles_run_in_a_sandbox_and_which_without(stage: Stage) -> None:
    held = WORK.format(name="do-work", agent=SAYS_OK).replace(
        "graph:\n  $START: worker\n  worker: $END\n",
        "  reader: {prompt: Read., schema: {type: object}, capabilities: [read_only], sandbox: off}\n"
        "  person: {prompt: Answer., schema: {type: object}, agent: human}\n"
        "graph: {$START: worker, worker: reader, reader: person, person: $END}\n"
        "sandbox: {write: [~/.bashrc], network: [example.com:443]}\n",
    )
    stage.publish("workflows/do-work.yaml", held)
    stage("workflow", "add", "../flows", "do-work")
    errors = " ".join(stage("workflow", "trust", "do-work", "--yes").stderr.split())
    for line in (
        "; in a sandbox: writes only to ~/.bashrc, connects only to example.com:443 ",
        "reader your agent: may run commands (read_only); without a sandbox ",
        "person a person answers ",
        "network not restricted for reader: agents and commands can use it ",
    ):
        assert line in errors, errors

    stage.publish("workflows/do-work.yaml", held.replace("sandbox: off", "sandbox: {network: none}"))
    stage("workflow", "update", "--yes")
    errors = " ".join(stage("workflow", "trust", "do-work", "--yes").stderr.split())
    assert "network only as the sandboxes of its roles say " in errors, errors


def test_a_workflow_of_a_pack_takes_no_name_in_other_projects(stage: Stage) -> None:
    stage.publish(
        "workflows/do-much/answer-question.yaml", WORK.format(name="answer-question", agent=SAYS_OK)
    )
    publish_folder(stage, {"asker": "workflow:./.workflows/do-much/answer-question.yaml"})
    stage("workflow", "add", "../flows")
    stage("workflow", "trust", "do-much", "--yes")
    with package.open(folder=stage.project) as rolecall:
        assert rolecall.start("do-much", "x").run().wait().status == "completed"
        assert rolecall.stored_workflows() == []


def test_an_update_may_change_the_ending_of_an_index_file(stage: Stage) -> None:
    publish_folder(stage, {"worker": SAYS_OK})
    stage("workflow", "add", "../flows", "do-much")
    folder = stage.remote / "workflows" / "do-much"
    (folder / "index.yaml").rename(folder / "index.yml")
    stage("workflow", "update", "--yes")
    here = stage.project / ".workflows" / "do-much"
    assert [path.name for path in here.iterdir()] == ["index.yml"]


def test_a_changed_file_is_refused_until_it_was_looked_at(stage: Stage) -> None:
    stage("workflow", "add", "../flows")
    stage("workflow", "trust", "do-work", "--yes")
    file = stage.project / ".workflows" / "do-work.yaml"
    file.write_text(file.read_text().replace("Work.", "Work harder."))
    assert "has changed since" in stage("run", "do-work", "-p", "x", check=2).stderr
    assert "Its files have changed" in stage("workflow", "trust", "do-work", "--yes").stderr
    stage("run", "do-work", "-p", "x")
    (stage.project / ".workflows" / "lock.yaml").write_text("workflows: [no]\n")
    assert "lock.yaml" in stage("run", "do-work", "-p", "x", check=2).stderr


def test_an_update_shows_the_difference_and_asks_again_before_the_next_run(stage: Stage) -> None:
    stage.publish("workflows/keep-quiet.yaml", WORK.format(name="keep-quiet", agent=SAYS_OK))
    stage("workflow", "add", "../flows#main")
    stage("workflow", "trust", "do-work", "--yes")
    stage("workflow", "outdated")
    stage.publish("workflows/do-work.yaml", WORK.format(name="do-work", agent="command:make test"))
    listed = stage.rolecall.json("workflow", "outdated", cwd=stage.project, check=1)
    assert [one["state"] for one in listed] == ["outdated", "current"]

    file = stage.project / ".workflows" / "do-work.yaml"
    before = file.read_text()
    refused = stage("workflow", "update", check=2)
    assert '+    agent: "command:make test"' in refused.stderr and "--yes" in refused.stderr
    assert file.read_text() == before
    stage("run", "do-work", "-p", "x")
    stage("workflow", "update", "--yes")
    stage("workflow", "outdated")
    assert "nobody here has looked" in stage("run", "do-work", "-p", "x", check=2).stderr

    file.write_text(before.replace("Work.", "Work harder."))
    stage.publish("workflows/do-work.yaml", before)
    assert "changed here" in stage("workflow", "update", "--yes", check=1).stderr
    assert "harder" in file.read_text()
    file.unlink()
    stage("workflow", "update", "do-work", "--ref", "v1", "--yes")
    assert file.read_text() == before
    assert "ref: 'v1'" in (stage.project / ".workflows" / "lock.yaml").read_text()


def test_another_source_takes_the_name_once_the_files_are_deleted(stage: Stage) -> None:
    stage("workflow", "add", f"{stage.remote}#v1")
    url = f"file://{stage.remote}"
    refused = stage("workflow", "add", url, check=2).stderr
    assert (
        f"do-work is already here, from {stage.remote}#v1\n  Delete .workflows/do-work.yaml first." in refused
    )
    (stage.project / ".workflows" / "do-work.yaml").unlink()
    stage("workflow", "add", url)
    assert f"source: '{url}'" in (stage.project / ".workflows" / "lock.yaml").read_text()


def link_out(stage: Stage) -> None:
    stage.publish("workflows/do-link/index.yaml", WORK.format(name="do-link", agent=SAYS_OK))
    os.symlink("/etc/passwd", stage.remote / "workflows" / "do-link" / "notes.md")
    stage.commit()


def huge_file(stage: Stage) -> None:
    stage.publish("workflows/do-more.yaml", "# " + "x" * 1_000_001)


def submodule(stage: Stage) -> None:
    stage.publish("workflows/do-sub/index.yaml", WORK.format(name="do-sub", agent=SAYS_OK))
    other = stage.remote.parent / "other"
    git(stage.remote, "clone", "-q", ".", str(other))
    git(stage.remote, "submodule", "--quiet", "add", str(other), "workflows/do-sub/inner")
    stage.commit()


def option_name(stage: Stage) -> None:
    stage.publish("workflows/--yes.yaml", WORK.format(name="--yes", agent=SAYS_OK))


def same_name(stage: Stage) -> None:
    stage.own("do-work", SAYS_OK)


def broken(stage: Stage) -> None:
    stage.publish("workflows/do-not.yaml", "name: do-not\nroles: {}\n")


def outside_include(stage: Stage) -> None:
    text = WORK.format(name="do-read", agent=SAYS_OK).replace(
        "prompt: Work.", "prompt: !include ../notes.txt"
    )
    stage.publish("workflows/do-read.yaml", text)


def bare_index(stage: Stage) -> None:
    stage.publish("workflows/index.yaml", WORK.format(name="index", agent=SAYS_OK))


def sibling_import(stage: Stage) -> None:
    stage.publish("workflows/do-import.py", "from .other import workflow\n")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (link_out, "do-link/notes.md is a link"),
        (huge_file, "do-more.yaml is larger than 1,000,000 bytes"),
        (submodule, "do-sub/inner is a submodule"),
        (option_name, "--yes.yaml has a name that is not in kebab-case"),
        (same_name, "there is already a workflow 'do-work'"),
        (broken, "does not validate"),
        (outside_include, "leads outside"),
        (sibling_import, "imports other files"),
        (bare_index, "index.yaml is the index file of no folder"),
    ],
)
def test_a_hostile_pack_is_refused_as_a_whole(
    stage: Stage, make: Callable[[Stage], None], reason: str
) -> None:
    make(stage)
    before = sorted(stage.project.rglob("*"))
    git(stage.remote, "config", "uploadpack.allowFilter", "true")
    for source in ("../flows#main", f"file://{stage.remote}#main", "../flows"):
        if make is submodule and source == "../flows":
            continue  # a folder as it is has only files
        assert reason in stage("workflow", "add", source, check=2).stderr
    assert sorted(stage.project.rglob("*")) == before
    if make is not same_name:
        stage("workflow", "add", "../flows#main", "do-work")


def test_nothing_of_a_repository_runs_and_no_address_is_a_command(stage: Stage) -> None:
    for hook in ("post-checkout", "post-merge", "reference-transaction", "pre-upload", "post-upload-pack"):
        file = stage.remote / ".git" / "hooks" / hook
        file.write_text(f"#!/bin/sh\ntouch {stage.ran}\n")
        file.chmod(0o755)
    touch = f"touch {stage.ran}"
    git(stage.remote, "config", "uploadpack.packObjectsHook", touch)
    git(stage.remote, "config", "filter.x.smudge", touch)
    stage.publish(".gitattributes", "* filter=x\n")
    git(stage.remote, "config", "core.fsmonitor", touch)
    stage.ran.unlink(missing_ok=True)  # our own git has used the filter
    stage("workflow", "add", f"file://{stage.remote}")
    for source in (
        f"ext::sh -c {touch}",
        "../flows#--upload-pack=touch x",
        "https://me:secret@example.com/x",
        "ssh://me:secret@example.com/x",
        "https://[::1/x",
    ):
        code = 3 if source.startswith(("ext", "https://[")) else 2
        errors = stage("workflow", "add", source, check=code).stderr
        assert errors and "secret" not in errors

    lock = stage.project / ".workflows" / "lock.yaml"
    text = lock.read_text()
    for old, new in (
        (f"file://{stage.remote}", f"ext::sh -c {touch}"),
        ("commit:", f"ref: '--exec={touch}'\n    commit:"),
    ):
        lock.write_text(text.replace(old, new))
        assert "unreachable" in stage("workflow", "outdated", check=1).stdout
    assert not stage.ran.exists()


def test_folders_that_contain_each_other_end(stage: Stage) -> None:
    """A tree with two entries for the tree below it, forty deep, would have a million million files."""
    blob = git(stage.remote, "rev-parse", "HEAD:workflows/do-work.yaml")
    entry = f"100644 blob {blob}\tindex.yaml"
    for _ in range(40):
        made = subprocess.run(
            ["git", "mktree"], input=f"{entry}\n", cwd=stage.remote, capture_output=True, text=True
        )
        tree = made.stdout.strip()
        entry = f"040000 tree {tree}\ta\n040000 tree {tree}\tb"
    top = subprocess.run(
        ["git", "mktree"],
        input=f"040000 tree {tree}\tworkflows\n",
        cwd=stage.remote,
        capture_output=True,
        text=True,
    ).stdout.strip()
    git(stage.remote, "tag", "bomb", git(stage.remote, "commit-tree", top, "-m", "x"))
    assert "deep" in stage("workflow", "add", "../flows#bomb", check=2).stderr


def test_a_folder_without_a_folder_of_workflows_gives_its_yaml_workflows(
    stage: Stage, tmp_path: Path
) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    (loose / "do-loose.yaml").write_text(WORK.format(name="do-loose", agent=SAYS_OK))
    (loose / "compose.yaml").write_text("services: {}\n")
    (loose / "setup.py").write_text(CODE.format(ran=str(stage.ran)))
    with package.open(folder=stage.project) as rolecall:
        added, others = rolecall.add_workflows(str(loose))
        assert [*added] == ["do-loose"] and others == []
        with pytest.raises(UsageError, match="is a file") as refused:  # what uwf called `workflow add`
            rolecall.add_workflows(str(loose / "do-loose.yaml"))
        assert "rolecall workflow put" in phrase(refused.value.hint)
    assert not stage.ran.exists()

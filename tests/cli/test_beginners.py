"""The mistakes that beginners make, each with the message it must give: what is wrong, where, and what to do."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from conftest import Rolecall

WRITE = """\
name: write-poem
roles:
  writer:
    prompt: Write.
    schema: {type: object, properties: {$status: {enum: [good, bad]}}, required: [$status]}
graph: {$START: writer, writer: {good: $END, bad: $FAIL}}
"""
DECIDE = """\
name: decide
roles:
  boss:
    prompt: Decide.
    agent: human
    schema:
      type: object
      properties: {$status: {enum: [good, bad]}, count: {type: integer}}
      required: [$status, count]
graph: {$START: boss, boss: {good: $END, bad: $FAIL}}
"""
OWN_TREE = DECIDE.replace("name: decide", "name: own-tree\nworkdir: worktree")


PROGRAM = Path(sys.executable).parent / "rolecall"


class Mistake(NamedTuple):
    words: str
    code: int
    told: str
    files: Mapping[str, str] = MappingProxyType({})


WRONG_FILES = {
    "a tab": Mistake(
        "run ./write-poem.yaml -p x",
        2,
        "rolecall: {folder}/write-poem.yaml has 1 problem:\n"
        "  {folder}/write-poem.yaml:4:1: error: not valid YAML: while scanning for the next token, found character "
        "that cannot start any token. Indent with spaces, not with tabs.\n",
        {"write-poem.yaml": WRITE.replace("    prompt", "\tprompt")},
    ),
    "a wrong indentation": Mistake(
        "run ./write-poem.yaml -p x",
        2,
        "rolecall: {folder}/write-poem.yaml has 1 problem:\n"
        "  {folder}/write-poem.yaml:5:4: error: not valid YAML: while parsing a block mapping, did not find expected "
        "key. Look at the indentation and the quotes on this line and the one before.\n",
        {"write-poem.yaml": WRITE.replace("    schema", "   schema")},
    ),
    "a key without a colon": Mistake(
        "run ./write-poem.yaml -p x",
        2,
        "rolecall: {folder}/write-poem.yaml has 1 problem:\n"
        "  {folder}/write-poem.yaml:5:11: error: not valid YAML: mapping values are not allowed in this context. "
        "Text that contains ': ' needs quotes, and a key on the line before a colon.\n",
        {"write-poem.yaml": WRITE.replace("prompt: Write.", "prompt")},
    ),
    "an unknown key": Mistake(
        "run ./write-poem.yaml -p x",
        2,
        "  {folder}/write-poem.yaml:4:5: error: 'promt' is not a key of a role. Did you mean 'prompt'? Keys: ",
        {"write-poem.yaml": WRITE.replace("prompt:", "promt:")},
    ),
    "an unknown status": Mistake(
        "run ./write-poem.yaml -p x",
        2,
        "  {folder}/write-poem.yaml:6:34: error: the schema of writer has no status 'godo', so this edge is never "
        "taken. Did you mean 'good'? Statuses: good, bad.\n",
        {"write-poem.yaml": WRITE.replace("good: $END", "godo: $END")},
    ),
    "an unknown role": Mistake(
        "run ./write-poem.yaml -p x",
        2,
        "rolecall: {folder}/write-poem.yaml has 1 problem:\n"
        "  {folder}/write-poem.yaml:6:51: error: writer leads to 'wirter', which is not a role. "
        "Did you mean 'writer'? Targets: writer, $END, $FAIL.\n",
        {"write-poem.yaml": WRITE.replace("bad: $FAIL", "bad: wirter")},
    ),
    "a file with the name of another workflow": Mistake(
        "run ./poem.yaml -p x",
        2,
        "rolecall: {folder}/poem.yaml has 1 problem:\n"
        "  {folder}/poem.yaml:1:7: error: the name 'write-poem' differs from the file's name, 'poem'. "
        "Write `name: poem`, or rename the file.\n",
        {"poem.yaml": WRITE},
    ),
    "a broken configuration": Mistake(
        "run ./decide.yaml -p x",
        2,
        "rolecall: {home}/config.yaml:2:1: not valid YAML: while parsing a flow node, did not find expected node "
        "content\n"
        "  Look at the indentation and the quotes on this line and the one before.\n",
        {"../home/config.yaml": "defaultAgent: [\n"},
    ),
}
WRONG_WORDS = {
    "no agent configured": Mistake(
        "run ./write-poem.yaml -p x",
        2,
        "rolecall: no agent is named for the role 'writer' of 'write-poem'\n"
        "  Give the role an `agent`, or set a default: `rolecall config set defaultAgent NAME`, or add --agent NAME. "
        "None is installed here: see `rolecall agents list`.\n",
    ),
    "a misspelt key of the configuration": Mistake(
        "run ./write-poem.yaml -p x",
        2,
        "note: {home}/config.yaml:1:1: 'defaultAgnt' is not a key of the configuration. Did you mean 'defaultAgent'? "
        "Keys: providers, models, agents, defaultAgent, defaultModel, agentOverrides, modelOverrides, modelTiers, "
        "extract, memory, project, trees, notify, traces, catalog, store.\n"
        "rolecall: no agent is named for the role 'writer' of 'write-poem'\n"
        "  Give the role an `agent`, or set a default: `rolecall config set defaultAgent NAME`, or add --agent NAME. "
        "None is installed here: see `rolecall agents list`.\n",
        {"../home/config.yaml": "defaultAgnt: claude\n"},
    ),
    "an agent that is not installed": Mistake(
        "run ./write-poem.yaml -p x --agent claude",
        3,
        "rolecall: the agent 'claude' needs the program 'claude', which was not found\n"
        "  Install it: npm install -g @anthropic-ai/claude-code\n",
    ),
    "a misspelt agent": Mistake(
        "run ./write-poem.yaml -p x --agent cluade",
        3,
        "rolecall: there is no agent 'cluade'\n  Did you mean 'claude'? Known: ",
    ),
    "a program that does not exist as agent": Mistake(
        "run ./write-poem.yaml -p x --agent command:nonesuch",
        3,
        "rolecall: the agent 'command' needs the program 'nonesuch', which was not found\n"
        "  Install it or correct the name; looked in {path}.\n",
    ),
    "an answer without output": Mistake(
        "run ./write-poem.yaml -p x --agent 'command:printf hello'",
        7,
        "continue: rolecall thread resume {thread} --run\n",
    ),
    "a wrong workflow name": Mistake(
        "run writepoem -p x",
        3,
        "rolecall: there is no workflow 'writepoem'\n  Did you mean 'write-poem'? Known: ",
        {".workflows/write-poem.yaml": WRITE},
    ),
    "a workflow file that is not there": Mistake(
        "run ./poem.yaml -p x",
        3,
        "rolecall: there is no workflow file {folder}/poem.yaml\n"
        "  See the workflows that are known here: `rolecall workflow list`.\n",
    ),
    "a workflow as command": Mistake(
        "write-poem",
        2,
        "rolecall: unknown command 'write-poem'\n"
        "  Did you mean `rolecall run write-poem -p 'What to do'`? `rolecall --help` lists the commands.\n",
        {".workflows/write-poem.yaml": WRITE},
    ),
    "a misspelt command": Mistake(
        "rnu write-poem -p x",
        2,
        "rolecall: unknown command 'rnu'\n  Did you mean `rolecall run`? `rolecall --help` lists the commands.\n",
    ),
    "a misspelt option": Mistake(
        "run ./decide.yaml -p x --agnet claude",
        2,
        "rolecall: unknown option --agnet; did you mean --agent?\n  `rolecall run --help` shows the options.\n",
    ),
    "an option like no other": Mistake("run ./decide.yaml -p x --foo", 2, "rolecall: unknown option --foo\n"),
    "a task without its option": Mistake(
        "run ./decide.yaml 'fix it'", 2, "  Is it the task? Write -p 'fix it'.\n"
    ),
    "a misspelt option of the program": Mistake(
        "--verson", 2, "rolecall: unknown option --verson; did you mean --version?\n"
    ),
    "a word that is no command": Mistake("list", 2, "  `rolecall thread list` lists threads, "),
    "an agent that explains itself on standard output": Mistake(
        "run ./write-poem.yaml -p x --agent \"command:sh -c 'echo come back later; exit 1'\"",
        7,
        "writer: 'sh' exited with status 1: come back later\n",
    ),
    "a script that is not there": Mistake(
        "run ./write-poem.yaml -p x --agent scripted:none.yaml",
        3,
        "cannot be read: No such file or directory\n",
    ),
    "the old name of an option": Mistake("thread list --limit 3", 0, "note: --limit is now --max\n"),
    "a command of the predecessor": Mistake(
        "thread cancel 01M7",
        2,
        "rolecall: unknown command 'thread cancel'\n  `rolecall thread kill THREAD` does this.\n",
    ),
    "no workflow": Mistake(
        "run",
        2,
        "rolecall: no workflow is named\n"
        "  `rolecall new` lists those that come with Rolecall, `rolecall workflow list` your own.\n"
        "  `rolecall run --help` says more.\n",
    ),
    "no task": Mistake(
        "run ./decide.yaml",
        2,
        "rolecall: the workflow needs a task\n  Say what to do: -p 'The login page is blank', or -p @FILE.\n",
    ),
    "an empty task": Mistake(
        "run ./decide.yaml -p ''",
        2,
        "rolecall: the task is empty\n  Say what to do: -p 'The login page is blank'.\n",
    ),
    "a task in a file that is not there": Mistake(
        "run ./write-poem.yaml -p @issue.md",
        2,
        "rolecall: issue.md cannot be read: No such file or directory\n"
        "  Name a file; relative paths start in {folder}.\n",
    ),
    "a work folder that is not there": Mistake(
        "run ./decide.yaml -p x --cwd {folder}/nowhere",
        2,
        "rolecall: the work folder '{folder}/nowhere' does not exist\n  Create the folder, or name an existing one.\n",
    ),
    "a limit that is not a number": Mistake(
        "run ./decide.yaml -p x --limit cost=two",
        2,
        "rolecall: --limit: 'cost=two' is not a limit such as steps=20 or cost=1.5: a number above 0, for one of "
        "steps, turns, tokens, cost, minutes\n  `rolecall run --help` shows the options.\n",
    ),
    "a limit of a role that does not exist": Mistake(
        "run ./decide.yaml -p x --limit bos.steps=2",
        2,
        "rolecall: unknown limit 'bos.steps'\n"
        "  Limits are steps, turns, tokens, cost, minutes, of one role ROLE.steps; roles: boss.\n",
    ),
    "a thread where none was started": Mistake(
        "thread read",
        3,
        "rolecall: there is no store at {home}/store.db yet\n"
        "  The first thread creates it. Set up a project with a workflow to run: `rolecall init`.\n",
    ),
    "no repository for a worktree": Mistake(
        "run ./own-tree.yaml -p x",
        2,
        "rolecall: {folder} is not in a git repository, so it cannot have worktrees (fatal: not a git repository (or "
        "any of the parent directories): .git)\n"
        "  Start the thread in a repository, or use `workdir: copy`, which needs none.\n",
        {"own-tree.yaml": OWN_TREE},
    ),
    "a service that does not run": Mistake(
        "serve stop",
        3,
        "rolecall: no service is running in {home}\n"
        "  If the service uses another home, set ROLECALL_HOME to that home.\n",
    ),
    "a thread that is queued for no service": Mistake(
        "run ./decide.yaml -p x --detach",
        0,
        "no service is running here: it waits for `rolecall serve`\n",
    ),
    "a folder as store": Mistake(
        "thread list --store flows",
        2,
        "rolecall: {folder}/flows is a folder, not a SQLite file\n"
        "  Name a file in it, such as flows/store.db, or say files:flows.\n",
        {"flows/note": ""},
    ),
    "a store that is not there": Mistake(
        "thread list --store shop.db",
        3,
        "rolecall: there is no store at {folder}/shop.db yet\n"
        "  The first thread creates it. Set up a project with a workflow to run: `rolecall init`.\n",
    ),
}


class Shop:
    """A folder with two workflows, on a machine without agents."""

    def __init__(self, rolecall: Rolecall, folder: Path) -> None:
        self.rolecall = rolecall
        self.folder = folder
        # Git is there, and other programs of the system, but no coding agent.
        self.env = {"PATH": "/usr/bin:/bin"}

    def refuse(self, words: str, code: int, told: str, **known: str) -> str:
        """Run a command whose message has to contain `told`; return what it says on standard error."""
        known |= {"folder": str(self.folder), "home": str(self.rolecall.home), "path": self.env["PATH"]}
        # Not str.format: the messages have braces of their own.
        for name, value in known.items():
            words, told = words.replace(f"{{{name}}}", value), told.replace(f"{{{name}}}", value)
        done = self.rolecall(*shlex.split(words), cwd=self.folder, env=self.env, check=code)
        if "{thread}" in told:
            told = told.replace("{thread}", done.stderr.split()[1])
        said = done.stdout + done.stderr
        assert told in said, said
        return done.stderr

    def start(self) -> str:
        return str(
            self.rolecall.json("thread", "start", "./decide.yaml", "-p", "Decide it", cwd=self.folder)[
                "thread"
            ]
        )


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path  # git would name the memory's mount point


@pytest.fixture
def shop(rolecall: Rolecall, tmp_path: Path) -> Shop:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "write-poem.yaml").write_text(WRITE)
    (folder / "decide.yaml").write_text(DECIDE)
    return Shop(rolecall, folder)


@pytest.mark.parametrize(
    "mistake", [*WRONG_FILES.values(), *WRONG_WORDS.values()], ids=[*WRONG_FILES, *WRONG_WORDS]
)
def test_a_mistake_is_answered_with_what_to_do(shop: Shop, mistake: Mistake) -> None:
    for name, text in mistake.files.items():
        path = shop.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    shop.refuse(mistake.words, mistake.code, mistake.told)


def test_an_agent_that_neither_it_nor_the_kernel_can_restrict_is_refused(shop: Shop) -> None:
    shop.env["ROLECALL_SANDBOX"] = "off"
    shop.refuse(
        "run review-change -p x --agent command:cat",
        2,
        "rolecall: the agent 'command:cat' cannot be held to 'no_file_edit', as the role 'scout' must be\n",
    )


def test_an_agent_that_is_installed_is_proposed(shop: Shop, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "codex"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    shop.env["PATH"] += f":{program.parent}"
    shop.refuse(
        "run ./write-poem.yaml -p x",
        2,
        "  Give the role an `agent`, or set a default: `rolecall config set defaultAgent codex`, or add --agent codex. "
        "codex is installed here; `rolecall try` picks it by itself.\n",
    )


def test_an_agent_that_is_not_signed_in_says_so(shop: Shop, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    said = json.dumps(
        {
            "type": "result",
            "is_error": True,
            "result": "Invalid API key · Please run /login",
            "session_id": "s",
        }
    )
    program.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{said}'\nexit 1\n")
    program.chmod(0o755)
    shop.env["PATH"] += f":{program.parent}"
    shop.refuse(
        "run ./write-poem.yaml -p x --agent claude",
        7,
        "Please run /login",
    )


def test_ids_that_are_short_wrong_or_ambiguous(shop: Shop) -> None:
    first, second = shop.start(), shop.start()
    shop.refuse(
        f"thread show {first[:4]}",
        2,
        f"rolecall: '{first[:4]}' matches several threads: {second}, {first}\n  Give more characters.\n",
    )
    shop.refuse(
        "thread show 01M7F72SX",
        3,
        "rolecall: there is no thread '01M7F72SX'\n  List them all: `rolecall thread list --all`.\n",
    )
    shop.refuse(
        "thread show x",
        2,
        "rolecall: 'x' is too short for a thread\n  Give at least 3 characters of its id.\n",
    )
    shop.refuse(
        "thread kill",
        2,
        "rolecall: no thread is named, and killing a thread cannot be undone\n"
        f"  The latest of this folder is {second} · Decide it. Name it to use it.\n",
    )


def test_answers_that_do_not_fit_or_that_nobody_asked_for(shop: Shop) -> None:
    thread = shop.start()
    wrong = "rolecall: the answer does not fit what boss must deliver:\n"
    see = f"  See the fields and an example: `rolecall thread answer {thread}`.\n"
    for fields, misfit in (
        ("--field status=maybe --field count=3", '  /$status: "maybe" is not one of "good" or "bad"\n'),
        ("--field status=good --field count=three", '  /count: "three" is not of type "integer"\n'),
        ("--field status=good", '  /: "count" is a required property\n'),
    ):
        shop.refuse(f"thread answer {fields}", 2, wrong + misfit + see)
    shop.refuse("thread answer --field '$stats=good'", 2, see)
    shop.refuse(
        "thread answer --field '=good'", 2, "Your shell replaces $status with the value of a variable"
    )
    shop.refuse(
        "thread answer --output nojson", 2, "rolecall: not JSON: Expecting value at line 1 column 1\n"
    )
    shop.rolecall("thread", "answer", "--output", '{"$status": "good", "count": 3}', cwd=shop.folder, check=0)
    fork = f"  Fork it to continue from some step: `rolecall thread fork {thread}`.\n"
    shop.refuse(
        "thread answer --field status=good",
        2,
        f"rolecall: thread {thread} is completed and is not waiting for an answer\n{fork}",
    )
    shop.refuse(
        "thread resume --run",
        2,
        f"rolecall: thread {thread} is completed\n  Fork it to continue: `rolecall thread fork {thread}`.\n",
    )
    shop.refuse("thread step", 2, f"rolecall: thread {thread} is completed\n{fork}")


def test_a_status_that_does_not_exist_is_answered_with_those_that_do(shop: Shop) -> None:
    forms = "[{properties: {$status: {const: good}}}, {properties: {$status: {const: bad}}}]"
    (shop.folder / "decide.yaml").write_text(
        DECIDE.replace(
            """      type: object
      properties: {$status: {enum: [good, bad]}, count: {type: integer}}
      required: [$status, count]
""",
            f"      type: object\n      required: [$status]\n      oneOf: {forms}\n",
        )
    )
    shop.start()
    shop.refuse("thread answer --field status=maybe", 2, "  /$status: must be good or bad, not maybe\n")
    shop.refuse(
        "thread answer --field staus=good", 2, "must be good or bad, and is not given\n  unknown: staus\n"
    )


def test_a_folder_that_is_gone(shop: Shop) -> None:
    gone = shop.folder / "gone"
    script = f"mkdir {gone}; cd {gone}; rmdir {gone}; exec {PROGRAM}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (5, "rolecall: this folder no longer exists")


def test_a_second_run_is_another_thread_and_both_are_listed(shop: Shop) -> None:
    received = [
        shop.refuse("run ./decide.yaml -p 'Decide it'", 7, "continue: rolecall thread answer") for _ in "12"
    ]
    threads = {text.split()[1] for text in received}
    listed = shop.rolecall.json("thread", "list", cwd=shop.folder)
    assert len(threads) == 2 and {entry["thread"] for entry in listed} == threads


def test_a_repository_without_a_commit_or_with_changes(shop: Shop) -> None:
    (shop.folder / "own-tree.yaml").write_text(OWN_TREE)
    subprocess.run(["git", "init", "-q"], cwd=shop.folder, check=True)
    shop.refuse(
        "run ./own-tree.yaml -p x",
        2,
        "rolecall: the repository {folder} has no commit, so nothing can be checked out from it\n"
        "  Make a first commit, or use `workdir: copy`.\n",
    )
    for words in (["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=shop.folder, check=True)
    (shop.folder / "decide.yaml").write_text(DECIDE + "# more\n")
    shop.refuse(
        "run ./own-tree.yaml -p x",
        7,
        "note: the thread's worktree begins without 1 uncommitted change in {folder}\n",
    )


def test_a_port_that_is_taken(shop: Shop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        shop.refuse(
            f"web --no-open --port {port}",
            5,
            "  Another process might be using the port; choose a free one: add --port 0.\n",
        )


@pytest.mark.parametrize(
    ("home", "told"),
    [
        (
            "{folder}/decide.yaml",
            "rolecall: {folder}/decide.yaml is not a folder\n"
            "  The home folder is ~/.rolecall, or what ROLECALL_HOME names.\n",
        ),
        (
            "/proc/nowhere",
            "rolecall: /proc/nowhere/store.db cannot be used: No such file or directory: /proc/nowhere\n"
            "  Check that the folder exists and belongs to you.\n",
        ),
    ],
)
def test_a_home_that_cannot_be_written(shop: Shop, home: str, told: str) -> None:
    shop.env["ROLECALL_HOME"] = home.replace("{folder}", str(shop.folder))
    code = 5 if home.startswith("/proc") else 2
    shop.refuse("run ./decide.yaml -p x", code, told)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_without_permission(shop: Shop) -> None:
    shop.rolecall.home.mkdir(mode=0o500)
    shop.refuse("run ./decide.yaml -p x", 5, "Check that the folder exists and belongs to you.\n")


def test_an_empty_folder_says_where_to_begin(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = shop.rolecall(cwd=tmp_path / "empty", env=shop.env, check=0)
    assert "next       rolecall init    make a project\n" in done.stdout

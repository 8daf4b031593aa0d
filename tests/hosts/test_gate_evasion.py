"""Attempts to get round the gates, through the events of Claude Code: what is blocked, and what cannot be.

Every row has an id; docs/hooks.md has the same ids with the same verdicts, for whoever relies on the gates.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hook_stage import known_hooks, task, tasks, tell, write

from rolecall.hosts.claude import events

PAGE = Path(__file__).parents[2] / "docs" / "hooks.md"


class Attempt(NamedTuple):
    id: str
    tool: str
    arguments: dict[str, Any]
    is_blocked: bool = True
    agent: str = ""
    has_tasks: bool = False
    prepare: Callable[[Path], object] = lambda _: None
    outside: tuple[str, ...] = ()
    """Arguments that are paths beside the project's folder."""


def shell(id: str, command: str, *, is_blocked: bool = True, **more: Any) -> Attempt:
    return Attempt(id, "Bash", {"command": command}, is_blocked, **more)


def link(name: str, target: str) -> Callable[[Path], object]:
    return lambda project: os.symlink(project / target, project / name)


ATTEMPTS = [
    # renamed and unknown tools
    Attempt("renamed-tool", "WriteV2", {"file_path": "src/a.py", "content": "x"}),
    Attempt("tool-in-other-case", "WRITE", {"file_path": "src/a.py", "content": "x"}),
    Attempt("unknown-tool", "Scribble", {"target_file": "src/a.py", "code_edit": "x"}),
    Attempt("notebook", "NotebookEdit", {"notebook_path": "n.ipynb", "new_source": "x"}),
    Attempt("patch-tool", "apply_patch", {"input": "*** Begin Patch\n*** Update File: src/a.py\n"}),
    Attempt("mcp-write", "mcp__filesystem__write_file", {"path": "src/a.py", "content": "x"}),
    Attempt("mcp-move", "mcp__filesystem__move_file", {"source": "/tmp/x.py", "destination": "src/a.py"}),
    Attempt("mcp-shell", "mcp__desktop__start_process", {"command": "echo > src/a.py"}),
    Attempt("mcp-named-like-ours", "mcp__other__nx_artifact_write", {"filename": "a.py", "content": "x"}),
    Attempt("mcp-without-path", "mcp__ide__run_code", {"code": "open('src/a.py', 'w')"}, is_blocked=False),
    # shells
    shell("redirection", "echo x > src/a.py"),
    shell("appending", "echo x >> src/a.py"),
    shell("clobbering", "echo x >| src/a.py"),
    shell("here-document", "cat > src/a.py <<'EOF'\nx\nEOF"),
    shell("tee", "echo x | sudo tee src/a.py"),
    shell("copy", "cp /tmp/x src/a.py"),
    shell("in-place", "sed -i s/a/b/ src/a.py"),
    shell("delete", "rm -rf src"),
    shell("shell-in-shell", "bash -c \"echo x > src/a.py\""),
    shell("substitution", "echo $(echo x > src/a.py)"),
    shell("change-folder", "cd src && echo x > a.py"),
    shell("working-folder-variable", 'echo x > "$PWD/src/a.py"'),
    shell("variable-path", "F=src/a.py; echo x > $F", is_blocked=False),
    shell("quoted-substitution", 'echo "$(rm src/a.py)"', is_blocked=False),
    shell("eval", "eval 'rm src/a.py'", is_blocked=False),
    shell("here-script", "bash <<EOF\nrm src/a.py\nEOF", is_blocked=False),
    shell("other-program", "gzip src/a.py", is_blocked=False),
    shell("interpreter", "python3 -c 'open(\"src/a.py\", \"w\")'", is_blocked=False),
    shell("script-file", "bash fix.sh", is_blocked=False),
    shell("build", "make format", is_blocked=False),
    shell("xargs", "echo src/a.py | xargs rm", is_blocked=False),
    shell("find-delete", "find src -name '*.py' -delete", is_blocked=False),
    shell("git", "git checkout HEAD~3 -- src/a.py", is_blocked=False),
    # paths
    Attempt("dot-dot", "Write", {"file_path": "../elsewhere/../project/src/a.py", "content": "x"}),
    Attempt("link-in-project", "Write", {"file_path": "link.py", "content": "x"}, prepare=link("link.py", "src/a.py")),
    Attempt("link-to-outside", "Write", {"file_path": "out.py", "content": "x"}, prepare=link("out.py", "../x.py")),
    Attempt(
        "link-from-outside", "Write", {"file_path": "door/a.py", "content": "x"},
        prepare=link("../door", "src"), outside=("file_path",),
    ),
    Attempt(
        "hard-link", "Write", {"file_path": "twin.py", "content": "x"}, is_blocked=False,
        prepare=lambda project: os.link(project / "src/a.py", project / "../twin.py"), outside=("file_path",),
    ),
    # the state
    Attempt("state-edit", "Edit", {"file_path": ".nexus/state/tasks.json", "new_string": "x"}, has_tasks=True),
    shell("state-shell", "echo '{}' > .nexus/state/tasks.json", has_tasks=True),
    shell("state-removal", "rm -rf .nexus", has_tasks=True),
    Attempt("state-other-case", "Write", {"file_path": ".Nexus/STATE/tasks.json", "content": "{}"}, has_tasks=True),
    Attempt(
        "state-link", "Write", {"file_path": "notes.json", "content": "{}"}, has_tasks=True,
        prepare=link("notes.json", ".nexus/state/tasks.json"),
    ),
    shell("state-interpreter", "python3 forge.py .nexus/state/tasks.json", is_blocked=False, has_tasks=True),
    # agents
    Attempt("agent-edit", "Write", {"file_path": "src/a.py", "content": "x"}, agent="tester", has_tasks=True),
    shell("agent-redirection", "echo x > src/a.py", agent="reviewer", has_tasks=True),
    Attempt("agent-mcp-write", "mcp__fs__edit_file", {"path": "src/a.py", "edits": []}, agent="tester", has_tasks=True),
    Attempt("agent-starts-agent", "Agent", {"subagent_type": "engineer", "prompt": "edit it"}, agent="tester"),
    Attempt("agent-asks-agent", "SendMessage", {"to": "engineer", "message": "edit it"}, agent="tester"),
    Attempt("stranger-starts-agent", "Task", {"subagent_type": "engineer"}, agent="general-purpose"),
    Attempt("agent-adds-task", "mcp__rolecall__nx_task_add", {"title": "T"}, agent="engineer", has_tasks=True),
    Attempt("agent-plans", "mcp__rolecall__nx_plan_decide", {"issue_id": 1}, agent="engineer", has_tasks=True),
    Attempt("stranger-adds-task", "mcp__rolecall__nx_task_add", {"title": "T"}, agent="general-purpose"),
    shell("agent-own-command", "rolecall task add T --context c", agent="engineer", has_tasks=True),
    shell("agent-own-command-as-module", "python3 -P -m rolecall task add T", agent="engineer", has_tasks=True),
    shell("agent-own-command-with-package", "uvx --from rolecall rolecall task add", agent="engineer", has_tasks=True),
    shell("agent-runs-workflow", "rolecall run solve-issue", agent="engineer", has_tasks=True),
    shell("agent-own-server", "echo '{}' | rolecall mcp", agent="tester", has_tasks=True),
    shell("agent-own-hook", "rolecall hook rolecall user_message < said.json", agent="tester", has_tasks=True),
    shell("agent-own-server-in-script", "python3 speak.py", is_blocked=False, agent="tester", has_tasks=True),
    shell("agent-switches-off", "rolecall config set project.unplannedEdits off", agent="engineer", has_tasks=True),
    shell("lead-switches-off", "rolecall config set project.unplannedEdits off", is_blocked=False),
    Attempt(
        "host-settings", "Write", {"file_path": ".claude/settings.local.json", "content": "{}"}, is_blocked=False,
        has_tasks=True,
    ),
    shell("agent-interpreter", "python3 edit.py src/a.py", is_blocked=False, agent="tester", has_tasks=True),
]  # fmt: skip


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.id)
def test_an_attempt_ends_as_the_table_says(tmp_path: Path, attempt: Attempt) -> None:
    project = tmp_path / "project"
    write(project, "src/a.py", "old\n")
    if attempt.has_tasks:
        tasks(project, task(1))
    attempt.prepare(project)
    arguments = {
        key: str(tmp_path / value) if key in attempt.outside else value
        for key, value in attempt.arguments.items()
    }
    who = {"agent_type": attempt.agent, "agent_id": "x1"} if attempt.agent else {}
    payload = {
        "session_id": "s",
        "cwd": str(project),
        "tool_name": attempt.tool,
        "tool_input": arguments,
        **who,
    }
    event = events.event("PreToolUse", payload)
    assert event is not None
    assert bool(tell(project, event, known_hooks()).block) is attempt.is_blocked


def test_every_attempt_stands_on_the_page_with_its_verdict() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|.*\| (blocked|not blocked) *\|", PAGE.read_text(), re.MULTILINE)
    expected = [(one.id, "blocked" if one.is_blocked else "not blocked") for one in ATTEMPTS]
    assert sorted(rows) == sorted(expected)

"""Searching a repository over MCP: what an agent is told, how much of it, and what it may not do."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pipe import environment, make_project, piped

RETRY = 'def retry_limit(count):\n    """How often a request is tried again."""\n    return count * 2\n'
GUIDE = "# Guide\n\n## Install\n\nRun the installer with elevated rights.\n"
SETTINGS = 'include: ["*.md", "*.py"]\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = make_project(tmp_path)
    (project / "src").mkdir()
    (project / "src" / "retry.py").write_text(RETRY)
    (project / "guide.md").write_text(GUIDE)
    return project


@pytest.fixture
def synced(project: Path) -> Path:
    (project / "knowledge.yaml").write_text(SETTINGS)
    with piped(project) as pipe:
        pipe.initialize()
        assert pipe.call("knowledge_sync")["files"] == 2
    return project


def test_an_agent_without_an_index_is_told_which_tools_make_one_and_they_do(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        reply = pipe.call("knowledge_query", query="how often is a request tried")["error"]
        assert "has no knowledge.yaml" in reply and "`knowledge_init`" in reply and "rolecall" not in reply
        made = pipe.call("knowledge_init")
        assert made["path"] == str(project / "knowledge.yaml") and set(made["include"]) == {"*.md", "*.py"}
        assert "already exists" in pipe.call("knowledge_init")["error"]
        reply = pipe.call("knowledge_query", query="how often is a request tried")["error"]
        assert (
            "nothing has been indexed yet" in reply
            and "`knowledge_sync`" in reply
            and "rolecall" not in reply
        )
        assert pipe.call("knowledge_sync")["indexed"] == 2
        assert pipe.call("knowledge_sync")["unchanged"] == 2
        (found, *_) = pipe.call("knowledge_query", query="how often is a request tried")["results"]
        assert (found["path"], found["lines"], found["symbol"]) == ("src/retry.py", "1-3", "retry_limit")
        assert found["text"] == RETRY.rstrip() and "stale" not in found
    assert "knowledge.db" in (project / ".gitignore").read_text()


def test_headings_limits_and_patterns(synced: Path) -> None:
    with piped(synced) as pipe:
        pipe.initialize()
        (found,) = pipe.call("knowledge_query", query="elevated rights", max=1)["results"]
        assert found["path"] == "guide.md" and found["heading"].endswith("Install")
        for found in pipe.call("knowledge_query", query="elevated rights", path="src/")["results"]:
            assert found["path"].startswith("src/")
        assert pipe.call("knowledge_query", query="rights", path="nowhere/") == {"results": []}


def test_the_older_name_of_an_argument_is_still_read_with_a_note(synced: Path) -> None:
    with piped(synced) as pipe:
        pipe.initialize()
        assert len(pipe.call("knowledge_query", query="elevated rights", limit=1)["results"]) == 1
        assert pipe.call("thread_list", limit=3) == {"threads": []}
        assert "limit" in pipe.call("thread_list", limit=3, max=3)["error"]
    notes = (synced.parent / "stderr").read_text()
    assert "`limit` of knowledge_query is now `max`" in notes
    assert notes.count("`limit` of thread_list is now `max`") == 1


def test_wrong_arguments_are_named(synced: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "query"),
        ({"query": ""}, "do not fit"),
        ({"query": "x" * 10_001}, "do not fit"),
        ({"query": "..."}, "holds no word"),
        ({"query": "x", "max": 0}, "do not fit"),
        ({"query": "x", "max": 21}, "do not fit"),
        ({"query": "x", "path": "{a,b}"}, "alternatives in braces"),
        ({"query": "x", "path": "../other"}, "leads out of the repository"),
        ({"query": "x", "repo": "/"}, "do not fit"),
    ]
    with piped(synced) as pipe:
        pipe.initialize()
        for arguments, item in wrong:
            assert item in pipe.call("knowledge_query", **arguments)["error"], arguments


def test_a_reply_is_bounded_and_what_is_left_out_is_said(project: Path) -> None:
    (project / "knowledge.yaml").write_text(f"{SETTINGS}chunk: {{tokens: 8000}}\n")
    for number in range(30):
        lines = "\n".join(f"The harvest of row {row} in field {number} is apples." for row in range(400))
        (project / f"field{number}.md").write_text(f"# Field {number}\n\n{lines}\n")
    with piped(project) as pipe:
        pipe.initialize()
        pipe.call("knowledge_sync")
        results = pipe.call("knowledge_query", query="harvest of apples", max=20)["results"]
    assert len(results) == 20
    assert sum(len(found["text"]) for found in results) <= 24_000
    assert len(json.dumps(results)) < 32_000
    assert all(found["lines"] and found["path"] and found["cut"] > 0 for found in results)


def test_a_file_that_has_changed_since_is_marked(synced: Path) -> None:
    with piped(synced) as pipe:
        pipe.initialize()
        pipe.call("knowledge_query", query="elevated rights")
        (synced / "guide.md").write_text(GUIDE.replace("elevated", "ordinary"))
        reply = pipe.call("knowledge_query", query="elevated rights", max=1)
        assert reply["results"][0]["stale"] and "knowledge_sync" in reply["notes"][0]
        done = pipe.call("knowledge_sync")
        assert (done["indexed"], done["unchanged"]) == (1, 1)
        reply = pipe.call("knowledge_query", query="ordinary rights", max=1)
        assert "stale" not in reply["results"][0] and "ordinary rights" in reply["results"][0]["text"]


def test_a_damaged_index_is_not_made_anew_by_who_only_asks(synced: Path) -> None:
    index = synced / "knowledge.db"
    index.write_bytes(index.read_bytes()[:100] + b"\xff" * 5000)
    before = index.read_bytes()
    with piped(synced) as pipe:
        pipe.initialize()
        reply = pipe.call("knowledge_query", query="rights")["error"]
        assert "damaged" in reply and "Rebuild it: `knowledge_sync` with `rebuild`" in reply
        assert index.read_bytes() == before
        assert any("rebuilt" in note for note in pipe.call("knowledge_sync")["notes"])
        assert pipe.call("knowledge_query", query="elevated rights")["results"][0]["path"] == "guide.md"


def test_damage_that_only_a_question_finds_is_mended_by_what_is_told(synced: Path) -> None:
    db = sqlite3.connect(synced / "knowledge.db")
    with db:
        db.execute("DROP TABLE passage")
    db.close()
    with piped(synced) as pipe:
        pipe.initialize()
        reply = pipe.call("knowledge_query", query="rights")["error"]
        assert "damaged" in reply and "`knowledge_sync` with `rebuild`" in reply
        assert pipe.call("knowledge_sync", rebuild=True)["indexed"] == 2
        assert pipe.call("knowledge_query", query="elevated rights")["results"][0]["path"] == "guide.md"


def test_who_may_not_change_files_may_ask_and_not_index(synced: Path) -> None:
    for options, more in ((("--as", "architect"), {}), ((), {"ROLECALL_RESTRICTIONS": "read_only"})):
        with piped(synced, "--only", "knowledge", *options, **more) as pipe:
            pipe.initialize()
            assert pipe.tools() == ["knowledge_query"]
            assert pipe.call("knowledge_query", query="elevated rights")["results"][0]["path"] == "guide.md"
            assert "denied" in pipe.call("knowledge_sync")["error"]
            assert "denied" in pipe.call("knowledge_init")["error"]


def test_the_group_can_be_left_out(project: Path) -> None:
    with piped(project, "--without", "knowledge") as pipe:
        pipe.initialize()
        assert not [name for name in pipe.tools() if name.startswith("knowledge")]
    with piped(project, "--only", "knowledge") as pipe:
        pipe.initialize()
        assert pipe.tools() == ["knowledge_query", "knowledge_init", "knowledge_sync"]


def test_only_the_project_is_searched_and_secrets_are_nowhere(synced: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2
    (synced / "settings.py").write_text(f"# The password of the harbour office\nTOKEN = '{secret}'\n")
    (synced.parent / "outside.md").write_text("# Outside\n\nThe harbour office opens at nine.\n")
    with piped(synced) as pipe:
        pipe.initialize()
        pipe.call("knowledge_sync")
        results = pipe.call("knowledge_query", query="harbour office password TOKEN")["results"]
    assert results[0]["path"] == "settings.py" and secret not in json.dumps(results)
    assert not any("outside" in found["path"] for found in results)


def test_several_at_once_over_http_get_their_own_answers(synced: Path) -> None:
    """The desk is one for the process, and the SDK calls it in many threads."""
    from rolecall.mcp.tools import Caller, McpToolbox, ToolContext

    toolbox = McpToolbox(ToolContext(str(synced)), ["knowledge"])
    tool = toolbox.find("knowledge_query")
    assert tool is not None
    wanted = {"elevated rights": "guide.md", "retry_limit": "src/retry.py"}
    found: list[tuple[str, str]] = []

    def ask(text: str) -> None:
        for _ in range(10):
            reply = json.loads(toolbox.run(tool, {"query": text, "max": 1}, Caller()).json)
            found.append((text, reply["results"][0]["path"]))

    threads = [Thread(target=ask, args=(text,)) for text in [*wanted, *wanted]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 40 and all(path == wanted[text] for text, path in found)


def test_asking_again_costs_little_because_the_index_stays_open(synced: Path) -> None:
    with piped(synced) as pipe:
        pipe.initialize()
        ticks = Path(f"/proc/{pipe.child.pid}/stat")
        if not ticks.exists():
            pytest.skip("this system does not tell what another process has used")
        begun = _ticks(ticks)
        pipe.call("knowledge_query", query="elevated rights")
        opened = _ticks(ticks)
        for number in range(20):
            pipe.call("knowledge_query", query=f"elevated rights {number}")
        # Twenty that opened it again would cost twenty times the first, on a busy machine, too.
        assert _ticks(ticks) - opened <= 3 * (opened - begun)


def _ticks(file: Path) -> int:
    return sum(map(int, file.read_text().rpartition(")")[2].split()[11:13]))


def test_the_home_of_the_server_is_the_one_of_its_environment(synced: Path) -> None:
    home = Path(environment(synced.parent)["ROLECALL_HOME"])
    assert (home / "knowledge" / "vectors.db").exists()

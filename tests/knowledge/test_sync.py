"""A sync does what has changed and nothing else, and everything anew where it has to, which it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from knowledge.knowrepo import PROGRAM, SETTINGS, Repo, read_terminal
from knowledge.vectorserver import VectorServer


def counts(done: dict[str, object]) -> tuple[object, object, object]:
    return done["indexed"], done["removed"], done["unchanged"]


def test_the_second_sync_finds_nothing_to_do(synced: Repo) -> None:
    before = synced.index.read_bytes()
    done = synced.sync()
    assert counts(done) == ([], [], 3) and done["computed"] == 0
    assert synced.json("status")["changed"] == []
    assert len(synced.index.read_bytes()) == len(before)


def test_contents_decide_and_not_times(synced: Repo) -> None:
    file = synced.folder / "src" / "retry.py"
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    for path in synced.folder.rglob("*.*"):
        os.utime(path, (1, 1))
    assert counts(synced.sync()) == ([], [], 3)
    file.write_text(file.read_text().replace("tried again", "asked twice"))  # of the same length
    os.utime(file, ns=times)
    assert counts(synced.sync()) == (["src/retry.py"], [], 2)
    assert "asked twice" in synced.query("retry_limit")[0]["text"]


def test_only_passages_that_are_new_are_computed(remote: Repo, server: VectorServer) -> None:
    remote.sync()
    before = len(server.texts)
    guide = remote.folder / "docs" / "guide.md"
    guide.write_text("\n\n" + guide.read_text() + "\n## Update\n\nFetch the newest parcel.\n")
    assert remote.sync()["indexed"] == ["docs/guide.md"]
    assert len(server.texts) - before <= 2 and "newest parcel" in "".join(server.texts[before:])


def test_what_is_gone_is_removed_and_what_moved_is_found_where_it_is(synced: Repo) -> None:
    (synced.folder / "src" / "parser.py").unlink()
    os.rename(synced.folder / "src" / "retry.py", synced.folder / "src" / "again.py")
    assert synced.json("status")["gone"] == ["src/parser.py", "src/retry.py"]
    done = synced.sync()
    assert counts(done) == (["src/again.py"], ["src/parser.py", "src/retry.py"], 1) and done["files"] == 2
    assert synced.first("retry_limit") == "src/again.py"
    assert not [
        found for found in synced.query("ConfigParser read_lines") if found["path"] == "src/parser.py"
    ]
    assert synced.query("splitlines", "--words") == []


def test_a_file_that_can_no_longer_be_indexed_leaves_the_index(synced: Repo) -> None:
    synced.write({"docs/guide.md": b"now\0binary"})
    done = synced.sync()
    assert done["removed"] == ["docs/guide.md"] and done["skipped"] == [
        {"path": "docs/guide.md", "reason": "is binary"}
    ]
    assert done["files"] == 2


def test_fewer_patterns_leave_fewer_files(synced: Repo) -> None:
    synced.write({"knowledge.yaml": 'include: ["*.md"]\n'})
    done = synced.sync()
    assert done["removed"] == ["src/parser.py", "src/retry.py"] and done["files"] == 1


def test_everything_can_be_gone(synced: Repo) -> None:
    synced.write({"knowledge.yaml": 'include: ["*.nothing"]\n'})
    assert synced.sync()["passages"] == 0
    assert synced.json("query", "retry", code=1)["results"] == []
    synced.write({"knowledge.yaml": SETTINGS})
    assert synced.sync()["files"] == 3


def test_rebuild_indexes_everything_and_computes_nothing_twice(synced: Repo) -> None:
    done = synced.sync("--rebuild")
    assert len(done["indexed"]) == 3 and done["computed"] == 0 and done["cached"] == done["passages"]


# -- branches --


def test_switching_branches_and_back_computes_nothing(remote: Repo, server: VectorServer) -> None:
    remote.commit()
    remote.sync()
    remote.git("switch", "--quiet", "--create", "other")
    remote.write(
        {
            "src/retry.py": "def retry_limit():\n    return 'the other branch'\n",
            "docs/more.md": "# More\n\nOnly here.\n",
        }
    )
    remote.commit()
    assert remote.sync()["computed"] > 0
    assert remote.first("only here") == "docs/more.md"
    before = len(server.texts)
    for branch, files in (("main", 3), ("other", 4), ("main", 3)):
        remote.git("switch", "--quiet", branch)
        done = remote.sync()
        assert (done["computed"], done["files"]) == (0, files) and done["cached"] > 0
    assert len(server.texts) == before
    assert remote.git("status", "--porcelain") == ""
    assert "tried again" in remote.query("retry_limit")[0]["text"]


def test_repositories_of_one_home_share_what_was_computed(
    remote: Repo, server: VectorServer, tmp_path: Path
) -> None:
    remote.sync()
    before = len(server.texts)
    other = Repo(tmp_path / "copy", tmp_path / "home")
    other.use(server)
    assert other.sync()["computed"] == 0
    assert len(server.texts) == before


# -- in another way than before --


def test_another_model_embeds_everything_anew_and_says_so(remote: Repo, server: VectorServer) -> None:
    remote.sync()
    remote.use(server, model="large")
    error = remote.refused("query", "how is it installed")
    assert (
        "was made with tiny of" in error
        and "the settings name large of" in error
        and "knowledge sync" in error
    )
    assert remote.first("ConfigParser", "--words") == "src/parser.py"
    status = remote("status", "--format", "text").stdout
    assert "embeds everything again" in status
    done = remote.sync()
    assert len(done["indexed"]) == 3 and done["computed"] == done["passages"]
    assert any("the model was tiny of" in note and "large of" in note for note in done["notes"])
    assert remote.first("elevated rights") == "docs/guide.md"
    remote.use(server, model="tiny")
    assert remote.sync()["computed"] == 0, "vectors of the model before are still kept"


def test_from_the_embedded_model_to_another_and_back(synced: Repo, server: VectorServer) -> None:
    synced.use(server)
    assert "wordllama" in synced.sync()["notes"][0]
    synced.write({"knowledge.yaml": SETTINGS})
    done = synced.sync()
    assert done["model"].startswith("wordllama") and done["computed"] == 0 and len(done["indexed"]) == 3


def test_passages_of_another_size_are_made_anew_and_it_is_said(synced: Repo) -> None:
    synced.write({"knowledge.yaml": f"{SETTINGS}chunk: {{tokens: 50}}\n"})
    done = synced.sync()
    assert len(done["indexed"]) == 3 and any("indexed again" in note for note in done["notes"])
    assert synced.sync()["notes"] == []


# -- what is shown --


def test_a_terminal_sees_how_far_it_is_and_a_pipe_does_not(repo: Repo) -> None:
    pytest.importorskip("pty")
    import pty

    repo.write({"docs/binary.md": b"\0"})
    master, slave = pty.openpty()
    done = subprocess.run(
        [PROGRAM, "knowledge", "sync"],
        cwd=repo.folder,
        env=repo.env,
        stdout=subprocess.PIPE,
        stderr=slave,
        check=True,
    )
    os.close(slave)
    shown = read_terminal(master)
    assert "0 of 4 files" in shown and "4 of 4 files" in shown
    assert shown.endswith("\r\x1b[K") and done.stdout
    assert repo("sync", "--rebuild").stderr == ""


def test_the_report_names_what_was_left_out(repo: Repo) -> None:
    repo.write({f"docs/b{number}.md": b"\0" for number in range(8)})
    text = repo("sync", "--format", "text").stdout
    assert "3 files indexed, 0 removed, 0 unchanged, 8 skipped" in text
    assert "skipped docs/b0.md: it is binary" in text and "and 3 more; --verbose names them" in text
    assert "skipped docs/b7.md" in repo("sync", "--format", "text", "--verbose").stdout


def test_status_tells_what_has_changed_since(synced: Repo) -> None:
    assert "every file is as indexed" in synced("status", "--format", "text").stdout
    synced.write({"docs/guide.md": "# Guide\n", "docs/new.md": "# New\n"})
    (synced.folder / "src" / "parser.py").unlink()
    status = synced.json("status")
    assert status["changed"] == ["docs/guide.md", "docs/new.md"] and status["gone"] == ["src/parser.py"]
    assert status["ignoredByGit"] is True and status["bytes"] > 0
    synced.write({".gitignore": ""})
    assert "git does not ignore the index" in synced("status", "--format", "text").stdout


def test_show_tells_how_a_file_was_cut(synced: Repo) -> None:
    shown = synced.json("show", "docs/guide.md")["passages"]
    assert shown[0]["start"] == 1 and "Install" in " ".join(shown[0]["trail"])
    text = synced("show", "src/retry.py:2", "--format", "text").stdout
    assert "def retry_limit" in text
    for given in ("retry.py", "./retry.py", "src/retry.py", str(synced.folder / "src/retry.py")):
        assert synced.json("show", given, cwd=synced.folder / "src")["path"] == "src/retry.py"
    assert "nothing of line 99 of src/retry.py is indexed" in synced.refused(
        "show", "src/retry.py:99", code=2
    )


def test_forget_takes_the_index_away_and_leaves_the_settings(synced: Repo) -> None:
    assert synced.json("forget")["removed"] is True
    assert not list(synced.folder.glob("knowledge.db*")) and (synced.folder / "knowledge.yaml").exists()
    assert synced.json("status", "-g") == {"repositories": []}
    assert synced.json("forget")["removed"] is False
    assert synced.sync()["computed"] == 0
    assert synced.json("forget", "--cache")["freed"] > 0
    assert synced.sync("--rebuild")["computed"] > 0


def test_the_command_line_imports_no_more_than_it_needs() -> None:
    heavy = "('numpy', 'tokenizers', 'sqlite3')"
    code = f"import sys, rolecall.cli.knowledge; print(*[name for name in sys.modules if name in {heavy}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

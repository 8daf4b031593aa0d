"""Whatever happens to a sync or to its files: an answer is right, or there is a message that says what to do."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from knowledge.knowrepo import Repo
from knowledge.vectorserver import VectorServer

PATIENCE = 60


def pages(count: int, word: str) -> dict[str, str | bytes]:
    return {f"docs/page{n:03}.md": f"# Page {n}\n\n{word} number {n} stands alone.\n" for n in range(count)}


def is_whole(repo: Repo, *words: str) -> str:
    """Which of the states that the files were in an index shows; nothing in between is ever seen."""
    done = repo("query", "stands alone", "--words", "--limit", "1000", code=None)
    if done.returncode not in (0, 1):
        assert "nothing has been indexed" in done.stderr and "knowledge sync" in done.stderr, done
        return ""
    texts = [found["text"] for found in json.loads(done.stdout)["results"]]
    seen = {word for word in words if any(word in text for text in texts)}
    assert len(seen) == 1, seen
    assert len(texts) == 40, len(texts)
    return seen.pop()


# -- killed and interrupted --


def test_killed_at_random_moments_an_index_is_the_one_before_or_the_one_after(repo: Repo) -> None:
    chance = random.Random(7)
    state, killed = "", 0
    for turn in range(12):
        word = f"Lantern{turn}"
        repo.write(pages(40, word))
        child = repo.start("sync")
        try:
            child.wait(chance.uniform(0.05, 1.5))
        except subprocess.TimeoutExpired:
            child.kill()
            killed += 1
        child.communicate(timeout=PATIENCE)
        found = is_whole(repo, *(f"Lantern{n} " for n in range(turn + 1)))
        assert found in (state, f"{word} ")
        state = found
    assert killed >= 3
    repo.sync()
    assert is_whole(repo, "Lantern11 ") == "Lantern11 "
    assert repo.first("Lantern11 number 23") == "docs/page023.md"
    assert repo.json("status")["changed"] == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_sync_that_is_ended_half_way_leaves_the_state_before_it(
    remote: Repo, server: VectorServer, how: signal.Signals
) -> None:
    remote.write(pages(40, "First"))
    remote.sync()
    remote.write(
        {**pages(40, "Second"), **{f"docs/z{n:03}.md": f"# Z {n}\n\nMore of it {n}.\n" for n in range(300)}}
    )
    server.hold = "of it 290."
    child = remote.start("sync")
    assert server.held.wait(PATIENCE)  # most of it is written by now, and nothing committed
    child.send_signal(how)
    _, errors = child.communicate(timeout=PATIENCE)
    assert child.returncode != 0 and b"Traceback" not in errors
    assert is_whole(remote, "First ", "Second ") == "First "
    server.hold = ""
    server.release.set()
    done = remote.sync()
    assert done["files"] == 343 and done["cached"] > 0
    assert is_whole(remote, "First ", "Second ") == "Second "
    fresh = remote.json("show")
    remote.sync("--rebuild")
    assert remote.json("show") == fresh


def test_a_question_beside_a_sync_is_answered_from_the_state_before(
    remote: Repo, server: VectorServer
) -> None:
    remote.write(pages(40, "First"))
    remote.sync()
    remote.write(pages(40, "Second"))
    server.hold = "Second number 39"
    child = remote.start("sync")
    assert server.held.wait(PATIENCE)
    assert is_whole(remote, "First ", "Second ") == "First "
    assert remote.first("First number 12 stands alone") == "docs/page012.md"  # by vectors, too
    assert remote.json("status")["files"] == 43
    server.release.set()
    child.communicate(timeout=PATIENCE)
    assert child.returncode == 0
    assert is_whole(remote, "First ", "Second ") == "Second "


def test_the_second_of_two_syncs_waits_and_finds_it_done(remote: Repo, server: VectorServer) -> None:
    server.hold = "elevated"
    first = remote.start("sync")
    assert server.held.wait(PATIENCE)
    second = remote.start("sync")
    server.release.set()
    outs = [json.loads(child.communicate(timeout=PATIENCE)[0]) for child in (first, second)]
    assert [len(out["indexed"]) for out in outs] == [3, 0]
    assert sorted(set(server.texts)) == sorted(server.texts)


def test_an_open_index_does_not_hold_up_a_sync(synced: Repo) -> None:
    """A server that waits for questions, and one that is asked right now."""
    from rolecall.knowledge.index import Reader

    reader = Reader(str(synced.index))
    before = reader.state.generation
    synced.write({"docs/new.md": "# New\n\nSomething new.\n"})
    child = synced.start("sync")
    child.communicate(timeout=30)
    assert child.returncode == 0
    assert reader.digests().keys() == {"docs/guide.md", "src/parser.py", "src/retry.py"}
    reader.refresh()
    assert "docs/new.md" in reader.digests() and reader.state.generation > before
    reader.close()


def test_a_file_that_changes_while_it_is_indexed_is_told_as_changed(
    remote: Repo, server: VectorServer
) -> None:
    server.hold = "elevated"
    child = remote.start("sync")
    assert server.held.wait(PATIENCE)
    remote.write({"docs/guide.md": "# Guide\n\nWritten while it was read.\n"})
    (remote.folder / "src" / "retry.py").unlink()
    server.release.set()
    child.communicate(timeout=PATIENCE)
    assert child.returncode == 0
    status = remote.json("status")
    assert status["changed"] == ["docs/guide.md"] and status["gone"] == ["src/retry.py"]
    found = remote.query("elevated rights", "--words")
    assert found[0]["stale"] is True
    assert remote.sync()["indexed"] == ["docs/guide.md"]
    assert remote.query("written while it was read", "--words")[0]["stale"] is False


# -- damaged --


def test_damage_anywhere_never_gives_a_wrong_answer(repo: Repo) -> None:
    """Bytes of the index are overwritten at random places; it is made anew, or what was hit is not asked for."""
    repo.write(pages(40, "Lantern"))
    repo.sync()
    right = [(found["path"], found["text"]) for found in repo.query("Lantern number 17")]
    good = repo.index.read_bytes()
    chance = random.Random(3)
    said = 0
    for _ in range(12):
        data = bytearray(good)
        at = chance.randrange(100, len(data) - 600)
        data[at : at + 512] = chance.randbytes(512)
        repo.index.write_bytes(data)
        done = repo("query", "Lantern number 17", code=None)
        assert done.returncode == 0, done.stderr
        found = [(each["path"], each["text"]) for each in json.loads(done.stdout)["results"]]
        assert found == right or "made anew" in done.stderr
        assert found[0] == right[0]
        said += "made anew" in done.stderr
        if "made anew" in done.stderr:
            assert repo.query("Lantern number 17")[0]["path"] == right[0][0]
    assert said > 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:100],
        lambda data: b"not a database at all, but long enough to be taken for one " * 100,
        lambda data: data[:16] + b"\xff" * (len(data) - 16),
    ],
    ids=["half", "header", "garbage", "ones"],
)
def test_an_index_that_is_damaged_is_made_anew_and_it_is_said(synced: Repo, spoil: object) -> None:
    for command in (("query", "elevated rights"), ("sync",)):
        synced.index.write_bytes(spoil(synced.index.read_bytes()))  # type: ignore[operator]
        done = synced(*command)
        assert "made anew" in done.stderr, (command, done)
        assert synced.first("elevated rights") == "docs/guide.md"
        assert synced.json("status")["files"] == 3


def test_who_may_not_write_is_told_that_it_is_damaged(synced: Repo) -> None:
    synced.index.write_bytes(b"garbage" * 1000)
    before = synced.index.read_bytes()
    told = synced.refused("query", "rights", ROLECALL_RESTRICTIONS="read_only")
    assert "knowledge.db" in told and "`rolecall knowledge sync` makes it anew" in told
    assert synced.index.read_bytes() == before


def test_an_empty_file_is_an_index_that_was_never_made(synced: Repo) -> None:
    synced.index.write_bytes(b"")
    assert "nothing has been indexed" in synced.refused("query", "rights")
    assert synced.sync()["files"] == 3


def test_a_newer_version_is_refused_and_left_alone(synced: Repo) -> None:
    db = sqlite3.connect(synced.index)
    db.execute("PRAGMA user_version=99")
    db.close()
    before = synced.index.read_bytes()
    for command in (("query", "rights"), ("sync",), ("status",), ("sync", "--rebuild")):
        told = synced.refused(*command)
        assert "was written by a newer version (format 99" in told and "Upgrade rolecall" in told
        assert "knowledge forget" in told
    assert synced.index.read_bytes() == before
    synced("forget")
    assert synced.sync()["files"] == 3


def test_an_older_version_is_made_anew(synced: Repo) -> None:
    db = sqlite3.connect(synced.index)
    db.execute("PRAGMA user_version=0")
    db.close()
    done = synced("query", "elevated rights")
    assert "made anew" in done.stderr and json.loads(done.stdout)["results"][0]["path"] == "docs/guide.md"


def test_another_programs_database_is_left_alone(repo: Repo) -> None:
    db = sqlite3.connect(repo.index)
    db.execute("CREATE TABLE mine (a)")
    db.close()
    before = repo.index.read_bytes()
    for command in (("sync",), ("query", "rights")):
        assert "is another program's database" in repo.refused(*command)
    assert repo.index.read_bytes() == before


def test_a_folder_where_the_index_should_be_is_an_error(repo: Repo) -> None:
    repo.index.mkdir()
    for command in (("sync",), ("query", "rights"), ("status",)):
        assert "knowledge.db" in repo.refused(*command)


@pytest.mark.parametrize("spoil", [b"garbage" * 1000, b"", None], ids=["garbage", "empty", "folder"])
def test_a_damaged_cache_costs_time_and_nothing_else(synced: Repo, spoil: bytes | None) -> None:
    cache = synced.home / "knowledge" / "vectors.db"
    cache.unlink()
    for beside in cache.parent.glob("vectors.db-*"):
        beside.unlink()
    if spoil is None:
        cache.mkdir()
    else:
        cache.write_bytes(spoil)
    done = synced("sync", "--rebuild")
    assert json.loads(done.stdout)["computed"] > 0 and synced.first("elevated rights") == "docs/guide.md"
    assert not spoil or "damaged" in done.stderr
    assert spoil is not None or "cannot be used" in done.stderr


# -- places --


def test_an_index_that_may_only_be_read_can_be_asked(synced: Repo, tmp_path: Path) -> None:
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("there is no setpriv")
    for path in [*synced.folder.glob("knowledge.db*"), synced.folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    caps = "-dac_override,-dac_read_search,-fowner"
    lesser = ["setpriv", "--bounding-set", caps, "--inh-caps", caps] if os.geteuid() == 0 else []
    try:
        command = [*lesser, *synced.command("query", "elevated rights", "--limit", "1")]
        asked = subprocess.run(
            command, cwd=synced.folder, env=synced.env, capture_output=True, text=True, check=False
        )
        command = [*lesser, *synced.command("sync")]
        refused = subprocess.run(
            command, cwd=synced.folder, env=synced.env, capture_output=True, text=True, check=False
        )
    finally:
        synced.folder.chmod(0o755)
    assert asked.returncode == 0 and json.loads(asked.stdout)["results"][0]["path"] == "docs/guide.md", (
        asked.stderr
    )
    assert (
        refused.returncode not in (0, 1)
        and "Traceback" not in refused.stderr
        and "knowledge.db" in refused.stderr
    )


def test_a_repository_with_a_strange_name_is_like_any_other(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "a b?c#d%20'é\n", tmp_path / "home")
    assert repo.sync()["files"] == 3
    assert repo.first("elevated rights") == "docs/guide.md"
    assert repo.json("query", "-g", "elevated rights")["results"][0]["repository"] == str(repo.folder)


def test_a_full_disk_leaves_the_state_before(synced: Repo) -> None:
    """A limit on the size of files stands in for it."""
    synced.write(pages(200, "Lantern " * 200))
    size = synced.index.stat().st_size
    limited = [
        "bash",
        "-c",
        f'trap "" XFSZ; ulimit -f {size // 1024 + 40}; exec "$@"',
        "-",
        *synced.command("sync"),
    ]
    done = subprocess.run(
        limited, cwd=synced.folder, env=synced.env, capture_output=True, text=True, check=False
    )
    assert done.returncode not in (0, 1) and "Traceback" not in done.stderr, done
    assert synced.json("status")["files"] == 3
    assert synced.first("elevated rights") == "docs/guide.md"
    assert synced.sync()["files"] == 203

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

from knowledge.knowrepo import SETTINGS, Repo
from knowledge.vectorserver import Fault, VectorServer
from rolecall.knowledge.index import IndexReader

PATIENCE = 120


def pages(count: int, word: str) -> dict[str, str | bytes]:
    return {f"docs/page{n:03}.md": f"# Page {n}\n\n{word} number {n} stands alone.\n" for n in range(count)}


def is_whole(repo: Repo, *words: str) -> str:
    """Which of the states that the files were in an index shows; nothing in between is ever seen."""
    done = repo("query", "stands alone", "--words", "--max", "1000", "--json", code=None)
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
    state, killed, turn = "", 0, 0
    while turn < 8 or killed < 3:
        assert turn < 60, "syncs end before they can be killed"
        word = f"Lantern{turn}"
        repo.write(pages(40, word))
        child = repo.start("sync")
        try:
            child.wait(chance.uniform(0.02, 0.6))
        except subprocess.TimeoutExpired:
            child.kill()
            killed += 1
        child.communicate(timeout=PATIENCE)
        found = is_whole(repo, *(f"Lantern{n} " for n in range(turn + 1)))
        assert found in (state, f"{word} ")
        state = found
        turn += 1
    repo.sync()
    assert is_whole(repo, f"{word} ") == f"{word} "
    assert repo.first(f"{word} number 23") == "docs/page023.md"
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
    first = remote.start("sync", "--json")
    assert server.held.wait(PATIENCE)
    second = remote.start("sync", "--json")
    server.release.set()
    outs = [json.loads(child.communicate(timeout=PATIENCE)[0]) for child in (first, second)]
    assert [len(out["indexed"]) for out in outs] == [3, 0]
    assert sorted(set(server.texts)) == sorted(server.texts)


def test_an_open_index_does_not_hold_up_a_sync(synced: Repo) -> None:
    """A server that waits for questions, and one that is asked right now."""
    reader = IndexReader(str(synced.index))
    before = reader.state.generation
    synced.write({"docs/new.md": "# New\n\nSomething new.\n"})
    child = synced.start("sync")
    child.communicate(timeout=PATIENCE)
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
        assert "rebuilt" in done.stderr, (command, done)
        (found, *_) = synced.query("elevated rights")
        assert found["path"] == "docs/guide.md" and found["stale"] is False


def test_who_may_not_write_is_told_that_it_is_damaged(synced: Repo) -> None:
    synced.index.write_bytes(b"garbage" * 1000)
    before = synced.index.read_bytes()
    error = synced.refused("query", "rights", ROLECALL_RESTRICTIONS="read_only")
    assert "knowledge.db" in error and "Rebuild it: `rolecall knowledge sync --rebuild`" in error
    assert synced.index.read_bytes() == before


def test_damage_that_only_a_question_finds_is_told_with_what_mends_it(synced: Repo) -> None:
    def spoil() -> None:
        db = sqlite3.connect(synced.index)
        with db:
            db.execute("DROP TABLE passage")
        db.close()

    spoil()
    error = synced.refused("query", "elevated rights", ROLECALL_RESTRICTIONS="read_only")
    assert "damaged" in error and "`rolecall knowledge sync --rebuild`" in error
    synced.sync("--rebuild")
    assert synced.first("elevated rights") == "docs/guide.md"
    spoil()
    done = synced("query", "elevated rights", "--json")
    assert "rebuilt" in done.stderr and json.loads(done.stdout)["results"][0]["path"] == "docs/guide.md"


def test_looking_at_a_damaged_index_says_what_to_do(synced: Repo) -> None:
    synced.index.write_bytes(b"garbage" * 1000)
    for command in (("status",), ("show",), ("show", "docs/guide.md")):
        assert "`rolecall knowledge sync --rebuild`" in synced.refused(*command, code=4)


def test_two_syncs_that_find_it_damaged_leave_one_whole_index(remote: Repo, server: VectorServer) -> None:
    remote.sync()
    remote.index.write_bytes(b"garbage" * 1000)
    children = [remote.start("sync") for _ in range(4)]
    outs = [child.communicate(timeout=PATIENCE) for child in children]
    assert [child.returncode for child in children] == [0, 0, 0, 0], outs
    assert sum(b"rebuilt" in err for _, err in outs) == 1
    assert remote.json("status")["files"] == 3 and remote.first("elevated rights") == "docs/guide.md"


def test_an_index_is_not_taken_away_from_under_a_sync(remote: Repo, server: VectorServer) -> None:
    remote.sync()
    remote.write({"docs/new.md": "# New\n\nSomething new.\n"})
    server.hold = "Something"
    sync = remote.start("sync")
    assert server.held.wait(PATIENCE)
    forget = remote.start("forget")
    server.release.set()
    assert [child.communicate(timeout=PATIENCE) and child.returncode for child in (sync, forget)] == [0, 0]
    assert not list(remote.folder.glob("knowledge.db*"))


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
        error = synced.refused(*command)
        assert "was written by a newer version (format 99" in error and "Upgrade Rolecall" in error
        assert "knowledge forget" in error
    assert synced.index.read_bytes() == before
    synced("forget")
    assert synced.sync()["files"] == 3


def test_an_older_version_is_made_anew(synced: Repo) -> None:
    db = sqlite3.connect(synced.index)
    db.execute("PRAGMA user_version=0")
    db.close()
    done = synced("query", "elevated rights", "--json")
    assert "rebuilt" in done.stderr and json.loads(done.stdout)["results"][0]["path"] == "docs/guide.md"


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
    for command in (("sync",), ("query", "rights"), ("status",), ("show",), ("forget",)):
        error = repo.refused(*command, code=2)
        assert "knowledge.db is" in error and "Move it away" in error


def test_a_link_where_the_index_should_be_leads_nowhere_and_is_forgotten(repo: Repo, tmp_path: Path) -> None:
    outside = tmp_path / "outside.db"
    repo.index.symlink_to(outside)
    for command in (("sync",), ("query", "rights"), ("sync", "--rebuild")):
        assert "a link or a folder" in repo.refused(*command, code=2)
    repo("forget")
    assert not repo.index.is_symlink() and not outside.exists()
    assert repo.sync()["files"] == 3


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
    done = synced("sync", "--rebuild", "--json")
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
        command = [*lesser, *synced.command("query", "elevated rights", "--max", "1", "--json")]
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


def test_settings_that_are_no_file_hold_nothing_up(repo: Repo) -> None:
    (repo.folder / "knowledge.yaml").unlink()
    os.mkfifo(repo.folder / "knowledge.yaml")
    for command in (("sync",), ("query", "rights"), ("status",)):
        assert "knowledge.yaml is not a file" in repo.refused(*command, code=2)
    (repo.folder / "knowledge.yaml").unlink()
    (repo.folder / "knowledge.yaml").symlink_to("/dev/zero")
    assert "knowledge.yaml is not a file" in repo.refused("sync", code=2)


def test_of_many_repositories_those_that_can_be_asked_are(
    synced: Repo, tmp_path: Path, server: VectorServer
) -> None:
    """One is gone, one has another model, one is damaged, one has an endpoint that is down."""
    names = ("gone", "other-model", "damaged", "down", "without-settings")
    repos = {name: Repo(tmp_path / name, tmp_path / "home") for name in names}
    for name in ("other-model", "down"):
        repos[name].use(server)
    for repo in repos.values():
        repo.sync()
    repos["gone"].folder.rename(tmp_path / "moved")
    repos["other-model"].write({"knowledge.yaml": SETTINGS})
    repos["damaged"].index.write_bytes(b"garbage" * 1000)
    (repos["without-settings"].folder / "knowledge.yaml").unlink()
    server.faults = [Fault(401, b"no such key")] * 9
    reply = synced.json("query", "-g", "elevated rights")
    found = {Path(each["repository"]).name for each in reply["results"]}
    assert found == {"repo", "damaged"}
    notes = {name: [note for note in reply["notes"] if f"/{name} " in note] for name in names}
    assert "no longer exists" in notes["gone"][0] and "forget it" in notes["gone"][0]
    assert "Embed everything again" in notes["other-model"][0]
    assert "HTTP 401" in notes["down"][0]
    assert "has no knowledge.yaml" in notes["without-settings"][0]
    assert "damaged/knowledge.db is damaged" in "".join(reply["notes"])
    synced("forget", "--repo", str(repos["gone"].folder))
    assert not [note for note in synced.json("query", "-g", "rights")["notes"] if "/gone " in note]


def test_a_home_that_cannot_be_written_costs_time_and_is_told(repo: Repo) -> None:
    repo.home.mkdir(parents=True)
    (repo.home / "knowledge").write_text("no folder\n")
    done = repo("sync")
    assert "every text is computed" in done.stderr and "not among those that `-g` asks" in done.stderr
    assert repo.first("elevated rights") == "docs/guide.md"


def test_a_repository_that_was_moved_is_asked_where_it_is(synced: Repo, tmp_path: Path) -> None:
    synced.folder = synced.folder.rename(tmp_path / "moved")
    assert synced.first("elevated rights") == "docs/guide.md"
    assert synced.sync()["unchanged"] == 3
    (found, *_) = synced.json("query", "-g", "elevated rights")["results"]
    assert found["repository"] == str(synced.folder)


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

"""Proofs of commits: real repositories and threads, exported proofs, and single-bit changes of all of them."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import zlib
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rolecall.errors import NotFound, RolecallError
from rolecall.files.tree import Trees
from rolecall.settings import stores
from rolecall.threads.provenance import Proof, prove
from rolecall.threads.seal import load_chain

if TYPE_CHECKING:
    from conftest import Rolecall

FLOW = {
    "name": "flow",
    "description": "One writes, a person approves.",
    "workdir": "worktree",
    "roles": {
        "writer": {"prompt": "Write the heron poem.", "schema": {"type": "object"}},
        "boss": {"prompt": "Approve it.", "schema": {"type": "object"}, "agent": "human"},
    },
    "graph": {"$START": "writer", "writer": "boss", "boss": "$END"},
}
COMMIT = ["git", "-c", "user.name=A", "-c", "user.email=a@b", "commit", "-q", "-am", "by the agent"]
WRITER: list[dict[str, Any]] = [
    {"edit": {"poem": "roses\nviolets\n"}, "run": [COMMIT], "output": {"status": "done", "why": "kingfisher"}}
]


class Stage:
    def __init__(self, rolecall: Rolecall, place: Path, writer: list[dict[str, Any]] = WRITER) -> None:
        self.folder, self.place, self.rolecall = place / "work", place, rolecall
        self.folder.mkdir()
        (self.folder / "poem").write_text("roses\n")
        self.git("init", "-q")
        for name, value in (("user.name", "A"), ("user.email", "a@b")):
            self.git("config", name, value)
        self.git("add", "-A")
        self.git("commit", "-qm", "first")
        (place / "flow.yaml").write_text(json.dumps(FLOW))
        (place / "script.json").write_text(json.dumps({"roles": {"writer": writer}}))
        self.store = place / "s.db"
        words = (
            "thread",
            "start",
            str(place / "flow.yaml"),
            "-p",
            "A poem about ospreys",
            "--cwd",
            str(self.folder),
        )
        agent = ("--agent", f"scripted:{place / 'script.json'}", "--store", str(self.store))
        self.thread: str = rolecall.json(*words, *agent)["thread"]
        rolecall("thread", "run", self.thread, "--store", str(self.store))
        rolecall(
            "thread",
            "answer",
            self.thread,
            "--output",
            '{"status": "approved"}',
            "--store",
            str(self.store),
            check=0,
        )
        rolecall("thread", "run", self.thread, "--store", str(self.store))

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(self.folder), *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def merge(self) -> str:
        self.rolecall("thread", "folder", "merge", self.thread, "--store", str(self.store), check=0)
        return self.git("rev-parse", "HEAD")

    def prove(self, commit: str = "HEAD", data: bytes | None = None) -> Proof:
        if data is not None:
            return prove(str(self.folder), commit, store=None, given=load_chain(data, "proof"))
        with stores.open_store(str(self.store)) as store:
            return prove(str(self.folder), commit, store=store, trees=Trees(str(self.place / "none")))


@pytest.fixture
def stage(rolecall: Rolecall, tmp_path: Path) -> Stage:
    return Stage(rolecall, tmp_path)


def test_a_merge_leads_to_its_steps_people_and_files(stage: Stage) -> None:
    stage.merge()
    proof = stage.prove()
    assert proof.problems == ()
    assert [step.role for step in proof.steps] == ["writer", "boss"]
    assert [(one.role, one.door) for one in proof.people] == [("boss", "cli")]
    assert "heron" in (proof.steps[0].prompt or "")
    assert proof.task == "A poem about ospreys"
    assert f"Rolecall-Step: {proof.step}" in stage.git("log", "-1", "--format=%B")


def test_a_commit_of_an_agent_is_found_before_and_after_its_merge(stage: Stage) -> None:
    made = stage.git("rev-parse", f"rolecall/{stage.thread}")
    assert stage.prove(made).anchor == ""
    merged = stage.merge()
    proof = stage.prove(made)
    assert (proof.problems, proof.anchor) == ((), merged)
    assert proof.steps[0].commits == (made,)
    with pytest.raises(NotFound, match="no step is known"):
        stage.prove(f"{made}^")


def test_work_that_no_agent_committed_is_committed_with_trailers(rolecall: Rolecall, tmp_path: Path) -> None:
    stage = Stage(rolecall, tmp_path, [{"edit": {"poem": "new\n"}, "output": {"status": "done"}}])
    stage.merge()
    assert stage.prove("HEAD^2").is_proven
    stage.git("commit", "-q", "--amend", "-m", stage.git("log", "-1", "--format=%B") + "\nx", "--allow-empty")
    (stage.folder / "poem").write_text("smuggled\n")
    stage.git("commit", "-qa", "--amend", "--no-edit")
    [problem] = stage.prove().problems  # words below the trailers hide nothing
    assert "neither of its parents contained, in poem" in problem


def test_what_a_person_adds_to_a_merge_is_noticed(stage: Stage) -> None:
    stage.merge()
    (stage.folder / "poem").write_text("smuggled\n")
    stage.git("commit", "-qa", "--amend", "--no-edit")
    [problem] = stage.prove().problems
    assert "neither of its parents contained" in problem


def test_an_exported_proof_has_no_texts_and_can_be_checked_without_the_store(stage: Stage) -> None:
    stage.merge()
    data = stage.prove().sealed.dump()
    for word in (b"heron", b"osprey", b"kingfisher", b"violets", b"poem", str(stage.folder).encode()):
        assert word not in data
    stage.store.unlink()
    proof = stage.prove(data=data)
    assert (proof.problems, proof.source, proof.task) == ((), "bundle", None)
    assert [step.status for step in proof.steps] == ["done", "approved"]


def test_every_single_bit_change_is_noticed(stage: Stage) -> None:
    commit = stage.merge()
    sealed = stage.prove().sealed
    data, chance = sealed.dump(), random.Random(7)

    def flip(content: bytes) -> bytes:
        at = chance.randrange(len(content) * 8)
        return content[: at // 8] + bytes([content[at // 8] ^ 1 << at % 8]) + content[at // 8 + 1 :]

    def is_noticed(given: bytes | None) -> bool:
        try:
            return not stage.prove(commit, given).is_proven
        except RolecallError:
            return True

    assert not is_noticed(data)
    assert not is_noticed(None)
    assert all(is_noticed(flip(data)) for _ in range(500))

    place = stage.folder / ".git/objects" / commit[:2] / commit[2:]
    whole = zlib.decompress(place.read_bytes())
    place.chmod(0o600)
    for _ in range(50):
        place.write_bytes(zlib.compress(flip(whole)))
        assert is_noticed(data)
    place.write_bytes(zlib.compress(whole))

    # The steps, their records, prompts, answers and outputs, and the workflow.
    known = {*sealed.nodes, *(one for node in sealed.nodes.values() for one in node.refs)}
    with closing(sqlite3.connect(stage.store)) as db:
        rows = dict(db.execute("SELECT id, data FROM nodes"))
        bits = [(node, bit) for node in sorted(known) for bit in range(len(rows[node]) * 8)]
        for node, bit in chance.sample(bits, 450):
            changed = bytearray(rows[node])
            changed[bit // 8] ^= 1 << bit % 8
            for content in (bytes(changed), rows[node]):
                with db:
                    db.execute("UPDATE nodes SET data = ? WHERE id = ?", (content, node))
                if content != rows[node]:
                    assert is_noticed(None), (node, bit)
    assert not is_noticed(None)

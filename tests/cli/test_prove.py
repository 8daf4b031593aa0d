"""`rolecall prove` as a command, in real repositories: merged, rebased and squashed commits, and those of members."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Rolecall

OBJECT = {"type": "object"}
CHECKER = "#!/bin/sh\ngrep -q violets poem && printf -- '---\\nstatus: passed\\n---\\n'\n"
GROUP = {
    "name": "write-parts",
    "description": "Two write at once.",
    "roles": {
        "writer": {
            "times": 2,
            "workdir": "worktree",
            "merge": "queue",
            "goal": "Write part {{number}}.",
            "schema": OBJECT,
            "check": ["test", "-f", "poem"],
        }
    },
    "graph": {"$START": "writer", "writer": {"done": "$END", "partly": "$FAIL", "failed": "$FAIL"}},
}
MEMBER = """\
#!/bin/sh
number=$(grep -o 'Write part [0-9]*' | head -n 1 | grep -o '[0-9]*$')
echo "$number" > "part-$number"
printf -- '---\\nstatus: done\\n---\\nWrote it.\\n'
"""


class Repository:
    def __init__(self, rolecall: Rolecall, place: Path) -> None:
        self.rolecall, self.place, self.folder = rolecall, place, place / "work"
        self.folder.mkdir()
        (self.folder / "poem").write_text("roses\n")
        self.git("init", "-q", "--initial-branch=main")
        self.git("config", "user.name", "A")
        self.git("config", "user.email", "a@b")
        self.git("add", "-A")
        self.git("commit", "-qm", "first")

    def git(self, *words: str) -> str:
        argv = ["git", "-C", str(self.folder), *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout.strip()

    def make_program(self, name: str, text: str) -> str:
        path = self.place / name
        path.write_text(text)
        path.chmod(0o755)
        return f"command:{path}"

    def start(self, flow: dict[str, Any], *words: str) -> str:
        file = self.place / f"{flow['name']}.yaml"
        file.write_text(json.dumps(flow))
        words = (str(file), "-p", "A poem about ospreys", "--cwd", str(self.folder), *words)
        ident: str = self.rolecall.json("thread", "start", *words)["thread"]
        self.rolecall("thread", "run", ident)
        return ident

    def write_poem(self) -> str:
        """Let a thread write, check and approve the poem; return the thread, which is not merged."""
        writer = [{"edit": {"poem": "roses\nviolets\n"}, "output": {"status": "done"}}]
        (self.place / "script.json").write_text(json.dumps({"roles": {"writer": writer}}))
        agents = {
            "writer": f"scripted:{self.place / 'script.json'}",
            "tests": self.make_program("check.sh", CHECKER),
            "boss": "human",
        }
        prompts = {"writer": "Write the heron poem.", "tests": "Check it.", "boss": "Approve it."}
        flow = {
            "name": "flow",
            "description": "One writes, a command checks, a person approves.",
            "workdir": "worktree",
            "roles": {
                name: {"prompt": prompts[name], "schema": OBJECT, "agent": agents[name]} for name in agents
            },
            "graph": {"$START": "writer", "writer": "tests", "tests": "boss", "boss": "$END"},
        }
        ident = self.start(flow)
        self.rolecall("thread", "answer", ident, "--output", '{"status": "approved"}', check=0)
        self.rolecall("thread", "run", ident, check=0)
        return ident

    def merge(self, ident: str) -> None:
        self.rolecall("thread", "folder", "merge", ident, check=0)

    def advance(self) -> None:
        """Commit something else on the main branch."""
        (self.folder / "other").write_text("other\n")
        self.git("add", "-A")
        self.git("commit", "-qm", "by a person")


@pytest.fixture
def repository(rolecall: Rolecall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    made = Repository(rolecall, tmp_path)
    monkeypatch.chdir(made.folder)
    return made


def test_a_proof_lists_checks_people_and_steps(rolecall: Rolecall, repository: Repository) -> None:
    repository.merge(repository.write_poem())
    text = rolecall("prove", check=0).stdout
    assert text.startswith("proven: ")
    assert "  prompt   Write the heron poem." in text  # and not what every role is told
    assert "Write the heron poem." in rolecall("prove", "--json", check=0).stdout
    checks = text.partition("\nchecks\n")[2]
    assert checks.startswith("  tests · ") and "check.sh" in checks and " · passed" in checks
    people = text.partition("\npeople who answered\n")[2].partition("\n\n")[0]
    assert "(cli) · boss · approved · " in people
    shown = rolecall.json("prove")
    assert [(one["role"], one["status"]) for one in shown["checks"]] == [("tests", "passed")]


def test_an_exported_proof_is_checked_without_the_store(
    rolecall: Rolecall, repository: Repository, tmp_path: Path
) -> None:
    repository.merge(repository.write_poem())
    proof = tmp_path / "proof.json"
    rolecall("prove", "HEAD", "--export", str(proof), check=0)
    assert "exists" in rolecall("prove", "HEAD", "--export", str(proof), check=2).stderr
    assert not {word for word in ("heron", "osprey", "violets") if word in proof.read_text()}

    empty = ("--store", str(tmp_path / "empty.db"))
    text = rolecall("prove", "HEAD", "--bundle", str(proof), *empty, check=0).stdout
    assert text.startswith("proven: ") and "task      (withheld)" in text and "heron" not in text
    assert "tests · " in text.partition("\nchecks\n")[2] and "boss · approved" in text
    rolecall("prove", "HEAD^", "--bundle", str(proof), *empty, check=3)
    proof.write_text(proof.read_text().replace('"approved"', '"rejected"'))
    assert "not a whole proof" in rolecall("prove", "HEAD", "--bundle", str(proof), *empty, check=4).stderr


def test_a_statement_is_made_on_request(rolecall: Rolecall, repository: Repository) -> None:
    repository.merge(repository.write_poem())
    done = rolecall("prove", "--as", "in-toto", check=0)
    statement = json.loads(done.stdout)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "urn:rolecall:provenance:v1"
    commit, tree = repository.git("rev-parse", "HEAD", "HEAD^{tree}").split()
    assert statement["subject"] == [
        {"name": "commit", "digest": {"gitCommit": commit}},
        {"name": "tree", "digest": {"gitTree": tree}},
    ]
    predicate = statement["predicate"]
    assert [step["role"] for step in predicate["steps"]] == ["writer", "tests", "boss"]
    assert [(one["role"], one["status"]) for one in predicate["approvals"]] == [("boss", "approved")]
    assert [one["status"] for one in predicate["checks"]] == ["passed"]
    assert not {word for word in ("heron", "osprey", "violets") if word in done.stdout}


def test_exit_codes_say_what_was_found(rolecall: Rolecall, repository: Repository) -> None:
    repository.merge(repository.write_poem())
    outside = repository.place
    assert f"{outside} is not in a git repository" in rolecall("prove", cwd=outside, check=3).stderr
    assert "there is no commit 'nowhere'" in rolecall("prove", "nowhere", check=3).stderr
    assert "no step is known that made" in rolecall("prove", "HEAD^", check=3).stderr
    (repository.folder / "poem").write_text("smuggled\n")
    repository.git("commit", "-qa", "--amend", "--no-edit")
    done = rolecall("prove", check=1)
    assert (
        done.stdout.startswith("not proven: ") and "neither of its parents contained, in poem" in done.stdout
    )
    done = rolecall("prove", "--as", "in-toto", check=1)
    assert "in-toto" not in done.stdout


def test_a_rebased_commit_is_compared_file_by_file(rolecall: Rolecall, repository: Repository) -> None:
    repository.merge(repository.write_poem())
    work = repository.git("rev-parse", "HEAD^2")
    repository.git("checkout", "-q", "-B", "later", "HEAD^1")
    repository.advance()
    repository.git("cherry-pick", work)
    done = rolecall("prove", check=0)
    assert "each file that it changes is as step " in done.stdout
    (repository.folder / "poem").write_text("smuggled\n")
    repository.git("commit", "-qa", "--amend", "--no-edit")
    assert "did not leave these files in this state: poem" in rolecall("prove", check=1).stdout


def test_a_squashed_commit_is_proven_only_with_its_trailers(
    rolecall: Rolecall, repository: Repository
) -> None:
    repository.merge(repository.write_poem())
    merged = repository.git("rev-parse", "HEAD")
    trailers = repository.git("log", "-1", "--format=%(trailers:unfold)")
    repository.git("checkout", "-q", "-B", "later", "HEAD^1")
    repository.advance()
    repository.git("merge", "-q", "--squash", merged)
    repository.git("commit", "-qm", f"squashed\n\n{trailers}")
    assert "each file that it changes is as step " in rolecall("prove", check=0).stdout
    # As GitHub writes the message of a squashed pull request. A title may have any character.
    squashed = (
        f"A\x1fchange (#7)\n\n* Mine\n\n* Ours\n\n{trailers}\n\n---------\n\nCo-authored-by: x <x@localhost>"
    )
    repository.git("commit", "-q", "--amend", "-m", squashed)
    assert "each file that it changes is as step " in rolecall("prove", check=0).stdout
    repository.git("commit", "-q", "--amend", "-m", "squashed")
    assert "no step is known that made" in rolecall("prove", check=3).stderr


def test_merges_of_members_lead_to_the_thread_of_each(rolecall: Rolecall, repository: Repository) -> None:
    ident = repository.start(GROUP, "--agent", repository.make_program("member.sh", MEMBER))
    assert rolecall.json("thread", "show", ident)["status"] == "completed"
    merges = repository.git("log", "--merges", "--format=%H").split()
    assert len(merges) == 2
    shown = [rolecall.json("prove", merge) for merge in merges]
    assert len({one["thread"] for one in shown} - {ident}) == 2
    for merge, proof in zip(merges, shown, strict=True):
        assert proof["proven"] and proof["anchor"] == merge, proof["problems"]
        assert [step["role"] for step in proof["steps"]] == ["writer"]
        assert rolecall.json("prove", f"{merge}^2")["thread"] == proof["thread"]

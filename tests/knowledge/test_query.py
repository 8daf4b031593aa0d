"""Asking: which repository, how much, in which form, and what is marked."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from knowledge.knowrepo import PROGRAM, Repo, read_terminal


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    """A repository that is indexed, for tests that change nothing."""
    folder = tmp_path_factory.mktemp("asked")
    repo = Repo(folder / "repo", folder / "home")
    repo.write(
        {
            f"docs/page{number}.md": f"# Page {number}\n\nLanterns hang at gate {number}.\n"
            for number in range(30)
        }
    )
    repo.write(
        {"src/errors.py": 'def check(port):\n    raise ValueError("the port must lie between 1 and 65535")\n'}
    )
    repo.sync()
    other = Repo(folder / "other", folder / "home")
    other.write({"docs/sea.md": "# Sea\n\nHerons wade through the estuary.\n"})
    other.sync()
    return repo


def test_the_default_is_the_repository_around_the_folder(asked: Repo) -> None:
    for folder in ("", "src", "docs"):
        found = asked.json("query", "retry_limit", cwd=asked.folder / folder)["results"]
        assert found[0]["path"] == "src/retry.py" and "repository" not in found[0]


def test_another_repository_can_be_named(asked: Repo, tmp_path: Path) -> None:
    found = asked.json("query", "herons", "--repo", str(asked.folder.parent / "other"), cwd=tmp_path)[
        "results"
    ]
    assert found[0]["path"] == "docs/sea.md"
    inside = asked.json("query", "herons", "--repo", str(asked.folder.parent / "other" / "src"), cwd=tmp_path)
    assert inside["results"][0]["path"] == "docs/sea.md"
    assert "is not a folder" in asked.refused("query", "herons", "--repo", "/nowhere", code=2)
    assert "has no knowledge.yaml" in asked.refused("query", "herons", "--repo", str(tmp_path))


def test_all_repositories_are_asked_together(asked: Repo) -> None:
    reply = asked.json("query", "-g", "herons wade through the estuary")
    assert reply["results"][0]["repository"] == str(asked.folder.parent / "other")
    both = {
        found["repository"] for found in asked.json("query", "-g", "retry_limit", "--max", "50")["results"]
    }
    assert len(both) == 2
    listed = [row["repository"] for row in asked.json("status", "-g")["repositories"]]
    assert listed == sorted(both)


def test_a_repository_that_cannot_be_asked_is_named_and_the_others_are(repo: Repo, tmp_path: Path) -> None:
    other = Repo(tmp_path / "other", tmp_path / "home")
    repo.sync()
    other.sync()
    os.rename(other.folder, tmp_path / "moved")
    done = repo("query", "-g", "retry_limit", "--json")
    reply = json.loads(done.stdout)
    assert {found["repository"] for found in reply["results"]} == {str(repo.folder)}
    assert (
        any(f"{other.folder} was not searched" in note for note in reply["notes"])
        and str(other.folder) in done.stderr
    )


def test_with_nothing_indexed_all_repositories_are_none(repo: Repo) -> None:
    error = repo.refused("query", "-g", "retry")
    assert "no repository has been indexed yet" in error and "knowledge init" in error


def test_one_repository_and_all_of_them_exclude_each_other(asked: Repo) -> None:
    error = asked.refused("query", "retry", "--repo", ".", "-g", code=2)
    assert "not allowed with" in error
    assert "not allowed with" in asked.refused("status", "-g", "--repo", ".", code=2)


def test_limits(asked: Repo) -> None:
    assert len(asked.query("lanterns at a gate")) == 10
    assert len(asked.query("lanterns at a gate", "--max", "3")) == 3
    assert len(asked.query("lanterns", "--max", "1000", "--words")) == 30
    for wrong in ("0", "1001", "-1", "x", "1.5"):
        assert "from 1 to 1000" in asked.refused("query", "lanterns", "--max", wrong, code=2)


def test_scores_go_down(asked: Repo) -> None:
    scores = [found["score"] for found in asked.query("lanterns at gate 7", "--max", "30")]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("src/", lambda path: path.startswith("src/")),
        ("*.md", lambda path: path.endswith(".md")),
        ("docs/page1*", lambda path: path.startswith("docs/page1")),
        ("/docs/guide.md", lambda path: path == "docs/guide.md"),
    ],
)
def test_a_pattern_chooses_files(asked: Repo, pattern: str, fits: object) -> None:
    for way in ((), ("--words",)):
        found = asked.query("guide page gate install retry request", "--path", pattern, "--max", "100", *way)
        assert found and all(fits(entry["path"]) for entry in found)  # type: ignore[operator]


def test_nothing_that_fits_is_the_exit_code_one(asked: Repo) -> None:
    assert asked("query", "retry", "--path", "nowhere/", code=1, cwd=asked.folder).stdout
    assert asked("query", "zzyzx", "--words", "--format", "text", code=1).stdout == "nothing was found\n"
    for pattern, item in (("", "is empty"), ("{a,b}", "alternatives in braces"), ("../x", "leads out")):
        assert item in asked.refused("query", "retry", "--path", pattern, code=2)
    for text in ("", "   ", "?!"):
        assert "holds no word" in asked.refused("query", text, code=2)


def test_json_has_the_place_the_name_the_passage_and_the_marks(asked: Repo) -> None:
    done = asked("query", "retry_limit", "--json")
    assert done.stdout == asked("query", "retry_limit", "--format", "json").stdout
    found = json.loads(done.stdout)["results"][0]
    assert (found["path"], found["start"], found["end"], found["symbol"]) == (
        "src/retry.py",
        1,
        3,
        "retry_limit",
    )
    lines = (asked.folder / found["path"]).read_text().splitlines()
    assert found["text"] == "\n".join(lines[found["start"] - 1 : found["end"]])
    marked = [found["text"][start:stop] for start, stop in found["marks"]]
    assert marked and set(marked) <= {"retry_limit", "retry", "limit"}
    prose = asked.query("elevated rights")[0]
    assert prose["path"] == "docs/guide.md" and "Install" in prose["heading"]


def test_a_passage_is_shown_with_its_words_marked(asked: Repo) -> None:
    text = asked("query", "elevated rights", "--format", "text", "--max", "1").stdout
    head, *body = text.splitlines()
    assert head.startswith("docs/guide.md:") and "Install" in head
    assert any("«elevated» «rights»" in line for line in body)


def test_a_terminal_gets_its_own_marks_and_nothing_that_a_file_sends_it(repo: Repo) -> None:
    import pty

    repo.write({"docs/evil.md": "# Evil\n\nThe lantern \x1b]0;owned\x07 glows \x1b[2J here.\n"})
    repo.sync()
    master, slave = pty.openpty()
    subprocess.run(
        [PROGRAM, "knowledge", "query", "lantern glows", "--max", "1"],
        cwd=repo.folder,
        env={**repo.env, "NO_COLOR": ""},
        stdout=slave,
        check=True,
    )
    os.close(slave)
    shown = read_terminal(master)
    assert "\x1b[1mlantern\x1b[0m" in shown and "\x1b]0" not in shown and "\x1b[2J" not in shown


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("retry_limit", "src/retry.py"),
        ("retryLimit", "src/retry.py"),
        ("ConfigParser.read_lines", "src/parser.py"),
        ("config parser", "src/parser.py"),
        ("ValueError: the port must lie between 1 and 65535", "src/errors.py"),
        ("which rights does the installer need?", "docs/guide.md"),
        ("Lanterns hang at gate 17", "docs/page17.md"),
    ],
)
def test_names_messages_and_questions_find_what_they_are_about(asked: Repo, text: str, path: str) -> None:
    assert asked.first(text) == path


@pytest.mark.parametrize("way", [(), ("--words",)])
def test_a_line_of_a_stack_trace_finds_what_stands_there(synced: Repo, way: tuple[str, ...]) -> None:
    lamps = "\n".join(f"def lamp_{number}(oil):\n    light(oil)\n    return oil\n" for number in range(9))
    synced.write({"src/lamps.py": lamps})
    synced.sync()
    for line in (1, 18, 35):
        for text in (f"src/lamps.py:{line}", f'File "/srv/src/lamps.py", line {line}, in light'):
            found = synced.query(text, "--max", "1", *way)[0]
            assert found["path"] == "src/lamps.py" and found["start"] <= line <= found["end"]
            assert found["end"] - found["start"] < 5


@pytest.mark.parametrize(
    "text",
    ['"', "NEAR(", "a AND b OR", "x*", "col:y", "ключ 鍵 🔑 retry", "-retry", "x" * 50_000, "retry " * 5_000],
)
def test_whatever_is_asked_is_only_text(asked: Repo, text: str) -> None:
    done = asked("query", "--", text, code=None)
    assert done.returncode in (0, 1, 2) and (done.returncode != 2 or "holds no word" in done.stderr)


def test_an_answer_from_a_file_that_has_changed_says_so(synced: Repo) -> None:
    synced.write({"docs/guide.md": "# Guide\n\nNothing of it is left.\n"})
    done = synced("query", "elevated rights", "--max", "1", "--json")
    assert json.loads(done.stdout)["results"][0]["stale"] is True
    assert "have changed since they were indexed" in done.stderr
    (synced.folder / "docs" / "guide.md").unlink()
    assert synced.query("elevated rights", "--max", "1")[0]["stale"] is True

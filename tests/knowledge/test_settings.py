"""`knowledge.yaml`: what it may say, and that everything wrong with it is said at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from knowledge.knowrepo import FILES, Repo
from rolecall.errors import UsageError
from rolecall.knowledge import settings
from rolecall.knowledge.settings import Embedding

GOOD = """\
include: ["src/", "*.md"]
exclude: "*.lock"
embedding: {provider: mine, model: large, dimensions: 512}
chunk: {tokens: 200, largestFile: 5000}
weights: {words: 2, error: {vectors: 0}}
"""


def problems(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        settings.load(text)
    assert "nothing was changed" in caught.value.hint
    return caught.value.message


def test_everything_that_can_be_said_is_read() -> None:
    read = settings.load(GOOD)
    assert read.include == ("src/", "*.md") and read.exclude == ("*.lock",)
    assert read.embedding == Embedding("mine", "large", 512)
    assert (read.tokens, read.largest_file) == (200, 5000)
    assert read.weights["error"] == {"words": 2.0, "vectors": 0.0} and read.weights["prose"] == {"words": 2.0}


def test_little_need_be_said() -> None:
    read = settings.load('include: ["*"]')
    assert read.embedding == Embedding() and read.exclude == () and read.weights == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must be a mapping, not empty"),
        ("exclude: []", "'include' is missing"),
        ("include: []", "include must be a list of patterns, not an empty list"),
        ("- a", "must be a mapping, not a list"),
        ("include: [", "knowledge.yaml"),
        ("include: {a: b}", "include must be a list of patterns"),
        ("include: [3]", "include.0 must be a pattern, not 3"),
        ("inclode: ['*']", "Did you mean 'include'?"),
        ("include: ['*']\nchunk: {tokens: 1}", "chunk.tokens must be a whole number from 50 to 8,000, not 1"),
        ("include: ['*']\nchunk: {tokens: true}", "must be a whole number"),
        ("include: ['*']\nchunk: [1]", "chunk must be a mapping"),
        ("include: ['*']\nweights: {words: -1}", "weights.words must be a number from 0 to 100"),
        ("include: ['*']\nweights: {words: 0, vectors: 0}", "cannot both be 0"),
        ("include: ['*']\nembedding: {model: large}", "'provider' is missing in embedding"),
        ("include: ['*']\nembedding: {provider: mine}", "needs a `model`"),
        ("include: ['*']\nembedding: {provider: embedded, model: x}", "has no options"),
        (
            "include: ['*']\nembedding: {provider: mine, model: x, dimensions: 0}",
            "embedding.dimensions must be",
        ),
    ],
)
def test_what_is_wrong_is_named(text: str, told: str) -> None:
    assert told in problems(text)


@pytest.mark.parametrize("key", ["baseUrl", "apiKey", "apiKeyEnv"])
def test_where_a_key_goes_is_not_for_a_file_in_git_to_say(key: str) -> None:
    message = problems(
        f"include: ['*']\nembedding: {{provider: mine, model: x, {key}: 'http://evil.example'}}"
    )
    assert f"`{key}` does not belong in a file that others can change" in message
    assert f"providers.NAME.{key}" in message


def test_all_problems_are_told_at_once_with_their_lines() -> None:
    message = problems("include: ['*']\nfoo: 1\nchunk: {tokens: 1}\nweights: {words: x}\n")
    lines = [line.split("knowledge.yaml:")[1].split(":")[0] for line in message.splitlines()[1:]]
    assert lines == ["2", "3", "4"]


@pytest.mark.parametrize(
    "pattern", ["", "  ", "/", "../other/*", "src/*.{py,md}", "[z-a", "#comment", "!", "a\\"]
)
def test_a_pattern_that_cannot_match_is_refused_and_nothing_is_touched(repo: Repo, pattern: str) -> None:
    quoted = pattern.replace("'", "''")
    repo.write({"knowledge.yaml": f"include: ['*.md']\nexclude: ['{quoted}']\n"})
    error = repo.refused("sync", code=2)
    assert f"the pattern {pattern!r} " in error and "2:" in error
    assert not repo.index.exists()


def test_settings_that_are_wrong_leave_the_index_as_it_is(synced: Repo) -> None:
    before = synced.index.read_bytes()
    for wrong in (b"include: [", b"\xff\xfe", b"include: 3"):
        synced.write({"knowledge.yaml": wrong})
        for command in (("sync",), ("query", "retry"), ("status",)):
            assert "knowledge.yaml" in synced.refused(*command, code=2)
    assert synced.index.read_bytes() == before


# -- the beginning --


def test_a_repository_without_settings_is_told_of_init(repo: Repo) -> None:
    (repo.folder / "knowledge.yaml").unlink()
    for command in (("sync",), ("query", "retry"), ("status",), ("show",)):
        error = repo.refused(*command)
        assert "has no knowledge.yaml" in error and "`rolecall knowledge init`" in error
    error = repo.refused("query", "retry", cwd=repo.folder / "src")
    assert f"`rolecall knowledge init --repo {repo.folder}`" in error
    assert sorted(path.name for path in repo.folder.iterdir()) == [".git", ".gitignore", "docs", "src"]


def test_init_writes_what_fits_the_files_and_has_git_ignore_the_index(repo: Repo) -> None:
    (repo.folder / "knowledge.yaml").unlink()
    repo.write(
        {
            ".gitignore": "*.log",
            "web/app.ts": "export const a = 1;\n",
            "web/logo.png": b"\x89PNG\0",
            "x.log": "x",
        }
    )
    made = repo.json("init", cwd=repo.folder / "src")
    assert made["path"] == str(repo.folder / "knowledge.yaml")
    assert {"*.py", "*.md", "*.ts"} <= set(made["include"]) and "*.png" not in made["include"]
    assert (repo.folder / ".gitignore").read_text() == "*.log\nknowledge.db*\n"
    assert repo.sync()["files"] >= len(FILES)
    repo.commit()
    assert "knowledge.db" not in repo.git("ls-files") and "knowledge.yaml" in repo.git("ls-files")
    assert "already exists" in repo.refused("init", code=2)


def test_from_the_first_sync_on_git_ignores_the_index_also_without_init(repo: Repo) -> None:
    (repo.folder / ".gitignore").unlink()
    (repo.folder / ".git" / "info" / "exclude").write_text("*.log")
    repo.commit()
    for _ in range(2):
        assert repo.sync()["files"] == len(FILES)
        assert repo.git("status", "--porcelain") == ""
    assert (repo.folder / ".git" / "info" / "exclude").read_text() == "*.log\nknowledge.db*\n"
    assert repo.json("status")["ignoredByGit"] is True


def test_a_sync_says_so_where_git_cannot_be_made_to_ignore_the_index(repo: Repo) -> None:
    repo.write({".gitignore": "!knowledge.db\n"})
    done = repo("sync")
    assert "git does not ignore" in done.stderr and "add `knowledge.db*` to .gitignore" in done.stderr


def test_init_leaves_a_gitignore_alone_that_covers_the_index_already(repo: Repo) -> None:
    (repo.folder / "knowledge.yaml").unlink()
    repo.write({".gitignore": "*.db*\n"})
    assert repo.json("init")["gitignore"] is None
    assert (repo.folder / ".gitignore").read_text() == "*.db*\n"


def test_init_writes_nothing_through_a_link(repo: Repo, tmp_path: Path) -> None:
    (repo.folder / "knowledge.yaml").unlink()
    (repo.folder / ".gitignore").unlink()
    outside = tmp_path / "outside"
    outside.write_text("mine\n")
    (repo.folder / ".gitignore").symlink_to(outside)
    assert ".git/info/exclude" in repo.refused("init", code=2)
    assert outside.read_text() == "mine\n" and not (repo.folder / "knowledge.yaml").exists()
    repo.write({".git/info/exclude": "knowledge.db*\n"})
    assert repo.json("init")["gitignore"] is None


def test_init_leaves_a_project_alone_that_says_already_what_to_index(repo: Repo) -> None:
    (repo.folder / "knowledge.yaml").unlink()
    repo.write({"rolecall.yaml": "name: shop\nknowledge: {include: ['*.md']}\n"})
    assert "rolecall.yaml already exists" in repo.refused("init", code=2)
    repo.json("init", "--repo", str(repo.folder / "src"))
    assert not (repo.folder / "knowledge.yaml").exists() and (repo.folder / "src/knowledge.yaml").exists()


def test_a_role_that_may_not_change_files_can_neither_init_nor_sync(repo: Repo) -> None:
    assert "read_only" in repo.refused("sync", code=2, ROLECALL_RESTRICTIONS="read_only")
    (repo.folder / "knowledge.yaml").unlink()
    assert "read_only" in repo.refused("init", code=2, ROLECALL_RESTRICTIONS="read_only")
    assert not repo.index.exists() and not (repo.folder / "knowledge.yaml").exists()

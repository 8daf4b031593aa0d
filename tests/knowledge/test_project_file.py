"""The settings as a section of the project's own file."""

from __future__ import annotations

from knowledge.knowrepo import SETTINGS, Repo

PROJECT = "name: shop\nknowledge:\n  include: ['*.md']\n  exclude: [docs/]\n"


def test_the_section_says_what_is_indexed_where_there_is_no_file_of_its_own(repo: Repo) -> None:
    (repo.folder / "knowledge.yaml").unlink()
    repo.write({"rolecall.yaml": PROJECT, "NOTES.md": "# Notes\n\nRetries are limited.\n"})
    assert repo.sync()["indexed"] == ["NOTES.md"]
    assert repo.first("how are retries limited") == "NOTES.md"


def test_a_file_of_its_own_counts_before_the_section(repo: Repo) -> None:
    repo.write({"rolecall.yaml": PROJECT, "knowledge.yaml": SETTINGS})
    assert "src/retry.py" in repo.sync()["indexed"]


def test_a_project_without_the_section_is_told_what_to_write(repo: Repo) -> None:
    (repo.folder / "knowledge.yaml").unlink()
    repo.write({"rolecall.yaml": "name: shop\n"})
    assert "rolecall knowledge init" in repo.refused("sync", code=3)


def test_what_is_wrong_with_the_section_is_told_by_its_place_in_the_file(repo: Repo) -> None:
    (repo.folder / "knowledge.yaml").unlink()
    repo.write({"rolecall.yaml": "name: shop\nknowledge: {include: ['a{b,c}'], weight: 1}\n"})
    error = repo.refused("sync", code=2)
    assert "rolecall.yaml:2:23" in error and "braces" in error
    assert "rolecall.yaml:2:34" in error and "Did you mean 'weights'?" in error

"""artifact_write: any name below the artifacts, and never a way out of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from project_stage import files, write

from rolecall.errors import RolecallError
from rolecall.nexus import dispatch, tools
from rolecall.nexus.reply import WrittenArtifact
from rolecall.nexus.tool_error import ToolError

ARTIFACTS = ".nexus/state/artifacts"


def write_artifact(project: Path, filename: str, content: str = "text") -> WrittenArtifact:
    return dispatch.call(project, tools.artifact_write, {"filename": filename, "content": content})


def test_an_artifact_is_written_and_its_absolute_path_told(tmp_path: Path) -> None:
    reply = write_artifact(tmp_path, "findings.md", "größer\n")
    path = tmp_path / ARTIFACTS / "findings.md"
    assert reply == {"success": True, "path": str(path)}
    assert path.read_text(encoding="utf-8") == "größer\n"


def test_the_path_is_absolute_for_a_project_that_is_named_relatively(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_artifact(Path("."), "a.md")["path"]
    assert os.path.isabs(path) and Path(path).read_text() == "text"


def test_an_artifact_of_the_same_name_is_replaced_whoever_wrote_it(tmp_path: Path) -> None:
    write(tmp_path, f"{ARTIFACTS}/existing.md", json.dumps({"any": "thing"}))
    write_artifact(tmp_path, "existing.md", "")
    assert (tmp_path / ARTIFACTS / "existing.md").read_bytes() == b""


@pytest.mark.parametrize(
    ("name", "becomes"),
    [
        ("a/b/c.md", "a/b/c.md"),
        ("../../../etc/passwd", "etc/passwd"),
        ("/etc/passwd", "etc/passwd"),
        ("a/../../b.md", "a/b.md"),
        ("./a//b/./c.md", "a/b/c.md"),
        ("..\\..\\b.md", "b.md"),
        ("a\\b.md", "a/b.md"),
        ("..a/b..md", "..a/b..md"),
        (".hidden", ".hidden"),
        ("with space.md", "with space.md"),
        ("größer ↗.md", "größer ↗.md"),
        ("~/b.md", "~/b.md"),
        ("$HOME", "$HOME"),
        ("x" * 255, "x" * 255),
    ],
)
def test_what_would_lead_out_is_taken_out_of_a_name(tmp_path: Path, name: str, becomes: str) -> None:
    assert write_artifact(tmp_path / ".", name)["path"] == str(tmp_path / ARTIFACTS / becomes)
    written = [path for path in files(tmp_path) if not path.endswith("/") and "rolecall" not in path]
    assert written == [".nexus/.gitignore", f"{ARTIFACTS}/{becomes}"]


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "/", "../..", "a\0b", "\0", "a\nb", "\x1b[31m", "x" * 256, "é" * 128, "/".join(["dir"] * 2000),
        "...", ".../b.md", "a/..../b.md", "a/. ./b.md", " ", "a/ /b.md", "a/.. ", "\\...\\b.md",
        "half \ud83c", "CON", "con.md", "a/NUL", "lpt1.txt", "C:\\x", "c:/x", "C:",
    ],
)  # fmt: skip
def test_a_name_that_can_be_no_file_is_refused_and_nothing_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ToolError):
        write_artifact(tmp_path, name)
    assert files(tmp_path) == {}


def test_content_that_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="half a character"):
        write_artifact(tmp_path, "a.md", "half \ud83c")
    assert files(tmp_path) == {}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_text("untouched")
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / ARTIFACTS).mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("link", "target", "name"),
    [
        ("away", "outside", "away/new.md"),
        ("away", "outside", "away/file"),
        ("file", "outside/file", "file"),
        ("away", "outside", "away"),
        ("gone", "outside/nowhere", "gone"),
        ("gone", "outside/nowhere", "gone/a.md"),
        ("around", "project/.nexus/state/artifacts", "around/a.md"),
        ("loop", "project/.nexus/state/artifacts/loop", "loop/a.md"),
    ],
)
def test_links_are_not_followed(
    tmp_path: Path, project: Path, outside: Path, link: str, target: str, name: str
) -> None:
    (project / ARTIFACTS / link).symlink_to(tmp_path / target)
    before = files(outside)
    with pytest.raises(ToolError, match="cannot be an artifact"):
        write_artifact(project, name)
    assert files(outside) == before
    assert [path.name for path in (project / ARTIFACTS).iterdir()] == [link]


def test_artifacts_that_are_a_link_to_elsewhere_are_not_written_to(project: Path, outside: Path) -> None:
    (project / ARTIFACTS).rmdir()
    (project / ARTIFACTS).symlink_to(outside)
    with pytest.raises(ToolError, match="cannot be an artifact"):
        write_artifact(project, "a.md")
    assert set(files(outside)) == {"file"}


def test_a_folder_is_not_replaced_by_a_file_nor_a_file_by_a_folder(project: Path) -> None:
    write_artifact(project, "a/b.md")
    for name in ("a", "a/b.md/c.md"):
        with pytest.raises(ToolError, match="cannot be an artifact"):
            write_artifact(project, name)
    assert (project / ARTIFACTS / "a" / "b.md").read_text() == "text"
    os.mkfifo(project / ARTIFACTS / "pipe")
    with pytest.raises(ToolError, match="cannot be an artifact"):
        write_artifact(project, "pipe")


pieces = st.sampled_from(
    ["..", ".", "", "a", "link", "file", "...", " ", "C:", "nul", "\0", "\\", "b.md", "~"]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(pieces, max_size=6), st.sampled_from(["/", "\\", "//"]))
def test_no_name_whatever_writes_outside_the_artifacts(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], separator: str
) -> None:
    root = tmp_path_factory.mktemp("root")
    outside = write(root, "outside/file", "untouched").parent
    project = root / "project"
    (project / ARTIFACTS).mkdir(parents=True)
    (project / ARTIFACTS / "link").symlink_to(outside)
    try:
        reply = write_artifact(project, separator.join(parts))
    except RolecallError:
        pass
    else:
        written = Path(reply["path"])
        assert written.resolve().is_relative_to((project / ARTIFACTS).resolve())
        assert written.read_text() == "text"
    assert files(outside) == {"file": b"untouched"}
    assert sorted(path.name for path in root.iterdir()) == ["outside", "project"]
    assert sorted(path.name for path in (project / ".nexus" / "state").iterdir()) in (
        ["artifacts"],
        ["artifacts", "rolecall"],
    )


@pytest.mark.parametrize(
    "name",
    [
        ".git",
        ".git/config",
        "a/.GIT/hooks/post-checkout",
        "a\\.Git\\config",
        "../.git/config",
        ".git./config",
        ".git /config",
        ".g\u200cit/config",
        "GIT~1/config",
        ".git::$INDEX_ALLOCATION/config",
        "bare/HEAD",
        "head",
    ],
)
def test_no_artifact_makes_a_folder_that_git_takes_for_a_repository(tmp_path: Path, name: str) -> None:
    with pytest.raises(ToolError, match="cannot be the name of an artifact"):
        write_artifact(tmp_path, name, "[core]\n\tfsmonitor = false")
    assert not (tmp_path / ".nexus").exists()


@pytest.mark.parametrize(
    "name", [".gitignore", "git/config", "HEAD.md", "HEAD/notes.md", ".github/x.yml", "a.git/b"]
)
def test_an_artifact_may_be_named_nearly_like_files_of_git(tmp_path: Path, name: str) -> None:
    assert Path(write_artifact(tmp_path, name)["path"]).read_text() == "text"

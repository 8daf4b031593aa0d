"""Which files are indexed: by patterns, by what git ignores, and by what they are."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from typing import Any

import pytest

from knowledge.knowrepo import Repo

SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2
PRIVATE_KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7Zq9\nb8Kx\n-----END RSA PRIVATE KEY-----\n"


def indexed(repo: Repo) -> list[str]:
    return [row["path"] for row in repo.json("show")["files"]]


def reasons(done: Any) -> dict[str, str]:
    return {entry["path"]: entry["reason"] for entry in done["skipped"]}


def test_patterns_say_what_is_indexed_and_the_last_one_decides(repo: Repo) -> None:
    repo.write(
        {
            "knowledge.yaml": 'include: ["*.md", "src/", "!src/skip.py"]\nexclude: ["docs/old/", "**/*.gen.md"]\n',
            "src/skip.py": "skip = 1\n",
            "src/data.txt": "in src\n",
            "other/data.txt": "elsewhere\n",
            "docs/old/guide.md": "# Old\n",
            "docs/new/deep/page.md": "# New\n",
            "docs/new/page.gen.md": "# Generated\n",
        }
    )
    repo.sync()
    assert indexed(repo) == [
        "docs/guide.md",
        "docs/new/deep/page.md",
        "src/data.txt",
        "src/parser.py",
        "src/retry.py",
    ]


def test_what_git_ignores_is_not_indexed(repo: Repo) -> None:
    repo.write(
        {
            ".gitignore": "knowledge.db*\nbuild/\n*.tmp.md\n!keep.tmp.md\n/root-only.md\n",
            ".git/info/exclude": "private/\n",
            "build/page.md": "# Built\n",
            "a.tmp.md": "# A\n",
            "keep.tmp.md": "# Keep\n",
            "root-only.md": "# Root\n",
            "deep/root-only.md": "# Not root\n",
            "private/page.md": "# Private\n",
            "deep/.gitignore": "secret*.md\n!a.tmp.md\n",
            "deep/secret1.md": "# Secret\n",
            "deep/a.tmp.md": "# Kept by the nearer file\n",
            "deep/deeper/secret2.md": "# Secret\n",
        }
    )
    repo.sync()
    found = indexed(repo)
    assert [path for path in found if not path.startswith(("src/", "docs/"))] == [
        "deep/a.tmp.md",
        "deep/root-only.md",
        "keep.tmp.md",
    ]
    listed = subprocess.run(
        ["git", "-C", str(repo.folder), "ls-files", "-co", "--exclude-standard", "*.md", "*.py"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert sorted(found) == sorted(listed)


def test_a_file_that_comes_to_be_ignored_goes_from_the_index(synced: Repo) -> None:
    synced.write({".gitignore": "knowledge.db*\ndocs/\n"})
    assert synced.sync()["removed"] == ["docs/guide.md"]
    assert not [found for found in synced.query("installer with elevated rights") if "guide" in found["path"]]


def test_files_that_are_no_text_are_named_and_left_out(repo: Repo) -> None:
    repo.write(
        {
            "binary.md": b"# Looks like text\n\0\x01",
            "latin.md": "# Größe".encode("latin-1"),
            "huge.md": b"# Huge\n" + b"word " * 300_000,
            "utf16.md": "# Wide".encode("utf-16"),
            "empty.md": b"",
            "blank.md": b" \n\n\t\n",
            "bom.md": b"\xef\xbb\xbf# Marked\r\n\r\nWindows lines about lanterns.\r\n",
            "one-line.py": "x = '" + "word " * 50_000 + "'\n",
        }
    )
    os.symlink(repo.folder / "docs" / "guide.md", repo.folder / "link.md")
    os.symlink(repo.folder / "gone.md", repo.folder / "dangling.md")
    os.symlink(repo.folder / "docs", repo.folder / "linked-folder")
    os.symlink("/", repo.folder / "outside")
    os.symlink(".", repo.folder / "loop")
    os.mkfifo(repo.folder / "pipe.md")
    done = repo.sync()
    assert reasons(done) == {
        "binary.md": "is binary",
        "latin.md": "is not UTF-8",
        "huge.md": "is larger than 1,000,000 bytes",
        "utf16.md": "is binary",
        "link.md": "is a symbolic link",
        "dangling.md": "is a symbolic link",
        "pipe.md": "is no file",
    }
    assert not [path for path in indexed(repo) if path.startswith(("link", "outside", "loop"))]
    found = repo.query("lanterns")[0]
    assert found["path"] == "bom.md" and "\r" not in found["text"] and "\ufeff" not in found["text"]
    assert repo.sync()["indexed"] == []


def test_a_socket_and_a_name_that_is_no_text_do_not_stop_anything(repo: Repo) -> None:
    bad = os.fsencode(repo.folder) + b"/caf\xe9.md"
    with open(bad, "wb") as file:
        file.write(b"# Coffee\n")
    where = os.getcwd()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(repo.folder)  # an address may be no longer than 108 bytes
        listener.bind("s.md")
        os.chdir(where)
        done = repo.sync()
    told = {entry["reason"] for entry in done["skipped"]}
    assert told == {"has a name that is not UTF-8", "is no file"} and done["files"] == 3
    repo("sync", "--format", "text", "--verbose")


def test_a_file_that_may_not_be_read_is_named(repo: Repo) -> None:
    repo.write({"closed.md": "# Closed\n", "shut/page.md": "# Shut\n"})
    (repo.folder / "closed.md").chmod(0)
    (repo.folder / "shut").chmod(0)
    command = repo.command("sync")
    if os.geteuid() == 0:  # who may read everything has to give that up first
        if not shutil.which("setpriv"):
            pytest.skip("there is no setpriv")
        caps = "-dac_override,-dac_read_search"
        command = ["setpriv", "--bounding-set", caps, "--inh-caps", caps, *command]
    done = subprocess.run(
        command, cwd=repo.folder, env=repo.env, capture_output=True, text=True, timeout=60, check=False
    )
    (repo.folder / "shut").chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert reasons(json.loads(done.stdout)) == {"closed.md": "cannot be read: Permission denied"}


def test_a_repository_inside_this_one_has_a_memory_of_its_own(repo: Repo) -> None:
    repo.write({"module/.git/HEAD": "ref: refs/heads/main\n", "module/page.md": "# Inner\n"})
    repo.write({"tree/.git": "gitdir: /nowhere\n", "tree/page.md": "# Worktree\n"})
    repo.sync()
    assert not [path for path in indexed(repo) if path.startswith(("module", "tree"))]


def test_a_folder_below_the_root_can_have_settings_of_its_own(repo: Repo) -> None:
    repo.write({"docs/knowledge.yaml": 'include: ["*.md"]\n', ".gitignore": "knowledge.db*\ndraft.md\n"})
    repo.write({"docs/draft.md": "# Draft\n"})
    assert repo.json("sync", cwd=repo.folder / "docs")["indexed"] == ["guide.md"]
    assert repo.json("sync")["indexed"] == ["docs/guide.md", "src/parser.py", "src/retry.py"]


# -- secrets --


def test_secrets_are_nowhere_in_the_index(repo: Repo) -> None:
    repo.write(
        {
            "knowledge.yaml": 'include: ["*"]\n',
            ".env": f"TOKEN={SECRET}\n",
            "deploy/id_rsa": PRIVATE_KEY,
            "deploy/server.pem": PRIVATE_KEY,
            ".npmrc": f"//registry/:_authToken={SECRET}\n",
            "src/client.py": f'def connect():\n    return Client(token="{SECRET}", region="north")\n',
            "src/keys.py": f'KEY = """\n{PRIVATE_KEY}"""\n\n\ndef after_the_key():\n    return 1\n',
            "config.yaml": "password: hunter2horse9battery4staple\nregion: north\n",
        }
    )
    done = repo.sync()
    assert {path for path, reason in reasons(done).items() if reason == "holds secrets by its name"} == {
        ".env",
        "deploy/id_rsa",
        "deploy/server.pem",
        ".npmrc",
    }
    kept = b"".join(path.read_bytes() for path in (repo.index, repo.home / "knowledge" / "vectors.db"))
    for secret in (SECRET, "MIIEpAIBAAKCAQEA7Zq9", "hunter2horse9battery4staple"):
        assert secret.encode() not in kept
        assert secret not in repo("query", secret, "--words", code=None).stdout.replace(
            f'"query": "{secret}"', ""
        )
    (found, *_) = repo.query("after_the_key")
    lines = (repo.folder / "src/keys.py").read_text().splitlines()
    assert lines[found["end"] - 1] == "    return 1", "taking a key out must not move lines"


def test_a_value_that_the_configuration_calls_a_key_is_not_indexed(repo: Repo) -> None:
    repo.write({"docs/notes.md": "# Notes\n\nThe phrase is correct-horse-battery.\n"})
    repo.home.mkdir(parents=True)
    (repo.home / ".env").write_text("MY_API_KEY=correct-horse-battery\n")
    repo.sync()
    assert b"correct-horse-battery" not in repo.index.read_bytes()

"""Which files are indexed: by patterns, by what git ignores, and by what they are."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from knowledge.knowrepo import Repo
from rolecall.knowledge import files, secrets
from rolecall.knowledge.settings import KnowledgeSettings
from rolecall.settings.mask import Mask

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


WORDS = ("a", "b", "ab", "abc", "a.md", "foo", "build", "x y", ".h", "#c", "!n", "A")
PIECES = (
    "a", "b", "ab", "*", "**", "a*", "*.md", "?", "[ab]", "[!a]", "foo", "build", "x y", "x\\ y", ".*", "*b", "ab?",
    "\\#c", "\\!n", "foo*", "**.md", "[a-c]*", "[[:alpha:]]", "[^b]", "[]a]", "[z-a]", "[a", "a\\", "A", "[[:no:]]",
)  # fmt: skip


def pattern(chance: random.Random) -> str:
    parts = chance.choices(PIECES, k=chance.choice((1, 1, 1, 2, 2, 3)))
    before, after = chance.choice(("", "", "!", "/", "# ")), chance.choice(("", "", "/", "  ", "\r"))
    return f"{before}{'/'.join(parts)}{after}"


@pytest.mark.parametrize("seed", range(25))
def test_what_git_ignores_is_what_git_says_it_ignores(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    root = tmp_path / "repo"
    folders = [root]
    for _ in range(8):
        folders.append(chance.choice(folders) / chance.choice(WORDS))
        folders[-1].mkdir(parents=True, exist_ok=True)
    for _ in range(30):
        file = chance.choice(folders) / chance.choice(WORDS)
        if not file.exists():
            file.write_text("x")
    for folder in dict.fromkeys([root, *chance.sample(folders, 3)]):  # a set has no order
        (folder / ".gitignore").write_text("\n".join(pattern(chance) for _ in range(5)), newline="")
    git = ["git", "-C", str(root)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    result = subprocess.run([*git, "ls-files", "-coz", "--exclude-standard"], capture_output=True, check=True)
    listing = files.list_files(str(root), KnowledgeSettings(include=("*",)))
    assert {*listing.paths, *(path for path, _ in listing.skipped)} == set(
        result.stdout.decode().split("\0")[:-1]
    )


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        (("/deep/*", "!a*"), ["deep/abc", "top/a"]),  # what matches all in a folder does not match the folder
        (
            ("[a/b]",),
            ["deep/abc", "deep/b", "top/a"],
        ),  # a slash in brackets ties a pattern to its folder, too
    ],
)
def test_patterns_that_are_easily_misread(
    tmp_path: Path, patterns: Sequence[str], kept: Sequence[str]
) -> None:
    for name in ("deep/abc", "deep/b", "top/a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / ".gitignore").write_text("\n".join(patterns))
    assert files.list_files(str(tmp_path), KnowledgeSettings(include=("*", "!.gitignore"))).paths == kept


def test_what_a_worktrees_repository_excludes_is_not_indexed_in_it_either(repo: Repo, tmp_path: Path) -> None:
    repo.write({".git/info/exclude": "private/\n"})
    repo.commit()
    tree = tmp_path / "tree"
    repo.git("worktree", "add", "--quiet", str(tree))
    (tree / "private").mkdir()
    (tree / "private" / "page.md").write_text("# Private\n")
    assert repo.json("sync", cwd=tree)["indexed"] == ["docs/guide.md", "src/parser.py", "src/retry.py"]


def test_a_folder_without_git_is_indexed_by_its_patterns_alone(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo", tmp_path / "home")
    shutil.rmtree(repo.folder / ".git")
    repo.write({".gitignore": "docs/\n"})
    assert repo.sync()["indexed"] == ["src/parser.py", "src/retry.py"]
    assert repo.json("status")["ignoredByGit"] is True


@pytest.mark.parametrize("name", [".gitignore", "docs/.gitignore"])
def test_rules_that_are_no_file_hold_nothing_up_and_lead_nowhere(repo: Repo, name: str) -> None:
    rules = repo.folder / name
    rules.unlink(missing_ok=True)
    os.mkfifo(rules)
    assert repo.sync()["files"] == 3
    rules.unlink()
    (repo.folder / "rules").write_text("*\n")
    rules.symlink_to(repo.folder / "rules")
    assert repo.sync()["files"] == 3


def test_no_pattern_takes_for_ever(repo: Repo) -> None:
    repo.write({"a" * 250 + ".md": "# Long\n", ".gitignore": f"knowledge.db*\n{'*a' * 40}b\n"})
    repo.write({"knowledge.yaml": f'include: ["*.md"]\nexclude: ["{"*a*[ab]?" * 12}c"]\n'})
    assert repo.sync()["files"] == 2
    repo.write({"a/" * 60 + "page.md": "# Deep\n", "a/.gitignore": f"{'**/*/' * 20}b\n{'**/a/' * 20}b/**\n"})
    assert repo.sync()["files"] == 3


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
        "pipe.md": "is not a file",
    }
    assert not [path for path in indexed(repo) if path.startswith(("link", "outside", "loop"))]
    found = repo.query("lanterns")[0]
    assert found["path"] == "bom.md" and "\r" not in found["text"] and "\ufeff" not in found["text"]
    assert repo.sync()["indexed"] == []


def test_a_socket_and_a_name_that_is_no_text_do_not_stop_anything(repo: Repo) -> None:
    os.mkdir(os.fsencode(repo.folder) + b"/caf\xe9")
    for bad in (b"/caf\xe9.md", b"/caf\xe9/page.md"):
        with open(os.fsencode(repo.folder) + bad, "wb") as file:
            file.write(b"# Coffee\n")
    where = os.getcwd()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(repo.folder)  # an address may be no longer than 108 bytes
        listener.bind("s.md")
        os.chdir(where)
        done = repo.sync()
    received = [entry["reason"] for entry in done["skipped"]]
    assert sorted(received) == ["has a name that is not UTF-8"] * 2 + ["is not a file"] and done["files"] == 3
    repo("sync", "--format", "text", "--verbose")


def test_a_file_that_may_not_be_read_is_named(repo: Repo) -> None:
    repo.write({"closed.md": "# Closed\n", "shut/page.md": "# Shut\n"})
    (repo.folder / "closed.md").chmod(0)
    (repo.folder / "shut").chmod(0)
    command = repo.command("sync", "--json")
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
    assert reasons(json.loads(done.stdout)) == dict.fromkeys(
        ("closed.md", "shut/"), "cannot be read: Permission denied"
    )


def test_paths_of_any_kind_are_shown_as_they_are(repo: Repo) -> None:
    deep = "/".join(["d" * 200] * 5)
    names = [
        f"{deep}/page.md",
        "two\nlines.md",
        "a b  c.md",
        "größe-日本.md",
        "quote'\".md",
        "-dash.md",
        "\x1b[31m.md",
    ]
    repo.write({name: f"# Page\n\nLantern number {at}.\n" for at, name in enumerate(names)})
    assert set(names) <= set(repo.sync()["indexed"])
    for at, name in enumerate(names):
        assert repo.first(f"Lantern number {at}", "--max", "1") == name
    text = repo("query", "lantern", "--format", "text").stdout + repo("show", "--format", "text").stdout
    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line.startswith("lines.md")]


def test_a_path_too_long_to_be_opened_is_named(repo: Repo) -> None:
    folder = os.open(repo.folder, os.O_RDONLY)
    for _ in range(22):
        os.mkdir("d" * 200, dir_fd=folder)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    (reported,) = repo.sync()["skipped"]
    assert reported["path"].startswith("ddd") and reported["reason"] == "cannot be read: File name too long"
    shutil.rmtree(repo.folder / ("d" * 200))


def test_a_link_that_was_put_in_the_way_since_the_walk_is_not_followed(repo: Repo, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "page.md").write_text("# Not ours\n")
    (repo.folder / "linked").symlink_to(outside)
    (repo.folder / "page.md").symlink_to(outside / "page.md")
    (repo.folder / "file.md").mkdir()
    for path in ("linked/page.md", "page.md", "file.md", "docs/guide.md/page.md"):
        assert isinstance(files.read(str(repo.folder), path, largest=100), files.Skipped), path


@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="this system has no such files")
def test_a_file_that_does_not_say_its_size_is_read_to_its_end_and_no_further() -> None:
    data = files.read("/proc", "self/status", largest=100_000)
    assert isinstance(data, files.Skipped)  # `self` is a link
    data = files.read("/proc", f"{os.getpid()}/status", largest=100_000)
    assert isinstance(data, bytes) and data.startswith(b"Name:")
    assert isinstance(files.read("/proc", f"{os.getpid()}/status", largest=100), files.Skipped)
    assert files.read("/dev", "zero", largest=100) == files.Skipped("zero", "is not a file")


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

HIDDEN = {
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\n-----END OPENSSH PRIVATE KEY-----": "b3BlbnNzaC1r",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQOYBFxyzzy99\n-----END PGP PRIVATE KEY BLOCK-----": "lQOYBFxyzzy",
    '{"private_key": "-----BEGIN PRIVATE KEY-----\\nMIIEvAIB\\n-----END PRIVATE KEY-----\\n"}': "MIIEvAIB",
    "# -----BEGIN EC PRIVATE KEY-----\n# MHcCAQEEIPq\n# -----END EC PRIVATE KEY-----": "MHcCAQEEIPq",
    "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG\n9w0BAQEFAASCBKcwggSj": "9w0BAQEFAASC",
    "id = AKIAIOSFODNN7EXAMPLE": "AKIAIOSFODNN7",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "wJalrXUtnFEMI",
    "see github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz0123456789ABCDEFG": "11ABCDEFG0",
    "t eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0 e": "dozjgNryP4J3",
    "with sk-proj-abcDEF1234567890abcdefghij": "abcDEF1234567",
    "with sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789": "api03-abcdef",
    "postgres://admin:hunter2pass@db.example/x": "hunter2pass",
    "redis://:onlypassword99@cache:6379": "onlypassword99",
    "Authorization: Bearer abcdef1234567890abcdef12": "abcdef1234567890",
    'curl -H "X-Api-Key: 9f8e7d6c5b4a39281706"': "9f8e7d6c5b4a",
    "https://hooks.slack.com/services/T00000000/B00000000/abcdXYZ9abcdXYZ9": "abcdXYZ9",
    'password: "Tr0ub4dor&3xyz"': "Tr0ub4dor",
    'API_KEY="abcd1234efgh5678"': "abcd1234efgh",
    "db_password = 'hunter2'": "hunter2",
    "machine api.example login me password 8hf7sk2jd93kd": "8hf7sk2jd93kd",
    "AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;": "Eby8v",
}
PLAIN = (
    "the key to retry_limit is its second argument",
    "primary_key=True, on_delete=models.CASCADE",
    "token = self.tokenizer.next_token()",
    "password: the one you chose at sign-up",
    "https://example.org/password/reset?step=2",
    'if "-----BEGIN PRIVATE KEY-----" in text: raise Refused(line)',
)


@pytest.mark.parametrize("written", HIDDEN, ids=lambda written: HIDDEN[written])
def test_what_has_the_form_of_a_secret_is_taken_out_and_lines_stay(written: str) -> None:
    text = f"before\n{written}\nafter it comes retry_limit\n"
    safe = secrets.without_secrets(text, Mask([]))
    assert HIDDEN[written] not in safe
    assert safe.count("\n") == text.count("\n") and safe.endswith("\nafter it comes retry_limit\n")


@pytest.mark.parametrize("plain", PLAIN)
def test_what_only_speaks_of_secrets_stays(plain: str) -> None:
    safe = secrets.without_secrets(f"{plain}\n", Mask([]))
    assert plain.split("-----")[-1].lstrip() in safe


@pytest.mark.parametrize(
    "text", ["key" * 300_000, "password" + " " * 900_000, "key: a" + " " * 900_000, "token:" + "\n" * 900_000]
)
def test_no_text_takes_for_ever_to_find_no_secrets_in(repo: Repo, text: str) -> None:
    repo.write({"docs/long.md": f"# Long\n\n{text}\n"})
    assert repo.sync()["files"] == 4


def test_what_was_removed_is_not_in_the_bytes_of_the_index(repo: Repo) -> None:
    lines = "\n\n".join(f"## Part {number}\n\nPassage {number} about xylophones." for number in range(400))
    repo.write({"docs/long.md": f"# Long\n\n{lines}\n"})
    repo.sync()
    assert b"about xylophones" in repo.index.read_bytes()
    (repo.folder / "docs" / "long.md").unlink()
    repo.sync()
    assert b"about xylophones" not in repo.index.read_bytes()


def test_secrets_are_nowhere_in_the_index(repo: Repo) -> None:
    repo.write(
        {
            "knowledge.yaml": 'include: ["*"]\n',
            ".env": f"TOKEN={SECRET}\n",
            "deploy/id_rsa": PRIVATE_KEY,
            "deploy/server.pem": PRIVATE_KEY,
            ".npmrc": f"//registry/:_authToken={SECRET}\n",
            "deploy/production.env": f"TOKEN={SECRET}\n",
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
        "deploy/production.env",
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

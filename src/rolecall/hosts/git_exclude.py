"""Hides installed files from git with a marked block of lines in `.git/info/exclude`, which is never committed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence

from rolecall.files import git
from rolecall.hosts import file_change
from rolecall.hosts.file_change import FileChange


def find(project: str) -> str | None:
    """Return the repository's exclude file, even in a linked worktree, or None without git."""
    if shutil.which("git") is None:
        return None
    answer = git.ask(project, "rev-parse", "--git-path", "info/exclude")
    return os.path.join(project, answer.text) if answer.code == 0 else None


def hides(project: str, paths: Sequence[str]) -> bool:
    """Return whether git already ignores all of these paths, for any reason."""
    answer = git.ask(project, "check-ignore", "--no-index", "--", *paths)
    return len(answer.text.splitlines()) == len(paths)


def has_block(file: str, host: str) -> bool:
    return _block(host).search(_read(file)) is not None


def with_block(file: str, host: str, project: str, paths: Sequence[str]) -> FileChange:
    inner = git.run(project, "rev-parse", "--show-prefix").text
    names = dict.fromkeys(inner + os.path.relpath(path, project) for path in paths)
    patterns = [re.sub(r"([\\*?\[\] !#])", r"\\\1", name) for name in names]
    begin, end = _marks(host)
    block = "".join(f"{line}\n" for line in (begin, *(f"/{pattern}" for pattern in patterns), end))
    text = _read(file)
    if _block(host).search(text):
        return _change(file, _block(host).sub(lambda _: block, text, count=1))
    return _change(file, text + ("\n" if text and not text.endswith("\n") else "") + block)


def without_block(file: str, host: str) -> FileChange:
    return _change(file, _block(host).sub("", _read(file)))


def _marks(host: str) -> tuple[str, str]:
    return f"# rolecall install {host}", f"# end of rolecall install {host}"


def _block(host: str) -> re.Pattern[str]:
    begin, end = map(re.escape, _marks(host))
    return re.compile(f"^{begin}\n.*?^{end}\n", re.MULTILINE | re.DOTALL)


def _read(file: str) -> str:
    return (file_change.read(file) or b"").decode("utf-8", "surrogateescape")


def _change(file: str, text: str) -> FileChange:
    return FileChange(file, file_change.read(file), text.encode("utf-8", "surrogateescape") or None)

"""Files that agents leave for one another, anywhere below `state/artifacts/` but never outside it.

Empty segments, `.` and `..` are dropped from a name, as other harnesses do. A name that some file system cannot store
is refused, and so is one that would create a git repository, whose settings can make git start programs. Each folder on
the path is opened from its parent and must not be a link.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from rolecall.nexus import project_paths, state_file
from rolecall.nexus.project_paths import Folder
from rolecall.nexus.tool_error import WrongCall

_LONGEST = 255
"""Maximum bytes of a file name, on every file system in use."""
_LONGEST_PATH = 4000
_NOT_WRITABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?|[a-z]:.*", re.IGNORECASE)
"""Names that Windows reserves for devices and drives."""
_UNSEEN = re.compile(r"[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]|[. ]*(:.*)?\Z")
"""Characters that file systems ignore in a name, as in git's own check."""
_WAY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def write_artifact(project: Folder, filename: str, content: str) -> str:
    """Write an artifact and return its absolute path."""
    segments = _segments(filename)
    artifacts = project_paths.artifacts(project)
    path = os.path.join(artifacts, *segments)
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise WrongCall(f"the path of {filename[:40]!r}… is longer than {_LONGEST_PATH} bytes")
    try:
        data = content.encode()
    except UnicodeEncodeError as exc:
        raise WrongCall(f"the content has half a character at {exc.start}, which no file can hold") from exc
    with state_file.locked(project):
        state_file.make_folder(artifacts)
        with _open_folder(artifacts, segments[:-1], filename) as folder:
            with suppress(FileNotFoundError):
                status = os.stat(segments[-1], dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    raise _leads_astray(filename)
            with state_file.drafted(project, data) as draft:
                os.replace(draft, segments[-1], dst_dir_fd=folder)
            os.fsync(folder)
    return path


def _segments(filename: str) -> Sequence[str]:
    segments = [part for part in re.split(r"[/\\]", filename) if part not in ("", ".", "..")]
    if not segments:
        raise WrongCall(f"{filename!r} names no file", hint="Give a name such as report.md.")
    for part in segments:
        if not part.strip(". ") or _NOT_WRITABLE.search(part) or _DEVICE.fullmatch(part):
            raise WrongCall(f"{part!r} cannot be the name of an artifact", hint="Choose a plain name.")
        if len(part.encode()) > _LONGEST:
            raise WrongCall(f"the name {part[:40]!r}… is longer than {_LONGEST} bytes")
        # `.git` under all its names, and `HEAD`, which a bare repository must contain.
        name = _UNSEEN.sub("", part).lower()
        if name in (".git", "git~1") or (part is segments[-1] and name == "head"):
            raise WrongCall(
                f"{part!r} cannot be the name of an artifact: git would take its folder for a repository",
                hint="Choose another name.",
            )
    return segments


@contextmanager
def _open_folder(artifacts: str, names: Sequence[str], filename: str) -> Iterator[int]:
    """Open the folder that the file goes into, and create it if it is missing."""
    folder = -1
    try:
        folder = os.open(artifacts, _WAY)
        for name in names:
            outer = folder
            try:
                folder = os.open(name, _WAY, dir_fd=outer)
            except FileNotFoundError:
                os.mkdir(name, dir_fd=outer)
                os.fsync(outer)
                folder = os.open(name, _WAY, dir_fd=outer)
            os.close(outer)
        yield folder
    except OSError as exc:
        if exc.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _leads_astray(filename) from exc
        raise
    finally:
        if folder >= 0:
            os.close(folder)


def _leads_astray(filename: str) -> WrongCall:
    return WrongCall(
        f"{filename!r} cannot be an artifact: it is a folder or a link, or one of its folders is a file or a link",
        hint="Choose another name.",
    )

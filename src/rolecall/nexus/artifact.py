"""Files that agents leave for one another, anywhere below `state/artifacts/` but never outside it.

Empty segments, `.` and `..` are dropped from a name, as in other harnesses. A name that some file system cannot store
is refused, and so is a name that would create a git repository, because a repository's settings can make git start
programs. No folder on the path is allowed to be a link.
"""

from __future__ import annotations

import os
import re

from rolecall.nexus import project_paths, state_file
from rolecall.nexus.project_paths import Folder
from rolecall.nexus.tool_error import WrongCall

_LONGEST = 255
"""The maximum length of a file name in bytes, on every file system in use."""
_LONGEST_PATH = 4000
_NOT_WRITABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?|[a-z]:.*", re.IGNORECASE)
"""The names that Windows reserves for devices and drives."""
_UNSEEN = re.compile(r"[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]|[. ]*(:.*)?\Z")
"""The characters that file systems ignore in a name, as in git's own check."""


def write_artifact(project: Folder, filename: str, content: str) -> str:
    """Write an artifact and return its absolute path."""
    segments = [part for part in re.split(r"[/\\]", filename) if part not in ("", ".", "..")]
    if not segments:
        raise WrongCall(f"{filename!r} names no file", hint="Give a name such as report.md.")
    for part in segments:
        if not part.strip(". ") or _NOT_WRITABLE.search(part) or _DEVICE.fullmatch(part):
            raise WrongCall(f"{part!r} cannot be the name of an artifact", hint="Choose a plain name.")
        if len(part.encode()) > _LONGEST:
            raise WrongCall(f"the name {part[:40]!r}… is longer than {_LONGEST} bytes")
        # Refuse `.git` under all its names, and `HEAD`, which a bare repository must contain.
        name = _UNSEEN.sub("", part).lower()
        if name in (".git", "git~1") or (part is segments[-1] and name == "head"):
            why = "git would take its folder for a repository"
            raise WrongCall(f"{part!r} cannot be the name of an artifact: {why}", hint="Choose another name.")
    path = os.path.join(project_paths.artifacts(project), *segments)
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise WrongCall(f"the path of {filename[:40]!r}… is longer than {_LONGEST_PATH} bytes")
    try:
        data = content.encode()
    except UnicodeEncodeError as exc:
        raise WrongCall(f"the content has half a character at {exc.start}, which no file can hold") from exc
    with state_file.hold_lock(project):
        folder = project_paths.artifacts(project)
        for name in (*segments, ""):
            is_file = not name
            if os.path.islink(folder) or (os.path.exists(folder) and os.path.isfile(folder) is not is_file):
                why = "it is a folder or a link, or one of its folders is a file or a link"
                raise WrongCall(f"{filename!r} cannot be an artifact: {why}", hint="Choose another name.")
            if not is_file:
                state_file.make_folder(folder)
                folder = os.path.join(folder, name)
        state_file.replace(project, path, data)
    return path

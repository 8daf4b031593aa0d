"""Which git repository a folder lies in, told by its files: no git is started, because every command asks."""

import os


def root_around(folder: str) -> str | None:
    """The work tree that an absolute path lies in; None outside git."""
    while not _is_repository(os.path.join(folder, ".git")):
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            return None
    return folder


def _is_repository(path: str) -> bool:
    """A folder with a HEAD, or the file that a worktree or a submodule has; sandboxes leave empty folders behind."""
    return os.path.isfile(path) or os.path.lexists(os.path.join(path, "HEAD"))

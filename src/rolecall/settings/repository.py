"""Which git repository a folder lies in, told by its files: no git is started, because every command asks."""

import os


def root_around(folder: str) -> str | None:
    """The work tree that an absolute path lies in; None outside git."""
    while not _is_repository(os.path.join(folder, ".git")):
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            return None
    return folder


def nearest(name: str, folder: str) -> str | None:
    """The path of that name in a folder or above it, up to the repository's root; outside a repository only the
    folder itself counts, because what lies above it is somebody else's."""
    folder = os.path.abspath(folder)
    root = root_around(folder) or folder
    while not os.path.lexists(os.path.join(folder, name)):
        if folder == root:
            return None
        folder = os.path.dirname(folder)
    return os.path.join(folder, name)


def _is_repository(path: str) -> bool:
    """A folder with a HEAD, or the file that a worktree or a submodule has; sandboxes leave empty folders behind."""
    return os.path.isfile(path) or os.path.lexists(os.path.join(path, "HEAD"))

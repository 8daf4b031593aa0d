"""Find the git repository around a folder by its files, without starting git, because every command needs this."""

import os


def root_around(folder: str) -> str | None:
    """The work tree that contains an absolute path; None outside git."""
    while not _is_repository(os.path.join(folder, ".git")):
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            return None
    return folder


def nearest(name: str, folder: str) -> str | None:
    """The nearest path of that name in a folder or above it, up to the repository's root. Outside a repository only the
    folder itself counts, because the folders above it may belong to someone else."""
    folder = os.path.abspath(folder)
    root = root_around(folder) or folder
    while not os.path.lexists(os.path.join(folder, name)):
        if folder == root:
            return None
        folder = os.path.dirname(folder)
    return os.path.join(folder, name)


def _is_repository(path: str) -> bool:
    """Whether it is a folder with a HEAD (sandboxes leave empty ones behind) or the file of a worktree or submodule."""
    return os.path.isfile(path) or os.path.lexists(os.path.join(path, "HEAD"))

"""Find the git repository around a folder by its files, without starting git, because every command needs this."""

import os


def root_around(folder: str) -> str | None:
    """The work tree that contains an absolute path; None outside git."""
    while True:
        # A folder with a HEAD (sandboxes leave empty ones behind), or the file of a worktree or submodule.
        git = os.path.join(folder, ".git")
        if os.path.isfile(git) or os.path.lexists(os.path.join(git, "HEAD")):
            return folder
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            return None


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

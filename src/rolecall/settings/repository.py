"""Find the git repository that contains a folder by its files, without starting git, because every command needs
this."""

import os


def root_around(folder: str) -> str | None:
    """Return the work tree that contains an absolute path, or None if the path is outside git."""
    while True:
        # The .git entry is a folder with a HEAD (sandboxes leave empty folders behind), or the file of a worktree or
        # submodule.
        git = os.path.join(folder, ".git")
        if os.path.isfile(git) or os.path.lexists(os.path.join(git, "HEAD")):
            return folder
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            return None


def nearest(name: str, folder: str) -> str | None:
    """Return the nearest path with that name in a folder or above it, up to the repository's root. Outside a
    repository, only the folder itself counts, because the folders above it might belong to someone else."""
    folder = os.path.abspath(folder)
    root = root_around(folder) or folder
    while not os.path.lexists(os.path.join(folder, name)):
        if folder == root:
            return None
        folder = os.path.dirname(folder)
    return os.path.join(folder, name)

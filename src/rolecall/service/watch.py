"""Report file changes without polling, through the kernel's notifications, with watchfiles."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from rolecall.errors import UsageError

_STEP_MS = 200
"""How often the watcher's thread checks for notifications; costs 0.03 % of a core."""
_GATHER_MS = 1_000
"""Changes within this time are reported together, such as those of a checkout."""
_COMPARE_MS = 15_000
"""How often to check that the watched folders are still the right ones; the kernel does not report a link that now
points elsewhere."""
_IS_BACK = 1.0
"""Seconds between two checks for a missing folder."""


async def changes(folders: Sequence[str], *, is_deep: bool) -> AsyncIterator[set[str]]:
    """Yield the paths that change in `folders`, and below them if `is_deep`.

    The kernel watches a folder, not its name. If a folder is replaced, the folders themselves are among the paths, and
    the new one is watched as soon as the caller asks for the next change. The caller must look at the folders to find
    what changed in between."""
    while True:
        async with aclosing(_changes_of_these(folders, is_deep=is_deep)) as found:
            async for paths in found:
                yield paths
        while not all(map(os.path.isdir, folders)):
            await asyncio.sleep(_IS_BACK)
        yield set(folders)


async def _changes_of_these(folders: Sequence[str], *, is_deep: bool) -> AsyncGenerator[set[str]]:
    """Yield changes until one of the folders is replaced."""
    try:
        from watchfiles import awatch
    except ImportError as error:
        raise UsageError(
            "the package 'watchfiles' is not installed", hint="pip install 'rolecall[service]'"
        ) from error
    before = _identities(folders)
    watching = awatch(
        *folders,
        watch_filter=None,
        recursive=is_deep,
        debounce=_GATHER_MS,
        step=_STEP_MS,
        rust_timeout=_COMPARE_MS,
        yield_on_timeout=True,
        ignore_permission_denied=True,
    )
    async with aclosing(watching) as found:
        async for batch in found:
            paths = {path for _, path in batch}
            if paths:
                yield paths
            # A folder created after another was removed may reuse its inode number.
            if not paths.isdisjoint(folders) or _identities(folders) != before:
                return


def _identities(folders: Sequence[str]) -> list[tuple[int, int]]:
    found = []
    for folder in folders:
        try:
            status = os.stat(folder)
            found.append((status.st_dev, status.st_ino))
        except OSError:
            found.append((0, 0))
    return found

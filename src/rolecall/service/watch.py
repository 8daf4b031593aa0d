"""Tells when files change, without asking again and again: the kernel's own means, by watchfiles."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from rolecall.errors import UsageError

_STEP_MS = 200
"""How often the watcher's thread looks whether the kernel has told it something: 0.03 % of a core."""
_GATHER_MS = 1_000
"""An editor that saves, or a checkout, is one change and not many."""
_COMPARE_MS = 15_000
"""How often it is seen whether the folders are still those that are watched: a link that leads elsewhere now is
nothing that the kernel tells of."""
_IS_BACK = 1.0
"""Seconds between two looks for a folder that is gone."""


async def changes(folders: Sequence[str], *, is_deep: bool) -> AsyncIterator[set[str]]:
    """The paths that changed in `folders`, and below them when it `is_deep`; again and again.

    The kernel watches a folder and not its name. When another one has taken its place, the folders themselves are
    among the paths, and whoever asks for the next change has the new one watched before anything else happens: what
    changed in between is found by a look at them."""
    while True:
        async with aclosing(_changes_of_these(folders, is_deep=is_deep)) as found:
            async for paths in found:
                yield paths
        while not all(map(os.path.isdir, folders)):
            await asyncio.sleep(_IS_BACK)
        yield set(folders)


async def _changes_of_these(folders: Sequence[str], *, is_deep: bool) -> AsyncGenerator[set[str]]:
    """Until a folder is another one than it was."""
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
            # A folder that is made where one was removed may have its number.
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

"""Tells when files change, without asking again and again: the kernel's own means, by watchfiles."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from rolecall.errors import UsageError

_STEP_MS = 200
"""How often the watcher's thread looks whether the kernel has told it something: 0.03 % of a core."""
_GATHER_MS = 1_000
"""An editor that saves, or a checkout, is one change and not many."""


async def changes(folders: Sequence[str], *, is_deep: bool) -> AsyncIterator[set[str]]:
    """The paths that changed in `folders`, and below them when it `is_deep`; again and again."""
    try:
        from watchfiles import awatch
    except ImportError as error:
        raise UsageError(
            "the package 'watchfiles' is not installed", hint="pip install 'rolecall[service]'"
        ) from error
    found = awatch(
        *folders,
        watch_filter=None,
        recursive=is_deep,
        debounce=_GATHER_MS,
        step=_STEP_MS,
        rust_timeout=60_000,
        ignore_permission_denied=True,
    )
    async for batch in found:
        yield {path for _, path in batch}

"""The context of all hooks: the gate's mode, the agents' limits, the tags, and the bodies of skills.

The context comes from the configuration and the catalogue, which are YAML and too slow for a hook to read. Therefore
`hook_compile` compiles the context, and it is stored in the home's `cache/` with a stamp of every source file and
folder. When a source changes, the context is compiled again. A cache that cannot be read or written makes hooks slower,
never wrong.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast
from zlib import crc32

from rolecall import __version__
from rolecall.hosts.event import GateMode
from rolecall.nexus.project_paths import HARNESS
from rolecall.settings import config
from rolecall.store import atomic
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.hosts import hook_compile
    from rolecall.hosts.sessions import Process
    from rolecall.nexus import tags as tag_types
    from rolecall.nexus.memory import Thresholds
    from rolecall.nexus.tags import Tag
    from rolecall.settings import mask as masks
    from rolecall.settings.mask import Mask
    from rolecall.store.canonical import JsonObject
else:
    hook_compile = Module("rolecall.hosts.hook_compile")  # reads YAML, which is too slow for most hooks
    masks = Module("rolecall.settings.mask")
    tag_types = Module("rolecall.nexus.tags")  # compiles patterns that most hooks do not need

Content: TypeAlias = "JsonObject"
"""The content of the cache, as JSON."""
Stamp: TypeAlias = list[Any]
"""A path, and the values that change when the file at that path is written: time, size and inode."""


class Rules(NamedTuple):
    """The properties of a catalogue agent that hooks need."""

    capabilities: tuple[str, ...] = ()
    tier: str = ""
    category: str = ""


class HookContext(NamedTuple):
    gate: GateMode = "block"
    agents: Mapping[str, Rules] = {}
    """The rules of each agent, by the agent's id."""
    tags: Mapping[str, Tag] = {}
    skills: Mapping[str, str] = {}
    """The body of each skill in the host's wording, by the skill's id."""
    docs: Mapping[str, str] = {}
    """The host's instructions for each skill, by the skill's id; they are appended to the body."""
    has_skill_commands: bool = False
    """Whether the host itself gives the model a skill's body when a user types `/skill`."""
    run: str = ""
    """The engine's run in which the hook was called, if any; in a run, the caller plays a role of a thread."""
    restrictions: tuple[str, ...] = ()
    """The restrictions of the role that the host plays, inside a run or not."""
    harness: str = HARNESS
    """The harness name under which agents are tracked."""
    process: Process | None = None
    """The host's process; None if it is unknown."""
    limit: tuple[int, str] | None = None
    """The number of bytes that the host shows the model, and how they are encoded; None for no limit."""
    skill_files: tuple[str, ...] = ()
    """The paths of a skill's file, with `{}` for the skill's id: in the project's folder, in the user's folder, and
    in the catalogue."""
    problem: str = ""
    """Why our own catalogue and rules apply in place of the configured ones; empty if they do not."""
    secrets: config.SecretPlaces | None = None
    """The positions of the secrets in the configuration, for the mask."""
    mask: Callable[[], Mask] = lambda: masks.Mask(())
    """Returns a mask for text that is written; it is expensive, and created only when needed."""
    thresholds: Callable[[], Thresholds] | None = None
    """A function that returns the configured thresholds for comparing memory notes; None for the default thresholds."""


def load(host: str, *, with_tags: bool = True) -> HookContext:
    """Load the context for a host's hooks. Tags are needed only for messages that can contain tags."""
    # Two installations of the same version can differ in wording, so each installation has its own cache.
    cache = os.path.join(config.cache_folder(), f"hooks-{host}-{crc32(os.fsencode(__file__)):08x}.json")
    try:
        with open(cache, "rb") as file:
            content = json.loads(file.read())
        stamps = content["stamps"]
        if content["version"] == __version__ and stamps == [_stamp(one[0]) for one in stamps]:
            return _make(content, with_tags)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass  # the cache is missing, or was cut off by a power failure
    # The stamps are taken before the sources are read, so that later changes make the cache stale.
    stamps = [_stamp(path) for path in hook_compile.list_sources()]
    content = {"version": __version__, "stamps": stamps, **hook_compile.compile_configured(host)}
    with suppress(OSError):  # the next hook writes the cache again
        os.makedirs(os.path.dirname(cache), exist_ok=True)
        atomic.replace(cache, json.dumps(content).encode())
    return _make(content, with_tags)


def load_own(host: str) -> HookContext:
    """Load the context for our own catalogue, ignoring the configuration."""
    return _make(hook_compile.compile_own(host), with_tags=True)


def _make(content: Content, with_tags: bool) -> HookContext:
    tags: dict[str, Tag] = {}
    if with_tags:
        for fields in content["tags"]:
            tags[fields["id"]] = tag_types.Tag(**{**fields, "variants": tuple(fields["variants"])})
    return HookContext(
        cast(GateMode, content["gate"]),
        {name: Rules(tuple(words), *rest) for name, (words, *rest) in content["agents"].items()},
        tags=tags,
        skills=content["skills"],
        docs=content["docs"],
        has_skill_commands=content["has_skill_commands"],
        limit=tuple(content["limit"]) if content["limit"] else None,
        skill_files=tuple(content["skill_files"]),
        problem=content.get("problem", ""),
        secrets=config.SecretPlaces(*content["secrets"]) if content.get("secrets") else None,
    )


def _stamp(path: str) -> Stamp:
    """Return the stamp of a file. A missing file has a stamp, too, because the file could be created."""
    try:
        found = os.stat(path)
    except OSError:
        return [path]
    return [path, found.st_mtime_ns, found.st_size, found.st_ino]

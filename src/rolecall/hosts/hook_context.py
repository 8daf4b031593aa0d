"""The context of all hooks: the gate's mode, the agents' limits, the tags, the bodies of skills.

It comes from the configuration and the catalogue, which are YAML and too slow for a hook to read. So `hook_compile`
compiles it into the home's `cache/`, with a stamp of every source file and folder, and does so again when one of them
changes. A cache that cannot be read or written makes hooks slower, never wrong.
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
"""What the cache contains, as JSON."""
Stamp: TypeAlias = list[Any]
"""A path, and the values that change when the file is written: time, size, inode."""


class Rules(NamedTuple):
    """The properties of a catalogue agent that hooks need."""

    capabilities: tuple[str, ...] = ()
    tier: str = ""
    category: str = ""


class Kit(NamedTuple):
    gate: GateMode = "block"
    agents: Mapping[str, Rules] = {}
    """By id."""
    tags: Mapping[str, Tag] = {}
    skills: Mapping[str, str] = {}
    """Bodies by id, in the host's wording."""
    docs: Mapping[str, str] = {}
    """The host's instructions for a skill, by the skill's id; they are appended to the body."""
    has_skill_commands: bool = False
    """Whether the host itself gives the model a skill's body when a user types `/skill`."""
    run: str = ""
    """The engine's run around the hook, if any: the caller plays a role of a thread, and the session is not ours."""
    restrictions: tuple[str, ...] = ()
    """The restrictions of the role that the host runs as, inside a run or not."""
    harness: str = HARNESS
    """The harness name under which agents are tracked."""
    process: Process | None = None
    """The host's process, if it is known."""
    limit: tuple[int, str] | None = None
    """How many bytes of a hook's text the host shows the model, and in which encoding; None for no limit."""
    skill_files: tuple[str, ...] = ()
    """Paths of a skill's file relative to the project's folder, with `{}` for its id; the last is the catalogue's."""
    problem: str = ""
    """Why our own catalogue and the strictest rules replace the configured ones."""
    secrets: config.SecretPlaces | None = None
    """The positions of the secrets in the configuration, for the mask."""
    mask: Callable[[], Mask] = lambda: masks.Mask(())
    """Hides secrets from text that is written; expensive, so it is created only when something is written."""
    thresholds: Callable[[], Thresholds] | None = None
    """The configured thresholds for comparing memory notes, if any."""


def load(host: str, *, with_tags: bool = True) -> Kit:
    """Load the context of a host's hooks; tags are needed only for messages that may contain some."""
    # Two installations of the same version may differ in wording, so each has its own cache.
    cache = os.path.join(config.cache_folder(), f"hooks-{host}-{crc32(os.fsencode(__file__)):08x}.json")
    try:
        with open(cache, "rb") as file:
            content = json.loads(file.read())
        stamps = content["stamps"]
        if content["version"] == __version__ and stamps == [_stamp(one[0]) for one in stamps]:
            return _kit(content, with_tags)
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        RecursionError,
    ):  # missing, or cut off by a power failure
        pass
    # Before the sources are read, so that later changes make the cache stale.
    stamps = [_stamp(path) for path in hook_compile.list_sources()]
    content = {"version": __version__, "stamps": stamps, **hook_compile.compile_configured(host)}
    with suppress(OSError):  # the next hook writes it again
        os.makedirs(os.path.dirname(cache), exist_ok=True)
        atomic.replace(cache, json.dumps(content).encode())
    return _kit(content, with_tags)


def load_own(host: str) -> Kit:
    """Load the context for our own catalogue, ignoring the configuration."""
    return _kit(hook_compile.compile_own(host), with_tags=True)


def _kit(content: Content, with_tags: bool) -> Kit:
    tags: dict[str, Tag] = {}
    if with_tags:
        for fields in content["tags"]:
            tags[fields["id"]] = tag_types.Tag(**{**fields, "variants": tuple(fields["variants"])})
    return Kit(
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
    """The stamp of a file. A missing file has one too, because it may be created."""
    try:
        found = os.stat(path)
    except OSError:
        return [path]
    return [path, found.st_mtime_ns, found.st_size, found.st_ino]

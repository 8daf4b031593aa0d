"""What the hooks know before any event: the gate's mode, the agents' limits, the tags, the bodies of skills.

It comes from the configuration and the catalogue, both YAML, which cost more than a hook may. So it is kept
compiled in the home's `cache/`, with the stamps of every file and folder it was made from; whenever one of them
is another, it is made anew. A cache that cannot be read or written makes hooks slower and never wrong.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from zlib import crc32

from rolecall import __version__
from rolecall.errors import RolecallError
from rolecall.hosts.event import GateMode
from rolecall.nexus.project_paths import HARNESS
from rolecall.settings import config

if TYPE_CHECKING:
    from rolecall.hosts.sessions import Process
    from rolecall.nexus.catalog import Catalog
    from rolecall.nexus.macros import Render
    from rolecall.nexus.memory import Thresholds
    from rolecall.nexus.tags import Tag
    from rolecall.settings.mask import Mask

_LONGEST_PROBLEM = 600
Stamp = list[Any]
"""A path, and what is another when it was written: time, size, inode."""


class Rules(NamedTuple):
    """What hooks know of an agent of the catalogue."""

    capabilities: tuple[str, ...] = ()
    tier: str = ""
    category: str = ""


def _no_secrets() -> Mask:
    from rolecall.settings.mask import Mask

    return Mask(())


class Kit(NamedTuple):
    gate: GateMode = "block"
    agents: Mapping[str, Rules] = {}
    """By id."""
    tags: Mapping[str, Tag] = {}
    skills: Mapping[str, str] = {}
    """Bodies by id, in the host's words."""
    docs: Mapping[str, str] = {}
    """The host's instructions for a skill, by the skill's id; they follow the body."""
    has_skill_commands: bool = False
    """Whether the host itself gives a skill's body to the model where a user types `/skill`."""
    run: str = ""
    """The run of the engine we are in; then the caller plays a role of a thread, and no host's session is ours."""
    restrictions: tuple[str, ...] = ()
    """What the role may not do in whose name the host runs, inside a run or not."""
    harness: str = HARNESS
    """Under which name agents are tracked."""
    process: Process | None = None
    """The host's process, where it is known."""
    limit: tuple[int, str] | None = None
    """How many bytes of a hook's text the host shows the model, and in which encoding; None means all of them."""
    skill_files: tuple[str, ...] = ()
    """Paths of a skill's file relative to the project's folder, with `{}` for its id; the last is the catalogue's."""
    problem: str = ""
    """Why our own catalogue and the strictest rules apply instead of the configured ones."""
    secrets: config.SecretPlaces | None = None
    """The positions of the secrets in the configuration, for the mask."""
    mask: Callable[[], Mask] = _no_secrets
    """Hides what must not be written down; costly, so it is asked for when something is."""
    thresholds: Callable[[], Thresholds] | None = None
    """The configured thresholds for comparing memory notes, if any."""


def load(host: str, *, with_tags: bool = True) -> Kit:
    """The kit for a host; tags are only needed where a message may have some."""
    # Of this very Rolecall: another one may have the same version and other words.
    name = f"hooks-{host}-{crc32(os.fsencode(__file__)):08x}.json"
    cache = os.path.join(config.cache_folder(), name)
    content = _cached(cache)
    if content is None:
        stamps = _stamps()  # before anything is read: what changes meanwhile is another
        content = {"version": __version__, "stamps": stamps, **_made(host)}
        _keep(cache, content)
    return _kit(content, with_tags)


def own(host: str) -> Kit:
    """The kit of our own catalogue and no configuration, whatever the user has."""
    from rolecall.nexus import catalog

    return _kit(_compiled(host, catalog.load(), {}), with_tags=True)


def _kit(content: Mapping[str, Any], with_tags: bool) -> Kit:
    agents = {name: Rules(tuple(words), *rest) for name, (words, *rest) in content["agents"].items()}
    kit = Kit(
        cast(GateMode, content["gate"]),
        agents,
        skills=content["skills"],
        has_skill_commands=content["has_skill_commands"],
        docs=content["docs"],
        limit=tuple(content["limit"]) if content["limit"] else None,
        skill_files=tuple(content["skill_files"]),
        problem=content.get("problem", ""),
        secrets=config.SecretPlaces(*content["secrets"]) if content.get("secrets") else None,
    )
    if not with_tags:
        return kit
    from rolecall.nexus.tags import Tag

    tags = [Tag(**{**fields, "variants": tuple(fields["variants"])}) for fields in content["tags"]]
    return kit._replace(tags={tag.id: tag for tag in tags})


# -- the cache --


def _cached(path: str) -> dict[str, Any] | None:
    """What was kept, if it is whole and still made of the same."""
    try:
        with open(path, "rb") as file:
            checksum, _, data = file.read().partition(b"\n")
    except OSError:
        return None
    if checksum != _checksum(data):  # cut off, or somebody's else
        return None
    content: dict[str, Any] = json.loads(data)
    stamps = content["stamps"]
    is_current = content["version"] == __version__ and stamps == [_stamp(stamp[0]) for stamp in stamps]
    return content if is_current else None


def _keep(path: str, content: Mapping[str, Any]) -> None:
    """At once or not at all; two that do it at the same time keep the same."""
    data = json.dumps(content).encode()
    draft = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(draft, "wb") as file:
            file.write(_checksum(data) + b"\n" + data)
        os.replace(draft, path)
    except OSError:  # the next hook makes it again
        return


def _checksum(data: bytes) -> bytes:
    return f"{crc32(data):08x} {len(data)}".encode()


def _stamps() -> list[Stamp]:
    """Of everything that is read, our own code among it; what is not there has a stamp, too, for it may come."""
    from rolecall.nexus import catalog

    try:
        folder = config.catalog_folder() or catalog.OWN_FOLDER
    except RolecallError:  # reading it reports the problem
        folder = catalog.OWN_FOLDER
    hosts = os.path.dirname(__file__)
    files = [config.config_path(), __file__, *_files(hosts, ".py"), *(_files(folder) or [folder])]
    return [_stamp(path) for path in files]


def _files(folder: str, ending: str = "") -> list[str]:
    """Every file below a folder, and the folders, which change when one comes or goes."""
    found: list[str] = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        found += [root, *(os.path.join(root, name) for name in sorted(names) if name.endswith(ending))]
    return found


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return [path]
    return [path, found.st_mtime_ns, found.st_size, found.st_ino]


# -- compiling --


def _made(host: str) -> dict[str, Any]:
    """The configured catalogue and rules. If they cannot be read, our own apply, because a hook that fails would let
    everything pass."""
    from rolecall.nexus import catalog

    configuration: Mapping[str, Any] = {}
    try:
        configuration = config.load()
        compiled = _compiled(host, catalog.load(config.catalog_folder()), configuration)
        return {**compiled, "secrets": config.secret_places()}
    except (RolecallError, OSError) as exc:
        told = exc.message if isinstance(exc, RolecallError) else str(exc)
    problem = (
        f"Rolecall's own agents, skills and limits apply until this is fixed: {told[:_LONGEST_PROBLEM]}"
        " (`rolecall config list` shows the configuration, `rolecall config unset catalog` goes back to our own"
        " catalogue)."
    )
    try:
        content = _compiled(host, catalog.load(), configuration)
    except RolecallError:  # the configuration itself cannot be read
        content = _compiled(host, catalog.load(), {})
    return {**content, "problem": problem}


def _compiled(host: str, found: Catalog, configuration: Mapping[str, Any]) -> dict[str, Any]:
    from rolecall.settings import settings

    module = _host_module(host)
    return {
        "gate": settings.unplanned_edits(configuration),
        "agents": {
            name: [list(agent.capabilities), agent.resume_tier, agent.category]
            for name, agent in found.agents.items()
        },
        "tags": [tag._asdict() for tag in found.vocabulary.tags.values()],
        "skills": _bodies(found, module),
        "docs": {skill.id: module.docs(skill) for skill in found.skills.values() if hasattr(module, "docs")},
        "has_skill_commands": bool(getattr(module, "HAS_SKILL_COMMANDS", False)),
        "limit": getattr(module, "LIMIT", None),
        "skill_files": [
            *getattr(module, "SKILL_FILES", ()),
            os.path.join(found.folder, "skills", "{}", "body.md"),
        ],
    }


def _bodies(found: Catalog, module: Any) -> dict[str, str]:
    from rolecall.nexus import macros

    tags = found.vocabulary.tags
    render: Render = module.words(tags) if hasattr(module, "words") else macros.prose(tags)
    bodies = {}
    for skill in found.skills.values():
        invocations, source = found.vocabulary.invocations, f"skill {skill.id}"
        body = macros.expand(skill.body, render, invocations=invocations, source=source)
        docs = module.docs(skill) if hasattr(module, "docs") else ""
        bodies[skill.id] = f"{body.strip()}\n\n{docs}".strip()
    return bodies


def _host_module(host: str) -> Any:
    from importlib import import_module

    return import_module(f"rolecall.hosts.{host}.events")

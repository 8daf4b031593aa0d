"""The catalogue: agents and skills with their bodies, and the vocabulary they are described in.

`load()` gives our own, `load(folder)` that of a nexus-core package: a folder with a `manifest.json` whose
body hashes are checked. Loading reports every problem with its place: first of files that have not their
form, and when all have, of what they say that does not agree. Nothing here knows a host or its tools.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from rolecall.errors import NotFound, UsageError
from rolecall.nexus import macros, vocabulary
from rolecall.nexus.catalog_file import Reader, record
from rolecall.nexus.overview import TASK_STATUSES
from rolecall.nexus.tags import ANY_VARIANT
from rolecall.nexus.vocabulary import CATEGORIES, ID, MODEL_TIERS, RESUME_TIERS, SENTENCE, Vocabulary
from rolecall.settings.capabilities import RESTRICTIONS
from rolecall.settings.form import Anything, Choice, Field, Flag, Form, ListOf, Record, Text, did_you_mean

OWN_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
STAND_INS: Mapping[str, str] = {"explore": "researcher"}
"""Roles that bodies of packages ask for and no manifest has, and who plays them."""


class Agent(NamedTuple):
    id: str
    name: str
    description: str
    category: str
    capabilities: tuple[str, ...]
    resume_tier: str
    model_tier: str
    body: str
    task: str = ""
    alias_ko: str = ""


class Skill(NamedTuple):
    id: str
    name: str
    description: str
    body: str
    triggers: tuple[str, ...] = ()
    """Ids of the tags that activate it."""
    manual_only: bool = False
    """Whether only what a user typed activates it, a tag or a slash command."""
    summary: str = ""
    harness_docs_refs: tuple[str, ...] = ()
    """Subjects on which the host adds words of its own when the skill becomes active."""
    alias_ko: str = ""


class Catalog(NamedTuple):
    folder: str
    version: str
    """Of the package; empty for our own."""
    vocabulary: Vocabulary
    agents: Mapping[str, Agent]
    skills: Mapping[str, Skill]

    @property
    def choices(self) -> macros.Choices:
        """What macros may name. A stand-in is asked for by its own name, which the host may have an agent for."""
        return {
            ("skill_activation", "skill"): macros.Choice("Skills", tuple(self.skills)),
            ("subagent_spawn", "target_role"): macros.Choice("Agents", (*self.agents, *STAND_INS)),
            ("subagent_spawn", "resume_tier_hint"): macros.Choice(
                "Resume tiers", tuple(self.vocabulary.resume_tiers)
            ),
            ("task_register", "state"): macros.Choice("States", TASK_STATUSES),
            **{
                ("skill_activation", macros.mode_of(id)): macros.Choice(
                    f"Modes of {id}", tuple(sorted(modes))
                )
                for id in self.skills
                if ANY_VARIANT not in (modes := self._modes(id))
            },
        }

    def _modes(self, skill: str) -> set[str]:
        """What may stand behind the colon in a tag of a skill."""
        return {mode for tag in self.vocabulary.tags.values() if tag.skill == skill for mode in tag.variants}

    def agent(self, id: str) -> Agent:
        found = self.agents.get(id) or self.agents.get(STAND_INS.get(id, ""))
        if found is None:
            raise NotFound(f"there is no agent {id!r}", hint=did_you_mean(id, self.agents, what="Agents"))
        return found

    def skill(self, id: str) -> Skill:
        if id not in self.skills:
            raise NotFound(f"there is no skill {id!r}", hint=did_you_mean(id, self.skills, what="Skills"))
        return self.skills[id]


def effective(agent: Agent, additions: Collection[str] = ()) -> tuple[str, ...]:
    """What restricts an agent: its own capabilities and what is added to them. Nothing takes one away."""
    for word in additions:
        if word not in RESTRICTIONS:
            hint = did_you_mean(word, RESTRICTIONS, what="Capabilities")
            raise UsageError(f"the capability {word!r} for {agent.id} is not known", hint=hint)
    return tuple(dict.fromkeys((*agent.capabilities, *additions)))


def load(folder: str | os.PathLike[str] | None = None) -> Catalog:
    """Our own catalogue, or that of a package folder; `UsageError` with everything that is wrong with it."""
    return _own() if folder is None else _package(os.fspath(folder))


@cache
def _own() -> Catalog:
    reader = Reader(OWN_FOLDER)
    return _read(reader, {kind: dict.fromkeys(_listed(reader, kind)) for kind in _FORMS}, version="")


def _package(folder: str) -> Catalog:
    reader = Reader(folder)
    manifest_file = reader.path(_MANIFEST)
    if not os.path.isfile(manifest_file):
        raise NotFound(
            f"there is no {manifest_file}, so {folder} is no catalogue",
            hint="Name the folder of a nexus-core package, the one that has manifest.json in it.",
        )
    manifest = reader.json(_MANIFEST, _MANIFEST_FORM)
    if manifest is None:
        raise _refusal(reader)
    _check_names(reader, manifest)
    index = {kind: {entry["id"]: entry for entry in manifest[kind]} for kind in _FORMS}
    return _read(reader, index, version=manifest["nexus_core_version"])


def _read(reader: Reader, index: Mapping[str, Mapping[str, Any]], *, version: str) -> Catalog:
    """The catalogue of the agents and skills in `index`, each with what the manifest says of it, if there is one."""
    words = vocabulary.read(reader)
    found = {
        kind: {id: _described(reader, kind, id, entry) for id, entry in entries.items()}
        for kind, entries in index.items()
    }
    if words is None or reader.problems:
        raise _refusal(reader)
    agents = {id: Agent(**fields) for id, fields in found["agents"].items()}
    skills = {id: Skill(**fields) for id, fields in found["skills"].items()}
    catalog = Catalog(reader.folder, version, words, agents, skills)
    _check(catalog, reader)
    if reader.problems:
        raise _refusal(reader)
    return catalog


def _refusal(reader: Reader) -> UsageError:
    listed = "".join(f"\n  {problem}" for problem in dict.fromkeys(reader.problems))
    return UsageError(f"the catalogue in {reader.folder} cannot be used:{listed}")


# -- agents and skills --

_AGENT = record(
    {
        "id": ID,
        "name": SENTENCE,
        "description": SENTENCE,
        "category": Choice(*CATEGORIES),
        "capabilities": ListOf(ID),
        "resume_tier": Choice(*RESUME_TIERS),
        "model_tier": Choice(*MODEL_TIERS),
    },
    {"task": SENTENCE, "alias_ko": SENTENCE},
)
_SKILL = record(
    {"id": ID, "name": SENTENCE, "description": SENTENCE},
    {
        "triggers": ListOf(ID, least=1),
        "manual_only": Flag(),
        "summary": Text(least=10, most=120),
        "harness_docs_refs": ListOf(SENTENCE),
        "alias_ko": SENTENCE,
    },
)


_FORMS = {"agents": _AGENT, "skills": _SKILL}


def _listed(reader: Reader, kind: str) -> list[str]:
    """The ids of a kind by the folders there are."""
    folder = reader.path(kind)
    try:
        names = os.listdir(folder)
    except OSError as exc:
        reader.report(kind, (), f"the folder cannot be read: {exc.strerror or exc}")
        return []
    return sorted(name for name in names if os.path.isfile(os.path.join(folder, name, "meta.yml")))


def _described(reader: Reader, kind: str, id: str, entry: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of an agent or a skill, its body among them; what is missing is among the problems."""
    meta = reader.yaml(_meta(kind, id), _FORMS[kind])
    content = reader.raw(_body(kind, id))
    body = None if content is None else reader.decoded(_body(kind, id), content)
    if body is not None and not body.strip():
        reader.report(_body(kind, id), (), "the body is empty")
    if content is not None and entry is not None:
        _check_body(reader, _body(kind, id), content, entry["body_hash"])
    if meta is None or body is None:
        return {}
    if meta["id"] != id:
        reader.report(_meta(kind, id), ("id",), f"must be {id!r}, the name of its folder, not {meta['id']!r}")
    if entry is not None:
        _check_entry(reader, _meta(kind, id), meta, entry)
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in meta.items()}
    return {**fields, "body": body}


def _meta(kind: str, id: str) -> str:
    return f"{kind}/{id}/meta.yml"


def _body(kind: str, id: str) -> str:
    return f"{kind}/{id}/body.md"


# -- agreement --


def _check(catalog: Catalog, reader: Reader) -> None:
    vocabulary.check(catalog.vocabulary, reader, is_ours=reader.folder == OWN_FOLDER)
    for agent in catalog.agents.values():
        for field, message in _agent_faults(agent, catalog.vocabulary):
            reader.report(_meta("agents", agent.id), (field,), message)
    for skill in catalog.skills.values():
        for field, message in _skill_faults(skill, catalog.vocabulary):
            reader.report(_meta("skills", skill.id), (field,), message)
        source = reader.path(_body("skills", skill.id))
        invocations = catalog.vocabulary.invocations
        reader.problems += macros.problems(skill.body, invocations, catalog.choices, source=source)
    for index, tag in enumerate(catalog.vocabulary.tags.values()):
        if tag.skill and tag.id not in _triggers(catalog, tag.skill):
            message = f"the skill {tag.skill!r} is not there or does not name {tag.id!r} among its triggers"
            reader.report("vocabulary/tags.yml", ("tags", index, "skill"), message)


def _triggers(catalog: Catalog, skill: str) -> tuple[str, ...]:
    found = catalog.skills.get(skill)
    return found.triggers if found else ()


def _agent_faults(agent: Agent, words: Vocabulary) -> Iterator[tuple[str, str]]:
    if agent.category not in words.categories:
        yield "category", f"the category {agent.category!r} is not in the vocabulary"
    if agent.resume_tier not in words.resume_tiers:
        yield "resume_tier", f"the resume tier {agent.resume_tier!r} is not in the vocabulary"
    for word in agent.capabilities:
        if word not in words.capabilities:
            yield "capabilities", f"the capability {word!r} is not in the vocabulary"
        elif word not in RESTRICTIONS:
            yield "capabilities", f"the capability {word!r} is none that this version can enforce"
    yield from _twice("capabilities", agent.capabilities)


def _skill_faults(skill: Skill, words: Vocabulary) -> Iterator[tuple[str, str]]:
    if not skill.triggers and not skill.manual_only:
        yield "id", "'triggers' is missing: only a skill with manual_only may have none"
    for trigger in skill.triggers:
        tag = words.tags.get(trigger)
        if tag is None or tag.skill != skill.id:
            yield "triggers", f"the tag {trigger!r} is not there or does not lead to {skill.id!r}"
    yield from _twice("triggers", skill.triggers)


def _twice(field: str, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield field, f"{name!r} is given twice"
        seen.add(name)


# -- the manifest of a package --

_MANIFEST = "manifest.json"
_HASH = Text(pattern="sha256:[a-f0-9]{64}")


def _with_hash(form: Record[Any]) -> Form[Any]:
    return ListOf(Record(dict, "the catalogue", {**form.fields, "body_hash": Field(_HASH, required=True)}))


# The vocabulary in a manifest is a copy that leaves fields out, so the files are read instead of it.
_MANIFEST_FORM = record(
    {
        "nexus_core_version": Text(pattern=r"[0-9]+\.[0-9]+\.[0-9]+(-[a-z0-9.-]+)?"),
        "nexus_core_commit": Text(pattern="[a-f0-9]{7,40}"),
        "schema_contract_version": Text(pattern=r"[0-9]+\.[0-9]+"),
        "agents": _with_hash(_AGENT),
        "skills": _with_hash(_SKILL),
        "vocabulary": Anything(),
    }
)


def _check_names(reader: Reader, manifest: Mapping[str, Any]) -> None:
    for kind in _FORMS:
        ids = [entry["id"] for entry in manifest[kind]]
        for field, message in _twice(kind, ids):
            reader.report(_MANIFEST, (field,), message)
        for id in _listed(reader, kind):
            if id not in ids:
                reader.report(_meta(kind, id), (), f"the manifest does not name it among its {kind}")


def _check_body(reader: Reader, name: str, content: bytes, stated: str) -> None:
    import hashlib

    found = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if found != stated:
        reader.report(
            name,
            (),
            f"the body is not the one of the manifest: it has {found}, not {stated}",
            "Install the package again, or make its manifest anew if the body was changed on purpose.",
        )


def _check_entry(reader: Reader, name: str, meta: Mapping[str, Any], entry: Mapping[str, Any]) -> None:
    for key in sorted({*meta, *entry} - {"body_hash"}):
        if meta.get(key) != entry.get(key):
            reader.report(name, (key,), f"it has {meta.get(key)!r}, but the manifest has {entry.get(key)!r}")

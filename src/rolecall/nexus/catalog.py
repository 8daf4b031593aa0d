"""The catalogue: agents and skills with their bodies, and the vocabulary in which they are described.

`load()` returns our own catalogue, and `load(folder)` the catalogue of a nexus-core package: a folder with a
`manifest.json`, against which the hashes of the bodies are checked. Loading reports every problem with its place: first
malformed files and, once all are well formed, contradictions between them. Nothing here depends on a host or its tools.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from rolecall.errors import NotFound, UsageError
from rolecall.nexus import macros, vocabulary
from rolecall.nexus.overview import TASK_STATUSES
from rolecall.nexus.tags import ANY_VARIANT
from rolecall.nexus.vocabulary import ID, SENTENCE, Vocabulary, VocabularyReader, require
from rolecall.settings.capabilities import RESTRICTIONS
from rolecall.settings.form import Anything, Choice, Field, Flag, Form, ListOf, Record, Text, did_you_mean
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import hashlib
else:
    hashlib = Module("hashlib")  # not needed for our own catalogue, which hooks load

OWN_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
STAND_INS: Mapping[str, str] = {"explore": "researcher"}
"""The roles that the bodies of packages ask for but no manifest defines, with the agents that play them."""


class CatalogAgent(NamedTuple):
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
    """The ids of the tags that activate the skill."""
    manual_only: bool = False
    """Whether the skill is activated only by a tag or a slash command that a user types."""
    summary: str = ""
    harness_docs_refs: tuple[str, ...] = ()
    """The subjects on which the host adds its own instructions when the skill becomes active."""
    alias_ko: str = ""


class Catalog(NamedTuple):
    folder: str
    version: str
    """The version of the package; empty for our own catalogue."""
    vocabulary: Vocabulary
    agents: Mapping[str, CatalogAgent]
    skills: Mapping[str, Skill]

    @property
    def choices(self) -> macros.Choices:
        """The names that macros can use. A stand-in keeps its own name, because the host could have such an agent."""
        tiers = tuple(self.vocabulary.resume_tiers)
        choices = {
            ("skill_activation", "skill"): macros.MacroChoice("Skills", tuple(self.skills)),
            ("subagent_spawn", "target_role"): macros.MacroChoice("Agents", (*self.agents, *STAND_INS)),
            ("subagent_spawn", "resume_tier_hint"): macros.MacroChoice("Resume tiers", tiers),
            ("task_register", "state"): macros.MacroChoice("States", TASK_STATUSES),
        }
        for id in self.skills:
            tags = [tag for tag in self.vocabulary.tags.values() if tag.skill == id]
            modes = {mode for tag in tags for mode in tag.variants}
            if ANY_VARIANT not in modes:
                names = tuple(sorted(modes))
                choices["skill_activation", macros.mode_of(id)] = macros.MacroChoice(f"Modes of {id}", names)
        return choices

    def write_body(self, skill: Skill, render: macros.Render) -> str:
        """Return the body of a skill, with its macros replaced by a host's wording."""
        invocations, source = self.vocabulary.invocations, f"skill {skill.id}"
        text = macros.expand(skill.body, render, invocations=invocations, choices=self.choices, source=source)
        return text.strip()

    def agent(self, id: str) -> CatalogAgent:
        found = self.agents.get(id) or self.agents.get(STAND_INS.get(id, ""))
        if found is None:
            hint = did_you_mean(id, self.agents, what="Agents")
            raise NotFound(f"the agent {id!r} is not known", hint=hint)
        return found

    def skill(self, id: str) -> Skill:
        if id not in self.skills:
            hint = did_you_mean(id, self.skills, what="Skills")
            raise NotFound(f"the skill {id!r} is not known", hint=hint)
        return self.skills[id]


def load(folder: str | os.PathLike[str] | None = None) -> Catalog:
    """Load our own catalogue, or a package's. Raise a `UsageError` that lists every problem."""
    if folder is None:
        return _load_own()
    reader = VocabularyReader(os.fspath(folder))
    if not os.path.isfile(reader.path(_MANIFEST)):
        hint = "Name the folder of a nexus-core package, the one that has manifest.json in it."
        problem = f"{reader.path(_MANIFEST)} does not exist, so {reader.folder} is not a catalogue"
        raise NotFound(problem, hint=hint)
    manifest = reader.json(_MANIFEST, _MANIFEST_FORM)
    if manifest is None:
        raise _refusal(reader)
    for kind, listed in (("agents", manifest.agents), ("skills", manifest.skills)):
        ids = [entry.id for entry, _ in listed]
        for message in _find_repeats(ids):
            reader.report(_MANIFEST, (kind,), message)
        for id in _list_ids(reader, kind):
            if id not in ids:
                reader.report(_meta(kind, id), (), f"the manifest does not name it among its {kind}")
    return _read(reader, manifest)


@cache
def _load_own() -> Catalog:
    return _read(VocabularyReader(OWN_FOLDER), None)


def _read(reader: VocabularyReader, manifest: _Manifest | None) -> Catalog:
    words = vocabulary.read(reader)
    agents = _read_kind(reader, "agents", _AGENT, manifest and manifest.agents)
    skills = _read_kind(reader, "skills", _SKILL, manifest and manifest.skills)
    if words is None or reader.problems:
        raise _refusal(reader)
    version = manifest.nexus_core_version if manifest else ""
    catalog = Catalog(reader.folder, version, words, agents, skills)
    _check(catalog, reader)
    if reader.problems:
        raise _refusal(reader)
    return catalog


def _refusal(reader: VocabularyReader) -> UsageError:
    listed = "".join(f"\n  {problem}" for problem in dict.fromkeys(reader.problems))
    return UsageError(f"the catalogue in {reader.folder} cannot be used:{listed}")


# -- agents and skills --

_AGENT_FIELDS: Mapping[str, Field | Form[Any]] = {
    **require(
        id=ID,
        name=SENTENCE,
        description=SENTENCE,
        category=Choice(*vocabulary.CATEGORIES),
        capabilities=ListOf(ID),
        resume_tier=Choice(*vocabulary.RESUME_TIERS),
        model_tier=Choice(*vocabulary.MODEL_TIERS),
    ),
    "task": SENTENCE,
    "alias_ko": SENTENCE,
}
_SKILL_FIELDS: Mapping[str, Field | Form[Any]] = {
    **require(id=ID, name=SENTENCE, description=SENTENCE),
    "triggers": ListOf(ID, "a list of at least one tag", least=1),
    "manual_only": Flag(),
    "summary": Text("text of 10 to 120 characters", least=10, most=120),
    "harness_docs_refs": ListOf(SENTENCE),
    "alias_ko": SENTENCE,
}
_AGENT = Record(partial(CatalogAgent, body=""), "the file", _AGENT_FIELDS)
_SKILL = Record(partial(Skill, body=""), "the file", _SKILL_FIELDS)
A = TypeVar("A", CatalogAgent, Skill)
Listed: TypeAlias = "tuple[A, str]"
"""An agent or a skill from a manifest, without its body, and the hash of the body."""


def _list_ids(reader: VocabularyReader, kind: str) -> list[str]:
    """Return the ids of all agents or all skills, taken from the names of their folders."""
    folder = reader.path(kind)
    try:
        names = os.listdir(folder)
    except OSError as exc:
        reader.report(kind, (), f"the folder cannot be read: {exc.strerror or exc}")
        return []
    return sorted(name for name in names if os.path.isfile(os.path.join(folder, name, "meta.yml")))


def _read_kind(
    reader: VocabularyReader, kind: str, form: Record[A], listed: Sequence[Listed[A]] | None
) -> dict[str, A]:
    """Read all agents or all skills, including their bodies. `listed` are the entries of the manifest, or None
    without a manifest."""
    entries = None if listed is None else {entry.id: (entry, digest) for entry, digest in listed}
    found: dict[str, A] = {}
    for id in _list_ids(reader, kind) if entries is None else entries:
        file, body_file = _meta(kind, id), _body(kind, id)
        meta, content = reader.yaml(file, form), reader.raw(body_file)
        body = reader.decode(body_file, content)
        if body is not None and not body.strip():
            reader.report(body_file, (), "the body is empty")
        if content is not None and entries is not None:
            digest, wanted = f"sha256:{hashlib.sha256(content).hexdigest()}", entries[id][1]
            if digest != wanted:
                message = f"the body does not match the manifest: its hash is {digest}, not {wanted}"
                hint = "Install the package again, or update its manifest if the body was changed on purpose."
                reader.report(body_file, (), message, hint)
        if meta is None or body is None:
            continue
        if meta.id != id:
            reader.report(file, ("id",), f"must be {id!r}, the name of its folder, not {meta.id!r}")
        if entries is not None:
            ours, theirs = meta._asdict(), entries[id][0]._asdict()
            for key in sorted(ours):
                if ours[key] != theirs[key]:
                    message = f"it has {ours[key]!r}, but the manifest has {theirs[key]!r}"
                    reader.report(file, (key,), message)
        found[id] = meta._replace(body=body)
    return found


def _meta(kind: str, id: str) -> str:
    return f"{kind}/{id}/meta.yml"


def _body(kind: str, id: str) -> str:
    return f"{kind}/{id}/body.md"


# -- consistency --


def _check(catalog: Catalog, reader: VocabularyReader) -> None:
    """Report contradictions between the files."""
    words = catalog.vocabulary
    vocabulary.check(words, reader)
    for agent in catalog.agents.values():
        faults = [("capabilities", message) for message in _find_repeats(agent.capabilities)]
        if agent.category not in words.categories:
            faults.append(("category", f"the category {agent.category!r} is not in the vocabulary"))
        if agent.resume_tier not in words.resume_tiers:
            faults.append(("resume_tier", f"the resume tier {agent.resume_tier!r} is not in the vocabulary"))
        for word in agent.capabilities:
            if word not in words.capabilities:
                faults.append(("capabilities", f"the capability {word!r} is not in the vocabulary"))
            elif word not in RESTRICTIONS:
                faults.append(("capabilities", f"this version cannot enforce the capability {word!r}"))
        for field, message in faults:
            reader.report(_meta("agents", agent.id), (field,), message)
    for skill in catalog.skills.values():
        faults = [("triggers", message) for message in _find_repeats(skill.triggers)]
        if not skill.triggers and not skill.manual_only:
            faults.append(("id", "'triggers' is missing: only a skill with manual_only may have none"))
        for trigger in skill.triggers:
            if trigger not in words.tags or words.tags[trigger].skill != skill.id:
                message = f"the tag {trigger!r} does not exist or does not lead to {skill.id!r}"
                faults.append(("triggers", message))
        for field, message in faults:
            reader.report(_meta("skills", skill.id), (field,), message)
        source = reader.path(_body("skills", skill.id))
        reader.problems += macros.problems(skill.body, words.invocations, catalog.choices, source=source)
    for index, tag in enumerate(words.tags.values()):
        leads_to = catalog.skills.get(tag.skill)
        if tag.skill and (leads_to is None or tag.id not in leads_to.triggers):
            message = f"the skill {tag.skill!r} does not exist or does not name {tag.id!r} among its triggers"
            reader.report(vocabulary.file_of("tags"), ("tags", index, "skill"), message)


def _find_repeats(names: Sequence[str]) -> list[str]:
    return [f"{name!r} is given twice" for at, name in enumerate(names) if name in names[:at]]


# -- the manifest of a package --

_MANIFEST = "manifest.json"
_HASH = Text("sha256: and 64 hexadecimal digits", pattern="sha256:[a-f0-9]{64}")


class _Manifest(NamedTuple):
    nexus_core_version: str
    nexus_core_commit: str
    schema_contract_version: str
    agents: Sequence[Listed[CatalogAgent]]
    skills: Sequence[Listed[Skill]]
    vocabulary: object
    """An incomplete copy of the vocabulary. It is not used: the vocabulary's own files are read instead."""


def _list_as(make: Callable[..., A], fields: Mapping[str, Field | Form[Any]]) -> Form[tuple[Listed[A], ...]]:
    def make_listed(body_hash: str, **values: Any) -> Listed[A]:
        return make(body="", **values), body_hash

    return ListOf(Record(make_listed, "the entry", {**fields, **require(body_hash=_HASH)}))


_MANIFEST_FORM = Record(
    _Manifest,
    "the manifest",
    require(
        nexus_core_version=Text("a version such as 0.10.0", pattern=r"[0-9]+\.[0-9]+\.[0-9]+(-[a-z0-9.-]+)?"),
        nexus_core_commit=Text("the id of a commit", pattern="[a-f0-9]{7,40}"),
        schema_contract_version=Text("a version such as 0.10", pattern=r"[0-9]+\.[0-9]+"),
        agents=_list_as(CatalogAgent, _AGENT_FIELDS),
        skills=_list_as(Skill, _SKILL_FIELDS),
        vocabulary=Anything(),
    ),
)

"""The catalogue: agents and skills with their bodies, and the vocabulary in which they are described.

`load()` returns our own catalogue, and `load(folder)` the catalogue of a nexus-core package: a folder with a
`manifest.json`, against which the hashes of the bodies are checked. Loading reports every problem with its place: first
malformed files and, once all are well formed, contradictions between them. Nothing here depends on a host or its tools.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.errors import NotFound, UsageError
from rolecall.nexus import macros, vocabulary
from rolecall.nexus.overview import TASK_STATUSES
from rolecall.nexus.tags import ANY_VARIANT
from rolecall.nexus.vocabulary import ID, SENTENCE, Fields, Vocabulary, VocabularyReader, require
from rolecall.settings.capabilities import RESTRICTIONS
from rolecall.settings.form import Anything, Choice, Field, Flag, Form, ListOf, Section, Text, did_you_mean
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
    for kind in _FORMS:
        ids = [entry["id"] for entry in manifest[kind]]
        for message in _find_repeats(ids):
            reader.report(_MANIFEST, (kind,), message)
        for id in _list_ids(reader, kind):
            if id not in ids:
                reader.report(_meta(kind, id), (), f"the manifest does not name it among its {kind}")
    index = {kind: {entry["id"]: entry for entry in manifest[kind]} for kind in _FORMS}
    return _read(reader, index, version=manifest["nexus_core_version"])


@cache
def _load_own() -> Catalog:
    reader = VocabularyReader(OWN_FOLDER)
    return _read(reader, {kind: dict.fromkeys(_list_ids(reader, kind)) for kind in _FORMS}, version="")


def _read(
    reader: VocabularyReader, index: Mapping[str, Mapping[str, Fields | None]], *, version: str
) -> Catalog:
    """Read the agents and skills in `index`: manifest entries by id, or None without a manifest."""
    words = vocabulary.read(reader)
    found = {
        kind: {id: _describe(reader, kind, id, entry) for id, entry in entries.items()}
        for kind, entries in index.items()
    }
    if words is None or reader.problems:
        raise _refusal(reader)
    agents = {id: CatalogAgent(**fields) for id, fields in found["agents"].items()}
    skills = {id: Skill(**fields) for id, fields in found["skills"].items()}
    catalog = Catalog(reader.folder, version, words, agents, skills)
    _check(catalog, reader)
    if reader.problems:
        raise _refusal(reader)
    return catalog


def _refusal(reader: VocabularyReader) -> UsageError:
    listed = "".join(f"\n  {problem}" for problem in dict.fromkeys(reader.problems))
    return UsageError(f"the catalogue in {reader.folder} cannot be used:{listed}")


# -- agents and skills --

_Fields = dict[str, Field | Form[Any]]
_FORMS: Mapping[str, _Fields] = {
    "agents": {
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
    },
    "skills": {
        **require(id=ID, name=SENTENCE, description=SENTENCE),
        "triggers": ListOf(ID, "a list of at least one tag", least=1),
        "manual_only": Flag(),
        "summary": Text("text of 10 to 120 characters", least=10, most=120),
        "harness_docs_refs": ListOf(SENTENCE),
        "alias_ko": SENTENCE,
    },
}


def _list_ids(reader: VocabularyReader, kind: str) -> list[str]:
    """Return the ids of all agents or all skills, taken from the names of their folders."""
    folder = reader.path(kind)
    try:
        names = os.listdir(folder)
    except OSError as exc:
        reader.report(kind, (), f"the folder cannot be read: {exc.strerror or exc}")
        return []
    return sorted(name for name in names if os.path.isfile(os.path.join(folder, name, "meta.yml")))


def _describe(reader: VocabularyReader, kind: str, id: str, entry: Fields | None) -> Fields:
    """Return the fields of an agent or a skill, including its body."""
    file, body_file = _meta(kind, id), _body(kind, id)
    meta, content = reader.yaml(file, Section("the file", _FORMS[kind])), reader.raw(body_file)
    body = reader.decode(body_file, content)
    if body is not None and not body.strip():
        reader.report(body_file, (), "the body is empty")
    if content is not None and entry is not None:
        found = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if found != entry["body_hash"]:
            message = f"the body is not the one of the manifest: it has {found}, not {entry['body_hash']}"
            hint = "Install the package again, or update its manifest if the body was changed on purpose."
            reader.report(body_file, (), message, hint)
    if meta is None or body is None:
        return {}
    if meta["id"] != id:
        reader.report(file, ("id",), f"must be {id!r}, the name of its folder, not {meta['id']!r}")
    stated = meta if entry is None else {key: value for key, value in entry.items() if key != "body_hash"}
    for key in sorted({*meta, *stated}):
        if meta.get(key) != stated.get(key):
            reader.report(file, (key,), f"it has {meta.get(key)!r}, but the manifest has {stated.get(key)!r}")
    return {**meta, "body": body}


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


# The manifest contains only an incomplete copy of the vocabulary, so the vocabulary's own files are read instead.
_MANIFEST_FORM = Section(
    "the manifest",
    require(
        nexus_core_version=Text("a version such as 0.10.0", pattern=r"[0-9]+\.[0-9]+\.[0-9]+(-[a-z0-9.-]+)?"),
        nexus_core_commit=Text("the id of a commit", pattern="[a-f0-9]{7,40}"),
        schema_contract_version=Text("a version such as 0.10", pattern=r"[0-9]+\.[0-9]+"),
        **{
            kind: ListOf(Section("the entry", {**fields, **require(body_hash=_HASH)}))
            for kind, fields in _FORMS.items()
        },
        vocabulary=Anything(),
    ),
)

"""Compiles the parts of the configuration and the catalogue that hooks need, for the cache of `hook_context`."""

from __future__ import annotations

import os
from importlib import import_module

from rolecall.errors import RolecallError
from rolecall.hosts.names import HOSTS, LEAD
from rolecall.hosts.wording import Wording
from rolecall.nexus import catalog, macros
from rolecall.nexus.catalog import Catalog
from rolecall.settings import config, settings
from rolecall.store.canonical import JsonObject

_LONGEST_PROBLEM = 600


def list_sources() -> list[str]:
    """Return the files and folders on which the compiled context depends."""
    try:
        folder = config.catalog_folder() or catalog.OWN_FOLDER
    except RolecallError:  # the problem is reported when the configuration is read
        folder = catalog.OWN_FOLDER
    code = _list_files(os.path.dirname(__file__), ".py")
    return [config.config_path(), *code, *(_list_files(folder) or [folder])]


def compile_configured(host: str) -> JsonObject:
    """Compile the configured catalogue and rules, or our own if they cannot be read: a failing hook blocks nothing."""
    configuration: settings.Settings = {}
    try:
        configuration = config.load()
        content = _compile(host, catalog.load(config.catalog_folder()), configuration)
        return {**content, "secrets": config.secret_places()}
    except (RolecallError, OSError) as exc:
        reason = exc.message if isinstance(exc, RolecallError) else str(exc)
    problem = (
        f"Rolecall's own agents, skills and limits apply until this is fixed: {reason[:_LONGEST_PROBLEM]}"
        " (`rolecall config list` shows the configuration, `rolecall config unset catalog` goes back to our own"
        " catalogue)."
    )
    try:
        content = _compile(host, catalog.load(), configuration)
    except RolecallError:  # the configuration itself cannot be read
        content = compile_own(host)
    return {**content, "problem": problem}


def compile_own(host: str) -> JsonObject:
    return _compile(host, catalog.load(), {})


def _compile(host: str, found: Catalog, configuration: settings.Settings) -> JsonObject:
    events = None if host == LEAD else import_module(f"rolecall.hosts.{host}.events")
    tags, docs = found.vocabulary.tags, dict.fromkeys(found.skills, "")
    render = macros.prose(tags)
    if host in (*HOSTS, LEAD):
        wording: Wording = import_module(f"rolecall.hosts.{host}.words").WORDING
        render = wording.render(tags)
        docs = {skill.id: wording.skill_docs(skill) for skill in found.skills.values()}
    bodies = {
        skill.id: f"{found.write_body(skill, render)}\n\n{docs[skill.id]}".strip()
        for skill in found.skills.values()
    }
    return {
        "gate": settings.unplanned_edits(configuration),
        "agents": {
            name: [list(agent.capabilities), agent.resume_tier, agent.category]
            for name, agent in found.agents.items()
        },
        "tags": [tag._asdict() for tag in tags.values()],
        "skills": bodies,
        "docs": docs,
        "has_skill_commands": bool(getattr(events, "HAS_SKILL_COMMANDS", False)),
        "limit": getattr(events, "LIMIT", None),
        "skill_files": [
            *getattr(events, "SKILL_FILES", ()),
            os.path.join(found.folder, "skills", "{}", "body.md"),
        ],
    }


def _list_files(folder: str, ending: str = "") -> list[str]:
    """Return everything in a folder, at any depth. A folder's stamp shows that a file was added or removed."""
    found: list[str] = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        found += [root, *(os.path.join(root, name) for name in sorted(names) if name.endswith(ending))]
    return found

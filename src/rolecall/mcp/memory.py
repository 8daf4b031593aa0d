"""The tools for notes and rules. No tool chooses which notes to delete: the caller names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate

from rolecall.api import Project
from rolecall.mcp.tools import Caller, McpOutput, McpTool, ToolContext, flag, make_tool, text, texts
from rolecall.nexus.note_name import CATEGORIES
from rolecall.settings.capabilities import FILES


def _tool(
    name: str, verb: Callable[Concatenate[Project, ...], McpOutput], *about: Any, **more: Any
) -> McpTool:
    """Create a tool that calls `verb` with the project and the tool's arguments."""

    def run(place: ToolContext, _caller: Caller, /, **arguments: Any) -> McpOutput:
        return verb(Project(place.project), **arguments)

    return make_tool(name, run, *about, **more)


def _read(place: ToolContext, _caller: Caller, /, name: str) -> McpOutput:
    warnings: list[str] = []
    found = Project(place.project).recall(name, agent=place.agent, warn=warnings.append)
    return {"text": found, **({"warning": warnings[0]} if warnings else {})}


def _add(
    project: Project,
    name: str,
    text: str,
    category: str | None = None,
    into: str | None = None,
    new: bool = False,
) -> McpOutput:
    return project.remember(name, text, category=category, into=into, is_new=new)


def _list_notes(project: Project) -> McpOutput:
    return {"notes": project.memories()}


def _list_forgettable(project: Project) -> McpOutput:
    return {"candidates": project.forgettable()}


def _delete(project: Project, names: list[str]) -> McpOutput:
    return {"deleted": project.forget(names)}


def _list_rules(project: Project, tag: str | None = None) -> McpOutput:
    return {"rules": project.rules(tag=tag)}


def _read_rule(project: Project, name: str) -> McpOutput:
    return {"text": project.rule(name)}


TOOLS = (
    _tool(
        "memory_add",
        _add,
        "Keep a lesson of this project as a note. If a note on its subject exists, the reply names it, and you say"
        " `into` it or `new`. Never put keys or passwords into it.",
        {
            "name": text(
                "2 to 4 words on the subject joined by hyphens, no date and no version: retry-limits."
            ),
            "text": text("The lesson, in Markdown."),
        },
        {
            "category": {
                "enum": list(CATEGORIES),
                "description": "empirical: measured here; external: imposed by others; pattern: a way of working.",
            },
            "into": text("The note to put the text into, under a heading."),
            "new": flag("Make a note of its own also where one is on the subject."),
        },
        effect="adds",
        classes=FILES,
    ),
    _tool(
        "memory_list",
        _list_notes,
        "List the notes of this project and how often each was read.",
        {},
        notes_reads=True,
    ),
    make_tool(
        "memory_read",
        _read,
        "Read a note. The read is counted.",
        {"name": text("The note.")},
        notes_reads=True,
    ),
    _tool(
        "memory_merge",
        Project.merge_memories,
        "Merge two notes into the first one, or into a new one; a git commit removes the merged notes.",
        {"first": text("The note to merge into."), "second": text("The other note.")},
        {"into": text("The name of a new note for the text of both.")},
        effect="changes",
        is_for_lead=True,
    ),
    _tool(
        "memory_gc",
        _list_forgettable,
        "Show which notes may be forgotten and the reasons for it. Nothing is deleted: ask the user first.",
        {},
        notes_reads=True,
    ),
    _tool(
        "memory_delete",
        _delete,
        "Delete notes that the user agreed to delete, each by a git commit whose message brings it back.",
        {"names": texts("The notes.", minItems=1)},
        effect="changes",
        is_for_lead=True,
    ),
    _tool(
        "rule_add",
        Project.add_rule,
        "Write a rule that all agents of this project keep to.",
        {"name": text("What it is about: commit-messages."), "text": text("The rule, in Markdown.")},
        {"tags": texts("Where it applies: frontend.")},
        effect="adds",
        is_for_lead=True,
    ),
    _tool(
        "rule_list",
        _list_rules,
        "List the rules of this project.",
        {},
        {"tag": text("Only those with this tag.")},
    ),
    _tool(
        "rule_read",
        _read_rule,
        "Read a rule.",
        {"name": text("The rule.")},
    ),
)

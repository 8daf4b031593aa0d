"""The tools of notes and rules. `memory_verbs.py` implements them and is imported at the first call."""

from __future__ import annotations

from functools import partial

from rolecall.mcp.tools import checked_tool, flag, text, texts
from rolecall.nexus.note_name import CATEGORIES
from rolecall.settings.capabilities import FILES

_tool = partial(checked_tool, "rolecall.mcp.memory_verbs")


TOOLS = (
    _tool(
        "memory_add",
        "add_note",
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
        "list_notes",
        "List the notes of this project and how often each was read.",
        {},
        notes_reads=True,
    ),
    _tool(
        "memory_read",
        "read_note",
        "Read a note. The read is counted.",
        {"name": text("The note.")},
        notes_reads=True,
    ),
    _tool(
        "memory_merge",
        "merge_notes",
        "Merge two notes into the first one, or into a new one; a git commit removes the merged notes.",
        {"first": text("The note to merge into."), "second": text("The other note.")},
        {"into": text("The name of a new note for the text of both.")},
        effect="changes",
        is_for_lead=True,
    ),
    _tool(
        "memory_gc",
        "list_candidates",
        "Show which notes may be forgotten and the reasons for it. Nothing is deleted: ask the user first.",
        {},
        notes_reads=True,
    ),
    _tool(
        "memory_delete",
        "delete_notes",
        "Delete notes that the user agreed to delete, each by a git commit whose message brings it back.",
        {"names": texts("The notes.", minItems=1)},
        effect="changes",
        is_for_lead=True,
    ),
    _tool(
        "rule_add",
        "add_rule",
        "Write a rule that all agents of this project keep to.",
        {"name": text("What it is about: commit-messages."), "text": text("The rule, in Markdown.")},
        {"tags": texts("Where it applies: frontend.")},
        effect="adds",
        is_for_lead=True,
    ),
    _tool(
        "rule_list",
        "list_rules",
        "List the rules of this project.",
        {},
        {"tag": text("Only those with this tag.")},
    ),
    _tool("rule_read", "read_rule", "Read a rule.", {"name": text("The rule.")}),
)

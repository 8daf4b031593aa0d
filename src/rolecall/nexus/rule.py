"""The rules of a project: notes in `.nexus/rules/` that agents follow, with tags that say where each rule applies.

The tags are in a comment on the first line, `<!-- tags: frontend, tests -->`, so a rule is still valid Markdown. Each
verb is a plain function over a project folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rolecall.errors import UsageError
from rolecall.nexus import note, note_name, state_file
from rolecall.nexus.project_paths import Folder
from rolecall.settings import keyscan
from rolecall.settings.mask import Mask

if TYPE_CHECKING:
    from rolecall.nexus.reply import AddedRule, RuleEntry

_TAG = re.compile(r"[a-z0-9][a-z0-9-]*")
_TAGS_LINE = re.compile(r"\A\s*<!--\s*tags:([^\n]*?)-->")


def add(project: Folder, name: str, text: str, *, mask: Mask, tags: Iterable[str] = ()) -> AddedRule:
    """Write a new rule. `mask` knows the secrets that must not be stored."""
    file, kept = note_name.new_rule(name), note.clean(text)
    keyscan.refuse_secrets(kept, mask)
    words = list(dict.fromkeys(tags))
    for word in words:
        if not _TAG.fullmatch(word):
            hint = "A tag is lower-case letters, digits and hyphens: frontend."
            raise UsageError(f"{word!r} is not a tag", hint=hint)
    line = f"<!-- tags: {', '.join(words)} -->\n\n" if words else ""
    with state_file.hold_lock(project):
        made = note.create(project, "rules", file, line + kept)
    return {"name": made.name, "path": made.path, "tags": words}


def read(project: Folder, name: str) -> str:
    return note.text(note.find(project, "rules", name))


def list_rules(project: Folder, *, tag: str | None = None) -> list[RuleEntry]:
    """Return all rules, or only those with a given tag, sorted by name."""
    found: list[RuleEntry] = []
    for each in note.list_notes(project, "rules"):
        match = _TAGS_LINE.match(note.content(each).decode(errors="ignore"))
        tags = [word.strip() for word in match[1].split(",") if word.strip()] if match else []
        if tag is None or tag in tags:
            found.append({"name": each.name, "tags": tags, "size": each.size, "path": each.path})
    return found

"""The text of a skill that a host shows the model: all of it, or up to a section, with the file that has the rest."""

from __future__ import annotations

import os
from collections.abc import Callable

from rolecall.hosts.hook_context import Kit

_NO_TITLE = "where this ends"


def body_of(project: str, skill: str, kit: Kit, *, beside: str = "") -> str:
    """The body of a skill. If it is too long for the host together with `beside`, it ends before a section and names
    the file that has all of it."""
    body = kit.skills[skill].strip()
    if kit.limit is None:
        return body
    most, encoding = kit.limit

    def size(text: str) -> int:
        return len(text.encode(encoding, errors="replace"))

    if size(body) + size(beside) <= most:
        return body
    file, docs = _file(project, skill, kit), kit.docs.get(skill, "")
    room = most - size(beside + docs) - size(_onward(file, "x" * 80))
    end, title = _last_break(body, room, size)
    return "\n\n".join(filter(None, [body[:end].rstrip(), _onward(file, title), docs]))


def _onward(file: str, title: str) -> str:
    return f"(The skill is longer than the host allows. Read {file} from {title} on before you act on it.)"


def _file(project: str, skill: str, kit: Kit) -> str:
    """The installed file of the skill, in the host's words; else the catalogue's own."""
    places = [
        os.path.expanduser(os.path.join(project, place.replace("{}", skill))) for place in kit.skill_files
    ]
    return next(filter(os.path.isfile, places), places[-1] if places else f"skills/{skill}/body.md")


def _last_break(text: str, room: int, size: Callable[[str], int]) -> tuple[int, str]:
    """The start and title of the first section that does not fit; of a paragraph if there is no section."""
    section, paragraph, at, used, is_code = (0, ""), 0, 0, 0, False
    for line in text.splitlines(keepends=True):
        is_code ^= line.lstrip().startswith("```")
        if not is_code and line.startswith("#"):
            section = (at, f'"{line.strip().lstrip("# ")[:80]}"')
        elif not is_code and not line.strip():
            paragraph = at
        used += size(line)
        if used > room:
            break
        at += len(line)
    return section if section[0] else (paragraph or at, _NO_TITLE)

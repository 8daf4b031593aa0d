"""Roles that stand in files of their own: `roles/<role>.md` beside the `index.yaml` of a workflow's folder.

    ---
    agent: claude
    schema: {type: object, properties: {plan: {type: string}}, required: [plan]}
    ---
    You are a planner. Read the issue and say what has to change.

The frontmatter has the keys a role has in a workflow, the text below it is the role's `prompt`.
"""

from __future__ import annotations

import os
from typing import Any

from rolecall.errors import UsageError
from rolecall.settings import yaml12
from rolecall.settings.yaml12 import Node, Place, Problem

FOLDER = "roles"
ENDING = ".md"


def add(root: Node, workflow_file: str, include: yaml12.Include) -> list[Problem]:
    """Put the roles that have files into a workflow that was read; what is wrong with the files."""
    folder = os.path.join(os.path.dirname(workflow_file), FOLDER)
    if not isinstance(root.value, dict) or not os.path.isdir(folder):
        return []
    names = sorted(name for name in os.listdir(folder) if name.endswith(ENDING) and not name.startswith("."))
    roles = _roles_of(root, Place(workflow_file, 1, 1)) if names else None
    if roles is None:
        return []
    problems: list[Problem] = []
    for name in names:
        file, role = os.path.join(folder, name), name.removesuffix(ENDING)
        if role in roles.value:
            place = roles.key_places[role]
            problems.append(
                Problem("error", f"the role {role!r} also stands in {file}", *place, "Keep one of them.")
            )
            continue
        node = _read(file, include, problems)
        if node is not None:
            roles.add(role, node, node.place)
            roles.value[role] = node.value
    return problems


def _roles_of(root: Node, place: Place) -> Node | None:
    """The part of a workflow that holds its roles; None where something else stands in its place."""
    if root.value.get("roles") is None:
        root.value["roles"] = {}
        root.add("roles", Node(root.value["roles"], place), place)
    return root.parts["roles"] if isinstance(root.value["roles"], dict) else None


def _read(file: str, include: yaml12.Include, problems: list[Problem]) -> Node | None:
    from rolecall.workflow.yaml import read_text

    place = Place(file, 1, 1)
    try:
        front, text, line = _split(read_text(file))
    except (UsageError, FileNotFoundError) as error:
        problems.append(Problem("error", str(error), *place))
        return None
    read, found = yaml12.read(front, source=file, include=include)
    problems += found
    if read is None:
        return None
    value: Any = {} if read.value is None else read.value
    if not isinstance(value, dict):
        problems.append(Problem("error", "the frontmatter of a role must be a mapping", *place))
        return None
    node = read if value is read.value else Node(value, place)
    if given := value.keys() & {"prompt", "goal"}:
        hint = "The text below the frontmatter is the prompt; leave the key out."
        place = node.key_places[given.pop()]
        problems.append(Problem("error", "the prompt of a role's file is its text", *place, hint))
    elif text.strip():
        value["prompt"] = text.strip()
        node.add("prompt", Node(value["prompt"], Place(file, line, 1)), Place(file, line, 1))
    return node


def _split(text: str) -> tuple[str, str, int]:
    """The frontmatter, the text below it, and the line the text begins at. A line stands for the first `---`,
    so that places in the frontmatter are those of the file."""
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    if not lines or lines[0].rstrip() != "---":
        return "", text, 1
    for number, line in enumerate(lines[1:], 2):
        if line.rstrip() == "---":
            return "\n" + "".join(lines[1 : number - 1]), "".join(lines[number:]), number + 1
    raise UsageError("the frontmatter is never closed by a line '---'")

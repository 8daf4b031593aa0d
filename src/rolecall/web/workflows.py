"""The verbs for workflows that can be started from this folder, with their graphs, roles and agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rolecall.api import Rolecall
from rolecall.errors import UsageError
from rolecall.settings import config
from rolecall.web import hints, markdown
from rolecall.web.verbs import Ask, JsonObject, get
from rolecall.workflow import model
from rolecall.workflow.draw import picture
from rolecall.workflow.playbook import Playbook
from rolecall.workflow.registry import check_trust


class Drawing(NamedTuple):
    """A workflow as nodes and lines, which the page lays out."""

    name: str
    places: Sequence[str] = ()
    lines: Sequence[Mapping[str, str]] = ()
    groups: Mapping[str, str] = {}
    """The roles that groups play, with the kind of each group."""


def draw(workflow: model.StoredWorkflow) -> Drawing:
    drawn = picture(workflow)
    groups = {name: role.group.kind for name, role in workflow.roles.items() if role.group}
    return Drawing(workflow.name, drawn.places, [line._asdict() for line in drawn.lines], groups)


def _describe_trust(rolecall: Rolecall, name: str) -> JsonObject:
    """Return what a workflow from a pack may do, and why it is refused until somebody allows it. None of its code
    runs."""
    if rolecall.find_workflow(name).path is None:
        return {"refused": None, "powers": []}
    powers, refused = [one for one in rolecall.powers(name) if one.pin], None
    for one in powers:
        try:
            check_trust(one.path)
        except UsageError as error:
            refused = {"error": error.message, "hint": hints.word(error.hint)}
            break
    worded = []
    for one in powers:
        lines = [f"{name}: {text}" for name, text in one.explain()]
        worded.append({"workflow": one.name, "from": one.pin.origin if one.pin else None, "lines": lines})
    return {"refused": refused, "powers": worded}


@get("/workflows", "The workflows that can be started from this folder.")
def list_workflows(ask: Ask) -> Any:
    return {
        "workflows": [
            {
                "name": entry.name,
                "path": entry.path,
                "origin": entry.origin,
                "description": ask.rolecall.describe(entry),
            }
            for entry in (*ask.rolecall.workflow_entries(), *ask.rolecall.gallery())
        ]
    }


@get(
    "/workflows/{name}",
    "A workflow: its graph, roles, limits, and which of its agents are missing. `refused` says why nobody may start it "
    "yet, if it is from a pack; `powers` is what it may do.",
    is_slow=True,
)
def show_workflow(ask: Ask) -> Any:
    name = ask.path["name"]
    trust = _describe_trust(ask.rolecall, name)
    if ask.rolecall.is_python(name):
        # Looking at a workflow must not run its code; only starting the workflow does.
        return Drawing(name)._asdict() | {
            **trust,
            "isPython": True,
            "description": "",
            "descriptionHtml": "",
            "limits": {},
            "roleList": [],
            "missing": [],
            "defaultAgent": None,
        }
    if trust["refused"]:
        book = Playbook(ask.rolecall.define(name).workflow)
    else:
        book = ask.rolecall.load_workflow(name).playbook
    workflow, missing = book.workflow, ask.rolecall.missing_agents(book)
    limits = {key: value for key, value in workflow.limits._asdict().items() if value is not None}
    return draw(workflow)._asdict() | {
        **trust,
        "isPython": False,
        "description": workflow.description,
        "descriptionHtml": markdown.render(workflow.description),
        "limits": limits,
        "roleList": [
            {"name": name, "description": role.description, "agent": role.agent}
            for name, role in workflow.roles.items()
        ],
        "missing": [
            {"role": role, "error": error.message, "hint": hints.word(error.hint)} for role, error in missing
        ],
        "defaultAgent": config.load().get("defaultAgent"),
    }

"""The verbs for the project's plan: issues and decisions, tasks, and closed cycles. They match the project's tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolecall.errors import RolecallError
from rolecall.web import markdown
from rolecall.web.verbs import TEXT, WHOLE, Ask, JsonObject, get, post, record

if TYPE_CHECKING:
    from rolecall.nexus.reply import ClosedCycle, IssueChange, RecordedDecision, StartedPlan, TaskReply


@get("/project", "The active plan, the tasks of the current cycle, and the newest closed cycles.")
def show_project(ask: Ask) -> JsonObject:
    try:
        project = ask.rolecall.project()
    except RolecallError as error:
        nothing = {"plan": {"active": False}, "tasks": {"exists": False}, "history": {"cycles": []}}
        return {"folder": None, "problem": error.message, **nothing}
    plan, tasks = project.plan(), project.tasks()
    research = plan.get("research_summary")
    return {
        "folder": project.folder,
        "problem": None,
        "plan": {**plan, "researchHtml": markdown.render(research)} if research else plan,
        "tasks": tasks,
        "history": project.history(last=5),
    }


@post(
    "/project/plan",
    "Start a plan with issues to decide; an active one goes to the history.",
    record({"topic": TEXT, "issues": {"type": "array", "items": TEXT}}, research=TEXT),
)
def start_plan(ask: Ask) -> StartedPlan:
    body = ask.body
    return ask.rolecall.project().start_plan(body["topic"], body["issues"], research=body.get("research", ""))


@post("/project/decide", "Record the decision on an issue.", record({"issue": WHOLE, "decision": TEXT}))
def decide(ask: Ask) -> RecordedDecision:
    return ask.rolecall.project().decide(ask.body["issue"], ask.body["decision"])


@post(
    "/project/issue",
    "Add, remove, rename or reopen an issue of the plan.",
    record({"action": {"enum": ["add", "remove", "edit", "reopen"]}}, issue=WHOLE, title=TEXT),
)
def change_issue(ask: Ask) -> IssueChange:
    body = ask.body
    return ask.rolecall.project().change_issue(body["action"], body.get("issue"), body.get("title"))


@post(
    "/project/task",
    "Add a task that can begin once the tasks `deps` are completed.",
    record(
        {"title": TEXT, "context": TEXT}, deps={"type": "array", "items": WHOLE}, acceptance=TEXT, owner=TEXT
    ),
)
def add_task(ask: Ask) -> TaskReply:
    body = ask.body
    return ask.rolecall.project().add_task(
        body["title"],
        body["context"],
        deps=body.get("deps", ()),
        acceptance=body.get("acceptance") or None,
        owner=body.get("owner") or None,
    )


@post(
    "/project/task/status",
    "Set the status of a task.",
    record({"task": WHOLE, "status": {"enum": ["pending", "in_progress", "completed"]}}),
)
def update_task(ask: Ask) -> TaskReply:
    return ask.rolecall.project().update_task(ask.body["task"], ask.body["status"])


@post("/project/close", "Move the plan and its tasks to the history.", record())
def close_cycle(ask: Ask) -> ClosedCycle:
    return ask.rolecall.project().close_cycle()

"""`rolecall plan`: a project's open questions and decisions."""

from __future__ import annotations

from argparse import Namespace

from rolecall.api import Project
from rolecall.cli import CommandResult, argument, flag, repeated, verb
from rolecall.cli.output import pair, plural, read_input, short, table
from rolecall.cli.project import PROJECT, look
from rolecall.errors import UsageError

_MOST_CHARACTERS = 300
"""How many characters of a replaced decision are shown."""
_ISSUE = argument("issue_id", "ID", "the issue", type=int)


@verb(
    "plan start",
    "begin a plan; an active one moves to the history",
    "rolecall plan start 'Move the storage' --issue 'Which format?' --issue 'Who migrates?' --research @notes.md",
    argument("topic", "TOPIC", "what the plan is about"),
    repeated("--issue", "TITLE", "a question to decide; give one for each"),
    argument(
        "--research",
        "TEXT",
        "the research before planning; @FILE reads a file, - standard input",
        required=True,
    ),
    PROJECT,
)
def start(options: Namespace) -> CommandResult:
    research = read_input(options.research)
    reply = Project(options.project).start_plan(options.topic, options.issue, research=research)
    before = "; the plan before it is in the history" if reply["previousArchived"] else ""
    return CommandResult(reply, f"plan {reply['plan_id']} has {plural(reply['issueCount'], 'issue')}{before}")


@verb("plan status", "show the active plan", "rolecall plan status", PROJECT)
def show_status(options: Namespace) -> CommandResult:
    reply = Project(options.project).plan()
    if not reply["active"]:
        return CommandResult(reply, "no plan is active")
    rows: list[tuple[float | str, str, str]] = []
    for issue in reply["issues"]:
        rows.append((issue["id"], issue["status"], issue["title"]))
        rows += [("", "", f"→ {issue['decision']}")] if issue.get("decision") else []
    summary = reply["summary"]
    lines = [f"plan {reply['plan_id']}: {reply['topic']}"]
    lines.append(table(rows, ("id", "status", "issue → decision"), folds=True))
    lines.append(f"{summary['decided']} of {summary['total']} decided")
    return CommandResult(reply, lines)


@verb(
    "plan add",
    "add an issue to the active plan",
    "rolecall plan add 'Which tests?'",
    argument("title", "TITLE", "the question to decide"),
    PROJECT,
)
def add(options: Namespace) -> CommandResult:
    return _update(options, "add", title=options.title)


@verb("plan remove", "remove an issue", "rolecall plan remove 2", _ISSUE, PROJECT)
def remove(options: Namespace) -> CommandResult:
    return _update(options, "remove", options.issue_id)


@verb(
    "plan edit",
    "give an issue another title",
    "rolecall plan edit 2 'Who migrates?'",
    _ISSUE,
    argument("title", "TITLE", "its new title"),
    PROJECT,
)
def edit(options: Namespace) -> CommandResult:
    return _update(options, "edit", options.issue_id, options.title)


@verb("plan reopen", "take a decision back", "rolecall plan reopen 1", _ISSUE, PROJECT)
def reopen(options: Namespace) -> CommandResult:
    return _update(options, "reopen", options.issue_id)


def _update(
    options: Namespace, action: str, issue: int | None = None, title: str | None = None
) -> CommandResult:
    reply = Project(options.project).change_issue(action, issue, title)
    return CommandResult(reply, f"issue {reply['issue']['id']} {next(iter(reply))}")


@verb(
    "plan decide",
    "record the decision on an issue",
    "rolecall plan decide 1 'One file per event: readers need no lock.' --agent architect",
    _ISSUE,
    argument("decision", "TEXT", "what was decided, and why; @FILE reads a file, - standard input"),
    flag("--again", "replace an earlier decision"),
    repeated("--agent", "AGENT", "an agent that was consulted"),
    repeated("--advice", "AGENT=TEXT", "what an agent advised", type=pair),
    repeated("--agent-id", "AGENT=ID", "the id of an agent's instance", type=pair),
    PROJECT,
)
def decide(options: Namespace) -> CommandResult:
    project = Project(options.project)
    plan = look(project.plan)
    issues = plan.get("issues", []) if plan else []
    before = next((issue.get("decision") for issue in issues if issue["id"] == options.issue_id), None)
    if before and not options.again:
        raise UsageError(
            f"issue {options.issue_id} already has a decision: {short(before, _MOST_CHARACTERS)}",
            hint="Add --again to replace it.",
        )
    reply = project.decide(
        options.issue_id,
        read_input(options.decision),
        agents=options.agent,
        advice=dict(options.advice),
        agent_ids=dict(options.agent_id),
    )
    text = reply.get("message") or f"decided; {len(reply.get('remaining', ()))} left"
    if not before:
        return CommandResult(reply, text)
    text += f"\nreplaces: {short(before, _MOST_CHARACTERS)}"
    return CommandResult({**reply, "replaced": before}, text)

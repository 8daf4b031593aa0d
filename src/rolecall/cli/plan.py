"""`rolecall plan`: what a project has to decide, and what it decided."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any

from rolecall.cli import Verb
from rolecall.cli.output import read_input, short, show, table
from rolecall.cli.project_call import add_project, call, look
from rolecall.errors import UsageError

_SHOWN = 300
"""How many characters of a replaced decision are shown."""


def _start(options: Namespace) -> None:
    reply = call(
        options,
        "plan_start",
        topic=options.topic,
        issues=options.issue,
        research_summary=read_input(options.research),
    )
    before = "; the plan before it is in the history" if reply["previousArchived"] else ""
    count = reply["issueCount"]
    issues = "1 issue" if count == 1 else f"{count} issues"
    show(options, reply, lambda: f"plan {reply['plan_id']} has {issues}{before}")


def _status(options: Namespace) -> None:
    reply = call(options, "plan_status")
    show(options, reply, lambda: _status_text(reply))


def _status_text(reply: dict[str, Any]) -> str:
    if not reply["active"]:
        return "no plan is active"
    rows = [
        (issue["id"], issue["status"], issue["title"], issue.get("decision", "")) for issue in reply["issues"]
    ]
    summary = reply["summary"]
    return "\n".join(
        [
            f"plan {reply['plan_id']}: {reply['topic']}",
            table(rows, ("id", "status", "issue", "decision")),
            f"{summary['decided']} of {summary['total']} decided",
        ]
    )


def _add(options: Namespace) -> None:
    _update(options, "add", title=options.title)


def _remove(options: Namespace) -> None:
    _update(options, "remove", issue_id=options.issue_id)


def _edit(options: Namespace) -> None:
    _update(options, "edit", issue_id=options.issue_id, title=options.title)


def _reopen(options: Namespace) -> None:
    _update(options, "reopen", issue_id=options.issue_id)


def _update(options: Namespace, action: str, **arguments: Any) -> None:
    reply = call(options, "plan_update", action=action, **arguments)
    done = next(iter(reply))
    show(options, reply, lambda: f"issue {reply['issue']['id']} {done}")


def _decide(options: Namespace) -> None:
    issues = look(options, "plan_status").get("issues", ())
    before = next((issue.get("decision") for issue in issues if issue["id"] == options.issue_id), None)
    if before and not options.again:
        raise UsageError(
            f"issue {options.issue_id} already has a decision: {short(before, _SHOWN)}",
            hint="Add --again to replace it.",
        )
    reply = call(
        options,
        "plan_decide",
        issue_id=options.issue_id,
        decision=read_input(options.decision),
        how_agents=options.agent,
        how_summary=_mapping(options.advice),
        how_agent_ids=_mapping(options.agent_id),
    )
    left = len(reply.get("remaining", ()))
    replaced = f"\nreplaces: {short(before, _SHOWN)}" if before else ""
    if before:
        reply["replaced"] = before
    show(options, reply, lambda: (reply.get("message") or f"decided; {left} left") + replaced)


def _run(options: Namespace) -> int:
    from rolecall.cli.plan_run import run_plan

    return run_plan(options)


def _mapping(pairs: list[tuple[str, str]] | None) -> dict[str, str] | None:
    return dict(pairs) if pairs else None


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ArgumentTypeError(f"{text!r} is not AGENT=TEXT")
    return name, value


# -- the table --


def _start_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="what the plan is about")
    parser.add_argument(
        "--issue",
        action="append",
        default=[],
        metavar="TITLE",
        help="a question to decide; give one for each",
    )
    parser.add_argument(
        "--research",
        required=True,
        metavar="TEXT",
        help="what was found out before planning; @FILE reads a file, - standard input",
    )
    add_project(parser)


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("title", metavar="TITLE", help="the question to decide")
    add_project(parser)


def _issue_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("issue_id", metavar="ID", type=int, help="the issue")
    add_project(parser)


def _edit_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("issue_id", metavar="ID", type=int, help="the issue")
    parser.add_argument("title", metavar="TITLE", help="its new title")
    add_project(parser)


def _decide_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("issue_id", metavar="ID", type=int, help="the issue")
    parser.add_argument(
        "decision", metavar="TEXT", help="what was decided, and why; @FILE reads a file, - standard input"
    )
    parser.add_argument("--again", action="store_true", help="replace an earlier decision")
    parser.add_argument("--agent", action="append", metavar="AGENT", help="an agent that was asked")
    parser.add_argument(
        "--advice", action="append", type=_pair, metavar="AGENT=TEXT", help="what an agent advised"
    )
    parser.add_argument(
        "--agent-id", action="append", type=_pair, metavar="AGENT=ID", help="the id of an agent's instance"
    )
    add_project(parser)


def _run_arguments(parser: ArgumentParser) -> None:
    from rolecall.cli.plan_run import arguments

    arguments(parser)


VERBS = {
    "start": Verb(
        _start,
        "begin a plan; one that is active goes into the history",
        "rolecall plan start 'Move the storage' --issue 'Which format?' --issue 'Who migrates?' --research @notes.md",
        _start_arguments,
    ),
    "status": Verb(_status, "show the active plan", "rolecall plan status", add_project),
    "add": Verb(_add, "add an issue to the active plan", "rolecall plan add 'Which tests?'", _add_arguments),
    "remove": Verb(_remove, "remove an issue", "rolecall plan remove 2", _issue_arguments),
    "edit": Verb(_edit, "give an issue another title", "rolecall plan edit 2 'Who migrates?'", _edit_arguments),
    "reopen": Verb(_reopen, "take a decision back", "rolecall plan reopen 1", _issue_arguments),
    "decide": Verb(
        _decide,
        "record the decision on an issue",
        "rolecall plan decide 1 'One file per event: readers need no lock.' --agent architect",
        _decide_arguments,
    ),
    "run": Verb(
        _run,
        "carry out the tasks of the cycle with agents, as many at once as may be",
        "rolecall plan run --dry-run\nrolecall plan run --agent claude --limit 4\nrolecall plan run --task 3",
        _run_arguments,
    ),
}  # fmt: skip

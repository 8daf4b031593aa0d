"""The tools for workflows and threads. They are implemented in `thread_verbs.py`, imported on the first call."""

from __future__ import annotations

from typing import Any

from rolecall.mcp.tools import McpTool, flag, make_tool, text, whole


def _tool(name: str, run: str, *about: Any, **more: Any) -> McpTool:
    return make_tool(name, ("rolecall.mcp.thread_verbs", run), *about, **more)


_THREAD = {"thread": text("Id of the thread, or an unambiguous part of it.")}
_WORKFLOW = {"workflow": text("Name, path or id of the workflow.")}
_STATUSES = [
    *("queued", "idle", "running", "crashed", "suspended", "waiting"),
    *("completed", "failed", "killed", "discarded", "damaged"),
]
_DETAIL = {"detail": flag("Everything instead of the essentials.")}
_WAIT = {
    "wait": flag(
        "false returns at once: the thread goes on by itself, even after this session, and you are told of its end "
        "where the host allows it; thread_wait waits for it. Do so for work of more than a few minutes."
    )
}
_START = {
    "limits": {
        "type": "object",
        "additionalProperties": {"type": "number", "exclusiveMinimum": 0},
        "description": "Suspend the thread at this much: steps, turns, tokens, cost, minutes, "
        "or of one role ROLE.steps.",
    },
    "reuse": flag(
        "true takes over finished steps that had the same prompt, agent and files; false asks every role. "
        "When not given, the workflow decides."
    ),
}
_RUNS_AGENTS: dict[str, Any] = {"is_for_lead": True, "starts_threads": True, "reaches_out": True}
"""Fields of tools that run agents. The agents of a thread have their own restrictions, so a restricted caller must not
be able to use these agents to get around its own restrictions."""

TOOLS = (
    _tool(
        "workflow_list",
        "list_workflows",
        "List the workflows that can be started here, with what they do.",
        {},
        _DETAIL,
    ),
    _tool(
        "workflow_show",
        "show_workflow",
        "Show a workflow: its roles, and which role follows which; with `detail`, also what each must deliver.",
        _WORKFLOW,
        _DETAIL,
    ),
    _tool(
        "workflow_run",
        "run_workflow",
        "Start a thread of a workflow and run it until it ends or asks a person: its agents work, which may take long. "
        "Cancelling the call stops the agent that works; the thread stays, and thread_run continues it.",
        _WORKFLOW | {"prompt": text("The task.")},
        _START | _WAIT | _DETAIL,
        effect="changes",
        is_long=True,
        **_RUNS_AGENTS,
    ),
    _tool(
        "thread_start",
        "start_thread",
        "Make a thread of a workflow in the project's folder. Nothing is run yet: thread_run does that.",
        _WORKFLOW | {"prompt": text("The task.")},
        _START,
        effect="adds",
        **_RUNS_AGENTS,
    ),
    _tool(
        "thread_run",
        "run_thread",
        "Continue a thread until it ends or asks a person, as workflow_run does.",
        _THREAD,
        _WAIT | _DETAIL,
        effect="changes",
        is_long=True,
        **_RUNS_AGENTS,
    ),
    _tool(
        "thread_wait",
        "wait_for_thread",
        "Wait until a thread that something else runs has ended or asks a person, and show its result.",
        _THREAD,
        {
            "seconds": whole(
                "Return after this time at the latest; 600 when not given.", minimum=0, maximum=86_400
            )
        }
        | _DETAIL,
        is_long=True,
    ),
    _tool(
        "thread_step",
        "step_thread",
        "Take one step of a thread by running the agent of the next role, which may take minutes. "
        "Cancelling the call stops the agent and adds no step, so the same step can be taken again.",
        _THREAD,
        effect="changes",
        is_long=True,
        **_RUNS_AGENTS,
    ),
    _tool(
        "thread_show",
        "show_thread",
        "Show the state of a thread: status, next role, limits, what it has used, its result if it has ended.",
        _THREAD,
        _DETAIL,
    ),
    _tool(
        "thread_read",
        "read_thread",
        "Read what a thread's roles did, as Markdown: the newest steps that fit.",
        _THREAD,
        {
            "quota": whole("Characters, 4000 when not given.", minimum=1),
            "before": text("Only steps before this one; the reply names it."),
        },
    ),
    _tool(
        "thread_list",
        "list_threads",
        "List threads, the newest first.",
        {},
        {
            "status": {
                "type": "array",
                "items": {"enum": _STATUSES},
                "description": "Only these; when not given, those that have not ended.",
            },
            "workflow": text("Only threads of this workflow."),
            "text": text("Only threads whose title has these words."),
            "max": whole("20 when not given.", minimum=1, maximum=200),
            "page": text("Go on after this thread; the reply names it."),
            "members": flag("Also the members of groups."),
        }
        | _DETAIL,
        renamed={"limit": "max"},
    ),
    _tool(
        "thread_answer",
        "answer_thread",
        "Show what a thread is asking a person, or answer it. If only the thread is given, `takes` in the reply says "
        "what the thread is waiting for: a `text`, or the `output` of a role that a person plays. This call runs "
        "nothing.",
        _THREAD,
        {
            "text": text(
                "The answer to the question of a suspended thread, or a message to the role that failed; empty to "
                "let the role try again."
            ),
            "output": {"type": "object", "description": "The role's output, as its schema wants it."},
            "body": text("Free text that goes with the output."),
        },
        effect="adds",
        **_RUNS_AGENTS,
    ),
)

"""`rolecall ci run`: run a workflow in a GitHub Actions or GitLab CI job.

The exit code is 0, so that the job succeeds, if there was nothing to do, the thread is completed, or the thread waits
for a person's answer. Otherwise the exit codes are those of `thread run`.
"""

from __future__ import annotations

import os
import signal
import sys
from argparse import Namespace

from rolecall.api import Event, Thread
from rolecall.cli import CommandResult, argument, flag, repeated, verb
from rolecall.cli.arguments import AGENT, LIMIT, WORKFLOW
from rolecall.cli.output import format_of, read_input, say
from rolecall.cli.thread_outcome import CODES
from rolecall.cli.thread_play import step_line
from rolecall.forge import job as jobs
from rolecall.settings import forge


@verb(
    "ci run",
    "in a GitHub Actions or GitLab CI job: start or continue the thread that the event is about",
    "rolecall ci run fix-issue --limit cost=5\n"
    "rolecall ci run review-change --prompt 'Review this change' --allow alice --allow bob\n"
    "rolecall ci run implement-issue --setup 'npm ci' --request",
    WORKFLOW,
    argument(
        "-p --prompt",
        "TEXT",
        "the task, which the text of the event follows; @FILE reads a file (default: only the event)",
        default="",
    ),
    repeated(
        "--allow",
        "NAME",
        "only these people may start and continue threads; may be repeated (default: people with push access)",
    ),
    flag("--open", "let events caused by anybody start a thread; comments still need --allow"),
    flag(
        "--request", "push changes as a branch, and open a pull or merge request when the thread is completed"
    ),
    argument(
        "--setup", "COMMAND", "a shell command that prepares the folder in which the thread works", default=""
    ),
    LIMIT,
    AGENT,
)
def run(options: Namespace) -> CommandResult:
    job = forge.read_job()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a cancelled job saves its work before it ends
    is_text = format_of(options) == "text"
    if job.forge == "github":  # otherwise the runner would carry out commands in text by agents and strangers
        say(f"::stop-commands::{os.urandom(16).hex()}", sys.stderr)

    def tell(line: str) -> None:
        if is_text:
            say(line)

    def watch(thread: Thread, event: Event) -> None:
        if event.kind == "step":
            tell(step_line(thread.rolecall.find_step(event.body["step"])))
        elif event.kind == "attempt_failed":
            tell(f"✗ {event.body['role']}: {event.body['error']}")
        elif event.kind == "remark":
            tell(f"⚠ {event.body['text']}")

    wanted = jobs.Options(
        workflow=options.workflow,
        prompt=read_input(options.prompt) if options.prompt else "",
        agent=options.agent,
        limits=dict(options.limit),
        allowed=tuple(name for names in options.allow for name in names.replace(",", " ").split()),
        is_open=options.open,
        wants_request=options.request,
        setup=options.setup,
    )
    done = jobs.run(job, wanted, checkout=os.getcwd(), tell=tell, watch=watch)
    if done.ignored:
        return CommandResult(done._asdict(), f"nothing to do: {done.ignored}")
    text = f"{done.thread} is {done.status}" + (f": {done.reason}" if done.reason else "")
    text += f"\nwaits for a comment on {done.subject}" if done.waits else ""
    return CommandResult(done._asdict(), text, code=0 if done.waits else CODES.get(done.status, 0))

"""`rolecall thread`: the table of its verbs. Their modules are imported when one is called, because
reading a thread must not pay for what running one needs."""

from __future__ import annotations

from rolecall.cli import Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_READ = "rolecall.cli.thread_read"
_RUN = "rolecall.cli.thread_run"
_ANSWER = "rolecall.cli.thread_answer"
_FOLDER = "rolecall.cli.thread_folder"


def _verb(module: str, name: str, help: str, example: str) -> Verb:
    """A verb whose module has `NAME_arguments` and `run_NAME`."""
    word = name.replace("-", "_").replace(" ", "_")

    def arguments(parser: ArgumentParser) -> None:
        from importlib import import_module

        getattr(import_module(module), f"{word}_arguments")(parser)

    def run(options: Namespace) -> int | None:
        from importlib import import_module

        status: int | None = getattr(import_module(module), f"run_{word}")(options)
        return status

    return Verb(run, help, example, arguments)


_ROWS = (
    (
        _RUN,
        "start",
        "make a thread of a workflow; nothing is run yet",
        "rolecall thread start fix-issue -p 'The login page is blank'\n"
        "rolecall thread start ./flows/fix-issue.yaml -p @issue.md --limit steps=20 --limit cost=1.5",
    ),
    (_RUN, "step", "take exactly one step", "rolecall thread step 01M7F72S"),
    (
        _RUN,
        "run",
        "take steps until the thread ends, is suspended or reaches a limit",
        "rolecall thread run 01M7F72S\nrolecall thread run 01M7F72S --steps 3 --agent command:./agent",
    ),
    (
        _RUN,
        "resume",
        "continue a suspended thread, with a higher limit or a message to its role",
        "rolecall thread resume 01M7F72S --run\nrolecall thread resume 01M7F72S --limit steps=40 --run",
    ),
    (
        _ANSWER,
        "answer",
        "answer an agent's question, or play the role whose turn it is; asks on a terminal",
        "rolecall thread answer 01M7F72S --run\n"
        "rolecall thread answer 01M7F72S -p 'Use the second one' --run\n"
        "rolecall thread answer 01M7F72S --field status=approved --body 'Looks right.'",
    ),
    (_RUN, "kill", "end a thread for good, and the process that runs it", "rolecall thread kill 01M7F72S"),
    (
        _RUN,
        "watch",
        "print what happens in a thread, whoever runs it",
        "rolecall thread watch 01M7F72S\nrolecall thread watch 01M7F72S --follow --format json",
    ),
    (_READ, "show", "print a thread's status and what it has used", "rolecall thread show 01M7F72S"),
    (
        _READ,
        "list",
        "list threads, the newest first",
        "rolecall thread list\nrolecall thread list --status suspended",
    ),
    (_READ, "steps", "list a thread's steps", "rolecall thread steps 01M7F72S"),
    (
        _READ,
        "read",
        "print a thread as Markdown, the newest steps that fit",
        "rolecall thread read 01M7F72S\nrolecall thread read 01M7F72S --quota 20000",
    ),
    (
        _READ,
        "step-details",
        "print everything that is known about a step",
        "rolecall thread step-details 8M0Q8N9CMRCR1",
    ),
    (
        _READ,
        "fork",
        "make a new thread that goes on from a step of another",
        "rolecall thread fork 01M7F72S",
    ),
    (_READ, "diff", "show where two threads part", "rolecall thread diff 01M7F72S 01M7F80A"),
    (_READ, "export", "write a thread as a report", "rolecall thread export 01M7F72S report.html"),
    (
        _FOLDER,
        "folder show",
        "show a thread's own work folders and what is in them",
        "rolecall thread folder show 01M7F72S",
    ),
    (
        _FOLDER,
        "folder diff",
        "show what a thread changed in its own work folders",
        "rolecall thread folder diff 01M7F72S",
    ),
    (
        _FOLDER,
        "folder merge",
        "merge a thread's branch into the one that is checked out",
        "rolecall thread folder merge 01M7F72S",
    ),
    (
        _FOLDER,
        "folder remove",
        "remove a thread's own work folders and its branch",
        "rolecall thread folder remove 01M7F72S\nrolecall thread folder remove 01M7F72S --force",
    ),
    (
        _FOLDER,
        "folder prune",
        "remove the work folders and branches of ended threads whose work is merged",
        "rolecall thread folder prune --dry-run\nrolecall thread folder prune",
    ),
    (
        _READ,
        "import",
        "take over threads that the predecessor wrote",
        "rolecall thread import ~/.uncaged/workflow",
    ),
)

VERBS: dict[str, Verb] = {name: _verb(module, name, help, example) for module, name, help, example in _ROWS}

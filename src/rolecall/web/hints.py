"""The wording of hints on the page: the button that carries out the hint, or plain advice."""

from __future__ import annotations

from rolecall.errors import Hint

BUTTONS = {
    "add_task": "Add task",
    "answer_thread": "Answer",
    "fork_thread": "Fork",
    "keep_files": "Keep the files as they are now",
    "list_gallery": "Start",
    "list_steps": "Chain",
    "list_tasks": "Plan",
    "list_threads": "Threads",
    "list_workflows": "Start",
    "raise_limit": "Raise the limit",
    "resume_thread": "Try again",
    "run_thread": "Run",
    "show_step": "Chain",
    "show_thread": "Thread",
    "start_plan": "Start a plan",
    "watch_thread": "Thread",
}
"""The button or page for each action that the page can carry out."""

COMMANDS = {"check_machine": "rolecall doctor", "trust_workflow": "rolecall workflow trust {workflow}"}
"""The commands for actions that need a person at a terminal."""


def name_button(onward: Hint | None) -> str | None:
    """Return the button that continues a thread, or None if the page has no such button."""
    return BUTTONS.get(onward.code) if onward is not None else None


def word(hint: str) -> str:
    """Return a hint worded for the page. Advice that the page cannot carry out is returned unchanged."""
    if not isinstance(hint, Hint):
        return hint
    if hint.code in COMMANDS:
        return f"{hint.before} {hint.advice}: `{COMMANDS[hint.code].format_map(hint.arguments)}`.".lstrip()
    button = BUTTONS.get(hint.code)
    return f"{hint.before} {hint.advice}: “{button}”.".lstrip() if button else str(hint)

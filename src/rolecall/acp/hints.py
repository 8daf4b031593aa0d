"""The wording of hints in a conversation: a message to send in the editor, or a command for a terminal."""

from __future__ import annotations

from rolecall.errors import Hint

MESSAGES = {
    "answer_thread": "Answer here",
    "raise_limit": "Send `/limit {limit}`",
    "resume_thread": "Send `/continue` to try again, or say what to do differently",
    "run_thread": "Send `/continue`",
    "set_default_agent": "Choose one in the options of the session, or run `rolecall config set defaultAgent {agent}` "
    "in a terminal",
    "set_setting": "Run `rolecall config set {key} {value}` in a terminal",
    "set_up": "Run `rolecall setup` in a terminal",
    "show_question": "Write the fields as JSON",
    "fork_thread": "Write what to do next",
    "check_machine": "Run `rolecall doctor` in a terminal",
    "list_workflows": "Run `rolecall workflow list` in a terminal",
    "list_gallery": "Run `rolecall new` in a terminal",
    "show_thread": "Run `rolecall thread show {thread}` in a terminal",
    "trust_workflow": "Run `rolecall workflow trust {workflow}` in a terminal",
    "watch_thread": "Run `rolecall thread watch {thread}` in a terminal",
}


def word(hint: str) -> str:
    """Return a hint worded for a person in an editor. Other advice is returned unchanged."""
    if not isinstance(hint, Hint) or hint.code not in MESSAGES:
        return str(hint)
    return f"{hint.before} {MESSAGES[hint.code].format_map(hint.arguments)}.".lstrip()

"""A person's messages to Lead, as a host would pass them on: tags are carried out, and the information that Lead
needs is added.

The session is the thread of the conversation. The added information is a block below the person's words, which doors do
not show.
"""

from __future__ import annotations

import os

from rolecall.hosts import hook_context, lifecycle, sessions
from rolecall.hosts.event import HostAnswer, SessionEnd, SessionStart, UserMessage
from rolecall.hosts.hook_context import HookContext
from rolecall.hosts.names import LEAD
from rolecall.hosts.on_message import may_ask
from rolecall.nexus import memory, project_paths, tags
from rolecall.settings import config
from rolecall.settings.repository import root_around
from rolecall.store import holder

WORKFLOW = "lead"
_OPEN, _CLOSE = "\n\n<rolecall>\n", "\n</rolecall>"
_NO_PROJECT = (
    "The tag in this message had no effect: a project is a git repository, and this folder is not in a git repository"
    " that can be written. `git init` makes one here."
)


def receive(folder: str, session: str, text: str, *, is_new: bool = False) -> HostAnswer:
    """Handle a message, and return an answer whose `context` is for Lead and whose `notice` is for the person. A
    message with a tag turns a repository without a project into a project."""
    hooks = _load_hooks(text)
    project = _find_project(folder)
    has_tag = bool(tags.detect(text, hooks.tags).found or tags.slash(text, hooks.skills, hooks.tags))
    if not project or (not has_tag and not os.path.isdir(project_paths.nexus(project))):
        text = _NO_PROJECT if has_tag and not project else ""
        return HostAnswer(context=text, notice=text)
    answers, now = [], project_paths.now()
    project_paths.use_harness(hooks.harness)
    if is_new or sessions.find(project, session) is None:
        answers.append(lifecycle.handle(project, SessionStart(session, is_new, folder), hooks, now))
    answers.append(lifecycle.handle(project, UserMessage(session, text), hooks, now))
    context = "\n\n".join(answer.context for answer in answers if answer.context)
    return HostAnswer(context=context, notice="\n".join(answer.notice for answer in answers if answer.notice))


def leave(folder: str, session: str) -> str:
    """End the session until the person comes back, and return a sentence about unfinished work."""
    project = _find_project(folder)
    if not project or not os.path.isdir(project_paths.nexus(project)):
        return ""
    return lifecycle.handle(project, SessionEnd(session), _load_hooks(""), project_paths.now()).notice


def attach(text: str, context: str) -> str:
    """Return the person's words with the information that Lead needs."""
    return f"{text}{_OPEN}{context}{_CLOSE}" if context else text


def detach(text: str) -> str:
    """Return the person's words without the added information."""
    return text.partition(_OPEN)[0]


def list_tags() -> dict[str, str]:
    """Return the tags that a person can type to activate a skill or record something, with a description of each."""
    hooks = hook_context.load(LEAD)
    return {
        **{tag.trigger: tag.description for tag in hooks.tags.values()},
        **{f"/{skill}": "activates the skill" for skill in hooks.skills},
    }


def _find_project(folder: str) -> str:
    """Return the repository around a folder, or an empty string if it cannot be a project. A home folder cannot."""
    root = root_around(os.path.abspath(folder)) or ""
    is_home = os.path.realpath(root) == os.path.realpath(os.path.expanduser("~"))
    return root if root and not is_home and os.access(root, os.W_OK) else ""


def _load_hooks(text: str) -> HookContext:
    hooks = hook_context.load(LEAD, with_tags=may_ask(text))
    return hooks._replace(
        restrictions=config.restrictions(),
        process=holder.process(os.getpid()),
        mask=lambda: config.mask(hooks.secrets),
        thresholds=memory.load_thresholds,
    )

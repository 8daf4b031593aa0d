"""Handles a user's message: carries out its tags, and adds the state of the project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolecall.hosts import handed_over, project_summary, sessions, skill, tool_log
from rolecall.hosts.event import HostAnswer, UserMessage
from rolecall.hosts.hook_context import HookContext
from rolecall.hosts.sessions import HostSession
from rolecall.nexus import state_file
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.hosts import inline_tags, thread_news
    from rolecall.nexus import tags
    from rolecall.nexus.tags import Activation, InlineAction
else:
    inline_tags = Module("rolecall.hosts.inline_tags")  # few messages have inline tags
    thread_news = Module("rolecall.hosts.thread_news")  # opens the store
    tags = Module("rolecall.nexus.tags")  # compiles patterns that most messages do not need


def may_ask(text: str) -> bool:
    """Return whether a message could contain tags or be a command. The check is quick, and most messages fail it."""
    return "[" in text or text.lstrip().startswith("/")


def user_message(project: str, event: UserMessage, hooks: HookContext, now: str) -> HostAnswer:
    """Carry out the tags. Then add the state of the project, unless the model has seen it and nothing has changed."""
    before = sessions.find(project, event.session) or HostSession(now)
    activation: Activation | None = None
    actions: list[InlineAction] = []
    near_misses: list[str] = []
    if may_ask(event.text):
        detected = tags.detect(event.text, hooks.tags)
        activations = [one for one in detected.found if isinstance(one, tags.Activation)]
        actions = [one for one in detected.found if isinstance(one, tags.InlineAction)]
        near_misses = list(map(str, detected.near_misses))
        activation = activations[-1] if activations else tags.slash(event.text, hooks.skills, hooks.tags)

    message = state_file.digest((event.id or event.text).encode(errors="replace"))
    acted: list[str] = []
    if actions and before.handled == message:
        acted = inline_tags.report_repeated(actions)
    elif actions:
        aimed: list[float] = []
        pending = project_summary.ProjectState(project).pending_issues()
        if pending and any(action.handler == "nx_plan_decide" for action in actions):
            ids = [issue["id"] for issue in pending[: len(actions)]]
            aimed = sessions.aim(project, event.session, now, message, ids, process=hooks.process)
        acted = inline_tags.carry_out(project, actions, hooks, aimed)

    state = project_summary.ProjectState(project)
    summary = project_summary.summarize(project, hooks, state)
    after = before._replace(
        handled=message if acted else before.handled,
        told=state_file.digest(summary.encode(errors="replace")) if summary else "",
    )
    if activation:
        after = after._replace(skill=activation.skill, mode=activation.mode, since=now)
    elif skill.is_over(project, before, state):
        after = after._replace(skill="", mode="", since="")
    sessions.note(project, event.session, now, before, after, process=hooks.process)

    errors = tool_log.take_errors(project)
    news = summary if after.told != before.told else ""
    noted = handed_over.list_noted(project)
    ended = thread_news.take(project, noted) if noted else []
    beside = "\n\n".join(filter(None, [*acted, *near_misses, *errors, *ended, news]))
    words = _skill_words(project, activation, before, hooks, beside) if activation else ""
    context = "\n\n".join(filter(None, [words, beside]))
    return HostAnswer(context=context, notice="\n".join([*near_misses, *errors]))


def _skill_words(
    project: str, activation: Activation, before: HostSession, hooks: HookContext, beside: str
) -> str:
    """Return the text for a skill that a user activates, unless the host itself has shown the model the body."""
    if not activation.tag and hooks.has_skill_commands:
        return ""
    if activation.skill not in hooks.skills:
        return f"The user called for the skill {activation.skill}, which is not installed. Say so."
    mode = f" in the mode {activation.mode}" if activation.mode else ""
    is_other = before.skill and before.skill != activation.skill
    replaced = f" It replaces the skill {before.skill}." if is_other else ""
    head = (
        f"The user activated the skill {activation.skill}{mode}. What follows is how you work until it is done or"
        f" another skill is activated.{replaced}\n\n"
    )
    text = f"\n\nWhat the user said with it: {activation.text[:2_000]}" if activation.text else ""
    return f"{head}{skill.body_of(project, activation.skill, hooks, beside=head + text + beside)}{text}"

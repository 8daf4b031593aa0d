"""A message of the user: the tags in it, and how the project stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rolecall.hosts import project_summary, sessions, skill_state, tool_log
from rolecall.hosts.event import Answer, UserMessage
from rolecall.hosts.hook_context import Kit
from rolecall.hosts.sessions import Session
from rolecall.nexus import state_file

if TYPE_CHECKING:
    from rolecall.nexus.tags import Action, Activation


def may_ask(text: str) -> bool:
    """Whether a message may have tags in it or be a command: most have not, and looking takes a tenth of the time."""
    return "[" in text or text.lstrip().startswith("/")


def user_message(project: str, event: UserMessage, kit: Kit, now: str) -> Answer:
    """Tags first: a skill's body, what is done at once. Then how the project stands, unless the model was told so
    last time and nothing has changed since; where there is neither plan nor task nor knowledge, nothing."""
    before = sessions.known(project, event.session) or sessions.Session(now)
    asked = _asked(event.text, kit) if may_ask(event.text) else _Asked()
    message = state_file.digest((event.id or event.text).encode(errors="replace"))
    acted = _acted(project, event, asked.actions, kit, now, message, is_repeat=before.handled == message)
    state = project_summary.Standing(project)
    standing = project_summary.short(project, kit, state)
    after = before._replace(
        handled=message if acted else before.handled,
        told=state_file.digest(standing.encode(errors="replace")) if standing else "",
    )
    if asked.activation:
        after = after._replace(skill=asked.activation.skill, mode=asked.activation.mode, since=now)
    elif skill_state.is_over(project, before, state):
        after = after._replace(skill="", mode="", since="")
    sessions.note(project, event.session, now, before, after, process=kit.process)
    errors = tool_log.errors_before(project)
    news = standing if after.told != before.told else ""
    beside = "\n\n".join(filter(None, [*acted, *asked.slips, *errors, news]))
    skill = _skill_words(project, asked.activation, before, kit, beside)
    return Answer(
        context="\n\n".join(filter(None, [skill, beside])), notice="\n".join([*asked.slips, *errors])
    )


class _Asked(NamedTuple):
    """What a message calls for."""

    activation: Activation | None = None
    """Of several skills the last one."""
    actions: tuple[Action, ...] = ()
    slips: tuple[str, ...] = ()
    """What is nearly a tag, and which."""


def _asked(text: str, kit: Kit) -> _Asked:
    from rolecall.nexus import skills, tags

    detected = tags.detect(text, kit.tags)
    found = [one for one in detected.found if isinstance(one, tags.Activation)]
    actions = tuple(one for one in detected.found if isinstance(one, tags.Action))
    activation = found[-1] if found else skills.slash(text, kit.skills, kit.tags)
    return _Asked(activation, actions, tuple(map(str, detected.near_misses)))


def _skill_words(project: str, activation: Activation | None, before: Session, kit: Kit, beside: str) -> str:
    if activation is None:
        return ""
    if not activation.tag and kit.has_skill_commands:
        return ""  # the host has put the body before the model itself
    if activation.skill not in kit.skills:
        return f"The user called for the skill {activation.skill}, which is not installed. Say so."
    mode = f" in the mode {activation.mode}" if activation.mode else ""
    is_other = before.skill and before.skill != activation.skill
    replaced = f" It replaces the skill {before.skill}." if is_other else ""
    head = (
        f"The user activated the skill {activation.skill}{mode}. What follows is how you work until it is done or"
        f" another skill is activated.{replaced}\n\n"
    )
    said = f"\n\nWhat the user said with it: {activation.text[:2_000]}" if activation.text else ""
    from rolecall.hosts import skill_text

    return f"{head}{skill_text.body_of(project, activation.skill, kit, beside=head + said + beside)}{said}"


def _acted(
    project: str,
    event: UserMessage,
    actions: Sequence[Action],
    kit: Kit,
    now: str,
    message: str,
    *,
    is_repeat: bool,
) -> list[str]:
    if not actions:
        return []
    from rolecall.hosts import inline_tags

    if is_repeat:
        return inline_tags.done_before(actions)
    aimed: list[float] = []
    pending = project_summary.Standing(project).pending_issues()
    if pending and any(action.handler == "nx_plan_decide" for action in actions):
        ids = [issue["id"] for issue in pending[: len(actions)]]
        aimed = sessions.aim(project, event.session, now, message, ids, process=kit.process)
    return inline_tags.done(project, actions, kit, aimed)

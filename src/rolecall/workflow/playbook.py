"""A workflow that is ready to run: the stored value and, for a workflow written in Python, its functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from rolecall.errors import ExtractError, NotFound, UsageError
from rolecall.store.canonical import JsonObject
from rolecall.workflow.model import StoredWorkflow

AgentFunction = Callable[[str, Any], Awaitable[Any]]
"""An adapter, or any async function that takes a prompt and a `Context`."""


class Message:
    """A step as Python code sees it. Long values are read when they are first used."""

    def __init__(
        self, role: str, body: str | Callable[[], str], output: JsonObject | Callable[[], JsonObject]
    ) -> None:
        self.role = role
        self._body = body
        self._output = output

    @cached_property
    def body(self) -> str:
        return self._body if isinstance(self._body, str) else self._body()

    @cached_property
    def output(self) -> JsonObject:
        return self._output() if callable(self._output) else self._output

    # Older names for the fields above.
    @property
    def content(self) -> str:
        return self.body

    @property
    def meta(self) -> JsonObject:
        return self.output


class ThreadContext(NamedTuple):
    """The immutable argument of prompts, role functions and moderators written in Python."""

    thread: str
    start: str
    """The prompt with which the thread was started."""
    steps: Sequence[Message]
    """All steps so far, oldest first."""
    workdir: str
    error: ExtractError | None = None
    """The error passed to a moderator if the last answer could not be parsed."""
    item: Any = None
    """The item of a member, if its group uses `each`."""
    number: int | None = None
    """The number of a member in its group, counted from 1; None outside groups."""
    count: int | None = None  # type: ignore[assignment]  # hides `tuple.count`
    """The number of members in the group."""


class RoleResult:
    """The return value of a role function. `content` and `meta` are older names for `body` and `output`."""

    def __init__(
        self,
        body: str | None = None,
        output: JsonObject | None = None,
        *,
        content: str | None = None,
        meta: JsonObject | None = None,
    ) -> None:
        self.body: Any = content if body is None else body
        self.output: Any = meta if output is None else output

    @classmethod
    def of(cls, result: Any) -> RoleResult:
        """Convert the return value of a role function, which is a `RoleResult` or a mapping. Raise `UsageError` for any
        other value."""
        if isinstance(result, Mapping):
            words = ("body", "output", "content", "meta")
            result = cls(**{word: result[word] for word in words if word in result})
        if not isinstance(result, cls):
            raise UsageError(f"a role function must return `body` and `output`, not {type(result).__name__}")
        if not isinstance(result.body, str):
            raise UsageError(f"`body` of a role function must be a string, not {type(result.body).__name__}")
        if not isinstance(result.output, Mapping):
            kind = type(result.output).__name__
            raise UsageError(f"`output` of a role function must be an object, not {kind}")
        return result


PromptFunction = Callable[[ThreadContext], Awaitable[str]]
RoleFunction = Callable[[ThreadContext], Awaitable[RoleResult | JsonObject]]
Moderator = Callable[[ThreadContext], str]


class Playbook(NamedTuple):
    """A workflow and the functions that belong to it."""

    workflow: StoredWorkflow
    moderator: Moderator | None = None
    prompts: Mapping[str, PromptFunction] = {}
    functions: Mapping[str, RoleFunction] = {}
    agents: Mapping[str, AgentFunction] = {}
    """Agents that roles refer to as objects rather than by name."""
    bound: Mapping[str, JsonObject] = {}
    """The agents bound to the roles of a thread, as returned by `casting.binder`."""
    schema_ids: Mapping[str, str] = {}
    """The node of each role's schema."""


def players(book: Playbook) -> Iterator[tuple[str, Playbook]]:
    """Yield each role that an agent plays, with a playbook in which the role names that agent. A team is left out,
    because its roles name their own agents. A role with a list of agents is yielded once for each agent."""
    workflow = book.workflow
    for name, role in workflow.roles.items():
        if role.group is None or not (role.group.agents or role.group.roles):
            yield name, book
            continue
        for agent in role.group.agents:
            played = workflow._replace(roles={**workflow.roles, name: role._replace(agent=agent)})
            yield name, book._replace(workflow=played)


class FileGone(NotFound):
    """The file of a workflow has been removed."""


class FileChanged(UsageError):
    """A workflow has changed since its thread started. `place` is the file or the module."""

    def __init__(self, message: str, *, place: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.place = place

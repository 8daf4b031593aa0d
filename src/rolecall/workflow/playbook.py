"""A workflow ready to be played: the stored value and, for one written in Python, its live parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rolecall.agents.protocol import Agent
from rolecall.errors import ExtractError
from rolecall.workflow.model import Workflow


class Message:
    """A step as Python code sees it: who said what. What is long is read when it is looked at."""

    def __init__(
        self,
        role: str,
        content: str | Callable[[], str],
        meta: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
    ) -> None:
        self.role = role
        self._content = content
        self._meta = meta

    @cached_property
    def content(self) -> str:
        return self._content if isinstance(self._content, str) else self._content()

    @cached_property
    def meta(self) -> Mapping[str, Any]:
        return self._meta() if callable(self._meta) else self._meta

    # The same by the names that agents and templates use.
    @property
    def body(self) -> str:
        return self.content

    @property
    def output(self) -> Mapping[str, Any]:
        return self.meta


@dataclass(frozen=True)
class ThreadContext:
    """What prompts, role functions and moderators written in Python are given. It cannot be changed."""

    thread: str
    start: str
    """The prompt the thread was started with."""
    steps: Sequence[Message]
    """Every step so far, oldest first."""
    workdir: str
    error: ExtractError | None = None
    """Set for a moderator when the last answer could not be understood."""


@dataclass(frozen=True)
class RoleResult:
    """What a hand-written role function returns."""

    content: str
    meta: Mapping[str, Any]


PromptFunction = Callable[[ThreadContext], Awaitable[str]]
RoleFunction = Callable[[ThreadContext], Awaitable[RoleResult | Mapping[str, Any]]]
Moderator = Callable[[ThreadContext], str]


@dataclass(frozen=True)
class Playbook:
    workflow: Workflow
    moderator: Moderator | None = None
    prompts: Mapping[str, PromptFunction] = field(default_factory=dict)
    functions: Mapping[str, RoleFunction] = field(default_factory=dict)
    agents: Mapping[str, Agent] = field(default_factory=dict)
    """Agents that roles name by object rather than by name."""
    bound: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The agents bound to the roles of a thread, in the form of `workspace.binder`."""
    schema_ids: Mapping[str, str] = field(default_factory=dict)
    """The node of each role's schema."""

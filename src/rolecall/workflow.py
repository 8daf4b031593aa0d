"""What a workflow is: roles, edges, conditions, limits. Plain values; no I/O, no parsing.

`definition.py` makes one from YAML or Python and reports what is wrong with it; `route.py` follows
its edges; the store keeps it as a node, with each role's schema as a node of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

START = "$START"
END = "$END"
FAIL = "$FAIL"
SUSPEND = "$SUSPEND"

Resume = Literal["ephemeral", "bounded", "persistent"]


@dataclass(frozen=True)
class Limits:
    """What may be spent before the thread is suspended; None is no limit."""

    steps: int | None = None
    turns: int | None = None
    tokens: int | None = None
    cost: float | None = None
    minutes: float | None = None


@dataclass(frozen=True)
class Edge:
    """One way out of a role (or of $START)."""

    role: str
    """The role that goes next, or $END or $FAIL."""
    status: str | None = None
    """Taken when the output has this status; None: whatever the status."""
    condition: str | None = None
    """Taken when this named condition holds; None: unconditionally."""
    prompt: str = ""
    """A Mustache template: what the next role is told about why it was called."""
    location: str | None = None
    """A Mustache template: the work folder of the next role; None: the thread's."""


@dataclass(frozen=True)
class Condition:
    expression: str
    """JSONata over {start, steps}."""
    description: str = ""


@dataclass(frozen=True)
class Role:
    description: str = ""
    goal: str = ""
    capabilities: tuple[str, ...] = ()
    procedure: str = ""
    output: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)
    agent: str | None = None
    """The adapter that plays the role; None leaves it to the configuration."""
    resume: Resume | None = None
    limits: Limits = Limits()
    extract: Mapping[str, Any] | None = None
    """Overrides of the configured extract model for this role."""


@dataclass(frozen=True)
class Workflow:
    name: str
    description: str = ""
    version: str = ""
    roles: Mapping[str, Role] = field(default_factory=dict)
    graph: Mapping[str, tuple[Edge, ...]] = field(default_factory=dict)
    """For $START and each role its edges in order; the first that fits is taken."""
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    limits: Limits = Limits()

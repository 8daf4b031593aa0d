"""The parts that an engine needs. All parts are passed in, so the engine never reads the environment and knows no
provider."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rolecall.agents import protocol
from rolecall.errors import NotFound, UsageError
from rolecall.files.tree import Trees
from rolecall.settings import capabilities
from rolecall.settings.mask import Mask
from rolecall.store import holder
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Store
from rolecall.threads.sandboxing import no_layers
from rolecall.workflow.command import RUN
from rolecall.workflow.model import Recall, StoredRole
from rolecall.workflow.playbook import Playbook

if TYPE_CHECKING:
    from rolecall.agents.sandbox import Layers

HUMAN = "human"
"""The name of the agent that represents a person."""


def is_unpaid(agent: str) -> bool:
    """Return whether a step was played by a person, a Python function or a command, none of which cost anything."""
    return agent == HUMAN or agent.startswith(("python:", RUN))


Casting = Callable[[Playbook, str], "Cast"]
"""Takes a playbook and a role; returns the agent that plays the role."""
Watch = Callable[[str, JsonObject], None]
"""Receives the kind and the body of each event as it happens."""
Extract = Callable[[str, JsonObject, JsonObject | None], Awaitable[tuple[JsonObject, JsonObject]]]
"""Takes an answer, a schema and the role's overrides; returns the output and the usage, or raises `ExtractError`."""


class Cast(NamedTuple):
    """The agent that plays a role, with the name under which it is recorded."""

    name: str
    agent: protocol.Agent
    has_effects: bool = False
    """Whether the agent's work has effects outside its folder, so that the agent must be asked every time."""


class Recalled(NamedTuple):
    """Passages from the repository for the agent, and remarks about the search for readers of the step."""

    text: str
    notes: Sequence[str] = ()


Recaller = Callable[[Recall, str, str], Awaitable[Recalled]]
"""Takes the role's settings, a question and a folder; returns passages from the repository, or raises `UsageError`."""


async def no_knowledge(_wanted: Recall, _question: str, _folder: str) -> Recalled:
    raise UsageError("the role needs the repository's knowledge", hint="This engine has no index to search.")


def no_workflows(name: str, _folder: str) -> str:
    raise NotFound(f"there is no workflow {name!r}", hint="This engine has no registry of workflows.")


async def close_nothing() -> None:
    pass


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)  # `eq` and `repr` would slow down every start
class Setup:
    """Everything that the engine works with: the store, the agents and the environment."""

    store: Store = field(kw_only=False)
    playbook: Callable[[str], Playbook]
    """Loads the playbook of a workflow from the id of the stored workflow."""
    cast: Casting
    stand_in: Casting | None = None
    """Like `cast`, but returns the stand-in for the role's agent. If None, no role has a stand-in, even if the workflow
    names one."""
    extract: Extract
    """Asks a model to find the output in an answer whose frontmatter cannot be parsed."""
    can_extract: Callable[[StoredRole], bool]
    """Whether an extract model is available for the role."""
    token: Callable[[], str]
    """Creates a unique token for a lease or for an agent's processes."""
    environment: Mapping[str, str]
    mask: Mask
    bind: Callable[[Playbook], JsonObject] = lambda _book: {}
    """Binds agents to the roles of a new child thread, if a workflow plays a role."""
    keeps_agents: bool = True
    """Whether a thread uses the agents that were bound when it started."""
    find_workflow: Callable[[str, str], str] = no_workflows
    """Takes the name of a workflow that plays a role, and a folder; returns the id of the stored workflow."""
    trees: Trees | None = None
    """The recorder of the files of each step; if None, no files are recorded."""
    work: str | None = None
    """The folder in which members' and child threads' own folders are created."""
    recall: Recaller = no_knowledge
    """Finds passages about a task in the repository, for roles that want such passages."""
    close: Callable[[], Awaitable[None]] = close_nothing
    """Closes connections that agents keep open between steps."""
    watch: Watch = lambda _kind, _body: None
    layers: Callable[[], Layers] = no_layers
    """Returns the sandbox layers that this machine can enforce, for roles with a sandbox."""
    private: tuple[str, ...] = ()
    """Rolecall's own folders and files, including the store and keys, which are hidden from agents in a sandbox."""
    cache: str | None = None
    """The folder that caches the versions of agents' programs; if None, versions are not looked up."""
    shares_process: bool = False
    """Whether this process also runs other threads, so that killing one thread must not end the process."""
    queues_members: bool = False
    """Whether the members of a group are queued for the service instead of running in this process."""
    lease_ms: int = holder.LEASE_MS
    """How long a lease lasts without renewal, in milliseconds."""

    def restrictions_of(self, role: StoredRole) -> tuple[str, ...]:
        """Return the restrictions of the role and of our own process."""
        inherited = filter(None, self.environment.get(capabilities.VARIABLE, "").split(","))
        return tuple(dict.fromkeys((*inherited, *capabilities.restrictions(role.capabilities))))

    def environment_of(self, role: StoredRole) -> dict[str, str]:
        """Return our environment with the restrictions of a role added; Rolecall's own commands obey these
        restrictions."""
        words = self.restrictions_of(role)
        return {**self.environment, **({capabilities.VARIABLE: ",".join(words)} if words else {})}

"""The key of a step: a digest of everything that the step's result depends on. All functions are pure.

Two steps with equal keys were asked the same thing, by the same role, of the same agent, with the same files. The key
does not depend on the time, the thread, the position in the thread, the order of siblings, the host or the folder. The
parts of the key are stored with the step, so that two steps can be compared part by part. This module is on the command
line's read path.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.store import canonical
from rolecall.store.backend import INDEX
from rolecall.store.canonical import JsonObject
from rolecall.store.lazy import Module
from rolecall.threads.state import GROUP

if TYPE_CHECKING:
    import hashlib

    from rolecall.threads.prompt import ShownStep
    from rolecall.workflow.model import StoredRole
else:
    hashlib = Module("hashlib")  # not needed for reading

_DIGEST = 24
_KEY = 32
PROMPT_PARTS = ("task", "item", "instruction", "knowledge", "history", "steps")
NAMES = ("role", "agent", "version", "restrictions", *PROMPT_PARTS, "tree", "session", "repetition")
"""The names of the parts in the order in which they are compared: causes before their consequences."""
OF_ROLE = (
    *("description", "prompt", "procedure", "output", "schema", "capabilities"),
    *("resume", "extract", "may_start_threads", "knowledge"),
)
"""The fields of a role that the role's result depends on."""

ROUND = 1_000_000
"""The number that each earlier repeat of an evaluation adds to `repetition`. It is larger than the number of times that
one thread and its groups can ask the same question."""


class Parts(NamedTuple):
    """Everything that the result of a step depends on. Long parts are stored as digests."""

    role: str
    """The digest of the role's definition."""
    prompt: Mapping[str, str]
    """The digest of each non-empty part of the prompt, by its name in `PROMPT_PARTS`."""
    agent: str
    """The adapter and its options, without the name under which the configuration lists the agent."""
    version: str
    """The version of the agent's program, or empty if the version is unknown."""
    restrictions: Sequence[str] = ()
    tree: str = ""
    """The snapshot of the files before the role's turn. Empty if there is no snapshot, or if a nested repository had
    uncommitted files."""
    session: str = ""
    """The digest of the role's last turn in the session that the role continues, computed from that turn's key and
    answer."""
    repetition: int = 0
    """The number of times that the same question was asked before, in this thread or by earlier members of the group,
    plus `ROUND` for each earlier repeat of an evaluation."""

    def dump(self, found: str = "") -> dict[str, Any]:
        """Return the stored form of the parts. Leave out a tree that equals `found`, which the step stores."""
        known: dict[str, Any] = {"role": self.role, **self.prompt}
        known |= {"agent": self.agent, "version": self.version}
        rest = {"restrictions": [*self.restrictions], "session": self.session, "repetition": self.repetition}
        known |= {name: value for name, value in rest.items() if value}
        return known if self.tree == found else {**known, "tree": self.tree}

    def get(self, name: str) -> Any:
        """Return a part by its name in `NAMES`."""
        return self.prompt.get(name, "") if name in PROMPT_PARTS else getattr(self, name)


def load_parts(stored: JsonObject, tree: str) -> Parts:
    """Return the parts stored with a step. `tree` is the tree that the step's role found."""
    known = {name: stored[name] for name in Parts._fields if name in stored}
    prompt = {name: stored[name] for name in PROMPT_PARTS if name in stored}
    restrictions = tuple(stored.get("restrictions", ()))
    return Parts(**{"tree": tree, **known, "prompt": prompt, "restrictions": restrictions})


def key_of(parts: Parts) -> str:
    """Return the key of the parts, or an empty string if the files before the role's turn or the version of its agent
    are unknown."""
    if not parts.tree or not parts.version:
        return ""
    return _sha256([parts.get(name) for name in NAMES])[:_KEY]


def key_name(key: str) -> str:
    """Return the name of the ref that records the newest step with this key. Garbage collection ignores this ref."""
    return f"{INDEX}{key}"


def differences(one: Parts, other: Parts) -> list[str]:
    """Return the names of the parts that differ, in the order of `NAMES`."""
    return [name for name in NAMES if one.get(name) != other.get(name)]


def digest(value: Any) -> str:
    """Return the digest of a JSON value, or an empty string if the value is empty."""
    return _sha256(value)[:_DIGEST] if value else ""


def digest_role(name: str, role: "StoredRole", sandbox: Any = None) -> str:
    """Return the digest of a role's definition. The digest does not cover the role's limits, agent and folder, or how a
    group plays the role. `sandbox` is the stored form of the role's sandbox, if any."""
    fields = {field: getattr(role, field) for field in OF_ROLE}
    plain = {key: [*value] if isinstance(value, tuple) else value for key, value in fields.items()}
    return digest([name, plain] if sandbox is None else [name, plain, sandbox])


def digest_prompt(
    *,
    task: str,
    instruction: str = "",
    knowledge: str = "",
    history: Iterable["ShownStep"] = (),
    steps: str = "",
    item: Any = None,
) -> dict[str, str]:
    """Return the digests of a prompt's parts. `history` holds the earlier steps that the prompt shows; for a Python
    function, `steps` is a digest of all earlier steps instead. `item` is whatever makes a member's role differ from the
    role's definition."""
    found = {
        "task": digest(task),
        "item": digest(item),
        "instruction": digest(instruction.strip()),
        "knowledge": digest(knowledge),
        "history": digest([describe_step(step) for step in history]),
        "steps": steps,
    }
    return {name: value for name, value in found.items() if value}


def describe_step(step: "ShownStep") -> list[Any]:
    """Return an earlier step without the values that depend on its thread: the ids, branches and folders of group
    members are left out."""
    output = step.output
    if step.agent == GROUP and isinstance(output["members"], list):  # the list can be hidden from members
        members = []
        for member in output["members"]:
            kept = {name: value for name, value in member.items() if name not in ("id", "branch", "conflict")}
            if conflict := member.get("conflict"):
                files = [
                    {name: value for name, value in file.items() if name != "changed_by"}
                    for file in conflict.get("files", ())
                ]
                kept["conflict"] = {"files": files, "check": conflict.get("check")}
            members.append(kept)
        output = {**output, "members": members}
    return [step.role, output, step.body.strip()]


def _sha256(value: Any) -> str:
    return hashlib.sha256(canonical.encode(value)).hexdigest()

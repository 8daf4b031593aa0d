"""The key of a step: a digest of everything that its result depends on. Pure.

Two steps with equal keys were asked the same thing, by the same role, of the same agent, with the same files. The key
does not depend on the time, the thread, the position in it, the order of siblings, the host or the folder. The parts
are stored with the step, so that two steps can be compared part by part. On the command line's read path.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.store import canonical
from rolecall.store.backend import INDEX
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
"""The parts in the order in which they are compared: causes before what follows from them."""
OF_ROLE = (
    *("description", "prompt", "procedure", "output", "schema", "capabilities"),
    *("resume", "extract", "may_start_threads", "knowledge"),
)
"""The fields of a role that its result depends on."""

ROUND = 1_000_000
"""What each earlier repeat of an evaluation adds to `repetition`: more than the number of times that one thread and its
groups can ask the same question."""


class Parts(NamedTuple):
    """Everything that the result of a step depends on. Long parts are digests."""

    role: str
    """The definition of the role."""
    prompt: Mapping[str, str]
    """The digest of each part of the prompt that is not empty, by its name in `PROMPT_PARTS`."""
    agent: str
    """The adapter with its options, without the name of its entry in the configuration."""
    version: str
    """The version of the agent's program; empty if it is not known."""
    restrictions: Sequence[str] = ()
    tree: str = ""
    """The snapshot of the files before the role's turn; empty without a snapshot, or if a nested repository had
    uncommitted files."""
    session: str = ""
    """The role's last turn in the session that it continues: its key and its answer."""
    repetition: int = 0
    """How many times the same question was asked before, in this thread or of earlier members of the group, plus
    `ROUND` for each earlier repeat of an evaluation."""

    def dump(self, found: str = "") -> dict[str, Any]:
        """The stored form. It omits the tree if it is the one that the step `found`."""
        known: dict[str, Any] = {"role": self.role, **self.prompt}
        known |= {"agent": self.agent, "version": self.version}
        rest = {
            "restrictions": list(self.restrictions),
            "session": self.session,
            "repetition": self.repetition,
        }
        known |= {name: value for name, value in rest.items() if value}
        return known if self.tree == found else {**known, "tree": self.tree}

    def get(self, name: str) -> Any:
        """A part by its name in `NAMES`."""
        return self.prompt.get(name, "") if name in PROMPT_PARTS else getattr(self, name)


def load_parts(stored: Mapping[str, Any], tree: str) -> Parts:
    """The parts stored with a step whose role found `tree`."""
    return Parts(
        stored["role"],
        {name: stored[name] for name in PROMPT_PARTS if name in stored},
        stored["agent"],
        stored["version"],
        tuple(stored.get("restrictions", ())),
        stored.get("tree", tree),
        stored.get("session", ""),
        stored.get("repetition", 0),
    )


def key_of(parts: Parts) -> str:
    """The key; empty if the files before the role's turn or the version of its agent are unknown."""
    if not parts.tree or not parts.version:
        return ""
    return _sha256([parts.get(name) for name in NAMES])[:_KEY]


def key_name(key: str) -> str:
    """The ref that names the newest step with this key. Garbage collection ignores it."""
    return f"{INDEX}{key}"


def differences(one: Parts, other: Parts) -> list[str]:
    """The names of the parts that differ, in the order of `NAMES`."""
    return [name for name in NAMES if one.get(name) != other.get(name)]


def digest(value: Any) -> str:
    """The digest of a JSON value; empty for an empty one."""
    return _sha256(value)[:_DIGEST] if value else ""


def digest_role(name: str, role: "StoredRole", sandbox: Any = None) -> str:
    """The digest of a role's definition, without limits, its agent, its folder and how a group plays it. `sandbox` is
    the stored form of the role's sandbox, if any."""
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
    """The digests of a prompt's parts. `history` has the earlier steps that it shows; a Python function has `steps`
    instead, a digest of all of them. `item` is what distinguishes a member's role from its definition."""
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
    """An earlier step without the values that depend on its thread: members of a group have no ids, branches and
    folders."""
    output = step.output
    if step.agent == GROUP and isinstance(output["members"], list):  # members may not see their list
        output = {**output, "members": [_describe_member(member) for member in output["members"]]}
    return [step.role, output, step.body.strip()]


def _describe_member(member: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in member.items() if name not in ("id", "branch", "conflict")}
    if conflict := member.get("conflict"):
        files = [
            {name: value for name, value in file.items() if name != "changed_by"}
            for file in conflict.get("files", ())
        ]
        kept["conflict"] = {"files": files, "check": conflict.get("check")}
    return kept


def _sha256(value: Any) -> str:
    return hashlib.sha256(canonical.encode(value)).hexdigest()

"""Seal a step: compute a SHA-256 digest of everything that the step refers to, which can be checked without the
content.

The ids of nodes are short and protect against accidents, not against a forger. The seal of a node is the digest of its
id, its type, the SHA-256 of its bytes, the fields that a proof shows, and the seals of the nodes that it refers to. A
proof file contains these parts for each node with fields to show; other nodes appear in the file only by id and seal.
Anybody who knows the seal of a step can therefore check the file, which does not contain the texts of prompts and
answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from typing import Any, NamedTuple

from rolecall.errors import Damaged, InvalidValue, UsageError
from rolecall.store import canonical
from rolecall.store.canonical import JsonObject
from rolecall.store.ids import META, node_id
from rolecall.store.store import Store, check, payload_of, sha256_of
from rolecall.threads import thread
from rolecall.workflow import model

_STATUS = re.compile(r"[\w.$-]{1,64}")
_FORMAT = "rolecall-proof/1"


class SealedNode(NamedTuple):
    type: str
    sha256: str
    """The digest of the bytes from which the node's id was made."""
    shown: JsonObject
    """The fields that a proof shows."""
    refs: Mapping[str, str]
    """The seal of each node that this node refers to."""

    def seal(self, node: str) -> str:
        return sha256(canonical.encode([node, *self])).hexdigest()


class SealedChain(NamedTuple):
    """A step, with the shown fields of the nodes that it refers to."""

    thread: str
    step: str
    nodes: Mapping[str, SealedNode]

    @property
    def digest(self) -> str:
        return self.nodes[self.step].seal(self.step)

    def show(self, node: str | None) -> JsonObject:
        """Return the shown fields of a node, or an empty mapping for a node that is not in the proof."""
        return self.nodes[node].shown if node and node in self.nodes else {}

    def dump(self) -> bytes:
        """Return the content of a proof file."""
        nodes = {node: sealed._asdict() for node, sealed in self.nodes.items()}
        whole = {"format": _FORMAT, "thread": self.thread, "step": self.step, "nodes": nodes}
        return json.dumps(whole, indent=1, sort_keys=True).encode("ascii") + b"\n"


def read_chain(path: str) -> SealedChain:
    """Read a proof file and parse its content, as `load_chain` does."""
    try:
        with open(path, "rb") as file:
            return load_chain(file.read(), path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", hint="Name an exported proof."
        ) from error


def load_chain(data: bytes, name: str) -> SealedChain:
    """Parse the content of a proof file. Raise `Damaged` unless the content is complete and exactly, byte for byte,
    what `SealedChain.dump` writes. This does not check whether the content is true; compare the digest for that."""
    try:
        known = json.loads(data)
        nodes = {node: SealedNode(**sealed) for node, sealed in known["nodes"].items()}
        found = SealedChain(known["thread"], known["step"], nodes)
        seals = {node: sealed.seal(node) for node, sealed in nodes.items()}
        named = {found.step}.union(*(sealed.refs for sealed in nodes.values()))
        if found.dump() != data or found.step not in nodes:
            raise ValueError("it is not in the form in which proofs are written")
        for node, sealed in nodes.items():
            if node not in named:
                raise ValueError(f"nothing refers to {node}")
            if wrong := [one for one, seal in sealed.refs.items() if seals.get(one, seal) != seal]:
                raise ValueError(f"{wrong[0]} is not what {node} refers to")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, InvalidValue) as error:
        raise Damaged(
            f"{name} is not a whole proof: {error}",
            hint="Name the file that an export of the proof wrote, or export it again.",
        ) from error
    return found


class Sealer:
    """The seals of steps in one store. A node that several steps share is read only once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sealed: dict[str, tuple[SealedNode, str]] = {}

    def seal(self, root: str) -> str:
        """Return the seal of a node. Raise `Damaged` or `NotFound` if something that the node refers to cannot be
        read."""
        waiting, read = [root], dict[str, tuple[SealedNode, list[str]]]()
        while waiting:
            node = waiting[-1]
            if node in self._sealed:
                waiting.pop()
                continue
            if node not in read:
                record = self._store.record(node)
                check(record)
                digest = sha256_of("" if record.id == record.type else record.type, record.data)
                if record.sha256 not in (None, digest):
                    raise Damaged(f"node {node} is damaged: its bytes do not give its SHA-256", node=node)
                shown = _show(record.type, payload_of(record))
                own = SealedNode(record.type, digest.hex(), shown, {})
                read[node] = own, sorted({*self._store.derive_refs(record)})
            sealed, refs = read[node]
            if missing := [one for one in refs if one not in self._sealed]:
                waiting += missing  # a node's id depends on the nodes it refers to, so there are no cycles
                continue
            known = sealed._replace(refs={one: self._sealed[one][1] for one in refs})
            self._sealed[node] = (known, known.seal(node))
        return self._sealed[root][1]

    def chain(self, ident: str, step: str) -> SealedChain:
        """Return a step together with every node before it that has fields to show."""
        self.seal(step)
        waiting, nodes = [step], dict[str, SealedNode]()
        while waiting:
            node = waiting.pop()
            sealed = self._sealed[node][0]
            if node not in nodes and (sealed.shown or node == step):
                nodes[node] = sealed
                waiting += sealed.refs
        return SealedChain(ident, step, nodes)


# -- what a proof shows --


def _pick(*names: str) -> Callable[[JsonObject], JsonObject]:
    return lambda value: {name: value[name] for name in names if name in value}


_PARTS = {
    "tree": _pick("found", "left", "head", "commits"),
    "parts": _pick("agent", "version", "restrictions"),
    "by": _pick("person", "door"),
    "reused": _pick("step", "thread"),
    "member": _pick("number", "role"),
}
"""The fields that are shown in part. File names, addresses and digests of texts count as content."""

_RECORD = (
    *("number", "prompt", "usage", "attempt", "children", "group"),
    *("tree", "parts", "reused", "by", "sandbox"),
)
_WORKFLOW = ("name", "version")
_ATTEMPT = ("role", "agent", "started_at", "completed_at", "ending", "previous", "number", "tree", "sandbox")


@cache
def _shown_fields() -> dict[str, tuple[str, ...]]:
    """Return the names of the fields that are shown, by the ids of Rolecall's own types."""
    step = ("start", "prev", "role", "output", "detail", "agent", "startedAtMs", "completedAtMs")
    tables: list[tuple[tuple[canonical.Schema, ...], tuple[str, ...]]] = [
        ((thread.STEP_SCHEMA,), step),
        (thread.RECORD_SCHEMAS, _RECORD),
        (thread.ATTEMPT_SCHEMAS, _ATTEMPT),
        ((thread.START_SCHEMA, thread.OLDER_START_SCHEMA), ("workflow",)),
        ((thread.MEMBER_SCHEMA,), ("workflow", "group", "member")),
        ((thread.ROSTER_SCHEMA,), ("role", "above", "count", "at")),
        ((thread.PERSON_SCHEMA, thread.BY_PERSON_SCHEMA), ("role", "by")),
        (model.SCHEMAS, _WORKFLOW),
    ]
    return {node_id(META, canonical.encode(one)): names for schemas, names in tables for one in schemas}


def _show(type_id: str, payload: Any) -> JsonObject:
    """Return the fields of a node that a proof shows. Of a role's output, return only the status."""
    if not isinstance(payload, dict):
        return {}
    names = _shown_fields().get(type_id)
    if names is None:
        status = payload.get("$status", payload.get("status"))
        return {"status": status} if isinstance(status, str) and _STATUS.fullmatch(status) else {}
    shown = {name: payload[name] for name in names if name in payload}
    shown |= {name: part(shown[name]) for name, part in _PARTS.items() if name in shown}
    if names is _WORKFLOW:  # commands that had to succeed after the work of a group was merged
        groups = {name: role.get("group") or {} for name, role in payload["roles"].items()}
        shown |= {"checks": {name: group["check"] for name, group in groups.items() if "check" in group}}
    return shown

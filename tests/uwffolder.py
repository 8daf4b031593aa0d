"""A storage folder as uwf writes one, and what uwf can read of one that others wrote to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rolecall.store import canonical
from rolecall.store.files import FilesBackend
from rolecall.store.ids import node_id
from rolecall.store.schema import META_SCHEMA, Type
from rolecall.store.store import BUILTIN, META, Store

REF = {"type": "string", "format": "ocas_ref"}
TEXT = {"type": "string"}


def closed(title: str, required: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": title, "type": "object", "required": required, "properties": properties, "additionalProperties": False,
    }  # fmt: skip


ROLE = {
    "type": "object",
    "required": ["description", "goal", "capabilities", "procedure", "output", "frontmatter"],
    "properties": {
        "description": TEXT, "goal": TEXT, "capabilities": {"type": "array", "items": TEXT}, "procedure": TEXT,
        "output": TEXT, "frontmatter": REF,
    },
    "additionalProperties": False,
}  # fmt: skip
EDGE = {
    "type": "object",
    "required": ["role", "prompt"],
    "properties": {"role": TEXT, "prompt": TEXT, "location": {"anyOf": [TEXT, {"type": "null"}]}},
    "additionalProperties": False,
}
WORKFLOW = closed(
    "Workflow",
    ["name", "description", "roles", "graph"],
    {
        "name": TEXT,
        "description": TEXT,
        "roles": {"type": "object", "additionalProperties": ROLE},
        "graph": {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": EDGE}},
    },
)
START = closed("StartNode", ["workflow", "prompt", "cwd"], {"workflow": REF, "prompt": TEXT, "cwd": TEXT})
STEP = closed(
    "StepNode",
    ["start", "prev", "role", "output", "detail", "agent", "startedAtMs", "completedAtMs", "cwd"],
    {
        "start": REF, "prev": {"anyOf": [REF, {"type": "null"}]}, "role": TEXT, "output": REF, "detail": REF,
        "agent": TEXT, "edgePrompt": TEXT, "startedAtMs": {"type": "integer"}, "completedAtMs": {"type": "integer"},
        "cwd": TEXT, "assembledPrompt": {"anyOf": [REF, {"type": "null"}]},
    },
)  # fmt: skip
TURN = {"title": "turn", "type": "object"}
DETAIL = closed(
    "detail", ["sessionId", "turns"], {"sessionId": TEXT, "turns": {"type": "array", "items": REF}}
)

CWD = "/src/app"
BEGUN = 1_770_000_000_000


class Folder:
    """A storage folder of the predecessor, written file by file."""

    def __init__(self, root: Path, cas: Path | None = None) -> None:
        self.root = root
        self.cas = cas or root / "cas"
        root.mkdir()
        self.cas.mkdir(parents=True)
        self._clock = BEGUN
        meta = canonical.encode(META_SCHEMA)
        assert node_id("", meta) == META
        self._write(META, META, meta)
        for name in BUILTIN:
            self.put(META, {"type": name})
        self.types = {name: self.put(META, schema) for name, schema in self._schemas().items()}
        self.workflow = self._workflow()
        self.threads: dict[str, str] = {}

    def _schemas(self) -> dict[str, dict[str, Any]]:
        output = {"type": "object", "properties": {"$status": {"type": "string"}, "n": {"type": "integer"}}}
        return {
            "workflow": WORKFLOW,
            "start": START,
            "step": STEP,
            "turn": TURN,
            "detail": DETAIL,
            "output": output,
        }

    def _write(self, node: str, type_id: str, data: bytes) -> None:
        self._clock += 1
        head = (
            b"\xa3"
            + canonical.encode("type")
            + canonical.encode(type_id)
            + canonical.encode("payload")
            + data
        )
        (self.cas / f"{node}.bin").write_bytes(
            head + canonical.encode("timestamp") + canonical.encode(self._clock)
        )

    def put(self, type_id: str, payload: Any) -> str:
        data = canonical.encode(payload)
        node = node_id(type_id, data)
        self._write(node, type_id, data)
        return node

    def _workflow(self) -> str:
        role = {"capabilities": [], "procedure": "p", "output": "o", "frontmatter": self.types["output"]}
        roles = {
            name: {"description": name, "goal": f"You are the {name}.", **role}
            for name in ("planner", "coder")
        }
        graph = {
            "$START": {"_": {"role": "planner", "prompt": "Plan it.", "location": None}},
            "planner": {"_": {"role": "coder", "prompt": "Code it.", "location": None}},
            "coder": {
                "again": {"role": "coder", "prompt": "Again.", "location": None},
                "done": {"role": "$END", "prompt": "Over.", "location": None},
            },
        }
        payload = {"name": "fix-issue", "description": "d", "roles": roles, "graph": graph}
        return self.put(self.types["workflow"], payload)

    def start(self, prompt: str) -> str:
        return self.put(self.types["start"], {"workflow": self.workflow, "prompt": prompt, "cwd": CWD})

    def step(self, start: str, prev: str | None, role: str, number: int, status: str | None = None) -> str:
        call = {"name": "write_file", "args": {"path": f"{number}.py"}}
        turns = [
            {"role": "assistant", "content": f"Looking, {number}.", "toolCalls": [call]},
            {"role": "tool", "content": "ok"},
            {"role": "assistant", "content": f"Answer number {number}.", "toolCalls": None},
        ]
        detail = {"sessionId": "s", "turns": [self.put(self.types["turn"], turn) for turn in turns]}
        payload = {
            "start": start, "prev": prev, "role": role, "agent": "uwf-hermes", "edgePrompt": "Do it.",
            "cwd": CWD,
            "output": self.put(self.types["output"], {"n": number} | ({"$status": status} if status else {})),
            "detail": self.put(self.types["detail"], detail), "startedAtMs": BEGUN + 1000 * number,
            "completedAtMs": BEGUN + 1000 * number + 700,
            "assembledPrompt": self.put(BUILTIN["string"], f"Prompt number {number}."),
        }  # fmt: skip
        return self.put(self.types["step"], payload)

    def chain(self, prompt: str, *statuses: str | None) -> str:
        start = self.start(prompt)
        head, prev = start, None
        for number, status in enumerate(statuses, 1):
            head = prev = self.step(start, prev, "planner" if number == 1 else "coder", number, status)
        return head

    def active(self, name: str, head: str) -> None:
        self.threads[name] = head
        (self.root / "threads.yaml").write_text(
            "".join(f"{key}: {value}\n" for key, value in self.threads.items())
        )

    def ended(self, name: str, head: str, reason: str | None) -> None:
        line = {
            "thread": name, "workflow": self.workflow, "head": head, "completedAt": BEGUN + 60_000, "reason": reason,
        }  # fmt: skip
        with (self.root / "history.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def old_id(ms: int, low: int = 7) -> str:
    """A thread id in the predecessor's form: two padding bits at the end instead of the beginning."""
    number = (ms << 80 | low) << 2
    return "".join("0123456789ABCDEFGHJKMNPQRSTVWXYZ"[number >> shift & 31] for shift in range(125, -1, -5))


IDLE, DONE, CANCELLED, FRESH = (old_id(BEGUN + 1000 * index) for index in range(4))


def filled(root: Path, cas: Path | None = None) -> Folder:
    folder = Folder(root, cas)
    folder.active(IDLE, folder.chain("Fix the crash.\nSoon.", None, "again"))
    folder.active(FRESH, folder.chain("Add a flag."))
    folder.ended(DONE, folder.chain("Write docs.", None, "again", "done"), "completed")
    folder.ended(CANCELLED, folder.chain("Never mind.", None), "cancelled")
    (folder.root / "workflows.yaml").write_text(f"fix-issue: {folder.workflow}\n")
    return folder


def read_thread(root: Path, head: str) -> list[dict[str, Any]]:
    """The steps of a thread as uwf reads them, oldest first, each with its `output` and the `text` of its answer.

    Like uwf it knows starts, steps and workflows by the ids of their types alone.
    """
    types = {"44P8EP6N3NXZ5": START, "108DB063KRQWW": STEP, "AZF3FA1TN3D4A": WORKFLOW}
    steps: list[dict[str, Any]] = []
    with Store(FilesBackend(str(root), create=False)) as store:

        def known(node: str, *kinds: str) -> Any:
            found = store.get(node)
            assert found.type in kinds, f"head {node} is not a StartNode or StepNode"
            assert Type(types[found.type]).misfits(found.payload) == []
            return found.payload

        payload = known(head, "44P8EP6N3NXZ5", "108DB063KRQWW")
        while "role" in payload:
            detail = store.get(payload["detail"]).payload
            turns = [store.get(turn).payload for turn in detail["turns"]]
            answers = [turn["content"] for turn in turns if turn["role"] == "assistant"]
            output = store.get(payload["output"]).payload
            steps.insert(0, payload | {"output": output, "text": answers[-1] if answers else ""})
            start = payload["start"]
            payload = (
                known(payload["prev"], "108DB063KRQWW") if payload["prev"] else known(start, "44P8EP6N3NXZ5")
            )
        assert payload["prompt"] and payload["cwd"]
    return steps

"""Threads of the predecessor: a storage folder as it writes one, imported and looked at through the command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolecall import canonical
from rolecall.ids import node_id, self_id
from rolecall.schema import META_SCHEMA
from rolecall.store.store import BUILTIN, META

if TYPE_CHECKING:
    from conftest import Rolecall

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
        assert self_id(meta) == META
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
        return self.put(self.types["start"], {"workflow": self.workflow, "prompt": prompt, "cwd": "/src/app"})

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
            "cwd": "/src/app",
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


def test_the_types_are_those_the_predecessor_writes(tmp_path: Path) -> None:
    types = Folder(tmp_path / "uwf").types
    assert (types["workflow"], types["start"], types["step"]) == (
        "AZF3FA1TN3D4A",
        "44P8EP6N3NXZ5",
        "108DB063KRQWW",
    )


def test_imported_threads_are_listed_with_their_status_and_time(rolecall: Rolecall, tmp_path: Path) -> None:
    folder = filled(tmp_path / "uwf")
    done = rolecall.json("thread", "import", str(folder.root))
    assert sorted(done["threads"]) == sorted([IDLE, DONE, CANCELLED, FRESH])
    assert done["workflows"] == ["fix-issue"]
    assert (done["kept"], done["unread"], done["problems"]) == ([], [], [])
    entries = rolecall.json("thread", "list", "--all")
    assert [
        (entry["thread"], entry["status"], entry["currentRole"], entry["steps"], entry["title"])
        for entry in entries
    ] == [
        (FRESH, "idle", "planner", 0, "Add a flag."),
        (CANCELLED, "killed", None, 1, "Never mind."),
        (DONE, "completed", None, 3, "Write docs."),
        (IDLE, "idle", "coder", 2, "Fix the crash."),
    ]
    assert {entry["name"] for entry in entries} == {"fix-issue"}
    assert [entry["created"] for entry in entries] == [BEGUN + 3000, BEGUN + 2000, BEGUN + 1000, BEGUN]
    assert entries[2]["updated"] == BEGUN + 60_000
    assert len(rolecall.json("thread", "list")) == 2
    assert len(rolecall.json("thread", "list", "--before", "2020-01-01", "--all")) == 0


def test_imported_threads_are_shown_like_ours(rolecall: Rolecall, tmp_path: Path) -> None:
    folder = filled(tmp_path / "uwf")
    rolecall("thread", "import", str(folder.root), check=0)
    card = rolecall.json("thread", "show", DONE)
    assert (card["head"], card["workflow"], card["done"], card["steps"]) == (
        rolecall.json("thread", "steps", DONE)["steps"][-1]["hash"], folder.workflow, True, 3,
    )  # fmt: skip
    steps = rolecall.json("thread", "steps", DONE)["steps"][1:]
    assert [(step["number"], step["role"], step["status"], step["durationMs"]) for step in steps] == [
        (1, "planner", None, 700), (2, "coder", "again", 700), (3, "coder", "done", 700),
    ]  # fmt: skip
    text = rolecall("thread", "read", DONE, check=0).stdout
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "Step 1: planner",
        "Step 2: coder",
        "Step 3: coder",
    ]
    assert "<output>\nAnswer number 2.\n</output>" in text
    assert text.count("You are the coder.") == 1
    late = rolecall("thread", "read", DONE, "--quota", "450", check=0).stdout
    assert re.findall(r"^## Step (\d):", late, re.MULTILINE) == ["3"]
    assert "(2 earlier steps" in late
    details = rolecall.json("thread", "step-details", f"{DONE}#2")
    assert (details["number"], details["body"], details["prompt"]) == (
        2,
        "Answer number 2.",
        "Prompt number 2.",
    )
    assert details["turns"][0]["tool_calls"] == [
        {"name": "write_file", "arguments": {"path": "2.py"}, "result": ""}
    ]
    rolecall("thread", "export", DONE, str(tmp_path / "report.html"), check=0)
    assert "Answer number 3." in (tmp_path / "report.html").read_text()


def test_an_imported_thread_can_be_forked_and_goes_on_counting(rolecall: Rolecall, tmp_path: Path) -> None:
    rolecall("thread", "import", str(filled(tmp_path / "uwf").root), check=0)
    forked = rolecall.json("thread", "fork", DONE, "--at", "2", "-p", "Once more.")["thread"]
    card = rolecall.json("thread", "show", forked)
    assert (card["status"], card["currentRole"], card["steps"]) == ("idle", "coder", 3)
    numbers = [step["number"] for step in rolecall.json("thread", "steps", forked)["steps"][1:]]
    assert numbers == [1, 2, 3]


def test_importing_again_brings_only_what_went_on_there(rolecall: Rolecall, tmp_path: Path) -> None:
    folder = filled(tmp_path / "uwf")
    rolecall("thread", "import", str(folder.root), check=0)
    again = rolecall.json("thread", "import", str(folder.root))
    assert (again["threads"], again["workflows"], again["kept"]) == ([], [], [])
    folder.active(IDLE, folder.chain("Fix the crash.\nSoon.", None, "again", "again"))
    assert rolecall.json("thread", "import", str(folder.root))["threads"] == [IDLE]
    assert rolecall.json("thread", "show", IDLE)["steps"] == 3


def test_what_was_done_here_is_not_undone_by_another_import(rolecall: Rolecall, tmp_path: Path) -> None:
    folder = filled(tmp_path / "uwf")
    rolecall("thread", "import", str(folder.root), check=0)
    rolecall("thread", "kill", FRESH, check=0)
    again = rolecall.json("thread", "import", str(folder.root))
    assert (again["threads"], again["kept"]) == ([], [f"thread/{FRESH}"])
    assert rolecall.json("thread", "show", FRESH)["status"] == "killed"


def test_nodes_may_lie_in_a_folder_of_their_own(rolecall: Rolecall, tmp_path: Path) -> None:
    folder = filled(tmp_path / "uwf", cas=tmp_path / "json-cas")
    before = sorted(path.name for path in folder.root.iterdir())
    refused = rolecall("thread", "import", str(folder.root), check=2)
    assert "--cas DIR" in refused.stderr
    done = rolecall.json("thread", "import", str(folder.root), "--cas", str(folder.cas))
    assert len(done["threads"]) == 4
    assert sorted(path.name for path in folder.root.iterdir()) == before
    assert not (folder.cas / "_index").exists()


def test_a_thread_whose_nodes_are_missing_is_named_and_the_others_come(
    rolecall: Rolecall, tmp_path: Path
) -> None:
    folder = filled(tmp_path / "uwf")
    missing = folder.threads[IDLE]
    (folder.cas / f"{missing}.bin").unlink()
    done = rolecall("thread", "import", str(folder.root), "--json", check=4)
    told = json.loads(done.stdout)
    assert [unread["name"] for unread in told["unread"]] == [f"thread/{IDLE}"]
    assert missing in told["unread"][0]["reason"]
    assert sorted(told["threads"]) == sorted([DONE, CANCELLED, FRESH])


def test_a_folder_that_is_not_there_is_not_found(rolecall: Rolecall, tmp_path: Path) -> None:
    assert "there is no folder" in rolecall("thread", "import", str(tmp_path / "nowhere"), check=3).stderr

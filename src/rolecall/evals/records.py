"""What an evaluation stores: suites, tasks, judges, runs, verdicts and results, each as a node, and the ref of each
run.

A run is the ref `eval/<id>`. Its target is the newest result or, before the first result, the run itself. Each result
names the one before it, so a bundle of one node contains all of them. The id of a cell's thread is derived from the
run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from rolecall.errors import Hint, NotFound, UsageError
from rolecall.evals.suite import Example, Judge, Suite, Variant, judge_workflow
from rolecall.evals.tasks import EvalTask
from rolecall.files.snapshot import Snapshot
from rolecall.store import holder
from rolecall.store.backend import Ref
from rolecall.store.canonical import JsonObject, Schema
from rolecall.store.ids import NodeId, ThreadId, member_id
from rolecall.store.store import Draft, Store
from rolecall.threads.thread import TREE_SCHEMA, make_type
from rolecall.workflow import registry
from rolecall.workflow.playbook import Playbook

_TEXT = {"type": "string"}
_REF = {"type": "string", "format": "ocas_ref"}
_REFS = {"type": "array", "items": _REF}
_WORDS = {"type": "array", "items": _TEXT}
_NUMBER = {"type": "number"}
_COUNT = {"type": "integer"}
_OBJECT = {"type": "object"}


TASK_SCHEMA = make_type(
    "rolecall.eval_task",
    {"id": _TEXT, "prompt": _TEXT},
    {"tags": _WORDS, "setup": _WORDS, "files": _REF, "repository": _TEXT, "commit": _TEXT, "fork": _REF},
)
JUDGE_SCHEMA = make_type(
    "rolecall.eval_judge",
    {"name": _TEXT, "gate": {"type": "boolean"}},
    {
        "command": _WORDS,
        **dict.fromkeys(("files", "workflow"), _REF),
        **dict.fromkeys(("place", "expression", "agent", "rubric"), _TEXT),
        **dict.fromkeys(("seconds", "megabytes", "votes"), _NUMBER),
        "network": {"type": "boolean"},
        "examples": {
            "type": "array",
            "items": make_type(
                "example",
                {"prompt": _TEXT, "verdict": _TEXT},
                {"answer": _TEXT, "output": _OBJECT, "files": _REF},
            ),
        },
    },
)
SUITE_SCHEMA = make_type(
    "rolecall.eval_suite",
    {
        "name": _TEXT,
        "variants": {
            "type": "array",
            "items": make_type(
                "variant", {"name": _TEXT, "workflow": _REF, "agents": _OBJECT}, {"agent": _TEXT}
            ),
        },
        "tasks": _REFS,
        "judges": _REFS,
        "repeat": _COUNT,
    },
)
RUN_SCHEMA = make_type(
    "rolecall.eval_run",
    {"suite": _REF, "tasks": _REFS, "at": _COUNT},
    {"fresh": {"type": "boolean"}, "first": _COUNT},
)
VERDICT_SCHEMA = make_type(
    "rolecall.eval_verdict",
    {"judge": _REF, "outcome": {"enum": ["passed", "failed", "infrastructure"]}},
    {"score": _NUMBER, "reason": _TEXT, "details": {}, "votes": _REFS, "usage": _OBJECT},
)
CALIBRATION_SCHEMA = make_type(
    "rolecall.eval_calibration",
    {
        **dict.fromkeys(("run", "judge"), _REF),
        **dict.fromkeys(("agreed", "total"), _COUNT),
        "wrong": {"type": "array", "items": _COUNT},
    },
    {"previous": _REF, "usage": _OBJECT, "votes": _REFS},
)
RESULT_SCHEMA = make_type(
    "rolecall.eval_result",
    {
        "run": _REF,
        "thread": _TEXT,
        "outcome": {"enum": ["passed", "failed", "infrastructure"]},
        "verdicts": _REFS,
        **dict.fromkeys(("number", "at"), _COUNT),
    },
    {
        **dict.fromkeys(("previous", "head"), _REF),
        "reason": _TEXT,
        "score": _NUMBER,
        **dict.fromkeys(("usage", "saved"), _OBJECT),
        "agents": {"type": "array", "items": _OBJECT},
    },
)

EVENT = "eval"
"""The kind of an event in the stream named by a run's id, which says that the run has a new result or status."""
OUTCOMES = ("passed", "failed", "infrastructure")


class StoredTask(NamedTuple):
    node: NodeId
    id: str
    prompt: str
    tags: tuple[str, ...]
    setup: tuple[str, ...]
    files: Snapshot | None
    repository: str = ""
    commit: str = ""
    fork: str = ""
    """The step of a recorded thread, or the start of the thread, from which the threads of this task continue."""


class StoredJudge(NamedTuple):
    """A judge with its files and, if the judge is an agent, the workflow in which it votes."""

    node: NodeId
    judge: Judge
    files: Snapshot | None
    workflow: NodeId | None
    examples: tuple[Snapshot | None, ...] = ()
    """The files of the judge's examples."""


class StoredSuite(NamedTuple):
    node: NodeId
    name: str
    variants: tuple[Variant, ...]
    tasks: tuple[StoredTask, ...]
    judges: tuple[StoredJudge, ...]
    repeat: int


class Cell(NamedTuple):
    """One thread of a run."""

    number: int
    """The number of the cell, counted from 1."""
    variant: Variant
    task: StoredTask
    repeat: int
    """The number of the repeat, counted from 0."""
    thread: ThreadId


class Verdict(NamedTuple):
    judge: str
    """The name of the judge."""
    outcome: str
    score: float | None = None
    reason: str = ""
    details: Any = None
    usage: Mapping[str, float] = {}
    votes: Sequence[str] = ()
    """The ids of the last steps of the threads in which an agent voted."""

    @property
    def is_infrastructure(self) -> bool:
        return self.outcome == "infrastructure"


class Result(NamedTuple):
    """The result of a cell."""

    number: int
    thread: str
    outcome: str
    verdicts: tuple[Verdict, ...]
    at: int
    head: str | None = None
    """The last step of the thread, or its start, or None if the thread could not be started."""
    reason: str = ""
    score: float | None = None
    usage: Mapping[str, float] = {}
    """The usage of the thread in this run."""
    saved: Mapping[str, float] = {}
    """The earlier usage of the steps that the thread reused."""
    agents: Sequence[Mapping[str, str]] = ()
    """Who played which role, as `role`, `agent` and `version`."""


class Calibration(NamedTuple):
    """How often a judge agrees with known verdicts."""

    judge: str
    agreed: int
    total: int
    """The number of examples on which the judge gave a verdict."""
    wrong: tuple[int, ...] = ()
    """The numbers of the examples, counted from 1, on which the judge disagrees."""
    usage: Mapping[str, float] = {}
    votes: Sequence[str] = ()


class EvalRun:
    """A stored run, with its suite, its cells and the results so far."""

    def __init__(self, store: Store, ref: Ref) -> None:
        self._store = store
        self.ref = ref
        self.id = ref.name.removeprefix("eval/")
        self.node = NodeId(ref.state["run"])
        payload = store.get(self.node).payload
        self._suite = payload["suite"]
        self.tasks: tuple[NodeId, ...] = tuple(payload["tasks"])
        self.at: int = payload["at"]
        """When the run began, in milliseconds."""
        self.is_fresh = bool(payload.get("fresh"))
        """Whether every role is asked, even if an earlier run has recorded the answer."""
        self.first: int = payload.get("first", 0)
        """How many times other runs have asked the same questions before. This run does not reuse their answers."""

    @property
    def status(self) -> str:
        """The status of the run: `open`, `suspended` or `done`."""
        return str(self.ref.state["status"])

    @property
    def is_running(self) -> bool:
        """Whether a living process is running the run."""
        lease = self.ref.state.get("lease")
        return lease is not None and holder.is_alive(lease, now=self._store.now())

    @property
    def reason(self) -> str:
        return str(self.ref.state.get("reason", ""))

    @property
    def is_early(self) -> bool:
        """Whether the run is done although threads are left, because the answer was clear."""
        return bool(self.ref.state.get("early"))

    @property
    def limits(self) -> Mapping[str, float]:
        return dict(self.ref.state.get("limits", {}))

    @cached_property
    def suite(self) -> StoredSuite:
        return load_suite(self._store, self._suite)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The cells, sorted by repeat, task and variant in this order, so that the first cells can already be
        compared."""
        tasks = [load_task(self._store, node) for node in self.tasks]
        found = [
            (variant, task, repeat)
            for repeat in range(self.first, self.first + self.suite.repeat)
            for task in tasks
            for variant in self.suite.variants
        ]
        return tuple(
            Cell(number, *cell, ThreadId(member_id(self.at, number, self.node)))
            for number, cell in enumerate(found, 1)
        )

    def read_results(self) -> dict[int, Result]:
        """Return the newest result of each cell that has one, keyed by the cell's number."""
        found: dict[int, Result] = {}
        for payload in _walk(self._store, self.ref.target):
            if "number" in payload and payload["number"] not in found:
                verdicts = []
                for verdict in (self._store.get(node).payload for node in payload["verdicts"]):
                    name = self._store.get(verdict["judge"]).payload["name"]
                    verdicts.append(Verdict(**{**_fields_of(Verdict, verdict), "judge": name}))
                known = {**_fields_of(Result, payload), "verdicts": tuple(verdicts)}
                found[payload["number"]] = Result(**known)
        return dict(sorted(found.items()))

    def read_calibrations(self) -> dict[str, Calibration]:
        """Return how often each judge agrees with known verdicts, keyed by the judge's name."""
        found: dict[str, Calibration] = {}
        for node in _walk(self._store, self.ref.target):
            if "agreed" in node:
                name = self._store.get(node["judge"]).payload["name"]
                known = {**_fields_of(Calibration, node), "judge": name, "wrong": tuple(node["wrong"])}
                found.setdefault(name, Calibration(**known))
        return found


def _fields_of(kind: Any, payload: JsonObject) -> JsonObject:
    """Return the entries of a payload that are fields of a named tuple."""
    return {key: payload[key] for key in kind._fields if key in payload}


def _walk(store: Store, head: str | None) -> Iterator[JsonObject]:
    """Yield the results and calibrations of a run, newest first."""
    while head is not None:
        payload = store.get(head).payload
        if "run" not in payload:  # this node is the run itself
            return
        yield payload
        head = payload.get("previous")


def to_json(value: Any) -> Any:
    """Return the JSON form of a value. Named tuples and dataclasses become objects."""
    if hasattr(value, "_asdict"):
        return to_json(value._asdict())
    if hasattr(value, "__dataclass_fields__"):
        return {key: to_json(getattr(value, key)) for key in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {key: to_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(one) for one in value]
    return value


def sum_amounts(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in amounts:
        for key, value in one.items():
            total[key] = total.get(key, 0) + value
    return total


# -- writing --


class JudgeFiles(NamedTuple):
    """A judge with its recorded files and the files of its examples."""

    judge: Judge
    files: Snapshot | None
    examples: tuple[Snapshot | None, ...]


def put_suite(
    store: Store,
    suite: Suite,
    tasks: Sequence[tuple[EvalTask, Snapshot | None]],
    judges: Sequence[JudgeFiles],
) -> NodeId:
    """Store a suite with the files of its tasks and judges."""
    draft = store.draft()
    workflows = {name: registry.add_workflow(draft, book) for name, book in suite.books.items()}
    variants = [
        {"name": one.name, "workflow": workflows[one.name], "agents": dict(one.agents)}
        | ({"agent": one.agent} if one.agent else {})
        for one in suite.variants
    ]
    stored = []
    for task, found in tasks:
        optional = {
            "tags": list(task.tags),
            "setup": list(task.setup),
            "files": found and _put_files(draft, found),
            "fork": task.fork,
            "repository": task.files.repository,
            "commit": task.files.repository and task.files.commit,
        }
        given = {key: value for key, value in optional.items() if value}
        stored.append(draft.put_as(TASK_SCHEMA, {"id": task.id, "prompt": task.prompt, **given}))
    fields = {
        "name": suite.name,
        "variants": variants,
        "tasks": stored,
        "judges": [_put_judge(draft, one) for one in judges],
        "repeat": suite.repeat,
    }
    node = NodeId(draft.put_as(SUITE_SCHEMA, fields))
    draft.commit(durable=True)
    return node


def _put_files(draft: Draft, files: Snapshot) -> str:
    return draft.put_as(TREE_SCHEMA, {"tree": {"found": files.tree, "repository": files.repository}})


def _put_judge(draft: Draft, given: JudgeFiles) -> str:
    judge, files, of_examples = given
    fields: dict[str, Any] = {"name": judge.name, "gate": judge.gate}
    if judge.command:
        fields |= {"command": list(judge.command), "seconds": judge.seconds, "megabytes": judge.megabytes}
        if judge.network:
            fields["network"] = True
        if files is not None:
            fields |= {"files": _put_files(draft, files), "place": os.path.basename(judge.files)}
    elif judge.expression:
        fields["expression"] = judge.expression
    else:
        fields |= {"agent": judge.agent, "rubric": judge.rubric, "votes": judge.votes}
        fields["workflow"] = registry.add_workflow(draft, Playbook(judge_workflow(judge)))
        examples = []
        for example, found in zip(judge.examples, of_examples, strict=True):
            rest = {"answer": example.answer, "output": dict(example.output)}
            rest |= {"files": _put_files(draft, found)} if found else {}
            kept = {key: value for key, value in rest.items() if value}
            examples.append({"prompt": example.prompt, "verdict": example.verdict, **kept})
        if examples:
            fields["examples"] = examples
    return draft.put_as(JUDGE_SCHEMA, fields)


def start_run(
    store: Store,
    suite: NodeId,
    tasks: Sequence[NodeId],
    *,
    limits: Mapping[str, float],
    is_fresh: bool,
    lease: JsonObject,
    first: int = 0,
) -> EvalRun:
    """Store a new run of some tasks of a suite, held by the process of the lease."""
    draft, now = store.draft(), store.now()
    fields: dict[str, Any] = {"suite": suite, "tasks": list(tasks), "at": now}
    fields |= ({"fresh": True} if is_fresh else {}) | ({"first": first} if first else {})
    node = draft.put_as(RUN_SCHEMA, fields)
    name = f"eval/{member_id(now, 0, node)}"
    state = {"run": node, "suite": suite, "name": store.get(suite).payload["name"], "status": "open"}
    draft.move(name, None, node, {**state, "limits": dict(limits), "lease": dict(lease)})
    return EvalRun(store, draft.commit(durable=True)[0])


def add_result(store: Store, run: EvalRun, result: Result) -> None:
    """Append the result of a cell to its run."""
    draft, judges = store.draft(), _name_judges(run)
    verdicts = []
    for one in result.verdicts:
        fields: dict[str, Any] = {"judge": judges[one.judge], "outcome": one.outcome}
        rest = {"score": one.score, "reason": one.reason, "details": one.details, "usage": dict(one.usage)}
        fields |= {key: value for key, value in rest.items() if value not in (None, "", {})}
        fields |= {"votes": list(one.votes)} if one.votes else {}
        verdicts.append(draft.put_as(VERDICT_SCHEMA, fields))
    stored = {key: value for key, value in to_json(result).items() if value not in (None, "", {}, [])}
    _append(draft, run, RESULT_SCHEMA, {**stored, "verdicts": verdicts})


def add_calibration(store: Store, run: EvalRun, found: Calibration) -> None:
    """Append to a run how often a judge agrees with known verdicts."""
    fields = {**to_json(found), "judge": _name_judges(run)[found.judge]}
    _append(store.draft(), run, CALIBRATION_SCHEMA, fields)


def _name_judges(run: EvalRun) -> dict[str, NodeId]:
    return {one.judge.name: one.node for one in run.suite.judges}


def _append(draft: Draft, run: EvalRun, schema: Schema, fields: JsonObject) -> None:
    previous = {"previous": run.ref.target} if run.ref.target != run.node else {}
    node = draft.put_as(schema, {**fields, "run": run.node, **previous})
    draft.move(run.ref.name, run.ref, node, run.ref.state)
    draft.event(run.id, EVENT, {"status": run.status})
    run.ref = draft.commit(durable=True)[0]


# -- reading --


def find_run(store: Store, text: str) -> EvalRun:
    """Find a run by its id, or by a unique ending or part of its id. If the text is empty, return the newest run."""
    wanted = text.upper()
    names = sorted((ref.name for ref in store.refs("eval/")), reverse=True)
    found = [name for name in names if name.endswith(wanted)] if wanted else names[:1]
    found = found if len(found) == 1 else [name for name in names if wanted in name[5:]]
    if len(found) > 1:
        shown = ", ".join(name[5:] for name in found[:5])
        raise UsageError(f"{text!r} matches several runs: {shown}", hint="Give more characters.")
    ref = store.ref(found[0]) if found else None
    if ref is None:
        named = f" {text!r}" if text else ""
        raise NotFound(f"there is no evaluation{named}", hint=Hint("List them", "list_evals"))
    return EvalRun(store, ref)


def list_runs(store: Store, *, suite: str | None = None) -> list[EvalRun]:
    """Return all runs, or those of a stored suite, newest first."""
    where = {"suite": [suite]} if suite else None
    refs = sorted(store.refs("eval/", where=where), key=lambda ref: ref.name, reverse=True)
    return [EvalRun(store, ref) for ref in refs]


def load_suite(store: Store, node: str) -> StoredSuite:
    payload = store.get(node).payload
    variants = tuple(Variant(**one) for one in payload["variants"])
    tasks = tuple(load_task(store, one) for one in payload["tasks"])
    judges = tuple(_load_judge(store, one) for one in payload["judges"])
    return StoredSuite(NodeId(node), payload["name"], variants, tasks, judges, payload["repeat"])


def load_task(store: Store, node: str) -> StoredTask:
    payload = store.get(node).payload
    words = {key: tuple(payload.get(key, ())) for key in ("tags", "setup")}
    known = {**_fields_of(StoredTask, payload), **words, "files": _load_files(store, payload)}
    return StoredTask(NodeId(node), **known)


def _load_files(store: Store, payload: JsonObject) -> Snapshot | None:
    if "files" not in payload:
        return None
    tree = store.get(payload["files"]).payload["tree"]
    return Snapshot(tree["found"], tree["repository"])


def _load_judge(store: Store, node: str) -> StoredJudge:
    payload = store.get(node).payload
    stored = payload.get("examples", ())
    examples = tuple(Example(**{**one, "files": ""}) for one in stored)
    given = {"command": tuple(payload.get("command", ())), "files": payload.get("place", "")}
    judge = Judge(**{**_fields_of(Judge, payload), **given, "examples": examples})
    of_examples = tuple(_load_files(store, one) for one in stored)
    return StoredJudge(NodeId(node), judge, _load_files(store, payload), payload.get("workflow"), of_examples)

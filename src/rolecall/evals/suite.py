"""A suite, which says which workflow is tried in which variants, on which tasks, how often, and who judges the results.

`read_suite` reads the file and everything that the file names, and finds every problem before anything runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from shutil import which
from time import time
from typing import Any, NamedTuple

from rolecall.errors import NotFound, RolecallError
from rolecall.evals.tasks import (
    NAME,
    NAME_WANTED,
    EvalTask,
    Existing,
    KnownAnswer,
    Words,
    answer_form,
    find_duplicates,
    read_lines,
    read_tasks,
    task_form,
)
from rolecall.settings import form
from rolecall.settings.form import (
    Anything,
    At,
    Choice,
    Converted,
    Either,
    Field,
    Flag,
    ListOf,
    MapOf,
    Number,
    Record,
    Section,
    Text,
)
from rolecall.store.canonical import JsonObject
from rolecall.threads.casting import agent_from
from rolecall.workflow import condition
from rolecall.workflow.model import END, START, Edge, StoredRole, StoredWorkflow
from rolecall.workflow.playbook import Playbook
from rolecall.workflow.yaml import make_includer, read_text

MOST_REPEATS = 1_000
MOST_CELLS = 100_000
SECONDS = 600.0
"""The maximum number of seconds for a command judge or a setup."""
MEGABYTES = 4_096
"""The maximum number of megabytes of memory for each process of a command judge."""
JUDGE_ROLE = "judge"
_UNITS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


class Variant(NamedTuple):
    """One of the variants that are compared."""

    name: str
    workflow: str
    """A name, a path or an id, as written in the suite. In a stored suite, it is the id."""
    agent: str | None = None
    """The agent that plays every role."""
    agents: Mapping[str, str] = {}
    """The agents that play single roles, keyed by role."""


class Example(NamedTuple):
    """An answer with a known verdict, with which to measure how often a judge agrees."""

    prompt: str
    verdict: str
    """`pass` or `fail`."""
    answer: str = ""
    output: Mapping[str, Any] = {}
    files: str = ""
    """The path of a folder."""


class Judge(NamedTuple):
    """What decides whether a result is good: a command, an expression, or an agent with a rubric."""

    name: str
    command: tuple[str, ...] = ()
    files: str = ""
    """A folder that is copied over the result for the command. No agent sees the folder."""
    seconds: float = SECONDS
    megabytes: int = MEGABYTES
    network: bool = False
    """Whether the command is allowed to use the network."""
    expression: str = ""
    agent: str = ""
    rubric: str = ""
    votes: int = 1
    calibrate: str = ""
    """The path of a file of answers with known verdicts."""
    examples: tuple[Example, ...] = ()
    """The content of that file."""
    gate: bool = False
    """Whether the judge decides. If no judge of the suite has this set, all of them decide."""

    @property
    def kind(self) -> str:
        return "command" if self.command else "expression" if self.expression else "agent"


class Recorded(NamedTuple):
    """Recorded threads that are used as tasks."""

    workflow: str
    since: int = 0
    """The time from which threads count, in milliseconds."""
    most: int = 100
    fork: str = ""
    """The role before whose first step the threads are forked. If empty, only their prompts and files are used."""
    threads: tuple[str, ...] = ()
    """The ids of the threads, if the threads are named."""


class Suite(NamedTuple):
    name: str
    path: str
    variants: tuple[Variant, ...]
    tasks: tuple[EvalTask, ...]
    recorded: Recorded | None
    repeat: int
    judges: tuple[Judge, ...]
    limits: Mapping[str, float]
    """The limits of a whole run, `cost` and `minutes`."""
    reference: KnownAnswer | None
    cheat: KnownAnswer | None
    books: Mapping[str, Playbook]
    """The workflow of each variant, ready to run, keyed by the variant's name."""

    @property
    def deciding(self) -> tuple[Judge, ...]:
        """The judges that decide whether a result passes."""
        return tuple(judge for judge in self.judges if judge.gate) or self.judges

    def answers(self, kind: str, task: EvalTask) -> KnownAnswer | None:
        """Return the `reference` or the `cheat` of a task, which is its own or the suite's."""
        own: KnownAnswer | None = getattr(task, kind) or getattr(self, kind)
        return own.paths_for(task.id) if own else None


LoadWorkflow = Callable[[str], Playbook]
"""Loads a workflow by its name, path or id, or as NAME@VERSION. Raises RolecallError."""
FindMissing = Callable[[Playbook, str | None, Mapping[str, str]], Sequence[tuple[str, RolecallError]]]
"""Takes a playbook, the agent of every role and the agents of single roles. Returns the roles that no agent can play,
each with the reason."""


def read_suite(path: str, *, load: LoadWorkflow, missing: FindMissing) -> Suite:
    """Read a suite and everything that it names. Raise UsageError with all problems, each with its place."""
    try:
        text = read_text(path)
    except FileNotFoundError:
        hint = "Name the YAML file of a suite; docs/evals.md shows an example."
        raise NotFound(f"there is no suite {path!r}", hint=hint) from None
    loaded = form.load(_SuiteForm(path, load, missing), text, source=path, include=make_includer(path))
    return loaded.require(f"the suite {path}")


def judge_workflow(judge: Judge) -> StoredWorkflow:
    """Return the workflow in which the agent of a judge gives one vote."""
    schema = {
        "type": "object",
        "properties": {
            "verdict": {"enum": ["pass", "fail"]},
            "score": {"type": "number", "minimum": 0, "maximum": 1, "description": "How good the result is."},
            "reason": {"type": "string", "description": "What decided it, in one or two sentences."},
        },
        "required": ["verdict", "score", "reason"],
    }
    role = StoredRole(
        description="Judges a result.",
        prompt=judge.rubric,
        procedure="Read the result and the files in this folder. Change nothing.",
        output="The verdict, a score from 0 to 1, and the reason.",
        schema=schema,
        agent=judge.agent,
    )
    graph = {START: (Edge(JUDGE_ROLE),), JUDGE_ROLE: (Edge(END),)}
    name = f"judge-{judge.name.lower()}"
    return StoredWorkflow(name, "Judges a result.", roles={JUDGE_ROLE: role}, graph=graph)


class _SuiteForm(Record[Suite]):
    """The form of one suite. It also reads the files that the suite names."""

    def __init__(self, path: str, load: LoadWorkflow, missing: FindMissing) -> None:
        self._path = path
        self._load = load
        self._missing = missing
        folder = os.path.dirname(os.path.abspath(path))
        self._folder = folder
        name = Text(pattern=NAME, hint=NAME_WANTED)
        workflow = Text("the name, path or id of a workflow", is_line=True)
        agent = Converted(Text(is_line=True), partial(agent_from, folder))
        variant = Section("a variant", {"workflow": workflow, "agent": agent, "agents": MapOf(agent)})
        judge = Section(
            "a judge",
            {
                "command": Words(),
                "files": Existing(folder, "folder"),
                "seconds": Number(above=0, most=86_400),
                "megabytes": Number(whole=True, least=16, most=1_000_000),
                "network": Flag(),
                "expression": Text(least=1),
                "agent": agent,
                "rubric": Text(least=1),
                "votes": Number(whole=True, least=1, most=99),
                "calibrate": Existing(folder, "file"),
                "gate": Flag(),
            },
            check=self._check_judge,
        )
        recorded = Section(
            "threads",
            {
                "workflow": Field(workflow, required=True),
                "since": Text("an age such as 12h, 30d or 2w", pattern=r"\d{1,5}[mhdw]"),
                "most": Number(whole=True, least=1, most=10_000),
                "fork": Text("the name of a role", is_line=True),
            },
        )
        names = "Names of variants and judges have up to 80 letters, digits, `.`, `_` and `-`."
        super().__init__(
            self._make_suite,
            "a suite",
            {
                "name": name,
                "workflow": Field(ListOf(workflow, least=1, allow_single=True), required=True),
                "variants": MapOf(variant, key=NAME, key_wanted=names),
                "tasks": Either(
                    "the path of a file of tasks, or a list of tasks",
                    {str: Existing(folder, "file"), list: ListOf(task_form(folder))},
                ),
                "threads": recorded,
                "repeat": Number(whole=True, least=1, most=MOST_REPEATS),
                "judges": Field(MapOf(judge, key=NAME, key_wanted=names, least=1), required=True),
                "limits": Section("limits", {"cost": Number(above=0), "minutes": Number(above=0)}),
                "reference": answer_form(folder),
                "cheat": answer_form(folder),
            },
        )
        self._tasks_file = ""

    def _make_suite(
        self,
        workflow: tuple[str, ...],
        judges: Mapping[str, JsonObject],
        name: str = "",
        variants: Mapping[str, JsonObject] | None = None,
        tasks: str | tuple[EvalTask, ...] = (),
        threads: JsonObject | None = None,
        repeat: int = 1,
        limits: Mapping[str, float] | None = None,
        reference: KnownAnswer | None = None,
        cheat: KnownAnswer | None = None,
    ) -> Suite:
        self._tasks_file = tasks if isinstance(tasks, str) else ""
        recorded = None
        if threads and "workflow" in threads:
            age = threads.get("since", "")
            since = int(time() * 1000) - int(age[:-1]) * _UNITS[age[-1]] if age else 0
            most, fork = threads.get("most", Recorded("").most), threads.get("fork", "")
            recorded = Recorded(threads["workflow"], since, most, fork)
        # A variant that names a workflow is combined only with that workflow.
        combined = []
        for title, given in (variants or {"": {}}).items():
            own = given.get("workflow")
            for one in (own,) if own else workflow:
                is_alone = bool(own) or len(workflow) == 1
                full = title if title and is_alone else f"{title}/{_title(one)}" if title else _title(one)
                combined.append(Variant(full, one, given.get("agent"), given.get("agents", {})))
        stem = re.sub(r"[^\w.-]", "-", os.path.splitext(os.path.basename(self._path))[0]).lstrip("-._")
        return Suite(
            name or stem or "suite",
            os.path.abspath(self._path),
            tuple(combined),
            () if isinstance(tasks, str) else tasks,
            recorded,
            repeat,
            tuple(Judge(name, **given) for name, given in judges.items()),
            limits or {},
            reference,
            cheat,
            {},
        )

    # -- consistency of the parts --

    def _check_judge(self, judge: JsonObject, at: At) -> None:
        kinds = [kind for kind in ("command", "expression", "agent") if kind in judge]
        if len(kinds) != 1:
            found = f"both {kinds[0]} and {kinds[1]}" if kinds else "none of command, expression and agent"
            at.report(f"{at} has {found}", "A judge is one of them.", key=True)
            return
        allowed = {
            "command": {"files", "seconds", "megabytes", "network"},
            "expression": set[str](),
            "agent": {"rubric", "votes", "calibrate"},
        }[kinds[0]]
        for key in judge.keys() - allowed - {kinds[0], "gate"}:
            (at / key).report(f"{key!r} cannot be combined with a judge that is a {kinds[0]}", key=True)
        if kinds == ["agent"] and "rubric" not in judge:
            at.report(f"'rubric' is missing in {at}", "Describe what makes a result good.", key=True)
        rubric = judge.get("rubric", "")
        if os.path.isfile(os.path.join(self._folder, rubric)):
            hint = f"Write `rubric: !include {rubric}` for what it says."
            (at / "rubric").report(f"{at}: the rubric {rubric!r} is the name of a file", hint)
        if kinds == ["expression"] and (problem := condition.check(judge["expression"], has_output=True)):
            (at / "expression").report(f"{at}: the expression cannot be used: {problem}")
        if kinds == ["command"]:
            program, files = judge["command"][0], judge.get("files", "")
            in_files = files and os.path.exists(os.path.join(files, program))
            if "/" not in program and not which(program) and not in_files:
                message = f"{at}: the program {program!r} was not found"
                (at / "command").report(message, "Install it or correct the name.")

    def read(self, value: Any, at: At) -> Suite | form.Unreadable:
        """Read a suite with its tasks and workflows, and report contradictions between its parts."""
        suite = super().read(value, at)
        if isinstance(suite, form.Unreadable):
            return suite
        tasks, place = suite.tasks, at / "tasks"
        if self._tasks_file:
            tasks, problems = read_tasks(self._tasks_file)
            at.reading.problems += problems
        for number, first in find_duplicates(suite.tasks).items():
            (place / number).report(f"the id {tasks[number].id!r} is also that of task {first + 1}")
        if suite.recorded and (self._tasks_file or tasks):
            (at / "threads").report("a suite has either tasks or threads", "Keep one of them.", key=True)
        is_read = not any(path[:1] in (("tasks",), ("threads",)) for path in at.reading.wrong)
        if is_read and not (suite.recorded or self._tasks_file or tasks):
            place.report("there are no tasks", "Name a file of tasks, list them, or name recorded threads.")
        judges = tuple(self._read_examples(judge, at) for judge in suite.judges)
        suite = suite._replace(tasks=tasks, judges=judges)
        for task in tasks:
            for judge in suite.judges:
                shown, hidden = (os.path.realpath(path) for path in (task.files.folder, judge.files))
                if judge.files and task.files.folder and os.path.commonpath([hidden, shown]) == shown:
                    (at / "judges" / judge.name / "files").report(
                        f"the agents would see the files of {judge.name}, because the task {task.id!r} has them",
                        "Keep them outside the folders of tasks.",
                    )
            for kind in ("reference", "cheat"):
                answer = suite.answers(kind, task)
                own = None if getattr(task, kind) else at / kind
                for key, exists in (("folder", os.path.isdir), ("patch", os.path.isfile)):
                    path = getattr(answer, key, "")
                    if path and not exists(path):
                        (own / key if own else place).report(f"the {kind} of {task.id!r} is missing: {path}")
        return suite._replace(books=self._load_workflows(suite, at))

    def _read_examples(self, judge: Judge, at: At) -> Judge:
        if not judge.calibrate:
            return judge
        one = Record(
            Example,
            "an example",
            {
                "prompt": Field(Text(least=1), required=True),
                "verdict": Field(Choice("pass", "fail"), required=True),
                "answer": Text(),
                "output": MapOf(Anything()),
                "files": Existing(os.path.dirname(judge.calibrate), "folder"),
            },
        )
        found, problems = read_lines(one, judge.calibrate)
        at.reading.problems += problems
        if not found and not problems:
            place = at / "judges" / judge.name / "calibrate"
            place.report("there are no examples", "Each line is one: {prompt, answer, verdict}.")
        return judge._replace(examples=tuple(example for _, example in found))

    def _load_workflows(self, suite: Suite, at: At) -> dict[str, Playbook]:
        loaded, books = dict[str, Playbook | None](), dict[str, Playbook]()
        for variant in suite.variants:
            of_variant = at / "variants" / variant.name.partition("/")[0]
            if variant.workflow not in loaded:
                loaded[variant.workflow] = None
                try:
                    loaded[variant.workflow] = self._load(variant.workflow)
                except RolecallError as problem:
                    (at / "workflow").report(f"workflow: {problem.message}", _word(problem))
            if (book := loaded[variant.workflow]) is None:
                continue
            books[variant.name] = book
            roles = book.workflow.roles
            unknown = [role for role in variant.agents if role not in roles]
            for role in unknown:
                hint = form.did_you_mean(role, roles, what="Its roles")
                message = f"{variant.name}: {book.workflow.name} has no role {role!r}"
                (of_variant / "agents" / role).report(message, hint, key=True)
            known = {role: agent for role, agent in variant.agents.items() if role in roles}
            for role, error in () if unknown else self._missing(book, variant.agent, known):
                where = of_variant / "agents" / role if role in known else of_variant
                where.report(f"{variant.name}: nobody can play {role}: {error.message}", _word(error))
        for judge in suite.judges:
            if judge.agent:
                place = at / "judges" / judge.name / "agent"
                for _, error in self._missing(Playbook(judge_workflow(judge)), None, {}):
                    place.report(f"{judge.name}: {error.message}", _word(error))
        return books


def _word(error: RolecallError) -> str:
    return error.hint if isinstance(error.hint, str) else ""


def _title(workflow: str) -> str:
    """Return the name of a workflow that might be given by its path."""
    return os.path.splitext(os.path.basename(workflow))[0] if "/" in workflow else workflow

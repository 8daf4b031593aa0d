"""Walk recorded threads through an edited workflow, without asking any agent.

Routing and prompts are pure. As long as nothing that a step depends on has changed, its recorded output is therefore
the output that the edited workflow would get. The walk ends at the first step that would be asked something else, or
where the thread would take another route. Each version of the workflow is compared with the edited workflow once for
all its threads, and equal parts are not evaluated. Nothing is written, and only the functions of the edited workflow
can be called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rolecall.errors import Damaged, NotFound, UsageError
from rolecall.settings.capabilities import restrictions
from rolecall.store.canonical import JsonObject
from rolecall.store.ids import thread_time
from rolecall.store.lazy import Module
from rolecall.store.store import Store
from rolecall.threads import casting
from rolecall.threads.forecast import NOTHING, UNKNOWN, Forecast, PastThreads
from rolecall.threads.key import OF_ROLE
from rolecall.threads.loaded_thread import LoadedThread, count_steps_for, next_of
from rolecall.threads.report import plural
from rolecall.threads.setup import HUMAN
from rolecall.threads.state import Status, ThreadRef, load
from rolecall.threads.thread import FORK, PERSON, Chain, Step, read_roster
from rolecall.threads.views import number_steps
from rolecall.workflow import registry, versions
from rolecall.workflow.model import (
    END,
    FAIL,
    START,
    SUSPEND,
    StoredWorkflow,
    describe_sandbox,
    member_roles,
    runs_processes,
    sandbox_of,
    workdir_of,
)
from rolecall.workflow.playbook import Playbook
from rolecall.workflow.route import Ended, Failed, Next, Route, Stuck, Suspended

if TYPE_CHECKING:
    from rolecall.workflow import group
else:
    group = Module("rolecall.workflow.group")

Kind = Literal["route", "role", "restrictions", "sandbox", "agent", "prompt", "folder", "group", "limit"]
_OF_GROUP = ("roles", "join", "on_failure", "merge", "check")
"""The fields that decide how the results of a group's members are joined. The deadline and the number of members that
run at once do not affect the results."""


class StepChange(NamedTuple):
    """One difference at a step."""

    kind: Kind
    parts: tuple[str, ...] = ()
    """The changed fields of the role or of the group, or the changed parts of the prompt."""
    was: str = ""
    now: str = ""

    def __str__(self) -> str:
        what = {
            "route": f"{_word_way(self.now)}, {_word_way(self.was, is_past=True)} before",
            "role": f"the role's {_enumerate(self.parts)}",
            "restrictions": "the restrictions",
            "sandbox": "the sandbox",
            "agent": "the agent",
            "prompt": f"the {_enumerate(self.parts)}",
            "folder": "the work folder",
            "group": f"the group's {_enumerate(self.parts)}",
            "limit": self.now,
        }[self.kind]
        shows_values = self.kind not in ("route", "limit") and (self.was or self.now)
        return f"{what}: {self.now or 'none'}, was {self.was or 'none'}" if shows_values else what


class Divergence(NamedTuple):
    """The first step at which a thread would continue differently."""

    step: int
    """The number of that step, or the last step's number plus one if all steps are the same."""
    role: str | None
    """The role that took the step, or None after the last step."""
    changes: tuple[StepChange, ...]
    asks: str | None
    """The role that would be asked first, or None if the thread would end or stop here."""

    def __str__(self) -> str:
        return "; ".join(map(str, self.changes))


class Trial(NamedTuple):
    """The actions that the edited workflow would take with one recorded thread."""

    thread: str
    title: str
    status: str
    steps: int
    difference: Divergence | None = None
    """The first difference, or None if the thread would be the same."""
    forecast: Forecast = NOTHING
    """The amounts that the remaining steps might use, beginning at the first difference."""
    problem: str = ""
    """Why the thread cannot be walked, or empty if it can."""


class Tryout:
    """An edited workflow, compared with the versions of the workflow that recorded threads followed."""

    def __init__(self, store: Store, new: Playbook) -> None:
        self._store = store
        self._new = new
        self._edits: dict[str, Edit] = {}
        self._histories: dict[str, PastThreads] = {}

    def walk(self, refs: Iterable[ThreadRef]) -> Iterator[Trial]:
        """Yield the trial of each thread. The trial of a thread that cannot be read has a `problem`."""
        for ref in refs:
            state = ref.state
            trial = Trial(ref.id, state.title, state.status.value, state.steps or 0)
            turns, forecast = Counter[str](), NOTHING
            try:
                found = self._find_difference(ref, turns)
                if found and found.asks and any(change.kind == "agent" for change in found.changes):
                    forecast = UNKNOWN  # nothing is known about what another agent uses
                elif found and found.asks:
                    if state.name not in self._histories:
                        self._histories[state.name] = PastThreads(self._store, state.name)
                    forecast = self._histories[state.name].rest_from(found.asks, turns[found.asks] + 1)
            except (NotFound, Damaged, UsageError) as error:
                yield trial._replace(problem=error.message)
                continue
            yield trial._replace(difference=found, forecast=forecast)

    def _find_difference(self, ref: ThreadRef, turns: Counter[str]) -> Divergence | None:
        """Return the first difference of a thread, or None. Count the turns of roles before the difference in
        `turns`."""
        if self._edit_of(ref.state.workflow).is_none and not ref.state.forked_from:
            return None
        chain = Chain(self._store, ref.head)
        if chain.start.member is not None:
            raise UsageError("it is a member of a group, whose thread can be tried instead")
        steps = list(number_steps(ref, chain))[::-1]
        # A fork with another workflow or prompt has another start.
        head, last, number = steps[0][0].start if steps else chain.start.id, START, 0
        for step, number in steps:
            if step.role not in (PERSON, FORK):
                edit = self._edit_of(self._store.follow(step.start).payload["workflow"])
                here = StepPlace(self._store, ref, head, edit)
                if found := here.compare(step, last, number, self._bound):
                    return found
                turns[step.role] += 1
            head, last = step.id, last if step.role == FORK else step.role
        if ref.state.status in (Status.KILLED, Status.DISCARDED):
            return None
        here = StepPlace(self._store, ref, head, self._edit_of(chain.start.workflow))
        return here.compare_end(last, number + 1)

    def _edit_of(self, workflow: str) -> Edit:
        if workflow not in self._edits:
            self._edits[workflow] = Edit(registry.read_node(self._store, workflow)[0], self._new)
        return self._edits[workflow]

    @cached_property
    def _bound(self) -> JsonObject:
        """The agents with which a thread of the edited workflow would start."""
        return casting.binder()(self._new)


class Edit:
    """The differences between a version of a workflow and the edited workflow. Results of comparisons are kept."""

    def __init__(self, old: StoredWorkflow, new: Playbook) -> None:
        self.old = Playbook(old)
        self.new = new
        self._routes: dict[str, bool] = {}
        self._roles: dict[str, tuple[StepChange, ...]] = {}

    @cached_property
    def is_none(self) -> bool:
        """Whether the two workflows are equal; never true for a workflow in Python."""
        return self.new.workflow.python is None and self.old.workflow == self.new.workflow

    def routes_alike(self, source: str) -> bool:
        """Return whether the same edges are known to lead from a role, under the same conditions."""
        if source not in self._routes:
            old, new = self.old.workflow, self.new.workflow
            edges = new.graph.get(source, ())
            names = [edge.condition for edge in edges if edge.condition]
            self._routes[source] = (
                old.python is None
                and new.python is None
                and old.name == new.name  # a template can use the name
                and old.graph.get(source, ()) == edges
                and all(_expression(old, name) == _expression(new, name) for name in names)
            )
        return self._routes[source]

    def changes_of(self, role: str) -> tuple[StepChange, ...]:
        """Return the differences in the definition of a role and, for a team, of the team's roles."""
        if role not in self._roles:
            self._roles[role] = tuple(self._compare_role(role))
        return self._roles[role]

    def _compare_role(self, role: str) -> Iterator[StepChange]:
        old, new = self.old.workflow, self.new.workflow
        groups = old.roles[role].group, new.roles[role].group
        if (groups[0] is None) != (groups[1] is None):
            yield StepChange("group", ("members",))
        elif groups[0] is not None and groups[1] is not None:
            pairs = [(name, getattr(groups[0], name), getattr(groups[1], name)) for name in _OF_GROUP]
            if parts := tuple(name for name, one, other in pairs if one != other):
                yield StepChange("group", parts)
            if groups[0].times != groups[1].times:
                yield StepChange("group", ("size",), str(groups[0].times or ""), str(groups[1].times or ""))
        for name in member_roles(new, role):
            if name not in old.roles:
                continue  # the roles of the team differ
            prefix = "" if name == role else f"{name}."
            parts = tuple(one for one in OF_ROLE if _field(old, name, one) != _field(new, name, one))
            has_code = name in self.new.functions or name in self.new.prompts or name in self.new.agents
            if has_code and not self._has_same_code:
                parts += ("code",)
            if parts:
                yield StepChange("role", tuple(f"{prefix}{part}" for part in parts))
            words = [_enumerate(sorted(restrictions(one.roles[name].capabilities))) for one in (old, new)]
            if words[0] != words[1]:
                yield StepChange("restrictions", (), *words)
            boxes = [sandbox_of(one, name) for one in (old, new)]
            has_processes = name not in self.new.functions and runs_processes(new.roles[name])
            if boxes[0] != boxes[1] and has_processes:
                yield StepChange("sandbox", (), *(describe_sandbox(box) if box else "" for box in boxes))
            if workdir_of(old, name) != workdir_of(new, name):
                yield StepChange("folder", (), workdir_of(old, name), workdir_of(new, name))

    @cached_property
    def _has_same_code(self) -> bool:
        """Whether both workflows are made from the same files. The comparison does not run these files."""
        places = [book.workflow.python or "" for book in (self.old, self.new)]
        code = [versions.digest(place) for place in places]
        return code[0] == code[1] != ""

    def limits_differ(self, role: str) -> bool:
        old, new = self.old.workflow, self.new.workflow
        return old.limits != new.limits or old.roles[role].limits != new.roles[role].limits


def _expression(workflow: StoredWorkflow, condition: str) -> str | None:
    known = workflow.conditions.get(condition)
    return known.expression if known else None


def _field(workflow: StoredWorkflow, role: str, name: str) -> Any:
    value = getattr(workflow.roles[role], name)
    if name == "schema" and value.get("title") == f"{workflow.name}.{role}":
        return {key: inner for key, inner in value.items() if key != "title"}  # the title is derived
    return value


class StepPlace:
    """A thread after one of its steps, with the version of the workflow that the thread followed at that point."""

    def __init__(self, store: Store, ref: ThreadRef, head: str, edit: Edit) -> None:
        self._store = store
        self._ref = ref
        self._head = head
        self._edit = edit

    def compare(self, step: Step, source: str, number: int, bound: JsonObject) -> Divergence | None:
        """Compare the step that follows with what the edited workflow would do after `source`. `bound` maps roles to
        the agents of the edited workflow."""
        new, role = self._edit.new.workflow, step.role
        changes: list[StepChange] = []
        if role not in new.roles or not self._edit.routes_alike(source):
            now = next_of(self._new)
            was = Next(role, step.payload.get("edge_prompt") or "", None)
            old = self._edit.old.workflow
            has_location = any(edge.location for edge in old.graph.get(source, ()))
            if old.python is None and (now != was or has_location):
                # The recorded prompt is masked, and the folder was not recorded with it.
                computed = next_of(self._old)
                was = computed if isinstance(computed, Next) and computed.role == role else was
            if not isinstance(now, Next) or now.role != role:
                return _take_other_way(was, now, number, role)
            changes += _compare_calls(was, now)
        if role not in self._edit.old.workflow.roles:  # another program has put this step into the store
            return Divergence(number, role, (StepChange("role", ("definition",)),), role)

        changes += self._edit.changes_of(role)
        changes += self._compare_agents(step, bound)
        changes += self._compare_lists(step)
        if self._edit.limits_differ(role):
            limits = self._ref.state.limits
            limit = self._new.over_limit(role, limits, self._new.totals)
            if limit is not None and self._old.over_limit(role, limits, self._old.totals) is None:
                return Divergence(number, role, (StepChange("limit", now=limit.reason),), None)
        return Divergence(number, role, tuple(changes), role) if changes else None

    def compare_end(self, source: str, number: int) -> Divergence | None:
        """Compare where the thread and the edited workflow go after the thread's last step."""
        is_code = self._edit.old.workflow.python is not None
        if self._edit.routes_alike(source) or (is_code and self._ref.state.status != Status.COMPLETED):
            return None  # if the workflow is code, only that code could decide
        was: Route = Ended() if is_code else next_of(self._old)
        now = next_of(self._new)
        if isinstance(was, Next) and isinstance(now, Next) and was.role == now.role:
            changes = tuple(_compare_calls(was, now))
            return Divergence(number, None, changes, now.role) if changes else None
        if type(was) is type(now) and not isinstance(now, Next):
            return None
        return _take_other_way(was, now, number)

    @cached_property
    def _new(self) -> LoadedThread:
        return self._load(self._edit.new)

    @cached_property
    def _old(self) -> LoadedThread:
        return self._load(self._edit.old)

    def _load(self, book: Playbook) -> LoadedThread:
        return LoadedThread(self._ref.id, Chain(self._store, self._head), book, self._ref.state.folders)

    def _compare_agents(self, step: Step, bound: JsonObject) -> Iterator[StepChange]:
        """Compare the agents of the step's role. Two different names can belong to the same agent."""
        state, new = self._ref.state, self._edit.new.workflow
        for name in member_roles(new, step.role):
            if name not in self._edit.old.workflow.roles:
                continue
            roles = [book.workflow.roles[name] for book in (self._edit.old, self._edit.new)]
            words = [(one.group and one.group.agents) or tuple(filter(None, [one.agent])) for one in roles]
            if step.agent.startswith("python:") and name not in self._edit.new.functions:
                yield StepChange("agent", (), step.agent, ", ".join(words[1]))
                continue
            if words[0] == words[1] or (state.agent and (HUMAN,) not in words):
                continue
            agents = [known.get(name, {}) for known in (state.agents, bound)]
            known = [(one.get("spec"), one.get("options")) for one in agents]
            if known[0] != known[1] or known[0][0] is None:
                pairs = zip(words, agents, strict=True)
                yield StepChange(
                    "agent", (), *(", ".join(word) or one.get("name", "") for word, one in pairs)
                )

    def _compare_lists(self, step: Step) -> Iterator[StepChange]:
        """Evaluate the list of a group again if its expression differs, and compare the two lists."""
        old, new = (book.workflow.roles[step.role].group for book in (self._edit.old, self._edit.new))
        if old is None or new is None or old.each == new.each:
            return
        roster = read_roster(self._store, step.payload["group"]) if "group" in step.payload else None
        before = self._store.follow(roster.items).payload if roster and roster.items else []
        loaded = self._new
        steps = loaded.messages.recent(count_steps_for(new.each)) if new.each else []
        try:
            items = group.items_of(new, start=loaded.start_view, steps=steps, steps_count=loaded.steps_count)
        except UsageError as error:
            yield StepChange("group", ("list",), plural(len(before), "item"), error.message)
            return
        if items != before:
            yield StepChange("group", ("list",), plural(len(before), "item"), plural(len(items), "item"))


def _compare_calls(was: Next, now: Next) -> Iterator[StepChange]:
    if was.prompt.strip() != now.prompt.strip():
        yield StepChange("prompt", ("instruction",))
    if was.location != now.location:
        yield StepChange("folder", (), was.location or "", now.location or "")


def _take_other_way(was: Route, now: Route, number: int, role: str | None = None) -> Divergence:
    change = StepChange("route", (), _name_route(was), _name_route(now))
    return Divergence(number, role, (change,), now.role if isinstance(now, Next) else None)


def _name_route(way: Route) -> str:
    match way:
        case Next():
            return way.role
        case Ended():
            return END
        case Failed():
            return FAIL
        case Suspended():
            return SUSPEND
        case Stuck():
            return f"{_STUCK}{way.reason}"


_STUCK = "stuck: "
_ENDINGS = {END: ("ends", "ended"), FAIL: ("fails", "failed"), SUSPEND: ("asks a person", "asked a person")}


def _word_way(name: str, *, is_past: bool = False) -> str:
    if name.startswith(_STUCK):
        return "stopped" if is_past else f"stops ({name.removeprefix(_STUCK)})"
    present, past = _ENDINGS.get(name, (f"goes to {name}", f"went to {name}"))
    return past if is_past else present


def _enumerate(words: Iterable[str]) -> str:
    *most, last = [*words] or [""]
    return f"{', '.join(most)} and {last}" if most else last


def read_recorded(store: Store, workflow: str, *, since: int = 0) -> Iterator[ThreadRef]:
    """Yield the threads of a workflow, given by its name, that began at `since` or later, oldest first. Leave out
    members of groups, because they are part of their parent threads."""
    for ref in store.refs("thread/", where={"name": [workflow]}):
        if not ref.state.get("member") and thread_time(ref.name.removeprefix("thread/")) >= since:
            yield load(ref)

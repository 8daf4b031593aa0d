"""Conditions of edges: JSONata over `start`, `steps` and `steps_count`, checked when the workflow is stored.

The language is limited to single expressions. `check` refuses user-defined functions, variables, `$eval`, random
numbers and the clock. Everything else is evaluated with a time limit, which is checked only between parts of an
expression. An expression is therefore evaluated in a child process with limits of its own (`python -m
rolecall.workflow.condition`) if it joins texts with `&`, calls a function that is not in `_CHEAP_FUNCTIONS`, or uses a
regular expression that is long or contains groups or repetitions. An expression that looks only at `steps[-k]` gets the
last k steps. Any other expression gets every step, or an error if not all of them are given.
"""

from __future__ import annotations

import json
import math
import re
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from time import monotonic, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.errors import UsageError
from rolecall.store.canonical import JsonObject
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import difflib
    import subprocess

    import jsonata
else:
    difflib = Module("difflib")
    jsonata = Module("jsonata")  # importing it takes longer than most steps, and few workflows need it
    subprocess = Module("subprocess")

ROOTS = ("start", "steps", "steps_count")
START_FIELDS = ("workflow", "prompt", "cwd")
STEP_FIELDS = ("role", "output")
MAX_LENGTH = 2_000
MAX_DEPTH = 60
MAX_STEPS = 1_000
MAX_RANGE = 1_000
MAX_PLAIN_REGEX = 100
"""The maximum length at which a regular expression without groups and repetitions is cheap for a text of any length."""
MAX_CHILD_MEMORY = 512 * 1024 * 1024
_CHILD_START = 20.0
"""The number of seconds that a busy machine may need to start a child process."""

_REFUSED_FORMS = {
    "lambda": "functions of one's own",
    "bind": "variables (:=)",
    "transform": "the transform operator",
    "partial": "partial application",
}
_REFUSED_FUNCTIONS = ("eval", "random", "shuffle", "now", "millis", "pad", "replace", "reduce")
_CHEAP_FUNCTIONS = frozenset((
    "abs", "average", "boolean", "ceil", "contains", "count", "exists", "floor", "keys", "length", "lookup",
    "lowercase", "max", "min", "not", "number", "round", "substring", "substringAfter", "substringBefore", "sum",
    "trim", "type", "uppercase",
))  # fmt: skip
"""Functions whose time and memory are at most proportional to the size of their arguments."""
_KINDS = {str: "a text", bool: "true or false", dict: "an object", int: "a number", float: "a number"}
_CHILDREN = (
    *("expression", "procedure", "arguments", "body", "predicate", "stages", "expr", "group", "lhs", "rhs"),
    *("lhs_object", "rhs_object", "rhs_terms", "terms", "condition", "then", "_else", "steps", "expressions"),
    *("pattern", "update", "delete"),
)


class OutputField(NamedTuple):
    """A field of an output that a condition looks at. `recent` is k for `steps[-k]`, and otherwise None."""

    name: str
    recent: int | None
    path: tuple[str, ...] | None = None
    """The names below the field if the whole expression only follows names, and otherwise None."""


class _Parsed(NamedTuple):
    program: Any
    problem: str | None
    window: int | None
    fields: tuple[OutputField, ...]
    is_cheap: bool = True
    path: tuple[str | int, ...] | None = None


def check(expression: str, *, has_output: bool = False) -> str | None:
    """Return the reason why an expression cannot be a condition, or None if it can. With `has_output`, the expression
    can also look at `output`, the output of the last step, as the judges of an evaluation do."""
    return _parse(expression, has_output).problem


def window(expression: str) -> int | None:
    """Return the number of latest steps that the expression looks at, or None if it might look at all steps."""
    return _parse(expression).window


def output_fields(expression: str) -> tuple[OutputField, ...]:
    """Return the fields directly below `steps….output` that the expression looks at."""
    # A group's list usually has this form. Its members then do not need the interpreter, whose import takes longer than
    # their steps.
    form = r"steps\[-([1-9]\d*)\]\.output\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)"
    if plain := re.fullmatch(form, expression.strip()):
        name, *path = plain[2].split(".")
        return (OutputField(name, int(plain[1]), tuple(path)),)
    return _parse(expression).fields


def plain_path(expression: str) -> tuple[str | int, ...] | None:
    """Return the path of an expression that only follows names, such as ("steps", -1, "output", "files"). Return None
    for any other expression."""
    return _parse(expression).path


def evaluate(
    expression: str,
    *,
    start: JsonObject,
    steps: Sequence[JsonObject],
    steps_count: int | None = None,
    output: JsonObject | None = None,
    seconds: float = 1.0,
) -> bool:
    """Return whether the condition holds, according to JSONata's `$boolean`. Raise `UsageError` if the condition cannot
    be evaluated.

    `steps` are the latest of the thread's `steps_count` steps, oldest first. If `output` is given, the expression can
    look at it.
    """
    view = _view(expression, start, steps, steps_count, output)
    return bool(_compute(expression, view, seconds, is_list=False))


def select(
    expression: str,
    *,
    start: JsonObject,
    steps: Sequence[JsonObject],
    steps_count: int | None = None,
    seconds: float = 5.0,
) -> list[Any]:
    """Return the list that an expression selects. Raise `UsageError` if the value of a plain path is not a list.

    JSONata turns a selection of one item into that item, and an empty selection into nothing. A filter, a function or a
    path through a list therefore always gives a list here, whatever it selects. A plain path must lead to a list.
    """
    view = _view(expression, start, steps, steps_count)
    value: Any = view
    for name in _parse(expression).path or ():
        if isinstance(name, int):
            value = value[name] if len(value) >= -name else None
        elif isinstance(value, list):  # the rest of the path is taken from each item of the list
            break
        else:
            value = value.get(name) if isinstance(value, Mapping) else None
    else:
        if value is not view:
            if not isinstance(value, list):
                kind = "nothing" if value is None else _KINDS.get(type(value), type(value).__name__)
                raise UsageError(f"the expression {expression!r} gives {kind}, not a list")
            return value
    found = _compute(expression, view, seconds, is_list=True)
    return found if isinstance(found, list) else [] if found is None else [found]


def _view(
    expression: str,
    start: JsonObject,
    steps: Sequence[JsonObject],
    steps_count: int | None,
    output: JsonObject | None = None,
) -> JsonObject:
    parsed = _parse(expression, output is not None)
    if parsed.problem:
        raise UsageError(f"the condition {expression!r} cannot be used: {parsed.problem}")
    count = len(steps) if steps_count is None else steps_count
    at_hand = min(len(steps), MAX_STEPS)
    if parsed.window is None and count > at_hand:
        raise UsageError(
            f"the condition {expression!r} looks at every step, but only the last {at_hand} of {count} are at hand",
            hint="Look at recent steps with steps[-1], steps[-2], …, and at steps_count for their number.",
        )
    first = 0 if parsed.window is None else max(0, len(steps) - parsed.window)
    view = {"start": dict(start), "steps": [dict(step) for step in steps[first:]], "steps_count": count}
    return view if output is None else {**view, "output": output}


def _compute(expression: str, view: JsonObject, seconds: float, *, is_list: bool) -> Any:
    """Return the value of an expression. With `is_list`, return it unchanged; otherwise return whether it is true."""
    run = _run if _parse(expression, "output" in view).is_cheap else _run_in_child
    return run(expression, view, seconds, is_list=is_list)


def _run(expression: str, view: JsonObject, seconds: float, *, is_list: bool) -> Any:
    deadline = monotonic() + seconds

    def enter(*_: Any) -> None:
        if monotonic() > deadline:
            raise _TooLong

    try:
        value = _parse(expression, "output" in view).program.evaluate(view, {"__evaluate_entry": enter})
        return _plain(value) if is_list else bool(jsonata.Jsonata.boolize(value))
    except _TooLong:
        raise UsageError(f"the condition {expression!r} was stopped after {seconds:g} s") from None
    except Exception as exc:  # unusual data can make the interpreter raise any Python error
        raise UsageError(f"the condition {expression!r} failed: {_describe(exc)}") from exc


def _plain(value: Any) -> Any:
    """Return a result as plain JSON. The interpreter uses types of its own for lists and null, and can return
    functions."""

    def replace(item: Any) -> None:
        if item is not jsonata.Utils.NULL_VALUE:
            raise UsageError("it gives a function")

    return json.loads(json.dumps(value, default=replace))


class _TooLong(Exception):
    pass


def _run_in_child(expression: str, view: JsonObject, seconds: float, *, is_list: bool) -> Any:
    order = json.dumps({"expression": expression, "view": view, "seconds": seconds, "is_list": is_list})
    # -P: a file in the work folder must not shadow an imported module.
    command = [sys.executable, "-P", "-m", "rolecall.workflow.condition"]
    try:
        limit = seconds + _CHILD_START
        ended = subprocess.run(command, input=order.encode(), capture_output=True, timeout=limit)
        answer = json.loads(ended.stdout or b"{}")
    except subprocess.TimeoutExpired:
        answer = {}
    if "error" in answer:
        raise UsageError(answer["error"])
    if "value" not in answer:
        most = f"{seconds:g} s or {MAX_CHILD_MEMORY >> 20} MB"
        raise UsageError(f"the condition {expression!r} was stopped after {most}")
    return answer["value"]


def _main() -> None:
    """Evaluate one condition from standard input, under limits that end the process."""
    order = json.loads(sys.stdin.buffer.read())
    _parse(order["expression"], "output" in order["view"])
    resource.setrlimit(resource.RLIMIT_AS, (MAX_CHILD_MEMORY, MAX_CHILD_MEMORY))
    allowed = math.ceil(process_time() + order["seconds"])
    resource.setrlimit(resource.RLIMIT_CPU, (allowed, allowed))
    try:
        answer: JsonObject = {"value": _run(**order)}
    except UsageError as exc:
        answer = {"error": exc.message}
    sys.stdout.write(json.dumps(answer))


def _describe(exc: Exception) -> str:
    return (str(exc).strip() or type(exc).__name__)[:200]


# -- checking --


@lru_cache(maxsize=256)
def _parse(expression: str, has_output: bool = False) -> _Parsed:
    if not expression.strip():
        return _Parsed(None, "it is empty", 0, ())
    if len(expression) > MAX_LENGTH:
        return _Parsed(None, f"it is longer than {MAX_LENGTH:,} characters", 0, ())
    try:
        program = jsonata.Jsonata(expression)
        program.set_validate_input(False)
        walk = _Walk(has_output)
        walk.visit(program.ast, at_root=True, depth=0)
    except UsageError as exc:
        return _Parsed(None, exc.message, 0, ())
    except RecursionError:
        return _Parsed(None, "it nests too deep", 0, ())
    except Exception as exc:  # unusual text can make the parser raise any Python error
        location = getattr(exc, "location", -1)
        where = f" (at character {location})" if isinstance(location, int) and location > 0 else ""
        return _Parsed(None, f"it is not JSONata: {_describe(exc)}{where}", 0, ())
    problem = "; ".join(dict.fromkeys(walk.problems)) or None
    fields = tuple(dict.fromkeys(walk.fields))
    return _Parsed(program, problem, walk.window, fields, walk.is_cheap, _path_of(program.ast))


def _path_of(symbol: Any) -> tuple[str | int, ...] | None:
    """Return the path of an expression that only follows names, after `start` or `steps[-k]`, or None."""
    steps = symbol.steps if symbol.type == "path" else []
    if not steps or any(step.type != "name" or step.keep_array for step in steps):
        return None
    recent, rest = _recent(steps[0]), [step.value for step in steps[1:]]
    has_filter = any(step.stages or step.predicate for step in steps[1:])
    if has_filter or (steps[0].value == "steps") != bool(recent):
        return None
    return (steps[0].value, *([-recent] if recent else []), *rest)


def _recent(step: Any) -> int | None:
    """Return k if the first name of a path is followed by [-k], and otherwise None."""
    stages = getattr(step, "stages", None) or getattr(step, "predicate", None)
    index = getattr(getattr(stages[0], "expr", None), "value", None) if stages else None
    return -index if isinstance(index, int) and index < 0 else None


class _Walk:
    """A pass over a parsed expression that finds refused parts and the data that the expression looks at."""

    def __init__(self, has_output: bool) -> None:
        self._roots = (*ROOTS, "output") if has_output else ROOTS
        self.problems: list[str] = []
        self.fields: list[OutputField] = []
        self.window: int | None = 0
        self.is_cheap = True

    def visit(self, symbol: Any, *, at_root: bool, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise UsageError(f"it nests deeper than {MAX_DEPTH} levels")
        kind = getattr(symbol, "type", None)
        if kind in _REFUSED_FORMS:
            self.problems.append(f"{_REFUSED_FORMS[kind]} are not accepted in conditions")
            return
        if getattr(symbol, "focus", None) or getattr(symbol, "index", None):
            self.problems.append("variables (@$, #$) are not accepted in conditions")
        if kind == "variable":
            self._check_variable(symbol.value, at_root)
        elif kind in ("wildcard", "descendant", "parent") and at_root:
            self.window = None
        elif kind == "binary" and symbol.value == "..":
            first, last = (getattr(end, "value", None) for end in (symbol.lhs, symbol.rhs))
            if not (isinstance(first, int) and isinstance(last, int) and last - first <= MAX_RANGE):
                self.problems.append(f"a range needs two plain numbers at most {MAX_RANGE:,} apart")
        elif kind == "binary" and symbol.value == "&":
            self.is_cheap = False
        elif kind == "regex":
            pattern = symbol.value.pattern
            is_plain = len(pattern) <= MAX_PLAIN_REGEX and not re.search(r"[*+?{(]", pattern)
            self.is_cheap = self.is_cheap and is_plain
        elif kind == "path":
            if at_root and symbol.steps[0].type == "name":
                self._check_root(symbol.steps)
            for position, step in enumerate(symbol.steps):
                self.visit(step, at_root=at_root and position == 0, depth=depth + 1)
        for name in _CHILDREN:
            if name == "steps" and kind == "path":
                continue
            # The listed children are evaluated in the context of a selected value, not of the root.
            is_same = name not in ("predicate", "stages", "group", "rhs_terms", "terms")
            for child in _flatten(getattr(symbol, name, None)):
                self.visit(child, at_root=at_root and is_same, depth=depth + 1)

    def _check_variable(self, name: str, at_root: bool) -> None:
        if name == "$" or (name == "" and at_root):
            self.window = None
        elif name in _REFUSED_FUNCTIONS:
            self.problems.append(f"${name} is not accepted in conditions")
        elif name and name not in _functions():
            close = _closest(name, _functions())
            guess = f", did you mean ${close}?" if close else ""
            self.problems.append(f"${name} is not a function{guess}")
        elif name and name not in _CHEAP_FUNCTIONS:
            self.is_cheap = False

    def _check_root(self, steps: list[Any]) -> None:
        first = steps[0]
        names = [step.value if step.type == "name" else None for step in steps[1:3]] + [None, None]
        if first.value == "start":
            self._expect(names[0], START_FIELDS, "start")
        elif first.value == "steps":
            recent = _recent(first)
            self.window = None if recent is None or self.window is None else max(self.window, recent)
            self._expect(names[0], STEP_FIELDS, "a step")
            if names[0] == "output" and names[1] is not None:
                self.fields.append(OutputField(names[1], recent))
        elif first.value not in self._roots:
            name = first.value
            close = _closest(name, self._roots) or f"steps[-1].{'' if name == 'output' else 'output.'}{name}"
            known = f"Known are {', '.join(self._roots)}"
            self.problems.append(f"{name!r} is not known here, did you mean {close}? {known}")

    def _expect(self, name: str | None, known: tuple[str, ...], owner: str) -> None:
        if name is not None and name not in known:
            close = _closest(name, known)
            guess = f", did you mean {close!r}?" if close else ""
            self.problems.append(f"{owner} has no field {name!r}{guess} (it has {', '.join(known)})")


def _closest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1)), None)


def _flatten(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flatten(item)
    elif hasattr(value, "nud"):
        yield value


@lru_cache(maxsize=1)
def _functions() -> frozenset[str]:
    return frozenset(jsonata.Jsonata.static_frame.bindings) - frozenset(_REFUSED_FUNCTIONS)


if __name__ == "__main__":
    _main()

"""Breaks the project's tools in single ways and checks that the fixtures or the tests notice: `make mutants`.

Mutants are made from the syntax trees of the modules that keep the contract: a condition negated, a comparison or a
constant changed, a statement dropped. A fixed sample of them runs, the same every time for one seed. Each is tried in a
child on a copy of the sources, first against the fixtures and then, if they pass, against the tests of the tools.

    python tests/nexus/mutants.py [--count N] [--seed N] [--in FUNCTION]
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count as count_up
from itertools import islice
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "rolecall"
FIXTURES = Path(__file__).parent / "fixtures"
MODULES = (
    "tools.py",
    "overview.py",
    "history.py",
    "state.py",
    "dispatch.py",
    "artifact.py",
    "project_paths.py",
)
TESTS = (
    "test_tools_calls.py",
    "test_overview.py",
    "test_tools_plan.py",
    "test_tools_task.py",
    "test_tools_history.py",
    "test_state.py",
    "test_artifacts.py",
    "test_state_kills.py",
)
COUNT, SEED = 120, 10
EQUIVALENT = {
    "history.py remove_sources: without: state_file.sync_folder(project_paths.state(project))": (
        "only a power failure would show it"
    ),
    "artifact.py write_artifact: len(os.fsencode(path)) > _LONGEST_PATH -> len(os.fsencode(path)) >= _LONGEST_PATH": (
        "the limit is a round number; one byte more or less is as good"
    ),
    "history.py _parse: 0 -> 1": "a file that was read has its list, so this end is never needed",
    **dict.fromkeys(
        (
            "history.py save_with: without: state.remember(path, stamp, longer)",
            "history.py save_with: not (len(self._front) < 100)",
            "history.py save_with: len(self._front) < 100 -> len(self._front) <= 100",
            "history.py save_with: 100 -> 101",
            "state.py load: without: remember(path, found.stamp, value)",
            "state.py save_tasks: without: remember(path, stamp, file, lines)",
            "state.py save_tasks: not (len(lines) > _MOST_PARTS)",
            "state.py save_tasks: len(lines) > _MOST_PARTS -> len(lines) >= _MOST_PARTS",
            "state.py encode_tasks: without: remember(path, *known)",
            "state.py remember: not (stamp)",
            "state.py remember: each[0] != path -> each[0] == path",
            "state.py remember: 1 -> 2",
            "state.py remember: 0 -> 1",
        ),
        "what is remembered, and in how many parts, only decides how fast the next call is",
    ),
    "tools.py _convert: '' -> 'x'": "the contract does not pin these words",
    "tools.py _convert: 'the call' -> 'the callx'": "the contract does not pin these words",
}
"""Mutants that change nothing a caller could see, and why."""
_COMMAND = "from rolecall.__main__ import command; raise SystemExit(command())"
_PATIENCE = 300
_SWAPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


class Mutant(NamedTuple):
    file: str
    function: str
    line: int
    change: str
    number: int
    """Which mutant of its file it is."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.change}"

    @property
    def is_equivalent(self) -> bool:
        return f"{self.file} {self.function}: {self.change}" in EQUIVALENT

    @property
    def source(self) -> str:
        """The whole module with the change made."""
        _, tree = next(islice(_mutants_of(self.file), self.number, None))
        return ast.unparse(tree)


# -- making them --


def all_mutants() -> list[Mutant]:
    return [mutant for file in MODULES for mutant, _ in _mutants_of(file)]


def sample(count: int = COUNT, seed: int = SEED) -> list[Mutant]:
    found = all_mutants()
    return random.Random(seed).sample(found, min(count, len(found)))


def _mutants_of(file: str) -> Iterator[tuple[Mutant, ast.Module]]:
    """Each mutant with the tree in which the change is made, until the next is asked for."""
    numbers = count_up()
    tree = ast.parse((SOURCE / "nexus" / file).read_text(encoding="utf-8"))
    for top in tree.body:
        functions = [top, *top.body] if isinstance(top, ast.ClassDef) else [top]
        for function in functions:
            if isinstance(function, ast.FunctionDef):
                for line, change in _changes(function, tree):
                    yield Mutant(file, function.name, line, change, next(numbers)), tree


def _changes(function: ast.FunctionDef, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Make one change after the other in the tree; each is undone when the next is asked for."""
    words = {part for node in ast.walk(function) if isinstance(node, ast.Raise) for part in ast.walk(node)}
    words |= {
        part for node in ast.walk(function) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)
    }
    words |= {
        node.args[0]
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Hint"
    }
    for node in ast.walk(function):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            before = node.test
            node.test = ast.UnaryOp(ast.Not(), before)
            yield node.lineno, f"not ({ast.unparse(before)})"
            node.test = before
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
            text, old = ast.unparse(node), node.ops[0]
            node.ops[0] = _SWAPS[type(old)]()
            yield node.lineno, f"{text} -> {ast.unparse(node)}"
            node.ops[0] = old
        elif isinstance(node, ast.BoolOp):
            text, join = ast.unparse(node), node.op
            node.op = ast.Or() if isinstance(join, ast.And) else ast.And()
            yield node.lineno, f"{text} -> {ast.unparse(node)}"
            node.op = join
        elif isinstance(node, ast.Constant) and node not in words and type(node.value) in (int, bool, str):
            value = node.value
            if value != ast.get_docstring(function, clean=False):
                node.value = _another(value)
                yield node.lineno, f"{value!r} -> {node.value!r}"
                node.value = value
        yield from _dropped_statements(node)


def _another(value: object) -> int | bool | str:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else f"{value}x"


def _dropped_statements(node: ast.AST) -> Iterator[tuple[int, str]]:
    body = getattr(node, "body", [])
    for number, statement in enumerate(body if isinstance(body, list) else []):
        is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
        is_change = isinstance(statement, ast.Assign) and not isinstance(
            statement.targets[0], ast.Name | ast.Tuple
        )
        if is_call or is_change or isinstance(statement, ast.Raise | ast.AugAssign):
            body[number] = ast.copy_location(ast.Pass(), statement)
            yield statement.lineno, f"without: {ast.unparse(statement).splitlines()[0]}"
            body[number] = statement


# -- trying them --


class NotRun(Exception):
    """A child that did not run the cases or tests."""


def killers(mutant: Mutant) -> list[str]:
    """What notices this mutant; nothing if it survives."""
    with sources_with({mutant.file: mutant.source}) as path:
        try:
            expected, always = failing(path, FIXTURES)
            return expected or always or failing_tests(path)
        except NotRun as exc:
            return [str(exc)]


@contextmanager
def sources_with(changed: dict[str, str]) -> Iterator[Path]:
    """A folder for the path of a child: the package with these files of `nexus` changed."""
    with tempfile.TemporaryDirectory(prefix="rolecall-mutant-", dir=scratch()) as folder:
        package = Path(folder) / "rolecall"
        package.mkdir()
        for entry in SOURCE.iterdir():
            if entry.name not in ("nexus", "__pycache__"):
                (package / entry.name).symlink_to(entry)
        shutil.copytree(SOURCE / "nexus", package / "nexus", ignore=shutil.ignore_patterns("__pycache__"))
        for name, text in changed.items():
            (package / "nexus" / name).write_text(text, encoding="utf-8")
        yield Path(folder)


def scratch() -> str | None:
    """A folder in memory if there is one: the tools wait for the disk, and here nothing has to last."""
    memory = "/dev/shm"
    return memory if os.path.isdir(memory) and os.access(memory, os.W_OK) else None


def failing(path: Path, fixtures: Path) -> tuple[list[str], list[str]]:
    """The cases that fail with the sources at this path: by what they expect, and only by what is always expected."""
    words = ["conformance", "run", str(fixtures), "--over", "tools", "--format", "json"]
    report = json.loads(_child(path, "-P", "-c", _COMMAND, *words))
    found: tuple[list[str], list[str]] = ([], [])
    for case in report["cases"]:
        if case["status"] == "failed":
            found[all(failure["at"] == "always" for failure in case["failures"])].append(case["test_id"])
    return found


def failing_tests(path: Path) -> list[str]:
    tests = [str(ROOT / "tests" / "nexus" / name) for name in TESTS]
    words = [
        "-q",
        "-x",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--rootdir",
        str(ROOT),
        *tests,
    ]
    lines = _child(path, "-m", "pytest", *words).decode().splitlines()
    return [line.partition("::")[2] for line in lines if line.startswith(("FAILED ", "ERROR "))]


def _child(path: Path, *words: str) -> bytes:
    homes = {"HOME": str(path), "ROLECALL_HOME": str(path / "home"), "TMPDIR": str(path)}
    try:
        done = subprocess.run(
            [sys.executable, *words],
            env={**os.environ, **homes, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise NotRun(f"no end within {_PATIENCE} s") from exc
    if done.returncode not in (0, 1):
        raise NotRun(f"exit code {done.returncode}: {done.stderr.decode()[-200:]}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Break the project's tools in single ways; all must be noticed."
    )
    parser.add_argument("--count", type=int, default=COUNT, help="how many to try (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="which ones (default: %(default)s)")
    parser.add_argument("--in", dest="function", help="all those of one function")
    options = parser.parse_args()
    chosen = sample(options.count, options.seed)
    if options.function:
        chosen = [mutant for mutant in all_mutants() if mutant.function == options.function]
    survived = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, found in zip(chosen, pool.map(killers, chosen), strict=True):
            is_excused = not found and mutant.is_equivalent
            survived += not found and not is_excused
            print(f"{'killed  ' if found else 'excused ' if is_excused else 'SURVIVED'} {mutant}", flush=True)
    print(f"\n{len(chosen) - survived} of {len(chosen)} mutants are noticed or excused, {survived} survive")
    return 1 if survived else 0


if __name__ == "__main__":
    raise SystemExit(main())

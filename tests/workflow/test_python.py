from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from modelserver import ModelServer

import rolecall
from rolecall.agents.protocol import Context
from rolecall.errors import NotFound, UsageError
from rolecall.settings import stores
from rolecall.settings.mask import Mask
from rolecall.store.store import Store
from rolecall.threads import compose, lifecycle, thread
from rolecall.threads.engine import Engine, Outcome
from rolecall.threads.thread import Chain, Step
from rolecall.workflow import registry
from rolecall.workflow.model import END, Limits
from rolecall.workflow.playbook import Playbook, RoleResult, ThreadContext
from rolecall.workflow.python import Role, Workflow, compile, load_python

EXAMPLE = Path(__file__).parents[2] / "examples" / "review-text.py"
DONE = {"type": "object", "properties": {"done": {"type": "boolean"}}, "required": ["done"]}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("ROLECALL_HOME", str(tmp_path / "home"))
    with stores.open_store() as opened:
        yield opened


@dataclass(frozen=True)
class Played:
    outcomes: list[Outcome]
    steps: list[Step]
    attempts: list[Mapping[str, Any]]

    @property
    def last(self) -> Outcome:
        return self.outcomes[-1]


def start(store: Store, book: Playbook, folder: Path) -> str:
    return lifecycle.start(store, book, "Do it.", cwd=str(folder), mask=Mask([])).id


def play(store: Store, book: Playbook, folder: Path, *, live: bool = True, steps: int = 20) -> Played:
    """Run a new thread of `book` to its end; `live` uses the functions at hand instead of the file's."""
    thread = start(store, book, folder)
    engine = compose.engine(store)
    return run(replace(engine, playbook=lambda _node: book) if live else engine, thread, steps=steps)


def run(engine: Engine, thread: str, *, steps: int = 20) -> Played:
    async def scene() -> list[Outcome]:
        return [one async for one in engine.run(thread, cancel=asyncio.Event(), steps=steps)]

    outcomes = asyncio.run(asyncio.wait_for(scene(), 60))
    ref = engine.store.ref(f"thread/{thread}")
    assert ref is not None and ref.target is not None
    newest_first = list(Chain(engine.store, ref.target))
    return Played(outcomes, newest_first[::-1], attempts(engine.store, thread))


def attempts(store: Store, thread: str) -> list[Mapping[str, Any]]:
    ref = store.ref(f"attempt/{thread}")
    found: list[Mapping[str, Any]] = []
    node = ref.target if ref else None
    while node:
        found.append(store.get(node).payload)
        node = found[-1].get("previous")
    return found


def book_of(roles: Any, moderator: Any = None, **options: Any) -> Playbook:
    return compile(Workflow("do-things", roles, moderator, **options), python="here:workflow")


def problems(roles: Any, moderator: Any = None, name: str = "do-things", **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        compile(Workflow(name, roles, moderator, **options), python="here:workflow")
    return caught.value.message


def once(context: ThreadContext) -> str:
    return END if context.steps else "worker"


async def works(_context: ThreadContext) -> RoleResult:
    """Does the work.

    In a way of its own.
    """
    return RoleResult("I did it.", {"done": True})


async def answers(prompt: str, _context: Context) -> str:
    return f"---\ndone: true\n---\n{prompt}"


# -- compiling --


def test_a_workflow_compiles_to_a_stored_definition_and_its_live_parts() -> None:
    async def told(_context: ThreadContext) -> str:
        return "Write."

    roles = {
        "writer": Role(answers, told, DONE, description="Writes", limits=Limits(steps=3)),
        "named": Role("command:cat", "Say it again.", DONE, capabilities=("read",), resume="bounded"),
        "worker": works,
    }
    book = book_of(roles, once, description="Things", limits={"steps": 9}, version="2")
    stored = book.workflow
    assert (stored.name, stored.description, stored.version) == ("do-things", "Things", "2")
    assert (stored.graph, stored.limits, stored.python) == ({}, Limits(steps=9), "here:workflow")
    assert stored.roles["named"].agent == "command:cat"
    assert (stored.roles["named"].prompt, stored.roles["named"].capabilities) == ("Say it again.", ("read",))
    assert stored.roles["writer"].limits == Limits(steps=3)
    assert stored.roles["worker"].description == "Does the work."
    assert stored.roles["worker"].schema == {"title": "do-things.worker"}
    assert (dict(book.agents), dict(book.prompts)) == ({"writer": answers}, {"writer": told})
    assert (dict(book.functions), book.moderator) == ({"worker": works}, once)


def test_every_problem_of_a_definition_is_told_at_once() -> None:
    async def asynchronous(_context: ThreadContext) -> str:
        return END

    def plain(_context: ThreadContext) -> str:
        return ""

    roles: Any = {
        "$END": works,
        "plain": plain,
        "typed": Role(answers, "x", 7),  # type: ignore[call-overload]
        "schema": Role(answers, "x", {"typo": "object"}),
        "array": Role(answers, "x", {"type": "array"}),
        "prompt": Role(answers, plain, DONE),  # type: ignore[arg-type]
        "agent": Role(7, "x", DONE),  # type: ignore[call-overload]
        "data": Role(answers, "x", {"const": {1, 2}}),
        "option": Role(answers, "x", DONE, colour="red"),  # type: ignore[call-overload]
    }
    said = problems(roles, asynchronous, name="Do Things", limits={"steps": 0})
    assert f"{__file__}:" in said
    for part in (
        "the moderator must be a plain function, not an async one",
        "the role 'plain' must be a Role or an async function, not the plain function 'plain'",
        "the schema of 'typed' must be a JSON Schema, a dataclass or a pydantic model, not 7",
        "/typo is not an accepted keyword",
        "the schema of a role must be of the type object",
        "the prompt of 'prompt' must be text or an async function",
        "the agent of 'agent' must be an adapter",
        "the schema of 'data' is not plain data",
        "the role 'option' has no option colour",
        "the role name '$END' is reserved",
        "the name 'Do Things' is not in kebab-case",
        "limits.steps must be a whole number above 0",
    ):
        assert part in said


@pytest.mark.parametrize(
    ("moderator", "options", "said"),
    [
        (None, {}, "neither a moderator nor a graph"),
        (once, {"graph": {"$START": "worker"}}, "both a moderator and a graph"),
        ("worker", {}, "the moderator must be a function, not 'worker'"),
        (once, {"conditions": {"late": "true"}}, "conditions are allowed only in a graph"),
    ],
)
def test_a_workflow_has_exactly_one_who_decides(moderator: Any, options: Any, said: str) -> None:
    assert said in problems({"worker": works}, moderator, **options)


def test_a_graph_is_judged_like_that_of_a_yaml_file() -> None:
    said = problems({"worker": works}, graph={"$START": "worker", "worker": "reviewr"})
    assert ("reviewr" in said and "Roles: worker" in said) or "worker" in said
    fine = book_of({"worker": works}, graph={"$START": "worker", "worker": {"_": "$END"}})
    assert [edge.role for edge in fine.workflow.graph["worker"]] == ["$END"]


def test_a_workflow_that_no_file_holds_cannot_be_found_again() -> None:
    with pytest.raises(UsageError, match="not a module-level variable"):
        compile(Workflow("do-things", {"worker": works}, once))


# -- files --

WORKER = """
from rolecall import END, Role, RoleResult, Workflow

async def work(context):
    return RoleResult("done", {"done": True})

def moderator(context):
    return END if context.steps else "worker"

SCHEMA = {"type": "object", "properties": {"done": {"type": "boolean"}}}
workflow = Workflow("do-things", {"worker": Role.function(work, SCHEMA)}, moderator)
"""


def written(folder: Path, text: str = WORKER, name: str = "do-things.py") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text), encoding="utf-8")
    return str(path)


def test_a_file_gives_its_workflow_under_an_address_that_finds_it_again(tmp_path: Path) -> None:
    path = written(tmp_path)
    book = load_python(path)
    assert book.workflow.python == f"{path}:workflow"
    assert load_python(book.workflow.python).workflow == book.workflow
    assert not (tmp_path / "__pycache__").exists()


def test_the_only_workflow_of_a_file_may_have_any_name(tmp_path: Path) -> None:
    path = written(tmp_path, WORKER.replace("workflow = ", "mine = "))
    assert load_python(path).workflow.python == f"{path}:mine"


def test_an_index_file_is_named_by_its_folder_and_imports_what_lies_beside_it(tmp_path: Path) -> None:
    written(tmp_path, "NAME = 'do-things'", "do-things/parts/names.py")
    text = "from .parts.names import NAME\n" + WORKER.replace('Workflow("do-things"', "Workflow(NAME")
    assert load_python(written(tmp_path, text, "do-things/index.py")).workflow.name == "do-things"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ny = 1 / 0\n", r"do-things.py:2: .* ZeroDivisionError: division by zero"),
        ("x = (\n", r"do-things.py:1: .* SyntaxError: '\(' was never closed"),
        ("import no_such_module_at_all\n", r"do-things.py:1: .* ModuleNotFoundError"),
        ("raise SystemExit(3)\n", r"do-things.py:1: .* SystemExit: 3"),
        ("x = 1\n", "has no workflow"),
        (WORKER.replace("workflow = ", "x = y = ") + "other = Workflow('a-b', {}, moderator)",
         r"several workflows \(y, other\)"),
        (WORKER.replace("do-things", "do-other"), "the name 'do-other' differs from the file's name, 'do-things'"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_says_where_and_why(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_python(written(tmp_path, text))


MISTAKEN = """
from rolecall import END, Role, Workflow
from .parts.roles import helper

worker = Role(
    "command:cat",
    "Work.",
    {"type": "object", "properties": {"done": {}}, "required": ["dne"]},
)

async def tell(context):
    return "Talk."

async def play(context):
    return {"content": "", "meta": {"free": 1}}

roles = {
    "worker": worker,
    "helper": helper,
    "talker": Role("command:cat", tell, {"type": "object", "properties": {"said": {}}}),
    "player": Role.function(play, {"type": "object", "required": ["free"]}),
    "silent": Role("command:cat", "", {"type": "object", "properties": {"said": {}}}),
    "plain": print,
}
workflow = Workflow("testing-things", roles, lambda context: END)
"""


def test_each_problem_of_a_file_is_told_at_the_line_of_its_role(tmp_path: Path) -> None:
    parts = written(tmp_path, "from rolecall import Role\nhelper = Role(3, 'Help.', {})\n", "parts/roles.py")
    path = written(tmp_path, MISTAKEN, "testing-things.py")
    found = registry.check_file(path)
    assert found.playbook is None
    assert [(one.file, one.line, one.severity, one.message.split(",")[0]) for one in found.problems] == [
        (path, 5, "error", "'dne' is required but not declared"),
        (path, 22, "warning", "the role 'silent' has neither a prompt nor a procedure"),
        (path, 25, "error", "the role 'plain' must be a Role or an async function"),
        (path, 25, "warning", "the name 'testing-things' does not begin with a verb"),
        (parts, 2, "error", "the agent of 'helper' must be an adapter"),
    ]
    assert "Did you mean 'done'?" in found.problems[0].hint
    with pytest.raises(UsageError, match="has 3 problems"):
        registry.load_file(path)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("x = 1\ny = 1 / 0\n", 2, "the workflow cannot be loaded: ZeroDivisionError: division by zero"),
        ("x = (\n", 1, "the workflow cannot be loaded: SyntaxError: '(' was never closed"),
        ("x = 1\n", 1, "{path} has no workflow"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_one_problem_at_its_line(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    path = written(tmp_path, text)
    (problem,) = registry.check_file(path).problems
    assert problem[1:5] == (said.format(path=path), path, line, 1)


def test_a_file_that_is_gone_and_a_name_that_is_none_are_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        load_python(str(tmp_path / "gone.py"))
    with pytest.raises(UsageError, match="names no workflow"):
        load_python("nothing")
    with pytest.raises(UsageError, match="ModuleNotFoundError"):
        load_python("no_such_module_at_all:workflow")
    with pytest.raises(UsageError, match="has no workflow 'other'"):
        load_python(written(tmp_path) + ":other")


def test_a_module_can_be_named_instead_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, WORKER, "some_installed_module.py")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    try:
        book = load_python("some_installed_module:workflow")
    finally:
        sys.modules.pop("some_installed_module", None)
    assert book.workflow.python == "some_installed_module:workflow"


def test_a_stored_workflow_is_played_from_its_file(store: Store, tmp_path: Path) -> None:
    played = play(store, registry.load_file(written(tmp_path)), tmp_path, live=False)
    assert played.last.status == "completed"
    assert [(step.role, step.agent, step.output, step.body) for step in played.steps] == [
        ("worker", "python:work", {"done": True}, "done")
    ]


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ('"boolean"', '"string"', "changed schema worker"),
        ('{"worker": ', '{"other": work, "worker": ', "added role other"),
        (", moderator)", ", moderator, version='2')", "changed workflow: version"),
    ],
)
def test_a_definition_that_changed_under_a_thread_is_refused_with_the_way_on(
    store: Store, tmp_path: Path, old: str, new: str, changed: str
) -> None:
    book = registry.load_file(written(tmp_path))
    thread = start(store, book, tmp_path)
    assert old in WORKER
    written(tmp_path, WORKER.replace(old, new))
    with pytest.raises(UsageError, match=f"not what it was .*{changed}") as caught:
        run(compose.engine(store), thread)
    assert "fork the thread" in caught.value.hint


def test_a_function_may_change_under_a_thread(store: Store, tmp_path: Path) -> None:
    book = registry.load_file(written(tmp_path))
    thread = start(store, book, tmp_path)
    written(tmp_path, WORKER.replace('"done", {', '"in another way", {'))
    assert run(compose.engine(store), thread).steps[0].body == "in another way"


# -- playing --


def test_the_example_runs_to_its_end_and_its_prompt_follows_the_review(store: Store, tmp_path: Path) -> None:
    played = play(store, registry.load_file(str(EXAMPLE)), tmp_path, live=False)
    assert played.last.status == "completed"
    assert [step.role for step in played.steps] == ["writer", "reviewer"] * 3
    assert [step.output.get("remove") for step in played.steps[1::2]] == [9, 2, None]
    assert "Write a short answer" in played.steps[0].prompt
    assert "Remove 9 words" in played.steps[2].prompt


def test_a_role_reads_its_output_as_the_type_it_declares() -> None:
    @dataclass(frozen=True)
    class Verdict:
        is_fine: bool

    message = rolecall.Message("judge", "text", {"is_fine": True})
    assert Role("scripted:x", "Judge.", Verdict).read(message) == Verdict(True)
    assert Role("scripted:x", "Judge.", DONE).read(message) == {"is_fine": True}


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("text", "must return `body` and `output`, not str"),
        (None, "not NoneType"),
        ({"content": 1, "meta": {}}, "`body` of a role function must be a string, not int"),
        ({"content": "x"}, "`output` of a role function must be an object, not NoneType"),
        ({"content": "x", "meta": ["a"]}, "must be an object, not list"),
        (RoleResult("x", {"done": "yes"}), "does not fit the schema"),
        (RoleResult("x", {"done": True, "more": float("nan")}), "/more is nan"),
        (RoleResult("x", {"done": True, "more": {1, 2}}), "set"),
    ],
)
def test_a_result_of_a_wrong_shape_fails_the_thread(
    store: Store, tmp_path: Path, result: Any, said: str
) -> None:
    async def work(_context: ThreadContext) -> Any:
        return result

    played = play(store, book_of({"worker": Role.function(work, DONE)}, once), tmp_path)
    assert (played.last.status, played.steps) == ("failed", [])
    assert said in played.last.reason
    assert said in played.attempts[0]["error"]


def test_a_function_that_raises_suspends_the_thread_and_can_be_tried_again(
    store: Store, tmp_path: Path
) -> None:
    calls: list[int] = []

    async def work(_context: ThreadContext) -> RoleResult:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("the disk is full")
        return RoleResult("x", {"done": True})

    book = book_of({"worker": work}, once)
    played = play(store, book, tmp_path)
    assert played.last.status == "suspended"
    assert "ValueError: the disk is full" in played.last.reason and f"{__file__}:" in played.last.reason
    assert [(one["role"], one["agent"], one["ending"]) for one in played.attempts] == [
        ("worker", "python:work", "failed")
    ]
    lifecycle.resume(store, thread.find(store, played.last.thread), mask=Mask([]))
    again = run(replace(compose.engine(store), playbook=lambda _node: book), played.last.thread)
    assert (again.last.status, "attempt" in again.steps[0].payload) == ("completed", True)


def test_a_function_is_given_up_when_the_run_is_cancelled(store: Store, tmp_path: Path) -> None:
    begun = asyncio.Event()
    ended: list[str] = []

    async def work(_context: ThreadContext) -> RoleResult:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")
        return RoleResult("never", {})

    book = book_of({"worker": work}, once)
    thread = start(store, book, tmp_path)
    engine = replace(compose.engine(store), playbook=lambda _node: book)

    async def scene() -> Outcome:
        cancel = asyncio.Event()
        step = asyncio.create_task(engine.step(thread, cancel=cancel))
        await asyncio.wait_for(begun.wait(), 60)
        cancel.set()
        return await asyncio.wait_for(step, 60)

    assert asyncio.run(scene()).status == "idle"
    assert ended == ["cleaned up"]


def test_an_agent_function_that_raises_suspends_the_thread(store: Store, tmp_path: Path) -> None:
    async def agent(_prompt: str, _context: Context) -> str:
        raise KeyError("token")

    played = play(store, book_of({"worker": Role(agent, "Work.", DONE)}, once), tmp_path)
    assert (played.last.status, played.attempts[0]["ending"]) == ("suspended", "failed")
    assert "KeyError: 'token'" in played.last.reason


@pytest.mark.parametrize("returns", [7, None])
def test_a_prompt_function_that_fails_suspends_the_thread(
    store: Store, tmp_path: Path, returns: int | None
) -> None:
    async def told(_context: ThreadContext) -> Any:
        if returns is None:
            raise LookupError("no such page")
        return returns

    played = play(store, book_of({"worker": Role(answers, told, DONE)}, once), tmp_path)
    assert played.last.status == "suspended"
    assert ("LookupError: no such page" if returns is None else "must return text, not int") in (
        played.last.reason
    )


@pytest.mark.parametrize("chosen", ["nobody", 7, ["worker"], None])
def test_a_moderator_that_names_no_role_fails_the_thread(store: Store, tmp_path: Path, chosen: Any) -> None:
    played = play(store, book_of({"worker": works}, lambda _context: chosen), tmp_path)
    assert played.last.status == "failed"
    assert repr(chosen) in played.last.reason and "roles: worker" in played.last.reason


def test_a_moderator_that_raises_suspends_the_thread(store: Store, tmp_path: Path) -> None:
    def moderator(context: ThreadContext) -> str:
        return str(context.steps[0].meta["nothing"]) if context.steps else "worker"

    played = play(store, book_of({"worker": works}, moderator), tmp_path)
    assert (played.last.status, len(played.steps)) == ("suspended", 1)
    assert "the moderator failed: KeyError: 'nothing'" in played.last.reason


def test_a_moderator_sees_every_step_the_new_one_included_and_reads_only_what_it_looks_at(
    store: Store, tmp_path: Path
) -> None:
    seen: list[list[str]] = []

    async def work(context: ThreadContext) -> RoleResult:
        return RoleResult(f"turn {len(context.steps)}", {})

    def moderator(context: ThreadContext) -> str:
        seen.append([step.content for step in context.steps])
        assert not context.steps or context.steps[-1].content == seen[-1][-1]
        return END if len(context.steps) == 3 else "worker"

    play(store, book_of({"worker": work}, moderator), tmp_path)
    assert seen[-1] == ["turn 0", "turn 1", "turn 2"]


def test_an_answer_no_model_can_read_reaches_the_moderator_as_an_error(store: Store, tmp_path: Path) -> None:
    errors: list[tuple[str, str]] = []

    async def agent(_prompt: str, context: Context) -> str:
        return "just talk" if not context.steps else "---\ndone: true\n---\n"

    def moderator(context: ThreadContext) -> str:
        if context.error is not None:
            errors.append((context.error.message, context.error.raw))
            return "worker"
        return END if context.steps else "worker"

    with ModelServer(["no json", "none either"]) as server:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        (home / "config.yaml").write_text(f"extract: {{baseUrl: '{server.base_url}', model: small}}\n")
        played = play(store, book_of({"worker": Role(agent, "Work.", DONE)}, moderator), tmp_path)
        assert len(server.requests) == 2
    assert played.last.status == "completed"
    assert [step.output for step in played.steps][1:] == [{"done": True}]
    assert played.steps[0].output["$status"] == "$ERROR"
    assert played.steps[0].body == "just talk"
    assert "attempt" in played.steps[0].payload
    assert errors and errors[0][1] == "just talk" and "could not be read" in errors[0][0]


# -- the package --


def test_every_public_name_is_there_and_importing_the_package_loads_none_of_them() -> None:
    assert all(getattr(rolecall, name) is not None for name in rolecall.__all__)
    assert set(rolecall.__all__) <= set(dir(rolecall))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rolecall.nothing  # type: ignore[attr-defined]  # noqa: B018
    program = "import sys, rolecall; print(sorted(name for name in sys.modules if 'rolecall' in name))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [name for name in eval(done.stdout) if name.startswith("rolecall")] == ["rolecall"]


def test_the_programs_of_the_documentation_can_be_run(tmp_path: Path) -> None:
    text = (EXAMPLE.parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
    programs = [part.partition("```")[0] for part in text.split("```python\n")[1:]]
    review, last = next(program for program in programs if "review-text" in program), programs[-1]
    book = load_python(written(tmp_path, review, "review-text.py"))
    assert set(book.workflow.roles) == {"writer", "reviewer"}
    compiled = subprocess.run(
        [sys.executable, "-c", last, "only-a-thread"], capture_output=True, text=True, check=False, timeout=60
    )
    assert "a thread and a role are needed" in compiled.stderr

"""What a role may not do: refused where it cannot be enforced, told to every process, checked afterwards."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from stage import LOOP, answer, book, engine, open_store, run, start, steps

from rolecall import agents, capabilities, workspace
from rolecall.agents.protocol import Context
from rolecall.capabilities import BY_OURSELVES, CLASSES, RESTRICTIONS, check_supported, denied
from rolecall.errors import UsageError
from rolecall.store.store import Store

READ_ONLY = LOOP.replace("goal: Work.", "goal: Work.\n    capabilities: [coding, read_only]")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


@pytest.mark.parametrize("name", agents.PROGRAMS)
@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_every_class_of_every_restriction_is_denied_by_an_adapter_or_refused(
    name: str, restriction: str
) -> None:
    adapter = import_module(f"rolecall.agents.{name}").default
    assert adapter.deniable <= set(CLASSES)
    missing = set(RESTRICTIONS[restriction]) - adapter.deniable - set(BY_OURSELVES)
    if missing:
        with pytest.raises(UsageError, match=f"'{name}' cannot be held to '{restriction}'"):
            check_supported(name, [restriction], adapter.deniable)
    else:
        check_supported(name, [restriction], adapter.deniable)


def test_words_that_restrict_nothing_are_left_alone() -> None:
    assert denied(["coding", "planning"]) == ()
    check_supported("command", ["coding"], frozenset())
    assert set(denied(RESTRICTIONS)) == set(CLASSES)


@pytest.mark.parametrize("spec", ["command:cat", "external:cat", "workflow:other"])
def test_an_agent_that_cannot_be_held_back_is_refused_before_the_run(spec: str) -> None:
    with pytest.raises(UsageError, match="cannot be held to 'read_only'"):
        workspace.cast({}, book(READ_ONLY), "worker", override=spec)


def test_a_role_is_told_what_it_may_not_do_and_so_is_every_process_of_it(
    store: Store, tmp_path: Path
) -> None:
    seen: list[tuple[tuple[str, ...], str | None]] = []

    async def look(_prompt: str, context: Context) -> str:
        seen.append((context.capabilities, context.env.get(capabilities.VARIABLE)))
        return answer("done" if context.role == "worker" else "end")

    run(engine(store, look), start(store, book(READ_ONLY), tmp_path / "work"))
    assert seen == [(("coding", "read_only"), "read_only"), ((), None)]


@pytest.mark.parametrize("is_git", [True, False])
@pytest.mark.parametrize("writes", [True, False])
def test_a_read_only_role_that_wrote_is_told_in_its_step(
    store: Store, tmp_path: Path, is_git: bool, writes: bool
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "kept.txt").write_text("as it was")
    if is_git:
        subprocess.run(["git", "init", "-q", work], check=True)

    async def write(_prompt: str, context: Context) -> str:
        if writes:
            (context.workdir / "new.txt").write_text("x")
        return answer("done" if context.role == "worker" else "end")

    name = start(store, book(READ_ONLY), work)
    run(engine(store, write), name)
    worker, checker = steps(store, name)
    told = worker.detail.get("notes", [])
    assert (len(told), "new.txt" in "".join(told)) == ((1, True) if writes else (0, False))
    assert checker.detail == {}
    assert ("remark" in [event.kind for event in store.events(name)]) == writes

"""What a role may not do: refused where it cannot be enforced, told to every process, checked afterwards."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stage import LOOP, answer, book, engine, open_store, run, start, steps

from rolecall import agents
from rolecall.agents.protocol import Context
from rolecall.errors import UsageError
from rolecall.files.tree import Trees
from rolecall.settings import capabilities
from rolecall.settings.capabilities import (
    BY_OURSELVES,
    CLASSES,
    RESTRICTIONS,
    check_supported,
    denied_classes,
)
from rolecall.store.store import Store
from rolecall.threads import casting

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
    adapter: Any = agents.resolve(name, {})
    assert adapter.deniable <= set(CLASSES)
    missing = set(RESTRICTIONS[restriction]) - adapter.deniable - set(BY_OURSELVES)
    if missing:
        with pytest.raises(UsageError, match=f"'{name}' cannot be held to '{restriction}'"):
            check_supported(name, [restriction], adapter.deniable)
    else:
        check_supported(name, [restriction], adapter.deniable)


def test_words_that_restrict_nothing_are_left_alone() -> None:
    assert denied_classes(["coding", "planning"]) == ()
    check_supported("command", ["coding"], frozenset())
    assert set(denied_classes(RESTRICTIONS)) == set(CLASSES)


@pytest.mark.parametrize("spec", ["command:cat", "external:cat", "workflow:other"])
def test_an_agent_that_cannot_be_held_back_is_refused_before_the_run(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(capabilities.SANDBOX_VARIABLE, "off")
    with pytest.raises(UsageError, match="cannot be held to 'read_only'"):
        casting.cast({}, book(READ_ONLY), "worker", override=spec)


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
    problems = worker.detail.get("notes", [])
    assert (len(problems), "new.txt" in "".join(problems)) == ((1, True) if writes else (0, False))
    assert checker.detail == {}
    assert ("remark" in [event.kind for event in store.events(name)]) == writes


def test_with_snapshots_a_read_only_role_is_told_of_commits_submodules_and_files_that_are_left_out(
    store: Store, tmp_path: Path
) -> None:
    library, work = tmp_path / "library", tmp_path / "work"

    def git(folder: Path, *words: str) -> None:
        settings = ("user.name=a", "user.email=b", "protocol.file.allow=always")
        given = [part for setting in settings for part in ("-c", setting)]
        subprocess.run(["git", "-C", folder, *given, *words], check=True, capture_output=True)

    for folder in (library, work):
        folder.mkdir()
        git(folder, "init", "-b", "main")
    (library / "a").write_text("a")
    git(library, "add", "a")
    git(library, "commit", "-m", "c")
    git(work, "submodule", "add", str(library), "library")
    (work / ".env").write_text("secret")

    async def write(_prompt: str, context: Context) -> str:
        if context.role == "worker":
            (work / "new.txt").write_text("x")
            (work / ".env").write_text("other secret")
            (work / "library" / "a").write_text("other")
            git(work, "commit", "--allow-empty", "-m", "c")
        return answer("done" if context.role == "worker" else "end")

    name = start(store, book(READ_ONLY), work)
    run(engine(store, write, trees=Trees(str(tmp_path / "trees"))), name)
    (reported,) = steps(store, name)[0].detail["notes"]
    assert "HEAD moved from no commit to" in reported
    assert reported.endswith(", changed .env, changed library/a, added new.txt")
    assert steps(store, name)[1].detail == {}


# -- what whoever runs us may not do --


def test_an_agent_is_held_to_its_roles_restrictions_and_to_those_of_whoever_runs_us(
    store: Store, tmp_path: Path
) -> None:
    seen: list[tuple[tuple[str, ...], str | None]] = []

    async def look(_prompt: str, context: Context) -> str:
        seen.append((context.capabilities, context.env.get(capabilities.VARIABLE)))
        return answer("done" if context.role == "worker" else "end")

    inherited = {capabilities.VARIABLE: "no_task_create"}
    run(engine(store, look, environment=inherited), start(store, book(READ_ONLY), tmp_path / "work"))
    assert seen == [
        (("coding", "read_only", "no_task_create"), "no_task_create,read_only"),
        (("no_task_create",), "no_task_create"),
    ]


@pytest.mark.parametrize("spec", ["command:touch worked", "external:touch worked"])
def test_an_agent_that_cannot_be_held_to_what_is_inherited_is_not_started(
    store: Store, tmp_path: Path, spec: str
) -> None:
    made = agents.resolve(spec, {})
    inherited = {"PATH": "/usr/bin:/bin", capabilities.VARIABLE: "no_file_edit"}
    (outcome,) = run(engine(store, made, environment=inherited), start(store, book(LOOP), tmp_path / "work"))
    assert outcome.status == "suspended" and "cannot be held to 'no_file_edit'" in outcome.reason
    assert not (tmp_path / "work" / "worked").exists()


def test_a_role_is_read_only_also_by_what_it_inherits(store: Store, tmp_path: Path) -> None:
    async def write(_prompt: str, context: Context) -> str:
        (context.workdir / "new.txt").write_text("x")
        return answer("done" if context.role == "worker" else "end")

    name = start(store, book(LOOP), tmp_path / "work")
    run(engine(store, write, environment={capabilities.VARIABLE: "read_only"}), name, steps=1)
    (worker,) = steps(store, name)
    assert "worker is read-only, but the work folder has changed: added new.txt" in worker.detail["notes"][0]


# -- threads, and the way to the store --

STORE = {"ROLECALL_HOME": "/h", "ROLECALL_STORE": "/s.db"}
MAY_START = LOOP.replace("goal: Work.", "goal: Work.\n    may_start_threads: true")


def test_only_a_role_that_may_start_threads_is_led_to_the_store(store: Store, tmp_path: Path) -> None:
    seen: dict[str, dict[str, str]] = {}

    async def look(_prompt: str, context: Context) -> str:
        names = (*STORE, capabilities.THREADS_VARIABLE)
        seen[context.role] = {name: context.env[name] for name in names if name in context.env}
        return answer("done" if context.role == "worker" else "end")

    given = {**STORE, capabilities.THREADS_VARIABLE: "1"}  # as where such a role started us
    run(engine(store, look, environment=given), start(store, book(MAY_START), tmp_path / "work"))
    assert seen == {"worker": given, "checker": {}}


def test_an_external_agent_finds_the_store_it_puts_its_step_into(store: Store, tmp_path: Path) -> None:
    script = tmp_path / "agent.sh"
    script.write_text(f"#!/bin/sh\nenv > {tmp_path}/seen\n")
    script.chmod(0o755)
    made = agents.resolve(f"external:{script}", {})
    environment = {"PATH": "/usr/bin:/bin", **STORE}
    run(engine(store, made, environment=environment), start(store, book(LOOP), tmp_path / "work"))
    seen = (tmp_path / "seen").read_text().splitlines()
    assert {f"{name}={value}" for name, value in STORE.items()} <= set(seen)
    assert not any(line.startswith(capabilities.THREADS_VARIABLE) for line in seen)

"""Where roles work: what a workflow can say about it, and the folders of a thread's own, made in process."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from definitions import require

from rolecall.errors import Conflict, StorageError, UsageError
from rolecall.settings import yaml12
from rolecall.settings.mask import Mask
from rolecall.store import schema
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads import compose, lease, lifecycle, thread, workfolder
from rolecall.threads.state import load_folder
from rolecall.workflow import document, python, registry, yaml
from rolecall.workflow.model import from_payload, own_folders, to_payload, type_of, workdir_of
from rolecall.workflow.playbook import Playbook

PLAIN = """\
name: do-work
description: One role
roles:
  worker:
    goal: Work.
    meta: {type: object, properties: {note: {type: string}}, required: [note]}
graph: {$START: worker, worker: $END}
"""
NONE = Mask([])


def parse(text: str) -> yaml.Definition:
    return yaml.parse(text, source="w.yaml")


def book(kind: str | None = None, *, of_role: str | None = None) -> Playbook:
    text = PLAIN + (f"workdir: {kind}\n" if kind else "")
    if of_role:
        text = text.replace("goal: Work.", f"goal: Work.\n    workdir: {of_role}")
    return Playbook(require(parse(text)))


# -- what a workflow says --


def test_a_role_goes_before_its_workflow_and_both_may_be_silent() -> None:
    said = {
        (None, None): "shared",
        ("copy", None): "copy",
        (None, "worktree"): "worktree",
        ("worktree", "shared"): "shared",
        ("shared", "copy"): "copy",
    }
    for (of_workflow, of_role), folder in said.items():
        workflow = book(of_workflow, of_role=of_role).workflow
        assert workdir_of(workflow, "worker") == folder
        assert own_folders(workflow) == [kind for kind in [folder] if kind != "shared"]


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        (
            PLAIN + "workdir: worktre\n",
            "8:10",
            "workdir must be one of shared, worktree, copy, not 'worktre'",
        ),
        (PLAIN + "workdir: [copy]\n", "8:10", "not a list"),
        (PLAIN.replace("Work.", "Work.\n    workdir: Copy"), "6:14", "roles.worker.workdir must be one of"),
    ],
)
def test_another_word_is_an_error_where_it_stands(text: str, place: str, told: str) -> None:
    (problem,) = parse(text).problems
    assert f"{problem.line}:{problem.column}" == place
    assert told in problem.message


def test_a_misspelt_folder_is_guessed() -> None:
    (problem,) = parse(PLAIN + "workdir: work-tree\n").problems
    assert problem.hint == "Did you mean 'worktree'?"


def test_the_schema_for_editors_knows_the_folders() -> None:
    editor = jsonschema_rs.Draft202012Validator(yaml.json_schema())
    for text, is_valid in ((PLAIN + "workdir: copy\n", True), (PLAIN + "workdir: cpy\n", False)):
        assert editor.is_valid(yaml12.load(text)) == is_valid
        in_role = text.replace("goal: Work.", f"goal: Work.\n    {text.splitlines()[-1]}")
        assert editor.is_valid(yaml12.load(in_role)) == is_valid


def test_the_id_of_a_workflow_that_says_nothing_is_what_it_always_was() -> None:
    assert registry.compute_node(book()).id == "AT1H0YCDZ6QET"


@pytest.mark.parametrize(("of_workflow", "of_role"), [("copy", None), (None, "worktree"), ("copy", "shared")])
def test_the_stored_form_and_the_document_come_back(of_workflow: str | None, of_role: str | None) -> None:
    workflow = book(of_workflow, of_role=of_role).workflow
    payload = to_payload(workflow, {"worker": "0000000000000"})
    assert schema.problems_of(type_of(payload)) == []
    assert schema.Type(type_of(payload)).misfits(payload) == []
    assert from_payload(payload, {"0000000000000": workflow.roles["worker"].schema}) == workflow
    assert require(parse(document.to_yaml(workflow))) == workflow


def test_a_changed_folder_is_a_difference_between_workflows() -> None:
    before, after = book().workflow, book("copy", of_role="worktree").workflow
    assert [str(change) for change in document.changes(before, after)] == [
        "changed workflow: workdir",
        "changed role worker: workdir",
    ]


IN_PYTHON = """\
from rolecall import Role, RoleResult, Workflow

async def look(context):
    return RoleResult(content="Looked.", meta={"folder": context.workdir})

workflow = Workflow(
    "look-around",
    {"here": Role.function(look, {"type": "object"}, workdir="shared"), "there": look},
    graph={"$START": "here", "here": "there", "there": "$END"},
    workdir="copy",
)
"""


# -- the folders --


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(SqliteBackend(str(tmp_path / "store.db"))) as opened:
        yield opened


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    return folder


Start = Callable[..., dict[str, Any]]


@pytest.fixture
def start(store: Store, project: Path, tmp_path: Path) -> Start:
    """Starts a thread and gives its state, with the thread's id under `id`."""

    def begin(playbook: Playbook, cwd: Path = project) -> dict[str, Any]:
        ref = lifecycle.start(
            store, playbook, "Do it", cwd=str(cwd), mask=NONE, work=str(tmp_path / "home" / "work")
        )
        return {**ref.ref.state, "id": ref.id}

    return begin


def test_a_workflow_in_python_says_it_too_and_its_functions_are_told(
    store: Store, start: Start, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "look-around.py").write_text(IN_PYTHON)
    started = start(python.load_python(str(tmp_path / "look-around.py")))
    engine = compose.engine(store)

    async def play() -> None:
        async for _ in engine.run(started["id"], cancel=asyncio.Event()):
            pass

    asyncio.run(play())
    ref = thread.find(store, started["id"])
    there, here = thread.Chain(store, ref.head)
    assert here.output["folder"] == here.payload["cwd"] == str(project)
    assert there.output["folder"] == there.payload["cwd"] == started["folders"]["copy"]["path"]


def test_a_thread_without_a_place_for_its_folders_is_refused(store: Store, project: Path) -> None:
    with pytest.raises(UsageError, match="no location for it was given"):
        lifecycle.start(store, book("copy"), "Do it", cwd=str(project), mask=NONE)
    assert store.refs("thread/") == []


def test_a_copy_is_whole_but_for_what_leads_to_a_process(start: Start, project: Path) -> None:
    (project / "Größe 1").mkdir(mode=0o755)
    (project / "Größe 1" / "run.sh").write_text("true")
    (project / "Größe 1" / "run.sh").chmod(0o750)
    (project / "dangling").symlink_to("nowhere")
    (project / "link").symlink_to("Größe 1", target_is_directory=True)
    os.mkfifo(project / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(project / "socket"))
        folder = start(book("copy"))["folders"]["copy"]
    copy = Path(folder["path"])
    assert folder == {"path": str(copy), "cwd": str(copy), "source": str(project)}
    assert sorted(os.listdir(copy)) == ["Größe 1", "a.txt", "dangling", "link"]
    assert os.readlink(copy / "dangling") == "nowhere"
    assert os.readlink(copy / "link") == "Größe 1"
    assert (copy / "Größe 1" / "run.sh").stat().st_mode & 0o777 == 0o750
    assert (copy / "a.txt").stat().st_mtime_ns == (project / "a.txt").stat().st_mtime_ns


def test_a_folder_that_is_too_large_is_not_copied(start: Start, store: Store, project: Path) -> None:
    with open(project / "image", "wb") as file:
        file.truncate(workfolder.MOST_BYTES + 1)
    with pytest.raises(UsageError, match="too large to be copied for a thread: more than 10 GiB"):
        start(book("copy"))
    assert store.refs("thread/") == []


def test_a_folder_is_not_copied_into_itself(start: Start, store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains the folder in which copies are created"):
        start(book("copy"), tmp_path)
    assert store.refs("thread/") == []
    assert not (tmp_path / "home").exists()


def test_a_copy_that_cannot_be_made_leaves_neither_thread_nor_folder(
    start: Start, store: Store, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "home").write_text("not a folder")
    with pytest.raises(StorageError, match="copy cannot be created"):
        start(book("copy"))
    assert store.refs("thread/") == []


def test_a_copy_that_is_being_written_to_is_not_forked(start: Start, store: Store, tmp_path: Path) -> None:
    started = start(book("copy"))
    ref = thread.find(store, started["id"])
    held = lease.take(store, started["id"], "token")
    running = thread.find(store, started["id"])
    with pytest.raises(Conflict, match="is being run by process"):
        lifecycle.fork(store, held.head, mask=NONE, source=running, work=str(tmp_path / "work"))
    assert [found.name for found in store.refs("thread/")] == [ref.ref.name]


def test_a_folder_that_is_made_twice_is_made_once(start: Start) -> None:
    folder = start(book("copy"))["folders"]["copy"]
    Path(folder["path"], "mine").write_text("work")
    workfolder.make("copy", load_folder(folder))
    assert Path(folder["path"], "mine").read_text() == "work"


def test_folders_that_were_made_read_only_can_be_removed(start: Start, project: Path) -> None:
    (project / "cache").mkdir()
    (project / "cache" / "x").write_text("")
    (project / "cache").chmod(0o555)
    folder = start(book("copy"))["folders"]["copy"]
    assert Path(folder["path"], "cache").stat().st_mode & 0o777 == 0o555
    script = (
        "from rolecall.threads import workfolder; from rolecall.threads.state import load_folder; "
        f"workfolder.discard(load_folder({folder!r}))"
    )
    subprocess.run([*as_a_plain_user(), sys.executable, "-c", script], check=True)
    assert not os.path.lexists(os.path.dirname(folder["path"]))


def as_a_plain_user() -> list[str]:
    """Root may write everywhere; without these two capabilities it may not."""
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []

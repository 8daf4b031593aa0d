"""Workflows in the store: what a name finds, which versions there are, what putting twice does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rolecall.errors import NotFound, UsageError
from rolecall.settings import stores
from rolecall.store.store import Store
from rolecall.workflow import registry
from rolecall.workflow.model import END, START, Edge, StoredRole, StoredWorkflow
from rolecall.workflow.playbook import Playbook

TEXT = """\
name: {name}
description: {about}
roles:
  writer:
    goal: Write.
    meta: {{type: object, properties: {{text: {{type: string}}}}, required: [text]}}
graph:
  $START: writer
  writer: $END
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stores.open_store(str(tmp_path / "s.db")) as opened:
        yield opened


def write(path: Path, name: str, about: str = "one") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TEXT.format(name=name, about=about))
    return path


def book(about: str = "one", version: str = "") -> Playbook:
    graph = {START: (Edge("writer"),), "writer": (Edge(END),)}
    return Playbook(
        StoredWorkflow(
            "write-text", about, version, roles={"writer": StoredRole(schema={"type": "object"})}, graph=graph
        )
    )


def found(store: Store | None, text: str, folder: Path) -> str | None:
    where = registry.find(store, text, folder=str(folder))
    return where.node or where.path


# -- putting --


def test_the_stored_form_is_what_is_stored(store: Store) -> None:
    node = registry.register(store, book())
    assert registry.compute_node(book())._replace(created=0) == store.get(node)._replace(created=0)
    assert registry.read_node(store, node)[0] == book().workflow


def test_putting_the_same_again_adds_no_version(store: Store) -> None:
    first = registry.register(store, book(version="1"))
    assert registry.register(store, book(version="1")) == first
    second = registry.register(store, book("two", "2"))
    registry.register(store, book(version="1"))
    versions = registry.history(store, "write-text")
    assert [(one.node, one.version, one.is_current) for one in versions] == [
        (first, "1", True),
        (second, "2", False),
        (first, "1", False),
    ]
    assert registry.history(store, "other") == []


# -- finding --


def test_an_id_goes_before_a_path_before_the_project_before_the_registry(
    store: Store, tmp_path: Path
) -> None:
    node = registry.register(store, book())
    assert found(store, "write-text", tmp_path) == node
    local = write(tmp_path / "workflows" / "write-text.yaml", "write-text")
    assert found(store, "write-text", tmp_path) == str(local)
    assert found(store, node, tmp_path) == node
    assert found(store, node[:6], tmp_path) == node
    other = write(tmp_path / f"{node}.yaml", "x")
    assert found(store, f"{node}.yaml", tmp_path) == str(other)


def test_the_nearest_folder_counts_up_to_the_root_of_the_repository(tmp_path: Path) -> None:
    repo, inner = tmp_path / "repo", tmp_path / "repo" / "a" / "b"
    inner.mkdir(parents=True)
    (repo / "a" / ".git").mkdir()  # an empty folder is no repository to git either
    (repo / ".git").mkdir()
    (repo / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    write(tmp_path / "workflows" / "see-outside.yaml", "see-outside")
    top = write(repo / "workflows" / "see-top.yaml", "see-top")
    near = write(repo / "a" / "workflows" / "see-both.yaml", "see-both")
    write(repo / "workflows" / "see-both.yaml", "see-both")
    assert found(None, "see-top", inner) == str(top)
    assert found(None, "see-both", inner) == str(near)
    with pytest.raises(NotFound, match="there is no workflow 'see-outside'"):
        found(None, "see-outside", inner)


def test_within_a_folder_hidden_goes_before_plain_yaml_before_yml_flat_before_folder(tmp_path: Path) -> None:
    order = [
        *(".workflows/do-it.yaml", ".workflows/do-it.yml", ".workflows/do-it/index.yaml"),
        *(".workflow/do-it.yaml", ".workflow/do-it.yml", ".workflow/do-it/index.yml"),
        *("workflows/do-it.yaml", "workflows/do-it.yml", "workflows/do-it/index.yml"),
    ]
    for name in order:
        write(tmp_path / name, "do-it")
    for name in order:
        assert found(None, "do-it", tmp_path) == str(tmp_path / name)
        (tmp_path / name).unlink()


def test_files_that_are_not_meant_to_be_named_are_passed_over(tmp_path: Path) -> None:
    for name in ("__init__.py", "_parts.py", ".do-it.yaml.swp", ".hidden.yaml", "readme.md"):
        write(tmp_path / "workflows" / name, "x")
    assert registry.list_entries(None, folder=str(tmp_path)) == []


def test_a_folder_with_an_index_is_a_path(tmp_path: Path) -> None:
    index = write(tmp_path / "do-it" / "index.yaml", "do-it")
    assert found(None, "./do-it", tmp_path) == str(index)
    assert registry.load_file(str(index)).workflow.name == "do-it"


def test_a_link_is_known_by_its_own_name(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere.yaml", "do-it")
    (tmp_path / "do-it.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    path = found(None, "./do-it.yaml", tmp_path)
    assert registry.load_file(str(path)).workflow.name == "do-it"


@pytest.mark.parametrize("text", ["nope", "./nope.yaml", "0123456789ABC", "a" * 40, "../../etc", "$START"])
def test_what_is_not_there_is_not_found(store: Store, tmp_path: Path, text: str) -> None:
    with pytest.raises(NotFound):
        found(store, text, tmp_path)
    with pytest.raises(UsageError):
        found(store, "", tmp_path)


def test_a_misspelt_name_gets_a_guess(store: Store, tmp_path: Path) -> None:
    registry.register(store, book())
    with pytest.raises(NotFound) as caught:
        found(store, "wirte-text", tmp_path)
    assert "Did you mean 'write-text'?" in caught.value.hint


def test_a_node_that_is_no_workflow_is_refused(store: Store) -> None:
    text = store.put_text("hello")
    with pytest.raises(UsageError, match=f"node {text} is not a workflow"):
        registry.load_node(store, text)


def test_a_near_workflow_hides_a_registered_one_in_the_list(store: Store, tmp_path: Path) -> None:
    registry.register(store, book())
    write(tmp_path / "workflows" / "write-text.yaml", "write-text")
    listed = registry.list_entries(store, folder=str(tmp_path))
    assert [(one.name, one.origin, one.node) for one in listed] == [("write-text", "local", None)]

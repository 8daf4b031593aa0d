"""Definitions that follow the files: what is right is used by new threads, what is wrong changes nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rolecall.errors import UsageError
from rolecall.service.reload import Definitions, watch
from rolecall.settings.mask import Mask
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads import compose, lifecycle, thread
from rolecall.workflow import registry

YAML = """\
name: hello
roles:
  greeter:
    goal: {goal}
    agent: command:cat
    meta: {{type: object}}
graph: {{$START: greeter, greeter: $END}}
"""

PYTHON = """\
from rolecall import END, Role, Workflow
from ._words import WORD

async def first(context):
    return {{"content": "one", "meta": {{"word": "{word}"}}}}

async def second(context):
    return {{"content": WORD, "meta": {{"word": "{word}"}}}}

def moderator(context):
    return ["first", "second", END][len(context.steps)]

workflow = Workflow("count-up", {{"first": Role.function(first), "second": Role.function(second)}}, moderator{more})
"""


class Stage:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.home = folder / "home"
        (self.folder / "workflows").mkdir(parents=True)
        self.store = Store(SqliteBackend(str(folder / "store.db")))
        self.env = {**os.environ, "HOME": str(folder), "ROLECALL_HOME": str(self.home)}
        self.said: list[str] = []

    def write(self, path: str, text: str) -> None:
        """As an editor does: beside it, then in its place."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.draft")
        draft.write_text(text)
        draft.rename(file)

    def definitions(self) -> Definitions:
        return Definitions(
            self.store,
            str(self.folder),
            env=self.env,
            keep=str(self.home / "versions"),
            say=self.said.append,
        )

    def goal(self, definitions: Definitions) -> str:
        workflow, _ = registry.read_node(self.store, definitions.workflows["hello"])
        return workflow.roles["greeter"].prompt


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path  # which a sandboxed workflow sees


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.store.close()


def refreshed(definitions: Definitions) -> bool:
    return asyncio.run(definitions.refresh())


def test_a_trigger_can_start_a_workflow_of_the_gallery(stage: Stage) -> None:
    trigger = "answer-question: {triggers: {daily: {every: 1h, prompt: What is new?}}}"
    stage.write("rolecall.yaml", f"workflows: {{{trigger}}}\n")
    definitions = stage.definitions()
    assert refreshed(definitions)
    workflow, _ = registry.read_node(stage.store, definitions.workflows["answer-question"])
    assert workflow.name == "answer-question" and stage.store.ref("workflow/answer-question") is None


def test_a_changed_workflow_is_registered_and_used_from_then_on(stage: Stage) -> None:
    stage.write("workflows/hello.yaml", YAML.format(goal="First."))
    definitions = stage.definitions()
    assert refreshed(definitions)
    before = definitions.workflows["hello"]
    assert not refreshed(definitions)
    stage.write("workflows/hello.yaml", YAML.format(goal="Second."))
    assert refreshed(definitions)
    assert stage.goal(definitions) == "Second."
    ref = stage.store.ref("workflow/hello")
    assert ref is not None
    assert ref.target == definitions.workflows["hello"] != before
    assert stage.said == [f"hello: new threads use the version {ref.target}"]


def test_an_invalid_change_is_told_once_and_the_old_version_stays(stage: Stage) -> None:
    stage.write("workflows/hello.yaml", YAML.format(goal="First."))
    definitions = stage.definitions()
    refreshed(definitions)
    for text in ("name: hello\nroles: {}\ngraph: {}\n", "name: hello\nroles: {}\ngraph: {}\n# still\n"):
        stage.write("workflows/hello.yaml", text)
        refreshed(definitions)
        assert stage.goal(definitions) == "First."
        assert [problem.line for problem in definitions.problems] == [2, 3]
    assert len(stage.said) == 2
    stage.write("workflows/hello.yaml", YAML.format(goal="Better."))
    refreshed(definitions)
    assert definitions.problems == ()
    assert stage.goal(definitions) == "Better."
    assert stage.said[-1] == "the problems with the files are solved"


def test_after_a_restart_a_broken_file_leaves_the_version_that_was_right(stage: Stage) -> None:
    stage.write("workflows/hello.yaml", YAML.format(goal="First."))
    refreshed(stage.definitions())
    stage.write("workflows/hello.yaml", "name: [\n")
    later = stage.definitions()
    refreshed(later)
    assert stage.goal(later) == "First."
    assert len(later.problems) == 1


def test_a_workflow_whose_file_is_gone_is_used_no_more(stage: Stage) -> None:
    stage.write("workflows/hello.yaml", YAML.format(goal="First."))
    definitions = stage.definitions()
    refreshed(definitions)
    (stage.folder / "workflows" / "hello.yaml").unlink()
    refreshed(definitions)
    assert definitions.workflows == {}
    assert stage.said == ["hello: its file is gone, so no new thread uses it"]


def test_a_changed_project_file_is_used_and_an_invalid_one_is_not(stage: Stage) -> None:
    stage.write("rolecall.yaml", "service: {limit: 3}\n")
    definitions = stage.definitions()
    refreshed(definitions)
    assert definitions.project.policy.limit == 3
    stage.write("rolecall.yaml", "service: {limit: many}\n")
    refreshed(definitions)
    assert definitions.project.policy.limit == 3
    assert "must be a whole number" in definitions.problems[0].message
    stage.write("rolecall.yaml", "service: {limit: 5}\n")
    refreshed(definitions)
    assert definitions.project.policy.limit == 5
    right_again = "the problems with the files are solved"
    assert stage.said[-2:] == ["rolecall.yaml: its new content is used", right_again]


def test_a_file_whose_name_is_no_text_is_a_problem_and_keeps_nothing_else_back(stage: Stage) -> None:
    stage.write("workflows/hello.yaml", YAML.format(goal="Greet."))
    (stage.folder / "workflows" / os.fsdecode(b"\xff.yaml")).write_text(YAML.format(goal="Greet."))
    definitions = stage.definitions()
    refreshed(definitions)
    assert list(definitions.workflows) == ["hello"]
    assert len(definitions.problems) == 1
    stage.write("workflows/hello.yaml", YAML.format(goal="Greet them."))
    refreshed(definitions)
    assert stage.goal(definitions) == "Greet them."


def test_a_project_file_that_is_gone_configures_nothing_and_that_is_told(stage: Stage) -> None:
    stage.write("rolecall.yaml", "service: {limit: 3}\n")
    definitions = stage.definitions()
    refreshed(definitions)
    (stage.folder / "rolecall.yaml").unlink()
    refreshed(definitions)
    assert definitions.project.policy.limit == 16
    assert stage.said[-1] == "rolecall.yaml is gone, so nothing is configured"


def test_a_project_file_that_is_gone_for_a_while_does_not_leave_the_project_to_one_around_it(
    stage: Stage,
) -> None:
    around = stage.folder.parent
    (around / ".git").mkdir()
    (around / ".git" / "HEAD").touch()
    (around / "rolecall.yaml").write_text("name: around\nservice: {limit: 9}\n")
    stage.write("rolecall.yaml", "name: inner\nservice: {limit: 3}\n")
    definitions = stage.definitions()
    refreshed(definitions)
    (stage.folder / "rolecall.yaml").unlink()
    refreshed(definitions)
    assert (definitions.project.folder, definitions.project.policy.limit) == (str(stage.folder), 16)
    stage.write("rolecall.yaml", "name: inner\nservice: {limit: 4}\n")
    refreshed(definitions)
    assert (definitions.project.name, definitions.project.policy.limit) == ("inner", 4)


def test_a_file_that_can_be_read_now_is_looked_at_again(stage: Stage) -> None:
    stage.write("workflows/hello.yaml", YAML.format(goal="First."))
    file = stage.folder / "workflows" / "hello.yaml"
    before = file.stat()
    definitions = stage.definitions()
    assert refreshed(definitions)
    # As after `chmod`, or a file that was moved into place: neither its time nor its size is another.
    changed = 0
    while changed <= before.st_ctime_ns:  # the clock of files goes in steps
        file.chmod(0o600)
        changed = file.stat().st_ctime_ns
    assert refreshed(definitions)


def test_a_workflow_in_a_folder_that_is_a_link_is_followed_and_a_circle_of_links_is_not(stage: Stage) -> None:
    stage.write("shared/hello/index.yaml", YAML.format(goal="First."))
    os.symlink("../shared/hello", stage.folder / "workflows" / "hello")
    os.symlink("..", stage.folder / "shared" / "hello" / "around")
    definitions = stage.definitions()
    assert refreshed(definitions)
    assert not refreshed(definitions)
    stage.write("shared/hello/index.yaml", YAML.format(goal="Second."))
    assert refreshed(definitions)
    assert stage.goal(definitions) == "Second."


def test_a_link_to_a_folder_that_is_no_workflow_is_not_looked_into_until_it_is_one(stage: Stage) -> None:
    stage.write("elsewhere/notes.txt", "First.")
    os.symlink("../elsewhere", stage.folder / "workflows" / "hello")
    definitions = stage.definitions()
    assert refreshed(definitions)
    stage.write("elsewhere/more.txt", "Second.")
    assert not refreshed(definitions)
    stage.write("elsewhere/index.yaml", YAML.format(goal="Third."))
    assert refreshed(definitions)
    assert stage.goal(definitions) == "Third."


def test_a_project_file_that_is_wrong_at_the_start_is_refused(stage: Stage) -> None:
    stage.write("rolecall.yaml", "service: 7\n")
    with pytest.raises(UsageError, match="must be a mapping"):
        stage.definitions()


def test_a_role_file_and_an_included_one_are_parts_of_their_workflow(stage: Stage) -> None:
    stage.write("workflows/hello/index.yaml", "name: hello\ngraph: {$START: greeter, greeter: $END}\n")
    stage.write("workflows/hello/roles/greeter.md", "---\nmeta: {type: object}\n---\nGreet.\n")
    definitions = stage.definitions()
    refreshed(definitions)
    assert stage.goal(definitions) == "Greet."
    stage.write("workflows/hello/roles/greeter.md", "---\nmeta: {type: object}\n---\nGreet well.\n")
    refreshed(definitions)
    assert stage.goal(definitions) == "Greet well."


def test_an_agent_that_is_missing_is_told_and_keeps_no_version_back(stage: Stage) -> None:
    text = YAML.format(goal="First.").replace("command:cat", "command:no-such-program")
    stage.write("workflows/hello.yaml", text)
    definitions = stage.definitions()
    refreshed(definitions)
    assert definitions.problems == ()
    assert stage.goal(definitions) == "First."
    assert "'no-such-program'" in stage.said[0]


# -- Python --


def count_up(stage: Stage, word: str, more: str = "") -> None:
    stage.write("workflows/count-up.py", PYTHON.format(word=word, more=more))
    stage.write("workflows/_words.py", f'WORD = "{word}"\n')


def started(stage: Stage, definitions: Definitions) -> str:
    node = definitions.workflows["count-up"]
    return lifecycle.start(stage.store, node, "Go.", cwd=str(stage.folder), mask=Mask(())).id


def step(stage: Stage, name: str) -> dict[str, Any]:
    async def take() -> None:
        engine = compose.engine(stage.store)
        await engine.step(name, cancel=asyncio.Event())

    asyncio.run(take())
    last = thread.Chain(stage.store, thread.find(stage.store, name).head).last
    assert last is not None
    return {**last.output, "content": last.body}


def test_a_thread_of_a_python_workflow_keeps_the_functions_it_was_started_with(stage: Stage) -> None:
    count_up(stage, "old")
    definitions = stage.definitions()
    refreshed(definitions)
    running = started(stage, definitions)
    assert step(stage, running) == {"word": "old", "content": "one"}
    count_up(stage, "new", more=', description="another definition"')
    refreshed(definitions)
    (stage.folder / "workflows" / "_words.py").unlink()
    assert step(stage, running) == {"word": "old", "content": "old"}
    assert thread.find(stage.store, running).state.status == "completed"
    later = started(stage, definitions)
    step(stage, later)
    assert step(stage, later) == {"word": "new", "content": "new"}


def test_a_python_workflow_that_breaks_or_hangs_changes_nothing(stage: Stage) -> None:
    count_up(stage, "old")
    definitions = stage.definitions()
    refreshed(definitions)
    before = dict(definitions.workflows)
    stage.write("workflows/count-up.py", "import os\nos._exit(3)\n")
    refreshed(definitions)
    assert definitions.workflows == before
    assert {problem.file for problem in definitions.problems} >= {
        str(stage.folder / "workflows" / "count-up.py")
    }


def test_the_same_content_is_kept_once(stage: Stage) -> None:
    count_up(stage, "same")
    definitions = stage.definitions()
    for _ in range(3):
        os.utime(stage.folder / "workflows" / "_words.py")
        refreshed(definitions)
    assert len(list((stage.home / "versions").iterdir())) == 1
    assert not list(stage.folder.rglob("__pycache__"))


# -- watching --


def test_a_saved_file_is_noticed_without_being_asked_for(stage: Stage) -> None:
    stage.write("workflows/hello.yaml", YAML.format(goal="First."))

    async def play() -> list[str]:
        definitions, changed = stage.definitions(), asyncio.Event()
        task = asyncio.create_task(watch(definitions, changed.set))
        goals = []
        async with asyncio.timeout(90):
            await changed.wait()
            for text in ("Second.", "Third."):
                changed.clear()
                stage.write("workflows/hello.yaml", YAML.format(goal=text))
                await changed.wait()
                goals.append(stage.goal(definitions))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return goals

    assert asyncio.run(play()) == ["Second.", "Third."]


def test_a_workflows_folder_that_is_made_later_is_watched_from_then_on(stage: Stage) -> None:
    (stage.folder / "workflows").rmdir()

    async def play() -> str:
        definitions, changed = stage.definitions(), asyncio.Event()
        task = asyncio.create_task(watch(definitions, changed.set))
        async with asyncio.timeout(90):
            await changed.wait()
            for text in ("First.", "Second."):
                changed.clear()
                stage.write("workflows/hello.yaml", YAML.format(goal=text))
                while not definitions.workflows or stage.goal(definitions) != text:
                    await changed.wait()
                    changed.clear()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return stage.goal(definitions)

    assert asyncio.run(play()) == "Second."

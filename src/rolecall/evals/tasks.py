"""The tasks of a suite: their prompts and first files.

A tasks file contains one JSON object on each line:

    {"id": "add", "prompt": "add(2, 3) must be 5", "files": "tasks/add", "setup": "make", "tags": ["quick"]}

`files` is a folder, `{"repository": PATH or URL, "commit": ID}`, or `{"tree": ID}` for files that a thread recorded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from shlex import join
from typing import Any, NamedTuple, TypeVar

from rolecall.errors import UsageError
from rolecall.settings import form
from rolecall.settings.form import Anything, At, Either, Field, Form, ListOf, MapOf, Record, Text
from rolecall.settings.yaml12 import Problem
from rolecall.store.canonical import JsonObject
from rolecall.workflow.yaml import read_text

T = TypeVar("T")
NAME = r"[A-Za-z0-9][\w.-]{0,79}"
"""The pattern for names of tasks, variants and judges, which become parts of paths and titles."""
NAME_WANTED = "Use up to 80 letters, digits, `.`, `_` and `-`."


class TaskFiles(NamedTuple):
    """Where the files of a task come from: a folder, a commit of a repository, or a recorded tree."""

    folder: str = ""
    """An absolute path."""
    repository: str = ""
    """An absolute path or a URL. It is used together with `commit`."""
    commit: str = ""
    tree: str = ""
    """The id of a recorded tree."""


class KnownAnswer(NamedTuple):
    """A known answer to a task, in place of the agents' work: files, a patch or a command, and an output. In a path,
    `{task}` is replaced with the id of the task."""

    folder: str = ""
    patch: str = ""
    command: tuple[str, ...] = ()
    output: JsonObject | None = None

    def paths_for(self, task: str) -> KnownAnswer:
        return self._replace(
            folder=self.folder.replace("{task}", task), patch=self.patch.replace("{task}", task)
        )


class EvalTask(NamedTuple):
    id: str
    prompt: str
    files: TaskFiles = TaskFiles()
    setup: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    reference: KnownAnswer | None = None
    cheat: KnownAnswer | None = None
    fork: str = ""
    """The step or start of a recorded thread from which this task's threads continue."""


class Words(Form[tuple[str, ...]]):
    """The form of a command: a list of words, or a line for the shell."""

    def read(self, value: Any, at: At) -> Any:
        if isinstance(value, str) and value.strip():
            return ("sh", "-c", value)
        if isinstance(value, list) and value and all(isinstance(word, (str, int, float)) for word in value):
            return tuple(str(word) for word in value)
        return at.expect("a command: a list of words, or a line for the shell", value)

    def schema(self) -> Any:
        return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}


class Existing(Form[str]):
    """The form of the path of a file or folder. The path is relative to the file that names it, and is made absolute. A
    path with `{task}` is checked later."""

    def __init__(self, folder: str, what: str) -> None:
        self.folder, self.what = folder, what

    def read(self, value: Any, at: At) -> Any:
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            return at.expect(f"the path of a {self.what}", value)
        path = os.path.normpath(os.path.join(self.folder, os.path.expanduser(value)))
        if "{task}" not in value and not (os.path.isdir if self.what == "folder" else os.path.isfile)(path):
            return at.report(f"{at}: there is no {self.what} {value!r}", f"Looked for {path}.")
        return path

    def schema(self) -> Any:
        return {"type": "string"}


def describe_command(words: Sequence[str]) -> str:
    """Return a command as written in the suite: the line for the shell, or the words."""
    return words[2] if len(words) == 3 and [*words[:2]] == ["sh", "-c"] else join(words)


def answer_form(folder: str) -> Form[KnownAnswer]:
    return Record(
        KnownAnswer,
        "an answer",
        {
            "folder": Existing(folder, "folder"),
            "patch": Existing(folder, "file"),
            "command": Words(),
            "output": MapOf(Anything()),
        },
        check=_check_answer,
        wanted="an answer: {folder}, {patch} or {command}, with {output} for judges of the output",
    )


def _check_answer(answer: KnownAnswer, at: At) -> None:
    given = [name for name in ("folder", "patch", "command") if getattr(answer, name)]
    if len(given) > 1:
        at.report(f"{at} has both {given[0]} and {given[1]}", "Keep one of them.")
    if not given and answer.output is None:
        at.report(f"{at} is empty", "Give a folder, a patch, a command or an output.")


def task_form(folder: str) -> Form[EvalTask]:
    """Return the form of one task. Paths in it are relative to `folder`."""

    def read_repository(repository: str, commit: str) -> TaskFiles:
        if "://" in repository or repository.partition(":")[0].count("@") == 1:
            return TaskFiles(repository=repository, commit=commit)
        path = os.path.normpath(os.path.join(folder, os.path.expanduser(repository)))
        return TaskFiles(repository=path, commit=commit)

    def check_files(files: TaskFiles, at: At) -> None:
        if bool(files.repository) == bool(files.tree):
            at.report(f"{at} needs a repository with a commit, or a tree", "Keep one of them.")
        if files.repository and not files.commit:
            at.report(f"{at} names no commit", "A branch moves; name the commit: {repository, commit}.")
        if files.repository.startswith("/") and not os.path.isdir(files.repository):
            (at / "repository").report(f"{at}: there is no folder {files.repository!r}")

    source = Record(
        lambda repository="", commit="", tree="": (
            read_repository(repository, commit) if repository else TaskFiles(commit=commit, tree=tree)
        ),
        "files",
        {
            "repository": Text(is_line=True),
            "commit": Text(pattern=r"[0-9a-f]{7,64}"),
            "tree": Text(pattern=r"[0-9a-f]{40,64}"),
        },
        check=check_files,
    )
    files = Either(
        "a folder, {repository, commit} or {tree}",
        {str: form.Converted(Existing(folder, "folder"), lambda path: TaskFiles(folder=path)), dict: source},
    )
    return Record(
        EvalTask,
        "a task",
        {
            "id": Field(Text(pattern=NAME, hint=NAME_WANTED), required=True),
            "prompt": Field(Text(least=1), required=True),
            "files": files,
            "setup": Words(),
            "tags": ListOf(Text(pattern=NAME, hint=NAME_WANTED), allow_single=True),
            "reference": answer_form(folder),
            "cheat": answer_form(folder),
        },
    )


class Read(NamedTuple):
    tasks: tuple[EvalTask, ...]
    problems: tuple[Problem, ...]


def read_tasks(path: str) -> Read:
    """Read a file with a task on each line. Every problem has its line and column."""
    found, problems = read_lines(task_form(os.path.dirname(os.path.abspath(path))), path)
    tasks = tuple(task for _, task in found)
    for at, first in find_duplicates(tasks).items():
        message = f"the id {tasks[at].id!r} is also that of line {found[first][0]}"
        problems.append(Problem("error", message, path, found[at][0], 1, "Give each task its own id."))
    if not tasks and not problems:
        hint = "Each line is a task: {id, prompt}."
        problems.append(Problem("error", "there are no tasks", path, 1, 1, hint))
    return Read(tasks, tuple(problems))


def read_lines(one: Form[T], path: str) -> tuple[list[tuple[int, T]], list[Problem]]:
    """Read a file with a JSON value on each line. Return the values with their line numbers, and the problems."""
    try:
        lines = read_text(path).removeprefix("\ufeff").splitlines()
    except UsageError as error:
        return [], [Problem("error", error.message, path, 1, 1, error.hint)]
    found, problems = list[tuple[int, T]](), list[Problem]()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        loaded = form.load_json(one, line, source=path)
        problems += [problem._replace(line=number) for problem in loaded.problems]
        if loaded.value is not None:
            found.append((number, loaded.value))
    return found, problems


def find_duplicates(tasks: Sequence[EvalTask]) -> dict[int, int]:
    """Return the positions of tasks with the same id as an earlier task, each with the position of the earlier task."""
    seen = dict[str, int]()
    return {at: first for at, task in enumerate(tasks) if (first := seen.setdefault(task.id, at)) != at}

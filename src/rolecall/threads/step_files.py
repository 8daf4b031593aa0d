"""The files that the steps of a thread left: written into a folder, compared, and traced line by line to a step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import takewhile
from typing import Literal, NamedTuple, NotRequired, TypedDict

from rolecall.errors import Hint, NotFound, RolecallError, UsageError
from rolecall.files import blame
from rolecall.files.blame import BlamedState
from rolecall.files.snapshot import FileDifference, Snapshot, StepTree, load_tree
from rolecall.files.tree import Trees, find_top
from rolecall.settings.mask import Mask
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Node, Store
from rolecall.threads import thread, views
from rolecall.threads.setup import HUMAN
from rolecall.threads.state import GROUP, ThreadRef, read_note, read_thread
from rolecall.threads.thread import Chain, Step, read_attempts
from rolecall.threads.view_types import AttemptEntry, StepDetails


class Left(NamedTuple):
    files: Snapshot
    step: Step | None
    """The step that left the files, or None for the files before the first step or those of a failed attempt."""
    attempt: str = ""
    """The id of the failed attempt that left the files."""


def find_left(store: Store, ref: ThreadRef, at: str | None = None) -> Left:
    """Return the files after `at`, which is the number or the id of a step, `start`, the id of a failed attempt or, for
    the last step, None. A step without an agent changes no files."""
    if (attempt := _find_attempt(store, ref, at)) is not None:
        return Left(_tree_of(attempt).left, None, attempt.id)
    node, _ = views.step_named(store, ref.id, at or None)
    for step in Chain(store, node):
        if step.tree is not None:
            return Left(step.tree.left, step)
        _refuse_unrecorded(ref, step)
    for step in reversed(list(Chain(store, ref.head))):
        if step.tree is not None:
            return Left(step.tree.found, None)
        _refuse_unrecorded(ref, step)
    raise NotFound(f"no role of thread {ref.id} has worked on files yet")


def _find_attempt(store: Store, ref: ThreadRef, at: str | None) -> Node | None:
    """Return the thread's failed attempt whose id begins with the text `at`, which must have at least four
    characters."""
    if not at or len(at) < 4 or at == "start":
        return None
    note = read_note(store, ref.id)
    newest = [
        note.attempt if note else None,
        *(step.payload.get("attempt") for step in Chain(store, ref.head)),
    ]
    found = (attempt for node in newest for attempt in read_attempts(store, node))
    return next((attempt for attempt in found if attempt.id.startswith(at.upper())), None)


def _tree_of(attempt: Node) -> StepTree:
    tree = load_tree(attempt.payload.get("tree"))
    if tree is None:
        raise NotFound(
            f"the files of the attempt {attempt.id} were not recorded",
            hint=Hint("See why", "show_step", step=attempt.id),
        )
    return tree


def _refuse_unrecorded(ref: ThreadRef, step: Step) -> None:
    if step.role not in (thread.PERSON, thread.FORK) and step.agent != HUMAN:
        raise NotFound(
            f"the files of step {step.number} of thread {ref.id} were not recorded",
            hint=Hint("See why", "show_step", step=step.id),
        )


class FilesPlace(TypedDict):
    """The step or the failed attempt that left files."""

    thread: str
    step: str | None
    attempt: NotRequired[str]


class CheckedOut(FilesPlace):
    """The files of a step that were written into a folder."""

    number: int
    """The number of the step, or 0 for a failed attempt and for the files before the first step."""
    folder: str
    tree: str
    omitted: list[str]
    """The files that were not recorded, and therefore not written."""


def check_out(store: Store, trees: Trees, ref: ThreadRef, folder: str, at: str | None = None) -> CheckedOut:
    """Write the files after a step into a folder that is empty or does not exist."""
    left = find_left(store, ref, at)
    try:
        trees.check_out(left.files, folder)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written: {error.strerror}", hint="Name a new folder."
        ) from error
    number, tree, omitted = left.step.number if left.step else 0, left.files.tree, list(left.files.omitted)
    place: FilesPlace = {"thread": ref.id, "step": left.step.id if left.step else None}
    if left.attempt:
        place["attempt"] = left.attempt
    return {**place, "number": number, "folder": folder, "tree": tree, "omitted": omitted}


# -- differences --


class Excerpt(NamedTuple):
    """The part of a patch to return."""

    path: str | None = None
    """Return only the changes of this file."""
    lines: int | None = None
    """Return only the first files, up to this total number of changed lines."""


_WHOLE = Excerpt()


class FilesDifference(TypedDict):
    """How two states of a thread's files differ."""

    step: str | None
    """The step that made the changes, if a single step did. The same holds for `number` and `role`."""
    number: int | None
    role: str | None
    found: str
    """The tree before the changes."""
    left: str
    """The tree after the changes."""
    changes: list[FileDifference]
    diff: str
    """A patch with the changes."""
    omitted: NotRequired[list[str]]
    """The files that the patch does not show, if there are any."""
    attempt: NotRequired[str]
    """The failed attempt that made the changes."""


def compare(
    store: Store,
    trees: Trees,
    ref: ThreadRef,
    *,
    at: str | None = None,
    role: str | None = None,
    excerpt: Excerpt = _WHOLE,
) -> list[FilesDifference]:
    """Return what the thread changed. If `at` is `A..B`, return what changed after step `A` up to step `B`; if `at`
    names a single step or failed attempt, return what that step or attempt changed. With `role`, return what each step
    of that role changed."""
    part = partial(_part, trees, excerpt)
    first, dots, last = (at or "..").partition("..")
    if dots and role is None:
        return [part(find_left(store, ref, first or "start").files, find_left(store, ref, last).files)]
    if dots:
        since, until = (
            views.step_named(store, ref.id, place)[0] for place in (first or "start", last or None)
        )
        chain = Chain(store, until)
        if since not in (chain.start.id, *(step.id for step in chain)):
            raise UsageError(f"step {first} comes after step {last}", hint="Write the earlier one first.")
        steps = list(takewhile(lambda step: step.id != since, chain))[::-1]
    elif attempt := _find_attempt(store, ref, at):
        tree = _tree_of(attempt)
        return [{**part(tree.found, tree.left), "attempt": attempt.id, "role": attempt.payload["role"]}]
    else:
        steps = [Step(store, store.get(views.step_named(store, ref.id, at)[0]))]
    chosen = [step for step in steps if role in (None, step.role)]
    if not chosen:
        raise NotFound(f"thread {ref.id} has no step of {role} there")
    parts = []
    for step in chosen:
        if step.tree is None:
            _refuse_unrecorded(ref, step)
        else:
            parts.append(part(step.tree.found, step.tree.left, step))
    return parts


def add_diffs(
    store: Store,
    trees: Trees,
    steps: Iterable[StepDetails] | Iterable[AttemptEntry],
    warn: Callable[[str], object],
    *,
    mask: Mask,
) -> Iterator[JsonObject]:
    """Yield the steps or failed attempts of a report, each with the diff of its files. Call `warn` with a description
    of any changes that are not on this machine."""
    for step in steps:
        node, diff, what = store.get(step["id"]), "", "an attempt"
        attempts: dict[str, list[JsonObject]] = {}
        if "number" in step:
            what, tree = f"step {step['number']}", Step(store, node).tree
            attempts["attempts"] = list(add_diffs(store, trees, step["attempts"], warn, mask=mask))
        else:
            tree = load_tree(node.payload.get("tree"))
        try:
            diff = trees.diff(tree.found, tree.left) if tree and tree.found.tree != tree.left.tree else ""
        except RolecallError as error:
            warn(f"the changes of {what} are not in the report: {error.message}")
        yield {**step, "diff": mask.text(diff), **attempts}


def compare_threads(
    store: Store, trees: Trees, one: ThreadRef, other: ThreadRef, excerpt: Excerpt = _WHOLE
) -> list[FilesDifference]:
    """Return how the final files of two threads differ."""
    return [_part(trees, excerpt, find_left(store, one).files, find_left(store, other).files)]


def _part(
    trees: Trees, excerpt: Excerpt, found: Snapshot, left: Snapshot, step: Step | None = None
) -> FilesDifference:
    changes = trees.changes(found, left)
    paths, lines = list[str](), 0
    for change in changes:
        lines += (change.added or 0) + (change.removed or 0)
        if excerpt.path in (None, change.path) and (excerpt.lines is None or lines <= excerpt.lines):
            paths.append(change.path)
    is_whole = len(paths) == len(changes)
    part: FilesDifference = {
        "step": step.id if step else None,
        "number": step.number if step else None,
        "role": step.role if step else None,
        "found": found.tree,
        "left": left.tree,
        "changes": [change.dump() for change in changes],
        "diff": trees.diff(found, left, () if is_whole else paths) if paths else "",
    }
    if not is_whole:
        part["omitted"] = sorted({change.path for change in changes} - {*paths})
    return part


class FileVersions(NamedTuple):
    """A file as a step found it and as the step left it. A text is None if the file did not exist."""

    path: str
    """The absolute path of the file."""
    before: str | None
    after: str | None


def read_versions(
    trees: Trees, step: Step, folder: str, *, most: int, longest: int
) -> Iterator[FileVersions]:
    """Yield the first `most` text files that a step changed in the work tree around `folder`, without those larger than
    `longest` bytes."""
    if step.tree is None:
        return
    top = find_top(folder)
    for change in [one for one in step.tree.changed if one.added is not None][:most]:
        before = b"" if change.kind == "added" else trees.read(step.tree.found, change.path)
        after = b"" if change.kind == "removed" else trees.read(step.tree.left, change.path)
        if max(len(before), len(after)) <= longest:
            old, new = (text.decode("utf-8", "replace") for text in (before, after))
            yield FileVersions(
                os.path.join(top, change.path),
                None if change.kind == "added" else old,
                None if change.kind == "removed" else new,
            )


# -- who wrote a line --


LineSource = TypedDict("LineSource", {"from": Literal["before", "between", "step", "attempt"]})
"""What wrote a line: a step, a failed attempt, or somebody before the thread or between two of its steps."""


class TracedLine(LineSource):
    line: int
    text: str
    step: str | None
    """The id of the step or the failed attempt, if one wrote the line."""


class LineWriter(TypedDict):
    """A step or a failed attempt that wrote a line."""

    thread: str
    number: int | None
    """The number of the step, or None for a failed attempt."""
    role: str
    agent: str
    edgePrompt: str
    prompt: str


class TracedFile(TypedDict):
    """The lines of a file with the steps that wrote them, by id."""

    thread: str
    path: str
    lines: list[TracedLine]
    steps: dict[str, LineWriter]


def trace_lines(
    store: Store,
    trees: Trees,
    ref: ThreadRef,
    path: str,
    *,
    lines: tuple[int, int] | None = None,
    at: str | None = None,
) -> TracedFile:
    """Return each line of a file after a step, with the step or the failed attempt that wrote the line. If a member of
    a group, or a thread that played the role, wrote the line, name the step of that thread."""
    left = find_left(store, ref, at)
    history = _History(store)
    newest = history.follow(ref, Chain(store, views.step_named(store, ref.id, at)[0]))
    if newest is None:  # the files before the first step
        newest = history.add(left.files, [], None)
    found = blame.blame(trees, history.states, newest, path, lines)
    rows, known = list[TracedLine](), dict[str, LineWriter]()
    for line in found:
        writer = history.writers[line.state]
        rows.append(
            {
                "line": line.number,
                "text": line.text,
                "from": "before" if line.state == 0 else "between" if writer is None else writer.kind,
                "step": writer and writer.id,
            }
        )
        if writer is not None and writer.id not in known:
            fields, prompt = writer.fields, writer.fields.get("prompt")
            known[writer.id] = {
                "thread": writer.thread,
                "number": writer.number,
                "role": fields["role"],
                "agent": fields["agent"],
                "edgePrompt": fields.get("edge_prompt", ""),
                "prompt": thread.prompt_text(store, prompt) if prompt else "",
            }
    return {"thread": ref.id, "path": path, "lines": rows, "steps": known}


class _Writer(NamedTuple):
    kind: Literal["step", "attempt"]
    id: str
    thread: str
    number: int | None
    fields: JsonObject


class _History:
    """The states of a thread's files, oldest first, each with the step or the attempt that made it, if any."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.states: list[BlamedState] = []
        self.writers: list[_Writer | None] = []
        self._places: dict[str, int] = {}
        """The newest state of each tree."""

    def follow(self, ref: ThreadRef, chain: Chain, last: int | None = None) -> int | None:
        """Add the states of a thread's chain after the state `last`, and return the place of the newest state. If
        `last` is None, a member's states begin after those of its parent."""
        member = chain.start.member
        if last is None and member and ref.state.parent:
            parent = read_thread(self._store, ref.state.parent)
            last = self.follow(parent, Chain(self._store, member.group.above)) if parent else None
        for step in reversed(list(chain)):
            for attempt in reversed(list(read_attempts(self._store, step.payload.get("attempt")))):
                last = self._add_work(_Writer("attempt", attempt.id, ref.id, None, attempt.payload), last)
            if step.tree is not None:
                last = self._add_work(_Writer("step", step.id, ref.id, step.number, step.payload), last, step)
        return last

    def _add_work(self, writer: _Writer, last: int | None, step: Step | None = None) -> int | None:
        tree = load_tree(writer.fields.get("tree"))
        if tree is None:
            return last
        if last is None or self.states[last].files.tree != tree.found.tree:
            # Members that share a folder see each other's files.
            known = self._places.get(tree.found.tree)
            last = self.add(tree.found, [] if last is None else [last], None) if known is None else known
        if tree.left.tree == tree.found.tree:
            return last
        # The work was done by the members of a group that are done, or by the thread that played the role.
        players, parents = list(step.payload.get("children") or ()) if step else [], [last]
        if step and step.agent == GROUP:
            members = step.output.get("members") or ()
            players = [member["id"] for member in members if member["status"] == "done"]
        for ident in filter(None, players):
            if (player := read_thread(self._store, ident)) is not None:
                tip = self.follow(player, Chain(self._store, player.head), last)
                parents.append(last if tip is None else tip)
        return self.add(tree.left, parents, writer)

    def add(self, files: Snapshot, parents: list[int], writer: _Writer | None) -> int:
        self.states.append(BlamedState(files, tuple(dict.fromkeys(parents))))
        self.writers.append(writer)
        self._places[files.tree] = len(self.states) - 1
        return len(self.states) - 1

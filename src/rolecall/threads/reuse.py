"""Take over a finished step instead of asking the role's agent.

The two steps have the same key, so the role would be asked the same thing, of the same agent, about the same files.
"""

from __future__ import annotations

from rolecall.errors import Damaged, NotFound
from rolecall.threads.attempt import Attempt, StepResult
from rolecall.threads.attempt_files import CHANGED_ANYWAY
from rolecall.threads.key import key_of
from rolecall.threads.key_parts import KnownStep, find_step
from rolecall.threads.sessions import add_usages
from rolecall.threads.storable import describe_usage
from rolecall.threads.thread import Reused, Step, count_usage

REFUSED = "not reused: "
"""The beginning of the remark that says why a step with the same key was not reused."""


def find_refusal(step: Step) -> str:
    """Return the reason why a finished step with the same key cannot be reused, or an empty string if it can."""
    tree, parts = step.tree, step.parts
    if tree is None or parts is None or parts.tree.partition(":")[0] != tree.found.tree:
        return "the files from before or after the step are not recorded"
    if tree.found.omitted != tree.left.omitted:
        return "files that are not recorded have changed, too"
    if any(CHANGED_ANYWAY in str(note) for note in step.detail.get("notes", ())):
        return "its role is read-only, but it changed the work folder"
    return ""


def origin_of(known: KnownStep) -> Reused:
    """Return the step whose agent was asked: the known step or, if that step was itself reused, its source. The usage
    includes the failed attempts of that step."""
    step = known.step
    if step.reused is not None:
        return step.reused
    return Reused(step.id, known.thread, describe_usage(add_usages((step.payload, *step.attempts()))))


async def take_over(attempt: Attempt, *, has_effects: bool = False) -> StepResult | None:
    """Take over a finished step with the same key: apply its changes to the work folder and return its contents. Return
    None if the role must be asked. If a step with the same key exists but is not used, add a remark that says why."""
    try:
        known = find_step(attempt.store, key_of(attempt.parts)) if attempt.reuse and attempt.parts else None
    except (NotFound, Damaged) as error:
        attempt.remark(f"{REFUSED}{error}")
        return None
    if known is not None and has_effects:
        attempt.remark(f"{REFUSED}its agent has effects outside the work folder")
        return None
    return await _take_step(attempt, known) if known else None


async def finish_begun(attempt: Attempt) -> StepResult | None:
    """Finish a reuse that a dead process began. Return None if no reuse was begun, or if the role must be asked, for
    example because the folder contains changes that the step did not make."""
    begun = await attempt.read_begun_reuse()
    if not begun:
        return None
    try:
        known = KnownStep(Step(attempt.store, attempt.store.get(begun["step"])), begun["thread"])
    except (NotFound, Damaged):
        attempt.remark(
            f"{REFUSED}the finished step is gone; some of the step's changes might still be in the folder"
        )
        return None
    return await _take_step(attempt, known, is_begun=True)


async def _take_step(attempt: Attempt, known: KnownStep, *, is_begun: bool = False) -> StepResult | None:
    step = known.step
    try:  # read all of the step before writing the first file
        origin, tree, files = origin_of(known), step.tree, step.detail.get("files", ())
        saved = count_usage(origin.saved, ms=0)
        result = StepResult(step.output, step.body, step.raw, agent=step.agent, reused=origin, saved=saved)
        refusal = find_refusal(step)
    except (NotFound, Damaged) as error:
        refusal, tree = str(error), None
    if refusal or tree is None:
        attempt.remark(f"{REFUSED}{refusal}")
        return None

    attempt.note_reuse(step.id, known.thread)
    if tree.left.tree != tree.found.tree:
        if is_begun and not attempt.reuse:
            reason = "reuse was switched off after it had begun"
            reason = await attempt.files.undo_changes(tree, reason)
        else:
            attempt.write_note()  # before the first file is written
            reason = await attempt.files.repeat_changes(tree, is_begun=is_begun)
        if reason:
            attempt.remark(f"{REFUSED}{reason}")
            return None
        await attempt.leave_files()
        if attempt.tree is None or attempt.tree.left.tree != tree.left.tree:
            attempt.remark("other files changed while the step was being reused")
            result = result._replace(is_exact=False)
    attempt.note_taken(files)
    return result

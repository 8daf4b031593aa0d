"""Ask a role's agent and parse the answer; `attempt.py` records the attempts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from rolecall.agents import process, protocol
from rolecall.agents.confinement import confine
from rolecall.errors import AgentError, ExtractError, RolecallError
from rolecall.settings import capabilities
from rolecall.store.lazy import Module
from rolecall.threads import prompt, reuse, sandboxing
from rolecall.threads.attempt import AgentAnswer, Attempt, StepResult
from rolecall.threads.loaded_thread import contain, wait_unless
from rolecall.threads.sessions import StoredMemory
from rolecall.threads.setup import Cast, Setup
from rolecall.threads.trace_ids import attempt_span, trace_id, traceparent
from rolecall.workflow import reply
from rolecall.workflow.model import sandbox_of

if TYPE_CHECKING:
    from rolecall.threads import waiting
else:
    waiting = Module("rolecall.threads.waiting")

_GRACE = 2.0
"""An agent written as a function can end by itself within this number of seconds, for example to report its usage."""
Play = Callable[[Attempt, protocol.Cancel, str, str, str | None], Any]
"""Takes the attempt, `cancel`, the workflow, the prompt and the session; returns the outcome of the child thread that
plays the role."""


async def perform(
    setup: Setup, attempt: Attempt, cast: Cast, *, cancel: protocol.Cancel, play: Play | None = None
) -> StepResult:
    """Let the role's agent play the role. If that agent has reached a usage limit of its provider, let the workflow's
    stand-in play the role, and record that in the step. If this function raises an error, the agent's output has
    already been recorded."""
    named = attempt.loaded.role(attempt.role).stand_in
    try:
        return await _play(setup, attempt, cast, cancel, play)
    except AgentError as error:
        if named is None or setup.stand_in is None:
            raise
        if waiting.find_limit_of(setup.store, error) is None or cancel.is_set():
            raise
        try:
            stand_in = setup.stand_in(attempt.loaded.playbook, attempt.role)
        except RolecallError as problem:
            attempt.remark(f"{named} cannot stand in for {cast.name}: {problem.message}")
            raise error from problem
        attempt.fail(error.message, error)
        attempt.remark(f"{stand_in.name} stands in for {cast.name}, which has reached a limit")
        try:
            return await _play(setup, attempt, stand_in, cancel, play)
        except AgentError as problem:
            own = waiting.find_limit_of(setup.store, error)
            other = waiting.find_limit_of(setup.store, problem)
            if cancel.is_set() or own is None or own.until is None:
                raise
            if other is not None and other.until is not None and other.until <= own.until:
                raise
            attempt.fail(problem.message, problem)
            # Leave out the agent's usage, which has already been recorded.
            again = AgentError(error.message, ending=error.ending, session=error.session, hint=error.hint)
            raise again from problem


async def _play(
    setup: Setup, attempt: Attempt, cast: Cast, cancel: protocol.Cancel, play: Play | None
) -> StepResult:
    """Ask the agent and parse its answer. Take the output from the answer's frontmatter; if that fails, from one
    correction in the same session; if that fails, from the extract model."""
    role = attempt.loaded.role(attempt.role)
    ask = partial(_ask, setup, attempt, cast, cancel, play)
    if taken := await reuse.finish_begun(attempt):
        return taken
    answer = await attempt.read_waiting_answer()
    if answer is None or (answer.is_unread and not setup.can_extract(role)):
        answer = await ask()
    if answer.taken:
        return answer.taken
    if answer.step:
        with contain(f"reading the step of {cast.name!r}"):
            return attempt.adopt(answer.step)

    found = reply.parse(answer.text, role.schema)
    is_same_agent = attempt.agent == attempt.mask.text(cast.name)  # another agent might have left the answer
    can_correct = is_same_agent and answer.session and getattr(cast.agent, "can_resume", False)
    if isinstance(found, reply.ReplyProblem) and can_correct and not answer.is_unread:
        attempt.fail(f"the answer could not be read: {found.reason}")
        answer = await ask(correction=prompt.correction(found, role.schema))
        found = reply.parse(answer.text, role.schema)
    if not isinstance(found, reply.ReplyProblem):
        return attempt.understand(found)

    # If the extract model finds no output, either, the answer is kept, so that it can be read later.
    attempt.note = attempt.note._replace(unread=True)
    try:
        reading = setup.extract(answer.text, role.schema, role.extract)
        output, usage = await wait_unless(cancel, "reading the answer", reading)
    except ExtractError as error:
        attempt.add_usage(error.usage)
        why = "; ".join([found.reason, *found.misfits])
        raise ExtractError(
            f"the answer could not be read ({why}), and {error.message}", raw=answer.text,
            usage=error.usage, hint=error.hint, is_outage=error.is_outage,
        ) from error  # fmt: skip
    attempt.add_usage(usage)
    return attempt.understand(reply.ParsedReply(output, answer.text))


async def _ask(
    setup: Setup,
    attempt: Attempt,
    cast: Cast,
    cancel: protocol.Cancel,
    play: Play | None,
    *,
    correction: str | None = None,
) -> AgentAnswer:
    """Call the agent and record its answer before using it, unless a finished step can be taken over. If the agent has
    lost the session, ask it again in a new session."""
    if correction is not None:
        attempt.stay_in_session()
    text = correction if correction is not None else await attempt.make_prompt(cast)
    role, run, decision = attempt.loaded.role(attempt.role), setup.token(), attempt.session
    needs_store = bool(getattr(cast.agent, "opens_store", False))
    inherited, sandbox = setup.restrictions_of(role), sandbox_of(attempt.loaded.workflow, attempt.role)
    words = tuple(dict.fromkeys((*role.capabilities, *inherited)))
    # The role's own restrictions were checked earlier, but our own process can add others.
    workflow = attempt.loaded.workflow
    sandboxing.check_role(
        cast.name, cast.agent, workflow, attempt.role, layers=setup.layers, inherited=inherited, names_role=False
    )  # fmt: skip
    policy = None
    if getattr(cast.agent, "runs_in_sandbox", False):
        policy = confine(
            sandbox, attempt.workdir, words, environment=setup.environment, private=setup.private,
            layers=setup.layers, may_start_threads=role.may_start_threads or needs_store,
        )  # fmt: skip

    if correction is None:
        await attempt.find_files()
        await attempt.find_parts(setup, cast)
        is_whole = not getattr(cast.agent, "is_workflow", False)
        if is_whole and (taken := await reuse.take_over(attempt, has_effects=cast.has_effects)):
            return AgentAnswer("", "", taken=taken)
        if attempt.note.reused:  # not taken over, because the files have just changed
            await attempt.find_files()
            await attempt.find_parts(setup, cast)
    attempt.note_sandbox(sandboxing.describe_use(sandbox, words, policy))
    attempt.note_asking(cast.name, run=run)
    context = protocol.Context(
        thread=attempt.thread, role=attempt.role, start=attempt.loaded.task, workdir=Path(attempt.workdir),
        cancel=cancel, emit=attempt.note_sign, instruction=attempt.instruction, steps=attempt.loaded.messages,
        session=decision.session, is_fork=decision.is_fork, session_total=decision.total, schema=role.schema,
        attempt=attempt.tries, capabilities=words,
        env=process.add_mark(_environment_of_agent(setup, attempt, cast), run),
        memory=StoredMemory(setup.store, setup.mask), play=partial(play, attempt, cancel) if play else None,
        sandbox=policy,
    )  # fmt: skip
    may_write = sandbox is not None and bool(sandbox.write)
    attempt.files.watch(attempt.tree, must_stay=capabilities.must_not_write(words) and not may_write)
    try:
        with contain(f"the agent {cast.name!r}"):  # adapters are third-party code and can raise anything
            given = protocol.ask(cast.agent, text, context=context)
            # a function might not notice that it should stop
            if isinstance(cast.agent, FunctionType | MethodType | partial):
                given = wait_unless(cancel, f"the agent {cast.name!r}", given, grace=_GRACE)
            answered = await given
    except AgentError as error:
        attempt.note_sandbox(sandboxing.describe_use(sandbox, words, policy))
        await attempt.leave_files()
        if not error.is_session_lost or decision.session is None:
            raise
        attempt.fail(error.message, error)
        attempt.lost_sessions |= {decision.session}
        return await _ask(setup, attempt, cast, cancel, play)
    if policy is not None and not policy.enforced:
        policy.enforced.append("no program was started")
    attempt.note_sandbox(sandboxing.describe_use(sandbox, words, policy))
    await attempt.leave_files()
    return attempt.note_answer(answered)


def _environment_of_agent(setup: Setup, attempt: Attempt, cast: Cast) -> dict[str, str]:
    """Return the environment of an agent's processes. The environment names the span of these processes. It names the
    store only if the agent writes its own step or the role may start threads."""
    role = attempt.loaded.role(attempt.role)
    environment = setup.environment_of(role)
    trace = trace_id(attempt.store, attempt.thread, attempt.state.parent)
    span = attempt_span(attempt.thread, attempt.loaded.chain.head, attempt.previous)
    environment[process.TRACEPARENT] = traceparent(trace, span)
    environment.pop("TRACESTATE", None)  # this variable belongs to the trace of our parent process
    environment.pop(capabilities.THREADS_VARIABLE, None)  # set for the role whose agent started us
    if role.may_start_threads:
        environment[capabilities.THREADS_VARIABLE] = "1"
    elif not getattr(cast.agent, "opens_store", False):
        for name in capabilities.STORE_VARIABLES:
            environment.pop(name, None)
    return environment

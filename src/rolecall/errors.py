"""The error tree. Every error that a user can see is an instance of one of these classes; nothing here prints or exits.

    RolecallError
    |-- UsageError            the request is wrong: change it
    |   |-- InvalidValue      a value that has no canonical form
    |   |-- InvalidSchema     a JSON Schema with unsupported features
    |   `-- InvalidPayload    a payload that does not fit its type
    |-- NotFound              the requested thing does not exist
    |-- Damaged               stored bytes have changed: restore them
    |   `-- Collision         an id that already belongs to other bytes
    |-- Conflict              another process was faster: read again, then retry
    |-- AgentError            the agent did not answer; the error keeps its partial output
    |-- ExtractError          no model could find the output in an answer; the error keeps the answer
    `-- StorageError          the disk, the folder or the server failed: fix that, then retry

Normal endings of a thread (it is completed, is suspended, or has reached a limit) are values, not errors. Only the
front doors turn an error into an exit code, a status or a tool result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

Ending = Literal[
    "completed",  # the agent answered
    "refused",  # the agent declined the task
    "limit",  # the agent reached a limit on turns, tokens or cost
    "interrupted",  # the caller's cancel signal ended the agent
    "api_failure",  # the model's endpoint failed
    "timeout",  # the adapter's timeout ended the agent
    "killed",  # a signal from somewhere else ended the agent
    "suspended",  # the agent waits for a person and can continue in its session
    "failed",  # the program is missing, cannot be run, or gave up with an error
]
"""The ways in which an agent can end."""


class Hint(str):
    """A suggested action. As a string, it is plain English. `code` and `arguments` identify the action, which each
    front door shows as a command or tool of its own. `before` is advice that is shown before the action."""

    def __new__(cls, advice: str, code: str, *, before: str = "", **arguments: object) -> Hint:
        hint = super().__new__(cls, f"{before} {advice}.".lstrip())
        hint.advice, hint.code, hint.before, hint.arguments = advice, code, before, arguments
        return hint

    advice: str
    code: str
    before: str
    arguments: dict[str, object]

    def __getnewargs_ex__(self) -> tuple[tuple[str, str], dict[str, object]]:
        return (self.advice, self.code), {"before": self.before, **self.arguments}

    def call(self) -> str:
        """Return the action as Python: a call of a method in `api/` such as `rc.thread('01…').fork()`, or, if there is
        no such method, the arguments of the action."""
        if verb := CALLS.get(self.code):
            return verb.format_map({name: repr(value) for name, value in self.arguments.items()})
        return ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())


CALLS = {
    "add_task": "rc.project().add_task(…)",
    "answer_thread": "rc.thread({thread}).answer({{…}})",
    "choose_agent": "agent={agent}",
    "choose_note": "into={note} or is_new=True",
    "diff_folder": "rc.thread({thread}).diff_folders()",
    "fork_thread": "rc.thread({thread}).fork()",
    "fork_to_workflow": "thread.fork(workflow={workflow})",
    "forget_repository": "rolecall.api.Knowledge({repo}).forget()",
    "index_again": "rc.knowledge().forget(), then rc.knowledge().sync()",
    "index_repository": "rc.knowledge().sync()",
    "init_knowledge": "rc.knowledge().init()",
    "keep_files": "keep_files=True",
    "list_evals": "rc.evals().runs()",
    "list_gallery": "rc.gallery()",
    "list_steps": "rc.thread({thread}).steps",
    "list_tasks": "rc.project().tasks()",
    "list_threads": "rc.threads()",
    "list_workflows": "rc.workflows()",
    "merge_folder": "rc.thread({thread}).merge_folder()",
    "merge_or_force": "rc.thread({thread}).merge_folder(), or force=True",
    "name_task": "prompt='…'",
    "put_workflow": "rc.put({file})",
    "query_words": "by_words=True",
    "raise_limit": "rc.thread({thread}).resume(limits={{…}})",
    "read_earlier": "rc.thread({thread}).read(before={step})",
    "rebuild_index": "rc.knowledge().sync(rebuild=True)",
    "resume_thread": "rc.thread({thread}).resume()",
    "run_code": "runs_code=True",
    "run_thread": "rc.thread({thread}).run()",
    "save_base": "rc.evals().save_base({name}, report)",
    "show_question": "rc.thread({thread}).question()",
    "show_step": "rc.step({step})",
    "show_thread": "rc.thread({thread}).summary()",
    "start_plan": "rc.project().start_plan(…)",
    "sync_knowledge": "rc.knowledge().sync()",
    "trust_workflow": "rc.trust(rc.powers({workflow}))",
    "update_workflow": "rc.compare_workflows([{workflow}], …), then rc.update_workflows(…)",
    "validate_workflow": "rc.validate({workflow})",
    "watch_thread": "rc.thread({thread}).watch()",
    "workflow_history": "rc.versions({workflow})",
}
"""The Python call for each action, where `rc` is a `Rolecall`."""


class RolecallError(Exception):
    """The base class of all errors. `message` says what went wrong, and `hint` what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            # the note is shown in tracebacks
            self.add_note(f"{hint} {hint.call()}".rstrip() if isinstance(hint, Hint) else hint)

    def explain(self) -> str:
        """Return the message followed by the advice, on one line."""
        return f"{self.message}. {self.hint}" if self.hint else self.message


class UsageError(RolecallError):
    """Raised if the request itself is wrong."""


class InvalidValue(UsageError):
    """Raised for a value without a canonical form: NaN, a lone surrogate, or nesting that is too deep."""


class InvalidSchema(UsageError):
    """Raised for a schema with features that the store does not accept. `problems` lists all of them."""

    def __init__(self, message: str, problems: Sequence[str], *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems)


class InvalidPayload(UsageError):
    """Raised for a payload that does not fit its type. `problems` lists every mismatch with its path."""

    def __init__(self, message: str, problems: Sequence[str], *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems)


class NotFound(RolecallError):
    """Raised if a node, type, ref or store, or anything else that was requested, does not exist."""


class Damaged(RolecallError):
    """Raised if stored bytes differ from those that were put. Such bytes are never returned. `node` is the id of the
    damaged node."""

    def __init__(self, message: str, *, node: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.node = node


class Collision(Damaged):
    """Raised if the id of a new node already belongs to other bytes, because of a 64-bit collision or a changed
    store."""


class Conflict(RolecallError):
    """Raised if a compare-and-swap failed because another process was faster."""


class AgentError(RolecallError):
    """Raised if an agent did not answer. The attributes contain its partial output, as in `Reply` in
    agents/protocol.py."""

    def __init__(
        self,
        message: str,
        *,
        ending: Ending = "failed",
        text: str = "",
        session: str | None = None,
        usage: Any = None,
        turns: Sequence[Any] = (),
        hint: str = "",
        session_total: Any = None,
        is_session_lost: bool = False,
        children: Sequence[str] = (),
        files: Sequence[str] = (),
    ) -> None:
        super().__init__(message, hint=hint)
        self.ending = ending
        self.text = text
        self.session = session
        self.usage = usage
        self.turns = tuple(turns)
        self.session_total = session_total
        self.is_session_lost = is_session_lost
        self.children = tuple(children)
        self.files = tuple(files)


class ExtractError(RolecallError):
    """Raised if the extract model found no output in an answer. `raw` is the answer."""

    def __init__(
        self,
        message: str,
        *,
        raw: str = "",
        usage: Mapping[str, int] | None = None,
        hint: str = "",
        is_outage: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.raw = raw
        self.is_outage = is_outage
        """Whether the model could not be reached, so that the same answer might be read later."""
        self.usage = dict(usage or {})


class StorageError(RolecallError):
    """Raised if the disk is full, the folder is read-only, or the server cannot be reached."""


@contextmanager
def explain_missing(extra: str, what: str, *, advice: str = "") -> Iterator[None]:
    """Wrap imports: if a package is missing, raise an error that says that `what` needs it and which extra of ours
    installs it."""
    try:
        yield
    except ImportError as error:
        hint = f"Install it: pip install 'rolecall[{extra}]'. {advice}".rstrip()
        raise UsageError(f"{what} needs the package {error.name!r}", hint=hint) from error

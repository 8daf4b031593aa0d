"""Events on the forge, and what a job does about them. All functions but `read` are pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from rolecall.errors import Hint, UsageError
from rolecall.settings.forge import Job
from rolecall.store.canonical import JsonObject
from rolecall.threads.thread import LIMITS

MOST_BYTES = 16 * 1024**2
"""The size in bytes of the largest event that is read."""
LABEL = "rolecall"
"""The label that starts a thread for an issue or merge request on GitLab. On GitHub, the job's own definition
contains this condition."""
OUR_MARK = "<!-- rolecall"
"""The text with which Rolecall's own comments begin. They are never read as commands."""
_NEEDS_RIGHTS = (
    *("push", "schedule", "workflow_dispatch", "repository_dispatch", "merge_group"),
    *("web", "api", "pipeline", "trigger"),
)
"""GitHub and GitLab events that only people with write access can cause."""
COMMANDS = ("run", "answer", "resume", "kill")


class Person(NamedTuple):
    name: str
    id: str = ""


class Subject(NamedTuple):
    """The issue, pull request or merge request to which a thread belongs."""

    kind: Literal["issue", "change"]
    number: int

    @property
    def key(self) -> str:
        return f"{self.kind}-{self.number}"


class CommentCommand(NamedTuple):
    """A person's command in a comment, in the form `/rolecall VERB …`."""

    verb: str
    text: str = ""
    limits: Mapping[str, float] = {}


class ForgeEvent(NamedTuple):
    key: str
    """An identifier of the event, so that a repeated job does not handle the event twice."""
    subject: Subject | None = None
    by: Person | None = None
    """The person who caused the event, or None if causing it already requires write access."""
    task: str = ""
    target: str = ""
    comment: str | None = None
    """The text of a new comment, or None for any other event."""
    ignored: str = ""
    """Why the event is ignored, regardless of the thread's state."""


class StartThread(NamedTuple):
    task: str


class Continue(NamedTuple):
    """The decision to continue the saved thread, after carrying out the command if there is one."""

    command: CommentCommand | None = None


class Ignore(NamedTuple):
    reason: str


# -- reading --


def read(job: Job) -> ForgeEvent:
    payload: JsonObject = {}
    if job.payload:
        try:
            with open(job.payload, "rb") as file:
                data = file.read(MOST_BYTES + 1)
            read = json.loads(data) if len(data) <= MOST_BYTES else None
        except (OSError, ValueError) as error:
            raise UsageError(f"the event {job.payload} cannot be read: {error}") from error
        if not isinstance(read, dict):
            raise UsageError(f"the event {job.payload} is not a JSON object of at most {MOST_BYTES:,} bytes")
        payload = read
    try:
        return (_read_github if job.forge == "github" else _read_gitlab)(job, payload)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"the event {job.event!r} does not have the form that {job.forge} documents: {error!r}"
        ) from error


def _read_github(job: Job, payload: JsonObject) -> ForgeEvent:
    event = ForgeEvent(
        f"run-{job.run}", target=str((payload.get("repository") or {}).get("default_branch") or "")
    )
    if job.event not in _NEEDS_RIGHTS:
        event = event._replace(by=Person(str(payload["sender"]["login"])))
    about = payload["issue"] if "issue" in payload else payload.get("pull_request")
    if about is not None:
        is_change = "pull_request" in payload or "pull_request" in about
        head = about.get("head") or {}
        # Otherwise the branch belongs to a fork.
        is_ours = (head.get("repo") or {}).get("full_name") == job.project
        event = event._replace(
            subject=Subject("change" if is_change else "issue", int(about["number"])),
            task=_join(about["title"], about.get("body")),
            target=str(head["ref"]) if is_ours else event.target,
        )
    if job.event == "issue_comment":
        comment = payload["comment"]
        return event._replace(
            key=f"comment-{int(comment['id'])}",
            by=Person(str(comment["user"]["login"])),
            comment=str(comment["body"] or ""),
            ignored="" if payload["action"] == "created" else f"a comment was {payload['action']}",
        )
    if job.event == "workflow_dispatch":
        return event._replace(task=str((payload.get("inputs") or {}).get("prompt") or ""))
    if job.event == "push":
        task = "\n\n".join(str(commit["message"]) for commit in payload.get("commits") or ())
        return event._replace(task=task, target=str(payload["ref"]).removeprefix("refs/heads/"))
    return event


def _read_gitlab(job: Job, payload: JsonObject) -> ForgeEvent:
    """Read an event on GitLab, which starts no pipeline for a comment or an issue. A webhook triggers one and passes
    the event on."""
    variables = job.variables
    event = ForgeEvent(f"run-{job.run}", target=variables.get("CI_DEFAULT_BRANCH", ""))
    if not payload:
        if job.event not in _NEEDS_RIGHTS:
            person = Person(variables.get("GITLAB_USER_LOGIN", ""), variables.get("GITLAB_USER_ID", ""))
            event = event._replace(by=person)
        if number := variables.get("CI_MERGE_REQUEST_IID"):
            source, ours = (variables.get(f"CI_MERGE_REQUEST_{which}PROJECT_ID") for which in ("SOURCE_", ""))
            is_ours = source == ours  # otherwise the branch belongs to a fork
            return event._replace(
                subject=Subject("change", int(number)),
                task=_join(
                    variables.get("CI_MERGE_REQUEST_TITLE", ""), variables.get("CI_MERGE_REQUEST_DESCRIPTION")
                ),
                target=variables.get("CI_MERGE_REQUEST_SOURCE_BRANCH_NAME", "") if is_ours else event.target,
            )
        branch = variables.get("CI_COMMIT_BRANCH") or event.target
        return event._replace(task=variables.get("CI_COMMIT_MESSAGE", "").strip(), target=branch)
    kind, about = payload["object_kind"], payload["object_attributes"]
    event = event._replace(by=Person(str(payload["user"]["username"]), str(payload["user"]["id"])))
    if kind == "note":
        noted = payload.get("issue") or payload.get("merge_request")
        event = event._replace(key=f"comment-{int(about['id'])}", comment=str(about["note"] or ""))
        if not noted:
            return event._replace(ignored="the comment is not on an issue or a merge request")
        if about.get("action", "create") != "create":
            event = event._replace(ignored="a comment was edited")
        about, kind = noted, "issue" if "issue" in payload else "merge_request"
    if kind not in ("issue", "merge_request"):
        return event._replace(ignored=f"this job ignores events of the kind {kind!r}")
    # Other changes, such as closing an issue, are ignored.
    labels = (payload.get("changes") or {}).get("labels") or {"previous": (), "current": ()}
    before, now = ({label["title"] for label in labels[which]} for which in ("previous", "current"))
    is_new = about.get("action") in ("open", "reopen") or LABEL in now - before
    if event.comment is None and not is_new:
        event = event._replace(
            ignored=f"the {kind.replace('_', ' ')} is not new and did not get the label {LABEL}"
        )
    is_ours = about.get("source_project_id") == about.get("target_project_id")
    return event._replace(
        subject=Subject("issue" if kind == "issue" else "change", int(about["iid"])),
        task=_join(about["title"], about.get("description")),
        target=str(about.get("source_branch") or event.target) if is_ours else event.target,
    )


def _join(title: object, text: object) -> str:
    return "\n\n".join(part for part in (str(title).strip(), str(text or "").strip()) if part)


# -- commands in comments --


def parse_command(text: str) -> CommentCommand | None:
    """Return the command with which a comment begins, or None if it begins with anything else."""
    first, _, rest = text.lstrip().partition("\n")
    word, _, line = first.strip().partition(" ")
    if word != "/rolecall" or OUR_MARK in text:
        return None
    verb, _, line = line.strip().partition(" ")
    if verb not in COMMANDS:
        raise UsageError(f"`/rolecall {verb}` is not a command", hint=f"Known are {', '.join(COMMANDS)}.")
    limits = {}
    while verb == "resume" and (found := re.match(r"\s*([\w.-]+)=([\d.]+)(?=\s|$)", line)):
        name, amount = found.groups()
        kind = name.rpartition(".")[2]
        form = r"\d+(\.\d+)?" if kind in ("cost", "minutes") else r"\d+"
        if kind not in LIMITS or not re.fullmatch(form, amount):
            hint = "Write cost=20 or steps=40, for example."
            raise UsageError(f"{found[0].strip()!r} is not a limit", hint=hint)
        limits[name], line = float(amount), line[found.end() :]
    words = "\n".join(part for part in (line.strip(), rest.strip()) if part)
    if verb == "answer" and not words:
        raise UsageError("`/rolecall answer` needs an answer", hint="Write it after the word.")
    return CommentCommand(verb, words, limits)


# -- deciding --


class SavedThread(msgspec.Struct, frozen=True, kw_only=True):
    """The record about a thread that a job leaves for the next job, next to the thread's store."""

    place: str
    """The name of the thread's folder."""
    thread: str
    has_ended: bool = False
    needs_person: bool = False
    is_told: bool = False
    """Whether the comment shows the current state."""
    run: str = ""
    """The id of the job run that last took over the thread."""
    handled: tuple[str, ...] = ()
    """The keys of the handled events."""
    comment: str = ""
    """The id of Rolecall's comment."""
    base: str = ""
    """The commit with which the thread began."""
    target: str = ""
    head: str = ""
    """The commit that is checked out; `branch` is the name of its branch, if any."""
    branch: str = ""
    branches: Mapping[str, str] = {}
    """The commits of the threads' branches, keyed by the branch's name."""
    version: int = 1


def decide(
    event: ForgeEvent, known: SavedThread | None, *, run: str = "", prompt: str = ""
) -> StartThread | Continue | Ignore:
    """Decide what to do about an event caused by an authorised person. `run` is the id of the job run, and `prompt` the
    job's own task."""
    if event.ignored:
        return Ignore(event.ignored)
    if known is not None and event.key in known.handled:
        if known.is_told and (known.has_ended or known.needs_person):
            return Ignore(f"this was done before, in thread {known.thread}")
        if known.run == run:
            return Continue()  # an earlier attempt at this run was lost
        return Ignore(
            f"another job acts on this, in thread {known.thread}; if that job was lost, run it again"
        )
    task = "\n\n".join(part for part in (prompt.strip(), event.task) if part)
    if event.comment is not None:
        command = parse_command(event.comment)
        if command is None:
            return Ignore("the comment does not begin with /rolecall")
        if command.verb == "run":
            if known is not None and not known.has_ended:
                return Ignore(f"thread {known.thread} is not finished: answer, resume or kill it first")
            return StartThread("\n\n".join(part for part in (task, command.text) if part))
        if known is None or known.has_ended:
            which = "no thread waits here" if known is None else f"thread {known.thread} has ended"
            return Ignore(f"{which}; `/rolecall run` starts one")
        return Continue(command)
    if known is not None and known.needs_person:
        return Ignore(f"thread {known.thread} already waits for a person here")
    if known is not None and not known.has_ended:
        return Continue()
    if not task.strip():
        raise UsageError("the event does not name a task", hint=Hint("Say what to do", "name_task"))
    return StartThread(task)

"""Prove where a commit comes from: the step that the commit's trailers name, and everything before that step.

A commit that Rolecall makes from a thread's work names the step in its trailers, together with the step's seal
(`seal.py`). A commit that an agent makes has no trailers; the step records the commit, and a later merge seals the
step. A proof checks that the seal is correct, that a step left exactly the files of the commit, and that a merge
contains only what its parents contained. Making a proof requires the repository, and either the store or an exported
proof file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import new as new_hash
from typing import NamedTuple

from rolecall import __version__
from rolecall.errors import Damaged, Hint, NotFound, UsageError
from rolecall.files import git
from rolecall.files.merge import DIGEST_TRAILER, STEP_TRAILER, THREAD_TRAILER
from rolecall.files.tree import Trees
from rolecall.store.canonical import JsonObject
from rolecall.store.ids import is_node_id, is_thread_id
from rolecall.store.store import Store
from rolecall.threads.key_parts import find_step
from rolecall.threads.seal import SealedChain, Sealer
from rolecall.threads.setup import HUMAN
from rolecall.threads.state import GROUP
from rolecall.threads.thread import PERSON, Chain, Step

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:rolecall:provenance:v1"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MOST_COMMITS = 1_000
_MOST_NAMED = 20
_EVENTS = 500
# Ignore replacement objects, so that an id always means the original object.
_PLAIN = {"GIT_NO_REPLACE_OBJECTS": "1"}


class Claim(NamedTuple):
    """The trailers of a commit that name a step."""

    commit: str
    thread: str
    step: str
    digest: str


class Commit(NamedTuple):
    id: str
    tree: str
    parents: tuple[str, ...]
    title: str
    claim: Claim


class Sandboxed(NamedTuple):
    rules: str
    enforced: tuple[str, ...]


class ProvenStep(NamedTuple):
    id: str
    sha256: str
    number: int
    role: str
    agent: str
    model: str
    """The adapter with its model and options, or empty if the step does not record them."""
    version: str
    """The version of the agent's program."""
    status: str
    started_at: int
    completed_at: int
    prompt: str | None
    """The text that the agent received, or None if that text is withheld or there was none."""
    prompt_seal: str
    """The seal of the prompt, or empty if there was no prompt."""
    restrictions: tuple[str, ...]
    sandbox: Sandboxed | None
    usage: Mapping[str, float]
    failed_attempts: int
    found: str
    """The git tree that the role found, or empty if the tree was not recorded."""
    left: str
    head: str
    """The commit that was checked out when the step began."""
    commits: tuple[str, ...]
    """The commits made during the step, including its failed attempts."""
    reused: str
    """The step that this step was taken over from, if nobody was asked."""
    person: str
    """The person who answered, or `?` if a person answered but was not recorded; otherwise empty."""
    door: str
    """The interface through which the person answered, such as `web`."""


class ProofCheck(NamedTuple):
    """A command that had to succeed."""

    role: str
    command: str
    status: str
    step: str
    """The step that records the command, or empty if only the store's log does."""


class Proof(NamedTuple):
    commit: str
    tree: str
    thread: str
    step: str
    """The newest step that the proof covers."""
    digest: str
    """The seal of the newest step."""
    anchor: str
    """The commit whose trailers contain the digest, or empty if no commit contains it."""
    source: str
    """The source of the proof: `store` or `bundle`."""
    workflow: str
    task: str | None
    """The task of the thread, or None if the task is withheld."""
    files: str
    """How the commit's files were matched with a step."""
    steps: tuple[ProvenStep, ...]
    """The steps that the proof covers, oldest first."""
    checks: tuple[ProofCheck, ...]
    problems: tuple[str, ...]
    """The reasons why the commit is not proven, or empty if it is proven."""
    uncovered: tuple[str, ...]
    """What the proof does not cover."""
    sealed: SealedChain

    @property
    def is_proven(self) -> bool:
        return not self.problems

    @property
    def people(self) -> tuple[ProvenStep, ...]:
        """The steps that people took."""
        return tuple(step for step in self.steps if step.person)

    def make_statement(self) -> JsonObject:
        """Return an in-toto statement about the commit, without a signature and without texts."""
        if not self.is_proven:
            raise UsageError(f"{self.commit[:12]} is not proven: {'; '.join(self.problems)}")
        steps = [
            {
                "name": step.id,
                "digest": {"sha256": step.sha256},
                "number": step.number,
                "role": step.role,
                "agent": step.agent,
                "model": step.model,
                "version": step.version,
                "status": step.status,
                "startedOn": _write_time(step.started_at),
                "finishedOn": _write_time(step.completed_at),
                "promptSeal": step.prompt_seal,
                "restrictions": list(step.restrictions),
                "sandbox": step.sandbox._asdict() if step.sandbox else None,
                "gitTree": step.left,
                "reused": step.reused,
            }
            for step in self.steps
        ]
        approvals = [
            {"person": one.person, "door": one.door, "role": one.role, "status": one.status, "step": one.id}
            | {"on": _write_time(one.completed_at)}
            for one in self.people
        ]
        predicate = {
            "thread": self.thread,
            "workflow": self.workflow,
            "head": {"name": self.step, "digest": {"sha256": self.digest}},
            "anchor": {"digest": {"gitCommit": self.anchor}} if self.anchor else None,
            "files": self.files,
            "steps": steps,
            "checks": [check._asdict() for check in self.checks],
            "approvals": approvals,
            "notCovered": list(self.uncovered),
            "madeBy": f"rolecall {__version__}",
        }
        # There are two subjects, because a set of digests matches as soon as one of its digests does.
        subject = [
            {"name": "commit", "digest": {"gitCommit": self.commit}},
            {"name": "tree", "digest": {"gitTree": self.tree}},
        ]
        return {"_type": STATEMENT, "subject": subject, "predicateType": PREDICATE, "predicate": predicate}


def prove(
    folder: str,
    name: str,
    *,
    store: Store | None,
    trees: Trees | None = None,
    given: SealedChain | None = None,
) -> Proof:
    """Prove a commit of the repository around `folder`, either from the store or from `given`, an exported proof. Raise
    `NotFound` if the repository does not contain the commit, or if no known step made it."""
    commit = _find_commit(folder, name)
    claims = [commit.claim]
    if not commit.claim.step:  # a later commit may name the step; try the oldest first
        where = ("HEAD", "--branches", "--remotes", f"^{commit.id}")
        words = ("--ancestry-path", f"--grep=^{STEP_TRAILER}: ", *where)
        claims = [one.claim for one in _read_commits(folder, *words) if one.claim.step][::-1]
    sealer = Sealer(store) if store and given is None else None
    for claim in claims:
        chain: SealedChain | None = None
        if given is not None and given.step == claim.step:
            if (given.thread, given.digest) != (claim.thread, claim.digest):
                # None of the proof's content can be trusted.
                raise Damaged(
                    f"the proof is not the one that {claim.commit[:12]} sealed: its digest is {given.digest}",
                    hint="Get it again from where it was exported.",
                )
            chain = given
        elif sealer and store and store.has(claim.step):
            chain = sealer.chain(claim.thread, claim.step)
        if chain is None:
            continue
        if claim.commit == commit.id or any(commit.id in step.commits for step in _read_steps(chain, None)):
            return _Proving(folder, commit, claim, chain, store if sealer else None, trees).prove()
    known = find_step(store, f"commit-{commit.id}") if store and sealer else None
    if known is not None and sealer:  # no commit in the repository seals the step
        claim = Claim("", known.thread, known.step.id, "")
        chain = sealer.chain(known.thread, known.step.id)
        return _Proving(folder, commit, claim, chain, store, trees).prove()
    what = f"the commit {commit.id[:12]} ({commit.title})"
    if given is not None:
        raise NotFound(
            f"{what} is not the one that this proof is about", hint="Name the commit that was exported."
        )
    if commit.claim.step:
        hint = (
            "Use the store of the person who made the commit, or a proof that was exported from that store."
        )
        raise NotFound(f"{what} names the step {commit.claim.step}, which is not in this store", hint=hint)
    raise NotFound(
        f"no step is known that made {what}",
        hint=Hint(
            "It may be older than these records. See its thread", "show_thread", thread=commit.claim.thread
        )
        if commit.claim.thread
        else "Commits that Rolecall merges, and those that agents make during a step, can be proven.",
    )


@dataclass
class _Proving:
    folder: str
    commit: Commit
    claim: Claim
    chain: SealedChain
    store: Store | None
    trees: Trees | None
    problems: list[str] = field(default_factory=list)
    uncovered: list[str] = field(default_factory=list)

    def prove(self) -> Proof:
        commit, claim, chain = self.commit, self.claim, self.chain
        if claim.digest and claim.digest != chain.digest:
            self.problems.append(
                f"the steps are not those that {claim.commit[:12]} sealed: their digest is {chain.digest}"
            )
        elif not claim.digest:
            self.uncovered.append(
                "the steps themselves: no commit has their digest, so the store alone vouches for them"
            )
        for one in {commit.id, claim.commit} - {""}:
            # Git does not check a commit's id when it reads the commit.
            data = git.ask(self.folder, "cat-file", "commit", one, env=_PLAIN).out
            found = new_hash("sha1" if len(one) == 40 else "sha256", usedforsecurity=False)
            found.update(b"commit %d\0" % len(data) + data)
            if found.hexdigest() != one:
                self.problems.append(f"the commit {one[:12]} is damaged: its bytes do not give its id")

        steps = tuple(_read_steps(chain, self.store))
        files = ""
        maker = next((step for step in steps if commit.id in step.commits), None)
        if maker is not None and claim.commit != commit.id:
            files = f"step {maker.number} ({maker.role}) recorded the commit"
        elif claim.commit == commit.id:
            files = self._compare_files(steps)
        for step in steps:
            if step.agent == GROUP:
                self.uncovered.append(
                    f"how the members of the group at step {step.number} worked: each is a thread"
                )
            for child in chain.show(chain.show(step.id).get("detail")).get("children", ()):
                self.uncovered.append(f"how thread {child} played {step.role}: it has a chain of its own")
        *_, first = [chain.step, *_walk(chain)]
        start = chain.show(first)
        workflow = chain.show(start.get("workflow"))
        return Proof(
            commit.id, commit.tree, chain.thread, chain.step, chain.digest, claim.commit,
            "store" if self.store else "bundle", str(workflow.get("name", "")),
            Chain(self.store, chain.step).start.prompt if self.store else None,
            files, steps, (*_read_checks(chain, steps), *self._read_merge_check()),
            tuple(self.problems), tuple(dict.fromkeys(self.uncovered)), chain,
        )  # fmt: skip

    # -- files --

    def _compare_files(self, steps: tuple[ProvenStep, ...]) -> str:
        """Check that the commit contains the files that a step left. Return a description of the match, or report a
        problem and return an empty string."""
        work, base = self.commit, self.commit.parents[0] if self.commit.parents else ""
        if len(work.parents) == 2:
            ours, theirs = work.parents
            self._check_merge(ours, theirs)
            made = {one for step in steps for one in step.commits}
            for one in _read_commits(self.folder, theirs, f"^{ours}"):
                is_known = one.id in made or one.claim.step
                if not is_known and not (self.store and find_step(self.store, f"commit-{one.id}")):
                    self.uncovered.append(f"who made the commit {one.id[:12]} ({one.title}), which it merges")
            base = git.ask(self.folder, "merge-base", ours, theirs, env=_PLAIN).text
            work = _find_commit(self.folder, theirs)
        found = next((step for step in reversed(steps) if step.left == work.tree), None)
        if found is not None:
            return f"step {found.number} ({found.role}) left exactly these files"
        newest = next((step for step in reversed(steps) if step.left), None)
        if newest is None:
            self.problems.append("no step recorded its files")
            return ""
        tree = Step(self.store, self.store.get(newest.id)).tree if self.store else None
        if tree is None or self.trees is None:
            self.problems.append(
                f"no step left these files, and those of step {newest.number} are not here to compare"
            )
            return ""
        snapshot = tree.left
        left = self.trees.list_files(snapshot)
        changed = _list_changes(self.folder, base, work.id)
        others = sorted(path for path, file in changed.items() if left.get(path, "") != file)
        below = tuple(f"{nested}/" for nested in snapshot.nested)
        left_out = {*snapshot.omitted, *snapshot.nested}
        unrecorded = [path for path in others if path in left_out or path.startswith(below)]
        if others := [path for path in others if path not in unrecorded]:
            self.problems.append(
                f"step {newest.number} ({newest.role}) did not leave these files in this state: {_join(others)}"
            )
        if unrecorded:
            self.uncovered.append(f"files that steps do not record: {_join(unrecorded)}")
        return (
            "" if others else f"each file that it changes is as step {newest.number} ({newest.role}) left it"
        )

    def _check_merge(self, ours: str, theirs: str) -> None:
        """Report a problem if the merge contains anything that neither of its two parents contained."""
        merged = git.ask(self.folder, "merge-tree", "--write-tree", ours, theirs, env=_PLAIN)
        tree = merged.text.partition("\n")[0]
        if merged.code:
            why = "they conflict" if merged.code == 1 else "git 2.38 or later can say"
            self.problems.append(
                f"it is not known whether the merge contains only what its parents contained: {why}"
            )
        elif tree != self.commit.tree:
            words = ("diff", "--name-only", "--no-renames", "--no-ext-diff", "-z", tree, self.commit.tree)
            changed = _join(git.ask(self.folder, *words, env=_PLAIN).words)
            self.problems.append(
                f"the merge contains something that neither of its parents contained, in {changed}"
            )

    def _read_merge_check(self) -> Iterator[ProofCheck]:
        """Yield the command that had to succeed after `plan run` merged the commit, as the store's log records it."""
        after = 0
        while self.store and (page := self.store.events(self.chain.thread, after=after, limit=_EVENTS)):
            for event in page:
                is_ours = event.kind == "folder_merged" and event.body.get("head") == self.commit.id
                if is_ours and "check" in event.body:
                    yield ProofCheck("merge", " ".join(event.body["check"]), "passed", "")
            after = page[-1].seq


# -- the chain --


def _walk(chain: SealedChain) -> Iterator[str]:
    """Yield the nodes of a chain: its steps, newest first, then the steps of the thread above a member, and the first
    start."""
    node: str | None = chain.step
    while node and node in chain.nodes:
        yield node
        shown = chain.show(node)
        if "prev" in shown:
            node = shown["prev"] or shown["start"]
        else:
            node = chain.show(shown.get("group")).get("above")


def _read_steps(chain: SealedChain, store: Store | None) -> Iterator[ProvenStep]:
    for node in reversed([node for node in _walk(chain) if "prev" in chain.show(node)]):
        step = chain.show(node)
        record, output = chain.show(step["detail"]), chain.show(step["output"])
        attempts, attempt = list[JsonObject](), record.get("attempt")
        while attempt in chain.nodes:
            attempts.append(chain.show(attempt))
            attempt = attempts[-1].get("previous")
        trees = [one.get("tree", {}) for one in (record, *attempts)]
        is_person = step["agent"] == HUMAN or step["role"] == PERSON
        by = record.get("by") or output.get("by") or {}
        box, parts, prompt = record.get("sandbox"), record.get("parts", {}), record.get("prompt")
        text = Step(store, store.get(node)).prompt if store and prompt else None
        yield ProvenStep(
            id=node,
            sha256=chain.nodes[node].sha256,
            number=record.get("number", 0),
            role=output.get("role", step["role"]) if step["role"] == PERSON else step["role"],
            agent=step["agent"],
            model=parts.get("agent", ""),
            version=parts.get("version", ""),
            status=output.get("status", ""),
            started_at=step["startedAtMs"],
            completed_at=step["completedAtMs"],
            prompt=text,
            prompt_seal=chain.nodes[step["detail"]].refs.get(prompt, "") if prompt else "",
            restrictions=tuple(parts.get("restrictions", ())),
            sandbox=Sandboxed(box["rules"], tuple(box.get("enforced", ()))) if box else None,
            usage=record.get("usage", {}),
            failed_attempts=len(attempts),
            found=trees[0].get("found", ""),
            left=trees[0].get("left", trees[0].get("found", "")),
            head=trees[0].get("head", ""),
            commits=tuple(one for tree in trees for one in tree.get("commits", ())),
            reused=record.get("reused", {}).get("step", ""),
            person=by.get("person", "?") if is_person else "",
            door=by.get("door", ""),
        )


def _read_checks(chain: SealedChain, steps: Iterable[ProvenStep]) -> Iterator[ProofCheck]:
    for step in steps:
        kind, _, command = step.model.partition(" ")
        if kind.partition(":")[0] == "command":
            yield ProofCheck(step.role, command, step.status, step.id)
        workflow = chain.show(chain.show(chain.show(step.id)["start"]).get("workflow"))
        if step.agent == GROUP and (words := workflow.get("checks", {}).get(step.role)):
            # If the command fails, the merge is undone and the work is set aside.
            yield ProofCheck(step.role, " ".join(words), "passed after each merge", step.id)


# -- git --


def _find_commit(folder: str, name: str) -> Commit:
    if name.startswith("-"):
        raise UsageError(f"{name!r} is not a commit", hint="Name a commit, a branch or a tag.")
    ident = git.ask(folder, "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}", env=_PLAIN)
    if ident.code:
        if git.ask(folder, "rev-parse", "--git-dir", env=_PLAIN).code:
            raise NotFound(f"{folder} is not in a git repository", hint="Go to the one that has the commit.")
        raise NotFound(
            f"there is no commit {name!r} in the repository around {folder}", hint="Fetch it first."
        )
    for found in _read_commits(folder, "--max-count=1", ident.text):
        return found
    raise NotFound(f"the commit {name!r} cannot be read", hint="Check the repository with `git fsck`.")


def _read_commits(folder: str, *words: str) -> Iterator[Commit]:
    options = ("--no-show-signature", f"--max-count={_MOST_COMMITS}", "-z", "--format=%H%x1f%T%x1f%P%x1f%B")
    for record in git.ask(folder, "log", *options, *words, env=_PLAIN).words:
        ident, tree, parents, message = record.split("\x1f", 3)
        # A squashed commit can have the trailers of several commits; the last trailers are the newest. GitHub writes
        # lines below them.
        thread, step, digest = (
            ["", *re.findall(rf"(?m)^{name}: (\S+)\s*$", message)][-1]
            for name in (THREAD_TRAILER, STEP_TRAILER, DIGEST_TRAILER)
        )
        is_named = is_thread_id(thread) and is_node_id(step)
        sealed = _DIGEST.fullmatch(digest)
        thread, step = thread if is_thread_id(thread) else "", step if is_named else ""
        claim = Claim(ident, thread, step, sealed[1] if sealed else "")
        yield Commit(ident, tree, tuple(parents.split()), message.partition("\n")[0], claim)


def _list_changes(folder: str, before: str, after: str) -> dict[str, str]:
    """Return the new mode and id of each file that differs, or an empty string for a removed file."""
    pair = (before, after) if before else ("--root", after)
    options = ("-r", "--no-renames", "--no-commit-id", "--raw", "-z", "--no-abbrev")
    words = git.run(folder, "diff-tree", *options, *pair, env=_PLAIN).words
    changed = {}
    for about, path in zip(words[::2], words[1::2], strict=True):
        _, mode, _, ident, kind = about.split()
        changed[path] = "" if kind == "D" else f"{mode} {ident}"
    return changed


def _join(paths: list[str]) -> str:
    rest = len(paths) - _MOST_NAMED
    return ", ".join(paths[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


# -- statements --


def _write_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

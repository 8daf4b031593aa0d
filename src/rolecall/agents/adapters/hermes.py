"""Hermes Agent without a terminal: `hermes -z` for a new session, `hermes chat -Q --resume` to continue one.

It prints only its answer, so there are no live events, turns or files; `acp:hermes` reports them. A new session's id
and usage come from the `--usage-file`; a resumed session prints its id on stderr, reports no usage, and works in its
original folder. An endpoint failure is printed like an answer, with exit code 0.

It accepts a prompt only as an argument, which is limited to 128 KB. So the prompt is written to a file in the run's own
folder, and the argument tells the agent to read it, with its file tools or its shell. Therefore, a role cannot be
denied both, and cannot be read-only. A restricted role can use the remaining toolsets, without the tool servers in the
user's configuration; the program accepts no other servers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rolecall.agents.process import Exit
from rolecall.agents.program import Json, Program, ProgramCall, Reader, read_object, write_file
from rolecall.agents.protocol import Context, Ending, Reply, Usage
from rolecall.errors import UsageError
from rolecall.settings import capabilities

_HARMLESS = ("web", "vision", "todo", "session_search")
_FILES = ("file",)
_SHELL = ("terminal", "code_execution")

DENIES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(capabilities.FILES, _FILES),
    **dict.fromkeys(capabilities.SHELL, _SHELL),
}
"""The toolsets to deny for each class of actions."""

_ASK = (
    "Your task is in the file {path}. Read all of that file, to its last line, and do what it says as if"
    " it were written here. Your last message is the answer that it asks for."
)
_USAGE = "usage.json"
_SESSION = re.compile(r"^session_id: (\S+)$", re.MULTILINE)
_WARNINGS = re.compile(r"\A(?:\s*⚠ [^\n]*\n)+")
_API_ERROR = re.compile(r"\A(?:HTTP \d{3}|API (?:call )?(?:failed|error))", re.IGNORECASE)


class HermesReader(Reader):
    """A reader of Hermes's output. Hermes sends no events: everything is read at the end, and at most 256 KB of an
    answer are kept."""

    no_session = ("Session not found",)

    def event(self, event: Json) -> None:
        """Ignore the event, which is a line of the answer that looks like one; the whole answer is read at the end."""

    def usage(self) -> Usage | None:
        # There is no usage file after a resumed session or a run that was ended early.
        figures = read_object(self.folder / _USAGE)
        if figures.amount("input_tokens") is None:
            return None
        cost = figures.amount("estimated_cost_usd") if figures.get("cost_status") != "unknown" else None
        read, turns = ["input_tokens", "cache_read_tokens", "cache_write_tokens"], figures.count("api_calls")
        return figures.usage(read, ["output_tokens"], ["cache_read_tokens"], cost=cost, turns=turns)

    def finish(self, exit: Exit) -> Reply:
        figures, named = read_object(self.folder / _USAGE), _SESSION.search(exit.stderr)
        self.transcript.in_session(named[1] if named else figures.text("session_id"))
        text = _WARNINGS.sub("", exit.stdout).removesuffix("\n")
        is_lost = bool(exit.code) and self.is_lost(exit.stderr)
        if is_lost or (exit.code and not named) or not (named or figures):
            return self.no_answer(exit)
        self.transcript.says(text)
        if exit.code or figures.get("failed"):
            reason = figures.text("failure") or text or exit.reason
            ending: Ending = "api_failure" if _API_ERROR.match(reason) else "failed"
            return self.answer(ending, reason[:2000])
        if used := self.usage():
            self.transcript.uses(used)
        if figures.get("completed") is False:
            return self.answer("limit", "it stopped at one of its own limits before it was done")
        return self.answer()


@dataclass(frozen=True, kw_only=True)
class Hermes(Program):
    name = program = "hermes"
    reads = HermesReader
    install = "pip install hermes-agent"
    needed_flags = (
        "--oneshot", "--usage-file", "--toolsets", "--resume", "--yolo", "--model",
    )  # fmt: skip
    deniable = frozenset(DENIES)
    signed_in = (
        "OPENROUTER_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "~/.hermes/auth.json",
        "~/.hermes/.env?", "~/.hermes/config.yaml?", "HERMES_HOME?",
    )  # fmt: skip

    def call(self, prompt: str, context: Context, folder: Path) -> ProgramCall:
        ask = _ASK.format(path=write_file(folder, "prompt.md", prompt))
        if context.session:
            argv = [self.command, "chat", "--quiet", "--yolo", "--resume", context.session, "--query", ask]
        else:
            argv = [self.command, "--oneshot", ask, "--usage-file", str(folder / _USAGE)]
        denied = set(capabilities.denied_tools(DENIES, context.capabilities, sandboxed=context.is_confined))
        left = [one for one in (*_FILES, *_SHELL) if one not in denied]
        if not left:
            raise UsageError(
                "the agent 'hermes' cannot be denied files and the shell at once: it reads its prompt with them",
                hint="Give the role another agent, or remove one of the restrictions.",
            )
        if denied:
            argv += ["--toolsets", ",".join((*left, *_HARMLESS))]
        return ProgramCall([*argv, *self.last_arguments], env=self.env)


hermes = Hermes

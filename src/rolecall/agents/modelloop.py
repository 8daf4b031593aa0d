"""The built-in agent's loop: ask the model and carry out its tool calls until it answers. Imported when it runs.

A session is the conversation, stored message by message in the context's memory: messages to the model before they are
sent, answers and tool results as soon as they arrive. So a run that continues after a crash has the complete
conversation, and tells the model which tool call was interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from pydantic import ValidationError
from pydantic_ai.messages import (
    InstructionPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from rolecall.agents.modelclient import Asking, Unanswered
from rolecall.agents.protocol import Context, Ending, Memory, Reply, Usage, failure
from rolecall.agents.toolbox import Toolbox
from rolecall.agents.transcript import Transcript

_SYSTEM = (
    "You do one task and then answer. Your tools act on the work folder; give paths relative to it. Look at "
    "what is there before you change it. When the work is done, answer in text without calling a tool: that "
    "answer is all that is read."
)
_INTERRUPTED = "interrupted: it is not known whether this was done, or how far; look before you go on"
_PIECE = 400
"""Characters of live text in one event, because every event is stored."""


class Run:
    """One call of the agent. It can return a reply with its progress at any time."""

    def __init__(
        self,
        context: Context,
        model: Model,
        *,
        system: str,
        max_turns: int,
        max_tokens: int | None,
        max_output: int | None,
        retries: int,
        deadline: float,
        secret: str | None,
    ) -> None:
        self._context = context
        self._max_turns = max_turns
        self._max_tokens = max_tokens
        self._transcript = Transcript(context)
        self._box = Toolbox(context, self._transcript.touches)
        self._used = Usage()
        self._ask = Asking(
            model,
            ModelRequestParameters(
                function_tools=[
                    ToolDefinition(
                        name=tool.name, description=tool.description, parameters_json_schema=tool.schema
                    )
                    for tool in self._box.tools.values()
                ],
                instruction_parts=[InstructionPart(content=f"{_SYSTEM}\n\n{system}" if system else _SYSTEM)],
            ),
            settings=ModelSettings(max_tokens=max_output) if max_output else ModelSettings(),
            retries=retries,
            deadline=deadline,
            secret=secret,
        )

    async def answer(self, prompt: str) -> Reply:
        history = _open_history(self._context, self._transcript, prompt)
        try:
            for _ in range(self._max_turns):
                used = self._used.input_tokens + self._used.output_tokens
                if self._max_tokens and used >= self._max_tokens:
                    return self.reply("limit", f"the limit of {self._max_tokens:,} tokens is reached")
                response = await self._ask(history.messages, self._listen)
                history.add(response)
                self._count(response)
                if response.finish_reason == "content_filter":
                    said = str((response.provider_details or {}).get("refusal") or response.text or "")
                    return self.reply(
                        "refused", f"the model declined: {said}" if said else "the model declined"
                    )
                if response.finish_reason == "length":
                    return self.reply("limit", "the model's message reached the limit of its length")
                if not response.tool_calls:
                    return self.reply("completed", text=response.text or "")
                if self._used.turns < self._max_turns:
                    await self._use_tools(response, history)
        except Unanswered as unanswered:
            return self.reply(unanswered.ending, unanswered.reason, hint=unanswered.hint)
        return self.reply("limit", f"the limit of {self._max_turns} turns is reached")

    async def _use_tools(self, response: ModelResponse, history: History) -> None:
        for call in response.tool_calls:
            try:
                arguments: object = call.args_as_dict(raise_if_invalid=True)
            except (ValueError, AssertionError):
                arguments = call.args  # the toolbox explains any problem with them
            ident = f"{self._used.turns}:{call.tool_call_id}"  # some endpoints restart their numbering in every message
            self._transcript.calls(ident, call.tool_name, arguments)
            result = await self._box.use(call.tool_name, arguments)
            self._transcript.returns(ident, result.text)
            history.add_result(call, result.text, "failed" if result.is_error else "success")

    def _count(self, response: ModelResponse) -> None:
        used, before = response.usage, self._used
        self._used = Usage(
            before.input_tokens + used.input_tokens,
            before.output_tokens + used.output_tokens,
            before.cached_tokens + used.cache_read_tokens,
            turns=before.turns + 1,
        )
        self._transcript.uses(self._used)

    @contextmanager
    def _listen(self) -> Iterator[Callable[[str], None]]:
        """Pass on the text of one message in pieces large enough for an event."""
        waiting: list[str] = []
        is_begun = False

        def pass_on() -> None:
            nonlocal is_begun
            if waiting:
                self._transcript.says("".join(waiting), is_continued=is_begun)
                waiting.clear()
                is_begun = True

        def say(text: str) -> None:
            if text:
                waiting.append(text)
            if sum(map(len, waiting)) >= _PIECE:
                pass_on()

        try:
            yield say
        finally:
            pass_on()

    def reply(self, ending: Ending, reason: str = "", *, text: str | None = None, hint: str = "") -> Reply:
        kept = self._transcript
        return Reply(
            kept.answer if text is None else text,
            session=kept.session,
            usage=self._used,
            turns=kept.turns if any(turn.tool_calls for turn in kept.turns) or kept.count > 1 else (),
            files=kept.files,
            ending=ending,
            reason=reason,
            hint=hint,
        )


# -- the session --


class History:
    def __init__(self, memory: Memory, session: str, records: list[str]) -> None:
        self._memory = memory
        self._session = session
        self.messages: list[ModelMessage] = []
        for record in records:
            for message in ModelMessagesTypeAdapter.validate_json(record):
                self._append(message)

    def add(self, said: ModelMessage | ModelRequestPart) -> None:
        message = said if isinstance(said, (ModelRequest, ModelResponse)) else ModelRequest(parts=[said])
        self._memory.add(self._session, ModelMessagesTypeAdapter.dump_json([message]).decode())
        self._append(message)

    def add_result(
        self, call: ToolCallPart, text: str, outcome: Literal["success", "failed", "interrupted"]
    ) -> None:
        self.add(ToolReturnPart(call.tool_name, text, call.tool_call_id, outcome=outcome))

    def _append(self, message: ModelMessage) -> None:
        """Append a message, merging everything sent to the model between two of its answers."""
        last = self.messages[-1] if self.messages else None
        if isinstance(message, ModelRequest) and isinstance(last, ModelRequest):
            self.messages[-1] = ModelRequest(parts=[*last.parts, *message.parts])
        else:
            self.messages.append(message)

    def ask(self, prompt: str) -> None:
        """Add the prompt, unless the session stopped in the middle of answering it."""
        asked: list[ToolCallPart] = []
        answered: set[str] = set()
        for message in self.messages[-2:]:
            if isinstance(message, ModelResponse):
                asked = message.tool_calls
            else:
                answered = {part.tool_call_id for part in message.parts if isinstance(part, ToolReturnPart)}
        for call in asked:
            if call.tool_call_id not in answered:
                self.add_result(call, _INTERRUPTED, "interrupted")

        is_open = bool(self.messages) and isinstance(self.messages[-1], ModelRequest)
        parts = (part for message in reversed(self.messages) for part in reversed(message.parts))
        latest = next((part.content for part in parts if isinstance(part, UserPromptPart)), None)
        if not (is_open and latest == prompt):
            self.add(UserPromptPart(content=prompt))


def _open_history(context: Context, transcript: Transcript, prompt: str) -> History:
    """Load the conversation and add the prompt; the session is recorded before the model is asked."""
    memory, known = context.memory, context.session
    records = memory.read(known) if known else []
    if known and not records:
        reason = f"there is no session {known!r}"
        raise failure(Reply("", ending="failed", reason=reason, is_session_lost=True))
    session = known if known and not context.is_fork else f"builtin-{os.urandom(8).hex()}"
    try:
        history = History(memory, session, records)
    except ValidationError as error:
        reason = f"the session {known!r} cannot be read: {error.error_count()} errors"
        raise failure(Reply("", ending="failed", reason=reason, is_session_lost=True)) from error
    transcript.in_session(session)
    if context.is_fork:
        for record in records:
            memory.add(session, record)
    history.ask(prompt)
    return history

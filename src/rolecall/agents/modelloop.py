"""The built-in agent's loop: ask the model, and carry out its tool calls until it answers.

Imported only when the agent runs. A session is the conversation, stored message by message in the context's memory:
messages to the model before they are sent, answers and tool results as soon as they arrive. A run that continues after
a crash therefore has the complete conversation, and tells the model which tool call was interrupted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

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
from pydantic_ai.tools import ToolDefinition

from rolecall.agents.model_options import ModelOptions
from rolecall.agents.modelclient import Asking, NoAnswer
from rolecall.agents.protocol import Context, Ending, Memory, Reply, Usage
from rolecall.agents.toolbox import ModelToolbox
from rolecall.agents.transcript import Transcript

_SYSTEM = (
    "You do one task and then answer. Your tools act on the work folder; give paths relative to it. Look at "
    "what is there before you change it. When the work is done, answer in text without calling a tool: that "
    "answer is all that is read."
)
_INTERRUPTED = "interrupted: it is not known whether this was done, or how far; look before you continue"
_LEAST_TEXT = 400
"""The minimum number of characters of live text in an event, except the last of a message. Every event is stored."""


class ModelRun:
    """One call of the agent, which can return a reply with its progress at any time."""

    def __init__(self, context: Context, model: Model, options: ModelOptions) -> None:
        self._context = context
        self._options = options
        self._transcript = Transcript(context)
        self._box = ModelToolbox(context, self._transcript.touches)
        self._used = Usage()
        tools = [
            ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=tool.schema)
            for tool in self._box.tools.values()
        ]
        system = f"{_SYSTEM}\n\n{options.system}" if options.system else _SYSTEM
        parameters = ModelRequestParameters(
            function_tools=tools, instruction_parts=[InstructionPart(content=system)]
        )
        # The timeout starts here, because importing the libraries does not count.
        deadline = asyncio.get_running_loop().time() + (options.timeout or float("inf"))
        self._ask = Asking(model, parameters, options, deadline)

    async def answer(self, prompt: str) -> Reply:
        try:
            history = ModelHistory.open(self._context)
        except LookupError as error:
            return self.reply("failed", str(error), is_session_lost=True)
        self._transcript.in_session(history.session)
        history.ask(prompt)
        max_turns, max_tokens = self._options.max_turns, self._options.max_tokens
        try:
            for _ in range(max_turns):
                if max_tokens and self._used.input_tokens + self._used.output_tokens >= max_tokens:
                    return self.reply("limit", f"the limit of {max_tokens:,} tokens is reached")
                response = await self._ask(history.messages, self._listen)
                history.add(response)
                used = response.usage
                self._used = self._used.plus(
                    Usage(used.input_tokens, used.output_tokens, used.cache_read_tokens, turns=1)
                )
                self._transcript.uses(self._used)
                if response.finish_reason == "content_filter":
                    why = str((response.provider_details or {}).get("refusal") or response.text or "")
                    return self.reply("refused", f"the model declined{f': {why}' if why else ''}")
                if response.finish_reason == "length":
                    return self.reply("limit", "the model's message reached the limit of its length")
                if not response.tool_calls:
                    return self.reply("completed", text=response.text or "")
                for call in response.tool_calls if self._used.turns < max_turns else ():
                    try:
                        arguments: object = call.args_as_dict(raise_if_invalid=True)
                    except (ValueError, AssertionError):
                        arguments = call.args  # the toolbox explains any problem with the arguments
                    # Some endpoints restart the numbering of tool calls in every message.
                    ident = f"{self._used.turns}:{call.tool_call_id}"
                    self._transcript.calls(ident, call.tool_name, arguments)
                    result = await self._box.use(call.tool_name, arguments)
                    self._transcript.returns(ident, result.text)
                    history.add_result(call, result.text, "failed" if result.is_error else "success")
        except NoAnswer as error:
            return self.reply(error.ending, error.reason, hint=error.hint)
        return self.reply("limit", f"the limit of {max_turns} turns is reached")

    @contextmanager
    def _listen(self) -> Iterator[Callable[[str], None]]:
        """Pass on the text of one message in pieces that are large enough for an event."""
        waiting, is_continued = "", False

        def say(text: str, least: int = _LEAST_TEXT) -> None:
            nonlocal waiting, is_continued
            waiting += text
            if waiting and len(waiting) >= least:
                self._transcript.says(waiting, is_continued=is_continued)
                waiting, is_continued = "", True

        try:
            yield say
        finally:
            say("", least=1)

    def reply(self, ending: Ending, reason: str = "", *, text: str | None = None, **more: Any) -> Reply:
        answer = self._transcript.answer if text is None else text
        return self._transcript.reply(answer, ending, reason, usage=self._used, **more)


class ModelHistory:
    """The conversation of a session."""

    def __init__(self, memory: Memory, session: str) -> None:
        self._memory = memory
        self.session = session
        self.messages: list[ModelMessage] = []

    @classmethod
    def open(cls, context: Context) -> ModelHistory:
        """Load the session to continue, or a copy of it for a fork, or start a new session. Raise LookupError if the
        session is lost."""
        memory, known = context.memory, context.session
        records = memory.read(known) if known else []
        if known and not records:
            raise LookupError(f"the session {known!r} is not known")
        session = known if known and not context.is_fork else f"builtin-{os.urandom(8).hex()}"
        history = cls(memory, session)
        try:
            for record in records:
                for message in ModelMessagesTypeAdapter.validate_json(record):
                    history._append(message)
        except ValidationError as error:
            reason = f"the session {known!r} cannot be read: {error.error_count()} errors"
            raise LookupError(reason) from error
        if context.is_fork:
            for record in records:
                memory.add(session, record)
        return history

    def add(self, said: ModelMessage | ModelRequestPart) -> None:
        message = said if isinstance(said, (ModelRequest, ModelResponse)) else ModelRequest(parts=[said])
        self._memory.add(self.session, ModelMessagesTypeAdapter.dump_json([message]).decode())
        self._append(message)

    def add_result(
        self, call: ToolCallPart, text: str, outcome: Literal["success", "failed", "interrupted"]
    ) -> None:
        self.add(ToolReturnPart(call.tool_name, text, call.tool_call_id, outcome=outcome))

    def _append(self, message: ModelMessage) -> None:
        """Append a message. Consecutive messages to the model are merged into one."""
        last = self.messages[-1] if self.messages else None
        if isinstance(message, ModelRequest) and isinstance(last, ModelRequest):
            self.messages[-1] = ModelRequest(parts=[*last.parts, *message.parts])
        else:
            self.messages.append(message)

    def ask(self, prompt: str) -> None:
        """Add the prompt, unless the session stopped before the model had answered the same prompt. Record tool calls
        without a result as interrupted."""
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

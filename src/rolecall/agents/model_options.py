"""The options of the built-in agent."""

from __future__ import annotations

from dataclasses import dataclass, field

from rolecall.agents.protocol import DEFAULT_TIMEOUT


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    model: str = ""
    """The endpoint's name of the model; preferably an alias of the configuration: `builtin:ALIAS`."""
    base_url: str = ""
    """The URL without a trailing /chat/completions or /messages."""
    api_key: str | None = field(default=None, repr=False)
    """The key; preferably configure a provider with a key instead."""
    protocol: str = "openai"
    """The endpoint's protocol: `openai` (chat completions) or `anthropic` (messages)."""
    timeout: float | None = DEFAULT_TIMEOUT
    """Seconds for the whole call, including all turns, tools and retries."""
    max_turns: int = 100
    """How many requests to the model one call may make."""
    max_tokens: int | None = None
    """How many tokens, input and output, one call may use before no further turn starts."""
    max_output: int | None = None
    """The most tokens in one model message; None leaves this to the endpoint."""
    retries: int = 4
    """How many times to repeat a request if the endpoint is busy or unreachable."""
    system: str = ""
    """Added to the system prompt."""

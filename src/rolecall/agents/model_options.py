"""The options of the built-in agent."""

from __future__ import annotations

from dataclasses import dataclass, field

from rolecall.agents.protocol import DEFAULT_TIMEOUT


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    model: str = ""
    """The model's name at its endpoint, or preferably an alias defined in the configuration: `builtin:ALIAS`."""
    base_url: str = ""
    """The endpoint's URL without a trailing /chat/completions or /messages."""
    api_key: str | None = field(default=None, repr=False)
    """The key. It is better to configure a provider with a key instead."""
    protocol: str = "openai"
    """The endpoint's protocol: `openai` (chat completions) or `anthropic` (messages)."""
    timeout: float | None = DEFAULT_TIMEOUT
    """The maximum number of seconds for the whole call, including all turns, tools and retries."""
    max_turns: int = 100
    """The maximum number of requests to the model in one call."""
    max_tokens: int | None = None
    """The number of tokens, input and output together, after which a call starts no further turn; None for no limit."""
    max_output: int | None = None
    """The maximum number of tokens in one model message; None leaves the limit to the endpoint."""
    retries: int = 4
    """The maximum number of times that a request is repeated if the endpoint is busy or unreachable."""
    system: str = ""
    """Text added to the system prompt."""

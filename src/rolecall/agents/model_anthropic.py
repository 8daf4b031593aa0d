"""Models behind an endpoint that implements Anthropic's Messages API."""

from __future__ import annotations

import httpx2
from anthropic import AsyncAnthropic
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
from pydantic_ai.providers.anthropic import AnthropicProvider


def connect(name: str, base_url: str, key: str, client: httpx2.AsyncClient) -> tuple[Model, dict[str, str]]:
    """Return the model, and the headers that authorize its requests."""
    # The library itself adds the API version to the address.
    root = base_url.rstrip("/").removesuffix("/v1")
    made = AsyncAnthropic(api_key=key, base_url=root, http_client=client, max_retries=0)
    # Every turn sends the whole conversation, so without the cache each turn costs the full price.
    caching = AnthropicModelSettings(
        anthropic_cache_instructions=True,
        anthropic_cache_tool_definitions=True,
        anthropic_cache_messages=True,
    )
    provider = AnthropicProvider(anthropic_client=made)
    return AnthropicModel(name, provider=provider, settings=caching), dict(made.auth_headers)

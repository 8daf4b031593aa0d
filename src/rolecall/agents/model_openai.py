"""Models behind an endpoint that implements OpenAI's chat completions API."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx2
from openai import AsyncOpenAI
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider


def connect(name: str, base_url: str, key: str, client: httpx2.AsyncClient) -> tuple[Model, dict[str, str]]:
    """Return the model, and the headers that authorize its requests."""
    is_openais_own = urlsplit(base_url).hostname == "api.openai.com"
    profile = OpenAIModelProfile(
        # Without this option, a truncated answer would pass for a complete one.
        openai_chat_streaming_requires_finish_reason=True,
        openai_supports_strict_tool_definition=is_openais_own,
        openai_chat_supports_max_completion_tokens=is_openais_own,
    )
    made = AsyncOpenAI(api_key=key, base_url=base_url, http_client=client, max_retries=0)
    provider = OpenAICompatibleProvider("openai-compatible", openai_client=made, profile=profile)
    return OpenAIChatModel(name, provider=provider), {"authorization": f"Bearer {key}"}

"""The names that spans use: those of OpenTelemetry's conventions for generative AI, and Rolecall's own.

The conventions are still in development. The names here are from the last release that was published as a whole;
`SCHEMA` tells readers of the spans which release that is.
"""

from __future__ import annotations

from collections.abc import Mapping

VERSION = "1.41.1"
SCHEMA = f"https://opentelemetry.io/schemas/{VERSION}"

# The operations, with which the names of spans begin.
INVOKE_WORKFLOW = "invoke_workflow"
INVOKE_AGENT = "invoke_agent"
EXECUTE_TOOL = "execute_tool"
CHAT = "chat"
HUMAN = "human"
"""Rolecall's own operation, which means that a person has answered. The conventions have no operation for that."""

OPERATION = "gen_ai.operation.name"
WORKFLOW = "gen_ai.workflow.name"
AGENT = "gen_ai.agent.name"
AGENT_VERSION = "gen_ai.agent.version"
PROVIDER = "gen_ai.provider.name"
MODEL = "gen_ai.request.model"
CONVERSATION = "gen_ai.conversation.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
TOOL = "gen_ai.tool.name"
INPUT = "gen_ai.input.messages"
OUTPUT = "gen_ai.output.messages"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
ERROR = "error.type"
OTHER_ERROR = "_OTHER"

PROVIDERS: Mapping[str, str] = {
    "claude": "anthropic",
    "codex": "openai",
    "gemini": "gcp.gemini",
}
"""The providers of adapters with only one provider. Others are named after the adapter."""
FINISHES: Mapping[str, str] = {"completed": "stop", "limit": "length", "refused": "content_filter"}
"""The finish reasons for the ways in which an agent that has answered can end."""
TOOL_CALL_FINISH = "tool_call"
OTHER_FINISH = "error"

"""The JSON Schema of `rolecall.yaml`, for editors. `projectfile.py` is the authority; this helps while typing."""

from __future__ import annotations

from typing import Any

_TEXT = {"type": "string"}
_TEXTS = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}


def json_schema() -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Rolecall project",
        **_section(
            {
                "name": _said(
                    "The name of the project; by default the name of its folder.",
                    pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$",
                ),
                "extract": _section(
                    {
                        "provider": _said("A provider of the configuration."),
                        "baseUrl": _said("An address, in place of a provider."),
                        "model": _TEXT,
                        "apiKeyEnv": _said("The variable that holds the key."),
                        "timeout": {"type": "number", "exclusiveMinimum": 0},
                    },
                    "The model that reads answers without output.",
                ),
                "service": _section(
                    {
                        "limit": _count("Threads at once, over all workflows."),
                        "rates": {
                            "type": ["object", "null"],
                            "additionalProperties": _TEXT,
                            "description": "Calls of an agent: {claude: 30/min}.",
                        },
                        "spend_per_day": {
                            "type": ["number", "null"],
                            "minimum": 0,
                            "description": "Dollars.",
                        },
                        "worker": _section(
                            {"memory_mb": _count("", least=64), "cpu_minutes": _count("")},
                            "Limits of one step.",
                        ),
                    },
                    "For `rolecall serve`.",
                ),
                "workflows": {
                    "type": ["object", "null"],
                    "additionalProperties": _workflow(),
                    "description": "How threads of a workflow run, and what starts them.",
                },
                "hooks": _section(
                    {"host": _TEXT, "port": {"type": "integer", "minimum": 0, "maximum": 65535}},
                    "The address of HTTP triggers.",
                ),
                "knowledge": _section(
                    {
                        "include": _TEXTS,
                        "exclude": _TEXTS,
                        "embedding": {"type": ["object", "string", "null"]},
                        "chunk": _section(
                            {"tokens": _count("", least=50), "largestFile": _count("", least=1000)}, ""
                        ),
                        "weights": {"type": ["object", "null"]},
                    },
                    "What is indexed for `rolecall knowledge`.",
                ),
            },
            "",
        ),
    }


def _workflow() -> dict[str, Any]:
    triggers = {
        "type": ["object", "null"],
        "additionalProperties": _trigger(),
        "description": "What starts threads automatically, by name.",
    }
    return _section(
        {
            "concurrency": _count("Threads of this workflow at once."),
            "overflow": {
                "enum": ["queue", "drop"],
                "description": "What happens to new threads while it is busy.",
            },
            "max_queue": _count("How many threads may wait; if more do, the oldest is discarded.", least=0),
            "priority": {**_count("The higher one is admitted first.", least=0), "maximum": 9},
            "triggers": triggers,
        },
        "",
    )


def _trigger() -> dict[str, Any]:
    duration = _said("A number and a unit: 30s, 15m, 2h or 1d.", pattern=r"^\s*[0-9.]+\s*(s|m|min|h|d)\s*$")
    return _section(
        {
            "every": duration,
            "cron": _said("Minute, hour, day, month, weekday."),
            "timezone": _said("Of `cron`; by default UTC."),
            "files": {**_TEXTS, "description": "File name patterns, relative to the project's folder."},
            "command": {
                "type": "array",
                "items": _TEXT,
                "minItems": 1,
                "description": "A command; the trigger fires when its output changes.",
            },
            "http": {
                **_section({"secret_env": _TEXT, "signature": _TEXT}, "A request."),
                "required": ["secret_env"],
            },
            "sense": _said("The name of a function in `senses`."),
            "prompt": _said("What the thread is asked to do: a Mustache template over the signal."),
            "dedupe": _said("A template: of signals with the same text only the first starts a thread."),
            "cooldown": duration,
            "timeout": duration,
        },
        "One source, and a schedule if the source must be polled.",
    )


def _section(properties: dict[str, Any], description: str) -> dict[str, Any]:
    about = {"description": description} if description else {}
    return {"type": ["object", "null"], "properties": properties, "additionalProperties": False, **about}


def _said(description: str, **more: Any) -> dict[str, Any]:
    return {**_TEXT, "description": description, **more}


def _count(description: str, least: int = 1) -> dict[str, Any]:
    about = {"description": description} if description else {}
    return {"type": ["integer", "null"], "minimum": least, **about}

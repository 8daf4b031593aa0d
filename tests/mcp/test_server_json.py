"""`server.json`, the description of the server for registries: in step with the package, and in their format."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft7Validator
from pipe import PROGRAM, environment, make_project, request

from rolecall import __version__
from rolecall.settings import config

ROOT = Path(__file__).parents[2]
SERVER = json.loads((ROOT / "server.json").read_text(encoding="utf-8"))
WORD = {"type": "string", "minLength": 1}
INPUT = {
    "description": WORD,
    "format": {"enum": ["string", "number", "boolean", "filepath"]},
    "isRequired": {"type": "boolean"},
    "placeholder": WORD,
}
"""What a user may be asked for."""


def closed(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """An object that has these properties and no other, so that a misspelt one is noticed."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


ARGUMENT = {
    "oneOf": [
        closed({"type": {"const": "positional"}, "value": WORD}),
        closed({"type": {"const": "named"}, "name": {"type": "string", "pattern": "^--[a-z-]+$"}}, INPUT),
    ]
}
VERSION = {"type": "string", "pattern": r"^\d+\.\d+\.\d+[0-9A-Za-z.+-]*$", "maxLength": 255}
PACKAGE = closed(
    {
        "registryType": {"const": "pypi"},
        "identifier": WORD,
        "transport": closed({"type": {"const": "stdio"}}),
    },
    {
        "version": VERSION,
        "runtimeHint": {"enum": ["uvx"]},
        "packageArguments": {"type": "array", "items": ARGUMENT},
        "environmentVariables": {"type": "array", "items": closed({"name": WORD}, INPUT)},
    },
)
FORMAT = closed(
    {
        "$schema": {"const": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"},
        "name": {"type": "string", "pattern": r"^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$", "maxLength": 200},
        "description": {"type": "string", "minLength": 1, "maxLength": 100},
        "version": VERSION,
        "packages": {"type": "array", "items": PACKAGE, "minItems": 1},
    },
    {"title": {"type": "string", "minLength": 1, "maxLength": 100}},
)


def test_it_has_the_format_of_the_registry() -> None:
    assert [str(error) for error in Draft7Validator(FORMAT).iter_errors(SERVER)] == []


def test_its_versions_and_names_are_those_of_the_package() -> None:
    (package,) = SERVER["packages"]
    assert {SERVER["version"], package["version"]} == {__version__}
    assert package["identifier"] == "rolecall"
    # The registry believes that a package belongs to a server if the package's page names the server.
    assert f"mcp-name: {SERVER['name']}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_command_it_describes_starts_the_server(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    (package,) = SERVER["packages"]
    given = {"--project": str(project), "--without": "knowledge,skills"}
    words = []
    for argument in package["packageArguments"]:
        name = argument.get("name")
        words += [argument["value"]] if name is None else [name, given[name]]
    opening = request(1, "initialize", {"protocolVersion": "2025-11-25"})
    done = subprocess.run(
        [PROGRAM, *words],
        input=json.dumps(opening) + "\n",
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        timeout=120,
        check=True,
    )
    output = json.loads(done.stdout)["result"]
    assert output["serverInfo"]["version"] == SERVER["version"]
    assert output["serverInfo"]["title"] == SERVER["title"]
    assert set(output["capabilities"]) == {"tools", "resources"}


@pytest.mark.parametrize(
    "variable", SERVER["packages"][0]["environmentVariables"], ids=lambda one: one["name"]
)
def test_the_variables_it_names_are_read(variable: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable["name"], "/elsewhere")
    assert config.home() == "/elsewhere"

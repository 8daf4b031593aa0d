"""The fixtures of the contract, as far as they are beside the project, played through the tools."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from project_stage import call_tool

from rolecall.errors import RolecallError
from rolecall.nexus import project_paths, tools

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "nexus-0.10.0" / "conformance"


def cases() -> list[Any]:
    found = []
    for kind in ("tools", "scenarios"):
        for path in sorted((FOLDER / kind).glob("*.json")):
            content = json.loads(path.read_text(encoding="utf-8"))
            found += content if isinstance(content, list) else [content]
    return found


@pytest.mark.skipif(not FOLDER.is_dir(), reason="no reference data beside the project")
@pytest.mark.parametrize("case", cases(), ids=lambda case: case["test_id"])
def test_the_tools_do_what_a_fixture_of_the_contract_expects(tmp_path: Path, case: dict[str, Any]) -> None:
    prepare(tmp_path, case.get("precondition", {}).get("state_files", {}))
    if "action" in case:
        steps = [{"action": case["action"], **case.get("postcondition", {})}]
    else:
        steps = [
            {
                "return_value": step.get("assert_return", {}),
                "state_files": step.get("assert_state", {}),
                **step,
            }
            for step in case["steps"]
        ]
    for step in steps:
        play(tmp_path, step)


def prepare(project: Path, state_files: dict[str, Any]) -> None:
    for name, content in state_files.items():
        if content is not None:
            path = project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content), encoding="utf-8")


def play(project: Path, step: dict[str, Any]) -> None:
    try:
        reply = call_tool(project, step["action"]["tool"], step["action"]["params"])
    except RolecallError as error:
        reply = {"error": error.message}
        wanted = ("error", "error_contains")
        assert any(key in step for key in wanted) or "$.error" in step["return_value"], reply
        assert step.get("error_contains", "") in error.message
    else:
        assert not step.get("error") and "error_contains" not in step
    check(reply, step.get("return_value", {}))
    for name, expected in step.get("state_files", {}).items():
        path = project / name
        assert path.exists() is (expected is not None), name
        if expected:
            check(json.loads(path.read_bytes()), expected)


def check(value: Any, expected: dict[str, Any]) -> None:
    for path, wanted in expected.items():
        assert is_as_wanted(at(value, path), wanted), (path, at(value, path), wanted)


def at(value: Any, path: str) -> Any:
    for name, number in re.findall(r"\.(\w+)|\[(-?\d+)\]", path):
        if name == "length" and isinstance(value, list):
            value = len(value)
        elif name:
            value = value.get(name)
        else:
            value = value[int(number)]
    return value


def is_as_wanted(value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, dict):
        return bool(value == wanted and (type(value) is bool) == (type(wanted) is bool))
    if wanted["type"] == "iso8601":
        return project_paths.is_time(value)
    if wanted["type"] == "number":
        return tools.is_number(value) and bool(wanted.get("min", value) <= value <= wanted.get("max", value))
    if wanted["type"] == "string":
        return len(value) >= wanted.get("minLength", 0) and bool(re.search(wanted.get("pattern", ""), value))
    return isinstance(value, bool)

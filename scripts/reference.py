"""Writes docs/reference from the parsers, the forms of YAML files, the adapters, and the verbs of MCP and the page.

    make docs-reference                       # or: .venv/bin/python scripts/reference.py

`tests/pages/test_reference.py` fails when a page differs from what this writes.
"""

from __future__ import annotations

import ast
from argparse import SUPPRESS, Action
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from importlib import import_module
from inspect import getsource
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any, get_type_hints

from rolecall.agents.adapter_table import ADAPTERS, PROGRAMS
from rolecall.agents.program import Program
from rolecall.cli import NOUNS
from rolecall.cli.parser import verb_parser, verbs_of
from rolecall.mcp.tools import GROUPS, McpTool
from rolecall.service import project_file
from rolecall.settings import settings
from rolecall.web import app, schema  # noqa: F401 -- importing the app fills the table of verbs
from rolecall.web.verbs import VERBS
from rolecall.workflow import yaml as workflow

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
COMMON = {"--help", "--format", "--json", "--color"}
"""Options of nearly every command, which the page explains once."""
SHAPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "array": "list",
    "object": "mapping",
}


def pages() -> dict[str, str]:
    """The text of every generated page, by file name."""
    return {
        "commands.md": commands_page(),
        "workflow-keys.md": keys_page(
            "Keys of a workflow",
            "[Writing a workflow](../workflows.md) explains them; `rolecall workflow schema` prints the same as a JSON "
            "Schema for editors. NAME is a name of your choice; ROLE and STATUS are those of the workflow.",
            workflow.json_schema(),
        ),
        "project-keys.md": keys_page(
            "Keys of `rolecall.yaml`",
            "Every key is optional. [The project file](../project-file.md) explains them; `rolecall workflow schema "
            "project` prints the same as a JSON Schema for editors. NAME is a name of your choice. A value in brackets "
            "is the default.",
            project_file.json_schema(),
        ),
        "configuration.md": keys_page(
            "Keys of the configuration",
            "The configuration is `config.yaml` in the home, `~/.rolecall` unless `ROLECALL_HOME` says otherwise. "
            "[`rolecall config`](../cli.md#rolecall-config) reads and changes it, such as "
            "`rolecall config set defaultAgent claude`. A value in brackets is the default. "
            'Quote a name that contains a dot: `models."gpt-4.1".name`.',
            settings.json_schema(),
        ),
        "agent-options.md": agents_page(),
        "mcp-tools.md": tools_page(),
        "web-interface.md": interface_page(),
    }


# -- commands --


def commands_page() -> str:
    lines = [
        "# Commands",
        "",
        "Every command with its arguments and an example, as `rolecall COMMAND --help` shows them. "
        "[The command line](../cli.md) has what they reply as JSON, and their exit codes.",
        "",
        "All commands take `--help` and `--color auto|always|never`; those that print a result also take "
        "`--format text|json|yaml` and `--json`.",
    ]
    for noun, (_, line) in NOUNS.items():
        verbs = verbs_of(noun)
        lines += ["", f"## {noun}", "", f"{sentence(line)}"]
        for name in sorted(verbs):
            parser = verb_parser(verbs[name])
            actions = [one for one in parser._actions if not COMMON.intersection(one.option_strings)]
            if name:
                lines += ["", f"### {noun} {name}", "", sentence(verbs[name].help)]
            lines += ["", "```text", " ".join([f"rolecall {noun} {name}".strip(), *usage(actions)]), "```"]
            rows = [(spell(one), explain(one)) for one in actions if one.help != SUPPRESS]
            lines += table(("argument", "meaning"), rows) if rows else []
            lines += ["", "```sh", verbs[name].examples.strip(), "```"]
    return "\n".join(lines) + "\n"


def usage(actions: list[Action]) -> Iterator[str]:
    """The arguments of a command in one line; options that may be left out are only announced."""
    options = [one for one in actions if one.option_strings]
    yield from (f"{one.option_strings[0]} {shape(one)}".strip() for one in options if one.required)
    for one in actions:
        if not one.option_strings:
            repeated = " …" if one.nargs in ("*", "+") else ""
            yield f"[{shape(one)}{repeated}]" if one.nargs in ("?", "*") else f"{shape(one)}{repeated}"
    if any(not one.required and one.help != SUPPRESS for one in options):
        yield "[options]"


def spell(action: Action) -> str:
    """An argument as one types it."""
    if not action.option_strings:
        return f"`{shape(action)}`"
    return ", ".join(f"`{one} {shape(action)}`".replace(" `", "`") for one in action.option_strings)


def shape(action: Action) -> str:
    """The value of an argument: its metavar, its choices, or nothing for a flag."""
    if action.nargs == 0:
        return ""
    if action.metavar is not None:
        return action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()


def explain(action: Action) -> str:
    text = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
    return text[:1].upper() + text[1:]


def sentence(line: str) -> str:
    return f"{line[0].upper()}{line[1:]}."


# -- YAML files --


def keys_page(title: str, introduction: str, schema: dict[str, Any]) -> str:
    lines = [f"# {title}", "", introduction]
    sections: dict[str, list[tuple[str, ...]]] = {}
    for above, *row in dict.fromkeys(keys(schema, "")):
        sections.setdefault(above, []).append(tuple(row))
    for above, rows in sections.items():
        lines += ["", f"## `{above}`"] if above else []
        lines += table(("key", "value", "meaning"), rows)
    return "\n".join(lines) + "\n"


def keys(schema: dict[str, Any], above: str) -> Iterator[tuple[str, str, str, str]]:
    """Every key below a schema: the path above it, the key, the kind of its value and its description."""
    for part in variants(schema):
        for name, value in part.get("properties", {}).items():
            if "not" in value or value.get("deprecated"):  # refused, or an older word for another key
                continue
            older = [
                other
                for other, same in part["properties"].items()
                if same.get("deprecated") and {**same, "deprecated": None} == {**value, "deprecated": None}
            ]
            also = f" Older files say {' or '.join(f'`{one}`' for one in older)}." if older else ""
            yield above, f"`{name}`", kind(value), value.get("description", "") + also
            yield from keys(value, f"{above}.{name}".lstrip("."))
        below = part.get("additionalProperties")
        if isinstance(below, dict):
            yield from keys(below, f"{above}.{NAMED.get(above, 'NAME')}")
        if isinstance(part.get("items"), dict):
            yield from keys(part["items"], f"{above}[]")


NAMED = {"roles": "ROLE", "graph": "ROLE", "graph.ROLE": "STATUS", "workflows": "WORKFLOW"}
"""What the names below a key are, where they are not a user's choice."""


def variants(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [leaf for part in schema["anyOf"] for leaf in variants(part)] if "anyOf" in schema else [schema]


def kind(schema: dict[str, Any]) -> str:
    """The kind of value in words; that null stands for "not given" goes without saying."""
    words: list[str] = []
    for part in variants(schema):
        if "enum" in part:
            words += [f"`{one}`" for one in part["enum"] if one is not None]
        else:
            types = part.get("type", [])
            words += [SHAPES[one] for one in ([types] if isinstance(types, str) else types) if one != "null"]
    return ", ".join(dict.fromkeys(words))


# -- agents --


def agents_page() -> str:
    common = options_of(Program)
    lines = [
        "# Options of agents",
        "",
        "Write them after the colon (`claude:model=opus timeout=600`), below a name of your own under `agents` in the "
        "configuration, or as arguments in Python. [Agents](../agents.md#options) explains how.",
        "",
        f"## Every program: {', '.join(PROGRAMS)}",
        *table(("option", "default", "meaning"), common),
    ]
    for name in (*PROGRAMS, "builtin", "acp", "command"):
        module = import_module(ADAPTERS[name])
        factory = getattr(module, name)
        made = factory if isinstance(factory, type) else get_type_hints(factory)["return"]
        rows = [row for row in options_of(made) if name not in PROGRAMS or row not in common]
        lines += ["", f"## {name}", *table(("option", "default", "meaning"), rows)] if rows else []
    return "\n".join(lines) + "\n"


def options_of(adapter: type) -> list[tuple[str, str, str]]:
    """The options of an adapter: its public fields that have a default, and the texts below them in the source."""
    meanings: dict[str, str] = {}
    for owner in reversed(adapter.__mro__[:-1]):
        [body] = ast.parse(dedent(getsource(owner))).body
        for field, text in pairwise(getattr(body, "body", [])):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                    value=ast.Constant(value=str(meaning))
                ):
                    meanings[name] = " ".join(meaning.split())
    found = []
    for one in fields(adapter):
        if one.name.startswith("_") or (one.default is MISSING and one.default_factory is MISSING):
            continue
        shown = "" if one.default in (MISSING, None, "", ()) else str(one.default).removesuffix(".0").lower()
        found.append((f"`{one.name}`", shown, meanings.get(one.name, "")))
    return found


# -- MCP --


def tools_page() -> str:
    lines = [
        "# Tools over MCP",
        "",
        "The tools that `rolecall mcp` serves, by group. [Tools over MCP](../mcp.md) says how to connect a host, and "
        "who may call what.",
    ]
    for group, module in GROUPS.items():
        lines += ["", f"## {group}"]
        tools: tuple[McpTool, ...] = import_module(module).TOOLS
        for tool in tools:
            only = " Only for the lead." if tool.is_for_lead else ""
            effect = {"reads": "Only reads.", "adds": "Adds.", "changes": "May change or delete."}[
                tool.effect
            ]
            lines += ["", f"### {tool.name}", "", f"{tool.description.strip()} *{effect}{only}*"]
            required = tool.schema.get("required", [])
            rows = [
                (
                    f"`{name}`",
                    kind(value) + (", required" if name in required else ""),
                    value.get("description", ""),
                )
                for name, value in tool.schema.get("properties", {}).items()
            ]
            lines += table(("argument", "value", "meaning"), rows) if rows else []
    return "\n".join(lines) + "\n"


# -- the page's JSON interface --


def interface_page() -> str:
    rows = []
    for path, methods in sorted(schema.describe(VERBS)["paths"].items()):
        for method, operation in sorted(methods.items()):
            given = [f"`{one['name']}`" for one in operation["parameters"] if one["in"] == "query"]
            if body := operation.get("requestBody"):
                given += [f"`{name}`" for name in body["content"]["application/json"]["schema"]["properties"]]
            rows.append((f"`{method.upper()} {path}`", ", ".join(given), operation["summary"]))
    lines = [
        "# The page's JSON interface",
        "",
        "What `rolecall web` answers beside its pages. [The web page](../web.md#the-json-interface) says how to sign "
        "in and what writing requests need; `GET /api/schema` has the same as OpenAPI 3.1, with types. GET takes the "
        "names in the query, POST in a JSON body.",
        *table(("request", "takes", "does"), rows),
    ]
    return "\n".join(lines) + "\n"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    cells = [head, ("---",) * len(head), *rows]
    text = [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in cells]
    return ["", *(f"| {row} |" for row in text)]


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Definitions: the examples are sound, and every mistake is reported at once where it was made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from definitions import errors_in, require
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.errors import NotFound
from rolecall.settings import yaml12
from rolecall.settings.yaml12 import refusal
from rolecall.store import schema
from rolecall.workflow import document, yaml
from rolecall.workflow.model import (
    WORKFLOW_SCHEMA,
    Condition,
    Edge,
    Limits,
    StoredRole,
    StoredWorkflow,
    from_payload,
    on_crash_of,
    reuse_of,
    schema_ids_of,
    to_payload,
    type_of,
)

EXAMPLES = Path(__file__).parents[2] / "examples"

SOUND = """\
name: do-work
roles:
  worker:
    prompt: Work.
    schema:
      type: object
      properties:
        $status: {enum: [done, failed]}
        note: {type: string}
        hint: {type: string}
        files: {type: array, items: {type: object, properties: {path: {type: string}}, required: [path]}}
        free: {type: object}
      required: [$status, note, files, free]
  checker:
    prompt: Check.
    schema:
      type: object
      properties: {approved: {type: boolean}}
      required: [approved]
conditions:
  rejected: steps[-1].output.approved = false
graph:
  $START: worker
  worker:
    done: {role: checker, prompt: "{{note}}"}
    failed: $FAIL
  checker:
    - {role: worker, condition: rejected}
    - {role: $END}
limits: {steps: 9}
"""


def parse(text: str) -> yaml.Definition:
    return yaml.parse(text, source="w.yaml")


def replaced(*changes: tuple[str, str]) -> str:
    text = SOUND
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def test_a_sound_definition_has_no_problems() -> None:
    result = parse(SOUND)
    assert result.problems == ()
    workflow = require(result)
    assert workflow.graph == {
        "$START": (Edge("worker"),),
        "worker": (Edge("checker", "done", prompt="{{note}}"), Edge("$FAIL", "failed")),
        "checker": (Edge("worker", condition="rejected"), Edge("$END")),
    }
    assert workflow.conditions == {"rejected": Condition("steps[-1].output.approved = false")}
    assert workflow.limits == Limits(steps=9)
    assert workflow.roles["worker"].schema["title"] == "do-work.worker"


def test_the_example_with_conditions_only_lacks_a_limit() -> None:
    result = yaml.load_file(EXAMPLES / "solve-issue.yaml")
    assert [(problem.severity, problem.line, problem.column) for problem in result.problems] == [
        ("warning", 56, 3)
    ]
    assert "developer -> reviewer -> developer can loop forever" in result.problems[0].message
    assert require(result).roles["planner"].capabilities == ("issue-analysis", "planning")


def test_the_example_with_statuses_has_no_problems() -> None:
    assert yaml.load_file(EXAMPLES / "fix-issue.yaml").problems == ()


GOAL = "prompt: Work."
LIST = "- {role: worker, condition: rejected}"
TO_END = SOUND[SOUND.index("failed: $FAIL") : SOUND.index("limits:")]
CHECKER_META = SOUND[
    SOUND.index("    schema:\n      type: object\n      properties: {app") : SOUND.index("conditions:")
]

# What is changed in the sound definition, and the one problem that must follow, placed.
PROBLEMS: dict[str, tuple[tuple[str, str], str, list[str]]] = {
    "name not kebab-case": (("do-work", "Do_Work"), "1:7: error", ["'Do_Work'", "kebab-case"]),
    "name begins with no verb": (("do-work", "testing-code"), "1:7: warning", ["does not begin with a verb"]),
    "name missing": (("name: do-work\n", ""), "1:1: error", ["'name' is missing", "name: solve-issue"]),
    "name no text": (("do-work", "[x]"), "1:7: error", ["name must be text, not a list"]),
    "unknown key": (
        ("limits: {steps", "limit: {steps"),
        "30:1: error",
        ["'limit'", "Did you mean 'limits'?"],
    ),
    "version no text": (
        ("name:", "version: 1.0\nname:"),
        "1:10: error",
        ["version must be text, not 1.0", "Quote"],
    ),
    "unknown role key": (
        (GOAL, f"{GOAL}\n    promt: x"),
        "5:5: error",
        ["'promt'", "'prompt'?", "procedure"],
    ),
    "role text no text": (
        (GOAL, f"{GOAL}\n    output: [x]"),
        "5:13: error",
        ["roles.worker.output must be text"],
    ),
    "condition empty": (("graph:", "  x:\ngraph:"), "22:5: error", ["conditions.x must be an expression"]),
    "role name odd": (
        ("checker:\n    prompt", "che cker:\n    prompt"),
        "14:3: error",
        ["'che cker' is not accepted"],
    ),
    "neither goal nor procedure": (
        (GOAL, "prompt: ''"),
        "3:3: warning",
        ["neither a prompt nor a procedure"],
    ),
    "capabilities no list": (
        (GOAL, f"{GOAL}\n    capabilities: x"),
        "5:19: error",
        ["a list of texts, not 'x'"],
    ),
    "capability no text": (
        (GOAL, f"{GOAL}\n    capabilities: [a, 1]"),
        "5:23: error",
        ["capabilities.1 must be text"],
    ),
    "agent with options": (
        (GOAL, f"{GOAL}\n    agent: {{a: b}}"),
        "5:12: error",
        ["name of an agent", "configuration"],
    ),
    "resume unknown": (
        (GOAL, f"{GOAL}\n    resume: yes"),
        "5:13: error",
        ["ephemeral, bounded, persistent, not 'yes'"],
    ),
    "extract no mapping": (
        (GOAL, f"{GOAL}\n    extract: gpt"),
        "5:14: error",
        ["extract must be a mapping, not 'gpt'"],
    ),
    "limit zero": (
        ("{steps: 9}", "{steps: 0}"),
        "30:17: error",
        ["limits.steps must be a whole number above 0, not 0"],
    ),
    "limit no number": (
        ("{steps: 9}", "{cost: true}"),
        "30:16: error",
        ["limits.cost must be a number above 0, not true"],
    ),
    "limit half": (("{steps: 9}", "{steps: 1.5}"), "30:17: error", ["whole number above 0, not 1.5"]),
    "limit unknown": (
        ("{steps: 9}", "{steps: 9, token: 4}"),
        "30:20: error",
        ["'token'", "Did you mean 'tokens'?"],
    ),
    "no schema": ((CHECKER_META, ""), "14:3: error", ["'schema' is missing in roles.checker", "`schema:`"]),
    "schema twice": (
        (GOAL, f"{GOAL}\n    frontmatter: {{type: object}}"),
        "5:5: error",
        ["twice", "Keep one"],
    ),
    "schema by id": (
        (CHECKER_META, "    schema: 5GWKR8TN1V3JA\n"),
        "16:13: error",
        ["roles.checker.schema must be a JSON Schema written out", "'5GWKR8TN1V3JA'"],
    ),
    "schema keyword": (
        ("      required: [approved]", "      requird: [approved]"),
        "19:7: error",
        ["/requird", "'required'?"],
    ),
    "schema type": (
        ("approved: {type: boolean}", "approved: {type: bool}"),
        "18:37: error",
        ["/properties/approved/type"],
    ),
    "schema pattern": (
        ("{type: boolean}", '{type: boolean, pattern: "("}'),
        "18:55: error",
        ["/properties/approved/pattern"],
    ),
    "schema no object": (
        ("type: object\n      properties: {app", "type: array\n      properties: {app"),
        "17:13: error",
        ["type object"],
    ),
    "schema not storable": (("{type: boolean}", "{const: .nan}"), "17:7: error", ["cannot be stored"]),
    "required field not declared": (
        ("required: [$status, note", "required: [$status, noot"),
        "13:27: error",
        ["'noot' is required", "not declared", "Did you mean 'note'?", "hint"],
    ),
    "required field not declared in a part": (
        ("{path: {type: string}}, required: [path]", "{path: {type: string}}, required: [pth]"),
        "11:99: warning",
        ["'pth' is required", "not declared", "Did you mean 'path'?"],
    ),
    "required field not declared in a closed part": (
        ("required: [path]", "additionalProperties: false, required: [pth]"),
        "11:128: error",
        ["'pth' is required", "not declared", "Did you mean 'path'?"],
    ),
    "bounds that leave no number": (
        ("approved: {type: boolean}", "approved: {type: boolean}, n: {minimum: 5, maximum: 3}"),
        "18:63: error",
        ["minimum 5 and maximum 3", "no value"],
    ),
    "bounds that exclude their only number": (
        ("approved: {type: boolean}", "approved: {type: boolean}, n: {exclusiveMinimum: 5, maximum: 5}"),
        "18:72: error",
        ["exclusiveMinimum 5 and maximum 5"],
    ),
    "bounds that leave no text": (
        ("hint: {type: string}", "hint: {type: string, minLength: 5, maxLength: 4}"),
        "10:44: error",
        ["minLength 5 and maxLength 4"],
    ),
    "bounds that leave no list": (
        ("files: {type: array,", "files: {type: array, minItems: 2, maxItems: 1,"),
        "11:43: error",
        ["minItems 2 and maxItems 1"],
    ),
    "enum empty": (("{enum: [done, failed]}", "{enum: []}"), "8:25: error", ["at least one value"]),
    "unknown target": (
        ("failed: $FAIL", "failed: cheker"),
        "26:13: error",
        ["'cheker'", "Did you mean 'checker'?", "$END"],
    ),
    "ending in lower case": (
        ("failed: $FAIL", "failed: end"),
        "26:13: error",
        ["'end'", "Did you mean '$END'?"],
    ),
    "edge to suspend": (
        ("failed: $FAIL", "failed: $SUSPEND"),
        "26:13: error",
        ["not a target", "status $SUSPEND"],
    ),
    "edge to start": (("failed: $FAIL", "failed: $START"), "26:13: error", ["only begins a thread"]),
    "no start": (("  $START: worker\n", ""), "22:1: error", ["no $START"]),
    "start status": (("$START: worker", "$START: {go: worker}"), "23:12: error", ["no status 'go'", "'new'"]),
    "edges out of the end": (
        ("graph:", "graph:\n  $END: worker"),
        "23:3: error",
        ["$END cannot have outgoing edges"],
    ),
    "edges out of no role": (
        ("graph:", "graph:\n  workr: $END"),
        "23:3: error",
        ["'workr'", "Did you mean 'worker'?"],
    ),
    "edges out of an unknown role": (
        ("- {role: $END}", "- {role: $END}\n  x: $END"),
        "30:3: error",
        ["'x', which is not a role"],
    ),
    "reserved role": (
        ("roles:", "roles:\n  $END: {goal: g, meta: {type: object}}"),
        "3:3: error",
        ["'$END'"],
    ),
    "edges empty": (
        ("failed: $FAIL", "failed:"),
        "26:12: error",
        ["graph.worker.failed must be a role", "not empty"],
    ),
    "edge list empty": (("$START: worker", "$START: []"), "23:11: error", ["not an empty list"]),
    "edge without role": (
        ("failed: $FAIL", "failed: {prompt: x}"),
        "26:5: error",
        ["'role' is missing", "$END"],
    ),
    "edge role no text": (
        ("failed: $FAIL", "failed: {role: [x]}"),
        "26:20: error",
        ["role must be text, not a list"],
    ),
    "edge prompt no text": (
        ("failed: $FAIL", "failed: {role: $FAIL, prompt: 3}"),
        "26:35: error",
        ["must be text, not 3"],
    ),
    "edge key unknown": ((LIST, LIST.replace("}", ", promt: x}")), "28:43: error", ["'promt'", "'prompt'?"]),
    "condition on a status": (
        ("failed: $FAIL", "failed: {role: $FAIL, condition: rejected}"),
        "26:27: error",
        ["only has a meaning in a list"],
    ),
    "condition unknown": (
        (LIST, LIST.replace("rejected", "rejectd")),
        "28:33: error",
        ["'rejectd'", "'rejected'?"],
    ),
    "condition unused": (("graph:", "  more: 'true'\ngraph:"), "22:3: warning", ["'more' is not used"]),
    "condition no expression": (
        ("steps[-1].output.approved = false", "{}"),
        "21:3: error",
        ["'expression' is missing"],
    ),
    "condition does not parse": (("approved = false", "approved ="), "21:13: error", ["not JSONata"]),
    "condition on no field": (
        ("output.approved", "output.aproved"),
        "21:13: error",
        ["'aproved'", "'approved'?"],
    ),
    "condition dangerous": (("steps[-1].output.approved = false", "$eval('1')"), "21:13: error", ["$eval"]),
    "edge never taken": ((LIST, "- {role: worker}"), "29:7: error", ["edge 2 of checker is never taken"]),
    "same condition twice": ((LIST, f"{LIST}\n    {LIST}"), "29:33: error", ["'rejected' stands before it"]),
    "list may fall through": (("\n    - {role: $END}", ""), "27:3: warning", ["suspended after checker"]),
    "status missing": (
        ("    failed: $FAIL\n", ""),
        "24:3: error",
        ["can end with 'failed'", "edges for: done"],
    ),
    "status extra": (
        ("failed: $FAIL", "failed: $FAIL\n    late: $FAIL"),
        "27:5: error",
        ["no status 'late'", "done, failed"],
    ),
    "status suspend": (
        ("failed: $FAIL", "failed: $FAIL\n    $SUSPEND: $FAIL"),
        "27:5: error",
        ["never taken"],
    ),
    "status reserved": (
        ("failed: $FAIL", "failed: $FAIL\n    $x: $FAIL"),
        "27:5: error",
        ["'$x' is a reserved name"],
    ),
    "status open": (
        ("{enum: [done, failed]}", "{type: string}"),
        "8:9: warning",
        ["any '$status'", "enum: [done, failed]"],
    ),
    "status not required": (("[$status, note", "[note"), "6:7: warning", ["'$status' is not required"]),
    "status not text": (("[done, failed]", "[done, failed, 3]"), "8:9: error", ["not text: 3"]),
    "any status beside others": (("failed: $FAIL", "_: $FAIL"), "26:5: error", ["'_' beside other statuses"]),
    "variable unknown": (
        ("{{note}}", "{{noot}}"),
        "25:35: error",
        ["{{noot}}", "'done'", "Did you mean 'note'?", "thread"],
    ),
    "variable unknown in section": (
        ("{{note}}", "{{#files}}{{pth}}{{/files}}"),
        "25:35: error",
        ["{{pth}}", "'path'?"],
    ),
    "section unknown": (("{{note}}", "x{{#fils}}x{{/fils}}"), "25:35: error", ["{{fils}}", "'files'?"]),
    "variable below text": (("{{note}}", "{{note.x}}"), "25:35: error", ["{{note.x}} has no value"]),
    "start field unknown": (("{{note}}", "{{start.promt}}"), "25:35: error", ["'start.prompt'?"]),
    "location variable": (('"{{note}}"', '"{{note}}", location: "/{{x}}"'), "25:57: error", ["{{x}}"]),
    "variable optional": (
        ("{{note}}", "{{hint}}"),
        "25:35: warning",
        ["{{hint}} may have no value", "{{#hint}}…{{/hint}}"],
    ),
    "start variable": (
        ("$START: worker", '$START: {role: worker, prompt: "{{note}}"}'),
        "23:34: error",
        ["after $START"],
    ),
    "braces unclosed": (("{{note}}", "{{note"), "25:35: error", ["a {{ is never closed by }}"]),
    "loop without limit": (
        ("limits: {steps: 9}\n", ""),
        "24:3: warning",
        ["worker -> checker -> worker", "limits: {steps"],
    ),
    "no way to the end": (
        (TO_END, TO_END.replace("$FAIL", "checker").replace("$END", "checker")),
        "24:3: warning",
        ["no way leads from 'worker'"],
    ),
    "duplicate key": (
        ("    failed: $FAIL", "    failed: $FAIL\n    failed: $END"),
        "27:5: error",
        ["'failed'", "line 26, column 5"],
    ),
    "include": (
        ("note: {type: string}", "note: !include x.json"),
        "9:15: error",
        ["!include is not available"],
    ),
}


def found(result: yaml.Definition) -> list[str]:
    return [str(problem) for problem in result.problems]


@pytest.mark.parametrize(("change", "place", "words"), PROBLEMS.values(), ids=PROBLEMS)
def test_each_mistake_is_reported_where_it_was_made(
    change: tuple[str, str], place: str, words: list[str]
) -> None:
    result = parse(replaced(change))
    fitting = [
        line
        for line in found(result)
        if line.startswith(f"w.yaml:{place}: ") and all(w in line for w in words)
    ]
    assert len(fitting) == 1, found(result)
    assert (result.workflow is None) == bool(errors_in(result))


# Mistakes of which other faults would follow, were they not known to be one and the same.
ALONE: dict[str, tuple[tuple[str, str], str]] = {
    "edge of a wrong shape": (("failed: $FAIL", "failed: 3"), "26:13: error"),
    "edge without a role": (("failed: $FAIL", "failed: {prompt: x}"), "26:5: error"),
    "edges of a wrong shape": (("$START: worker", "$START: 3"), "23:11: error"),
    "the only edge to a role": (('done: {role: checker, prompt: "{{note}}"}', "done: 3"), "25:11: error"),
    "the last edge of a list": (("- {role: $END}", "- 3"), "29:7: error"),
    "limits of a wrong shape": (("{steps: 9}", "9"), "30:9: error"),
    "limits by a wrong name": (("{steps: 9}", "{step: 9}"), "30:10: error"),
    "a limit of a role": ((GOAL, f"{GOAL}\n    limits: {{turns: 0}}"), "5:21: error"),
    "a goal that is no text": ((GOAL, "prompt: [x]"), "4:13: error"),
    "a goal that is not included": ((GOAL, "prompt: !include gone.md"), "4:13: error"),
    "a schema that is not included": ((CHECKER_META, "    schema: !include gone.json\n"), "16:13: error"),
    "a part that is not included": (("note: {type: string}", "note: !include gone.json"), "9:15: error"),
    "edges that are not included": (("failed: $FAIL", "failed: !include gone.yaml"), "26:13: error"),
}


@pytest.mark.parametrize(("change", "place"), ALONE.values(), ids=ALONE)
def test_a_mistake_is_reported_once_and_not_by_what_follows_from_it(
    change: tuple[str, str], place: str, tmp_path: Path
) -> None:
    file = tmp_path / "do-work.yaml"
    limits = ("limits: {steps: 9}\n", "") if change[0] == GOAL and "limits" in change[1] else ("", "")
    file.write_text(replaced(change, limits))
    (problem,) = yaml.load_file(file).problems
    assert str(problem).startswith(f"{file}:{place}: ")


def test_edges_out_of_the_end_are_reported_beside_a_role_of_that_name() -> None:
    result = parse(
        replaced(
            ("roles:", "roles:\n  $END: {goal: g, meta: {type: object}}"),
            ("graph:", "graph:\n  $END: worker"),
        )
    )
    assert [line.split(": ", 2)[2].split(". ")[0] for line in found(result)] == [
        "the role name '$END' is reserved",
        "$END cannot have outgoing edges",
    ]


def test_unreachable_and_forgotten_roles_are_told_apart() -> None:
    island = "{goal: g, meta: {type: object}}"
    result = parse(
        replaced(
            ("roles:", f"roles:\n  island: {island}\n  forgotten: {island}\n  deadend: {island}"),
            ("failed: $FAIL", "failed: deadend\n  island: island"),
        )
    )
    assert [line.split(". ")[0] for line in found(result)] == [
        "w.yaml:4:3: error: the role 'forgotten' is defined but not in the graph",
        "w.yaml:5:3: error: the role 'deadend' has no outgoing edge",
        "w.yaml:30:3: error: the role 'island' cannot be reached from $START",
    ]


VARIANTS = """\
name: do-work
roles:
  worker:
    prompt: Work.
    schema:
      oneOf:
        - {type: object, properties: {$status: {const: done}, note: {type: string}}, required: [$status, note]}
        - {type: object, properties: {$status: {const: failed}, why: {type: string}}, required: [$status, why]}
graph:
  $START: worker
  worker:
    done: {role: $FAIL, prompt: "{{note}}"}
    failed: {role: $FAIL, prompt: "{{why}}"}
"""


def test_each_edge_sees_the_variant_of_its_status() -> None:
    assert parse(VARIANTS).problems == ()
    crossed = parse(VARIANTS.replace("{{why}}", "{{note}}"))
    assert [str(problem)[:56] for problem in crossed.problems] == [
        "w.yaml:13:35: error: {{note}} has no value after worker "
    ]
    either = parse(
        VARIANTS[: VARIANTS.index("    done:")] + '    _: {role: $FAIL, prompt: "{{note}} {{x}}"}\n'
    )
    assert [problem.severity for problem in either.problems] == ["error", "warning"]


EARLIER = """\
name: do-work
roles:
  planner:
    goal: Plan.
    meta:
      oneOf:
        - {type: object, properties: {$status: {const: planned}, frontend: {type: string}, hint: {type: string}},
           required: [$status, frontend]}
        - {type: object, properties: {$status: {const: hopeless}, why: {type: string}}, required: [$status, why]}
  developer:
    prompt: Work.
    schema: {type: object, properties: {$status: {enum: [done, ask]}, files: {type: array, items: {type: string}}},
           required: [$status, files]}
  adviser: {goal: Advise., meta: {type: object, properties: {advice: {type: string}}, required: [advice]}}
  reviewer: {goal: Review., meta: {type: object, properties: {note: {type: string}}, required: [note]}}
graph:
  $START: planner
  planner: {planned: developer, hopeless: {role: $FAIL, prompt: "{{why}}"}}
  developer:
    done: {role: reviewer, prompt: "TAG"}
    ask: adviser
  adviser: developer
  reviewer: $END
limits: {steps: 9}
"""


@pytest.mark.parametrize(
    ("tag", "problem"),
    [
        ("{{steps.planner.frontend}}", None),
        ("{{steps.developer.files}}", None),
        ("{{#steps.developer}}{{#files}}{{.}}{{/files}}{{/steps.developer}}", None),
        ("x{{#steps.adviser}}{{advice}}{{steps.adviser.advice}}{{/steps.adviser}}", None),
        ("x{{^steps.adviser}}nobody was asked{{/steps.adviser}}", None),
        ("{{steps.plannr.frontend}}", "error: {{steps.plannr.frontend}} names 'plannr', which is not a role. "
                                      "Did you mean 'planner'?"),
        ("{{steps.planner.frontnd}}", "error: {{steps.planner.frontnd}} is not a field of the output of planner. "
                                      "Did you mean 'frontend'?"),
        ("{{steps.planner.why}}", "error: {{steps.planner.why}} is not a field of the output of planner."),
        ("{{steps.planner.hint}}", "warning: {{steps.planner.hint}} may have no value after developer"),
        ("{{steps.adviser.advice}}", "warning: {{steps.adviser.advice}} may have no value: adviser may not have run "
                                     "by then; then the thread is suspended. Write {{#steps.adviser}}"),
        ("{{steps.reviewer.note}}", "error: {{steps.reviewer.note}} has no value: reviewer cannot have run by then."),
        ("{{steps}}", "error: {{steps}} is not a text. Name a role and a field: {{steps.ROLE.FIELD}}."),
    ],
)  # fmt: skip
def test_a_template_may_use_the_outputs_of_roles_that_have_run(tag: str, problem: str | None) -> None:
    received = [str(found) for found in parse(EARLIER.replace("TAG", tag)).problems]
    if problem is None:
        assert received == []
    else:
        assert len(received) == 1 and received[0].startswith(f"w.yaml:20:36: {problem}"), received


def test_an_output_that_leads_back_to_its_role_is_not_its_latest() -> None:
    loop = EARLIER.replace('hopeless: {role: $FAIL, prompt: "{{why}}"}', "hopeless: adviser")
    loop = loop.replace("adviser: developer", "adviser: planner").replace("TAG", "{{steps.planner.frontend}}")
    assert parse(loop).problems == ()


def test_the_first_edge_has_no_earlier_roles_and_a_field_named_steps_hides_them() -> None:
    first = parse(
        EARLIER.replace("TAG", "x").replace(
            "$START: planner", '$START: {role: planner, prompt: "{{steps.planner.why}}"}'
        )
    )
    assert "planner cannot have run by then" in str(first.problems[0])
    hidden = EARLIER.replace("files: {type: array", "steps: {type: array").replace(
        "$status, files]", "$status, steps]"
    )
    assert "The output of developer has a field 'steps' of its own" in str(
        parse(hidden.replace("TAG", "{{steps.planner.frontend}}")).problems[0]
    )


def test_one_of_without_a_discriminating_status_is_refused_when_routed_by_status() -> None:
    result = parse(VARIANTS.replace("$status: {const: failed}, ", "").replace("[$status, why]", "[why]"))
    assert [str(problem)[:24] for problem in errors_in(result)] == ["w.yaml:6:7: error: worke"]
    assert "{const: <status>}" in errors_in(result)[0].hint
    short = VARIANTS[: VARIANTS.index("  worker:\n    done:")] + "  worker: $END\n"
    assert (
        parse(short.replace("$status: {const: failed}, ", "").replace("[$status, why]", "[why]")).problems
        == ()
    )


def test_a_required_field_is_looked_for_in_its_own_variant() -> None:
    crossed = parse(VARIANTS.replace("required: [$status, note]", "required: [$status, why]"))
    assert [str(problem)[:50] for problem in errors_in(crossed)] == [
        "w.yaml:7:106: error: 'why' is required but not dec"
    ]
    assert "where '$status' is 'done'" in errors_in(crossed)[0].message


def test_a_field_that_one_part_of_a_schema_requires_and_another_forbids_is_refused() -> None:
    closed = VARIANTS.replace("    schema:\n", "    schema:\n      additionalProperties: false\n", 1)
    result = parse(closed)
    (problem,) = errors_in(result)
    assert problem[3:5] == (6, 7)
    assert (
        problem.message == "this forbids '$status', 'note', 'why', which another part of the schema requires"
    )


@pytest.mark.parametrize(
    "schema",
    [
        "{type: object, properties: {a: {type: string}}, anyOf: [{required: [a]}, {minProperties: 0}]}",
        "{type: object, patternProperties: {'^x': {type: string}}, required: [xy]}",
        "{type: object, additionalProperties: {type: string}, required: [anything]}",
        "{type: object, properties: {a: {type: object, required: [b]}}, required: [a]}",
        "{type: object, properties: {a: {minimum: 3, maximum: 3, minLength: 2, maxLength: 2}}}",
        "{type: object, properties: {a: {exclusiveMinimum: 3, exclusiveMaximum: 4}}}",
        "{type: object, properties: {a: {not: {minimum: 5, maximum: 3}}}}",
    ],
)
def test_requirements_and_bounds_that_can_be_met_are_accepted(schema: str) -> None:
    text = f"name: do-it\nroles: {{a: {{goal: g, meta: {schema}}}}}\ngraph: {{$START: a, a: $END}}\n"
    assert parse(text).problems == ()


def test_a_schema_without_status_says_what_to_add() -> None:
    result = parse(replaced(("        $status: {enum: [done, failed]}\n", ""), ("[$status, note", "[note")))
    assert "no '$status' or 'status'" in errors_in(result)[0].message
    assert "enum: [done, failed]" in errors_in(result)[0].hint


@pytest.mark.parametrize(
    "prompt",
    [
        "{{#hint}}{{hint}}{{/hint}}",
        "{{#files}}{{path}} of {{note}}{{/files}}",
        "{{files.0.path}}",
        "{{free.anything.at.all}}",
        "{{#free}}{{anything}}{{/free}}",
        "{{^hint}}none{{/hint}}",
        "{{ $status }} {{{start.prompt}}} {{thread}} {{steps_count}} {{body}} {{start.cwd}}",
    ],
)
def test_templates_that_the_schema_provides_for_are_accepted(prompt: str) -> None:
    assert errors_in(parse(replaced(("{{note}}", prompt)))) == ()


@pytest.mark.parametrize(
    "start",
    [
        "worker",
        "{_: worker}",
        "{new: worker}",
        "{role: worker, prompt: '{{start.prompt}}'}",
        "[{role: worker}]",
    ],
)
def test_start_may_be_written_in_every_form(start: str) -> None:
    result = parse(replaced(("$START: worker", f"$START: {start}")))
    assert result.problems == ()
    (edge,) = require(result).graph["$START"]
    assert (edge.role, edge.status, edge.condition) == ("worker", None, None)


@pytest.mark.parametrize("older", ["meta:", "frontmatter:"])
def test_older_words_are_read(older: str) -> None:
    assert "schema:" in SOUND and "prompt: Work." in SOUND
    old = SOUND.replace("schema:", older).replace("prompt: Work.", "goal: Work.")
    assert require(parse(old)) == require(parse(SOUND))


def test_a_limit_on_one_role_of_the_loop_is_enough() -> None:
    text = replaced(("limits: {steps: 9}\n", ""), (GOAL, f"{GOAL}\n    limits: {{turns: 3}}"))
    assert parse(text).problems == ()


def test_many_mistakes_are_reported_together_in_order() -> None:
    result = parse(
        replaced(
            ("do-work", "Do"),
            (GOAL, "gaol: x"),
            ("{type: boolean}", "{type: bool}"),
            ("approved = false", "approved ="),
            ("$START: worker", "$START: wroker"),
            ("{{note}}", "{{noot}} {{"),
            ("failed: $FAIL", "faild: $FAIL"),
            ("condition: rejected", "condition: reject"),
        )
    )
    assert result.workflow is None
    assert len(errors_in(result)) >= 10
    lines = [problem.line for problem in result.problems]
    assert lines == sorted(lines)
    assert refusal("do-work.yaml", result.problems).message.count("\n") == len(errors_in(result))


@pytest.mark.parametrize("text", ["", "- a", "x", "name: do-it", "name: do-it\nroles: 3\ngraph: []\n"])
def test_what_is_no_workflow_says_what_is_missing(text: str) -> None:
    result = parse(text)
    assert result.workflow is None
    assert 1 <= len(errors_in(result)) <= 3


def test_broken_yaml_is_one_problem_with_its_place() -> None:
    assert [problem[2:5] for problem in parse("name: a: b").problems] == [("w.yaml", 1, 8)]


# -- files --


def test_the_name_must_be_that_of_the_file(tmp_path: Path) -> None:
    right = tmp_path / "do-work.yaml"
    right.write_text(SOUND)
    assert yaml.load_file(right).problems == ()
    folder = tmp_path / "do-work"
    folder.mkdir()
    (folder / "index.yaml").write_text(SOUND)
    assert yaml.load_file(folder / "index.yaml").problems == ()
    wrong = tmp_path / "do-play.yml"
    wrong.write_text(SOUND)
    (problem,) = yaml.load_file(wrong).problems
    assert problem[2:5] == (str(wrong), 1, 7)
    assert "'do-work' differs from the file's name, 'do-play'" in problem.message


def with_include(folder: Path, path: str) -> yaml.Definition:
    file = folder / "do-work.yaml"
    file.write_text(replaced(("{type: object}", f"!include {path}")))
    return yaml.load_file(file)


def test_includes_of_text_json_and_yaml_are_read_below_the_folder(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "free.yaml").write_text("type: object\ndescription: !include note.md\n")
    (tmp_path / "parts" / "note.md").write_text("Anything: goes.")
    result = with_include(tmp_path, "parts/free.yaml")
    assert result.problems == ()
    free = require(result).roles["worker"].schema["properties"]["free"]
    assert free == {"type": "object", "description": "Anything: goes."}


def test_a_problem_inside_an_included_file_is_placed_there(tmp_path: Path) -> None:
    (tmp_path / "free.yaml").write_text("type: object\ndescribtion: x\n")
    (problem,) = with_include(tmp_path, "free.yaml").problems
    assert problem[2:5] == (str(tmp_path / "free.yaml"), 2, 1)
    assert "Did you mean 'description'?" in problem.hint


def test_includes_never_leave_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    secret = tmp_path / "secret.yaml"
    secret.write_text("type: object\n")
    (folder / "link.yaml").symlink_to(secret)
    (folder / "out").symlink_to(tmp_path)
    (folder / "loop.yaml").symlink_to(folder / "loop.yaml")
    os.mkfifo(folder / "pipe.md")
    (folder / "binary.md").write_bytes(b"\xff\xfe")
    expected = {
        "../secret.yaml": "outside the folder",
        "link.yaml": "outside the folder",
        "out/secret.yaml": "outside the folder",
        str(secret): "relative to the file",
        "gone.md": "does not exist",
        "loop.yaml": "",
        "pipe.md": "is not a file",
        "out": "outside the folder",
        ".": "is not a file",
        "binary.md": "not UTF-8",
    }
    for path, message in expected.items():
        (problem, *_) = errors_in(with_include(folder, path))
        assert message in problem.message
        assert problem[3:5] == (12, 15)


def test_a_file_that_includes_itself_under_another_name_is_a_circle(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").symlink_to(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("x: !include b.yaml\n")
    assert any("circle" in problem.message for problem in errors_in(with_include(tmp_path, "a.yaml")))


def test_missing_and_unreadable_workflow_files(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        yaml.load_file(tmp_path / "gone.yaml")
    (tmp_path / "do-work.yaml").write_bytes(b"\xff")
    (problem,) = yaml.load_file(tmp_path / "do-work.yaml").problems
    assert "not UTF-8" in problem.message
    (tmp_path / "do-work.yaml").write_bytes(b"#" * (yaml12.MAX_BYTES + 10))
    (problem,) = yaml.load_file(tmp_path / "do-work.yaml").problems
    assert "larger than" in problem.message


# -- the JSON Schema of the text --


def editor() -> Any:
    return jsonschema_rs.Draft202012Validator(yaml.json_schema())


@pytest.mark.parametrize("name", ["solve-issue", "fix-issue"])
def test_the_schema_for_editors_accepts_the_examples(name: str) -> None:
    value = yaml12.load((EXAMPLES / f"{name}.yaml").read_text())
    assert [error.message for error in editor().iter_errors(value)] == []


@pytest.mark.parametrize(
    "key",
    (
        *(
            "unknown key",
            "unknown role key",
            "role text no text",
            "limit zero",
            "limit unknown",
            "resume unknown",
        ),
        *("edge key unknown", "edge list empty", "no schema", "schema twice", "name missing", "no start"),
    ),
)
def test_the_schema_for_editors_refuses_what_is_misspelt(key: str) -> None:
    assert editor().is_valid(yaml12.load(SOUND))
    assert not editor().is_valid(yaml12.load(replaced(PROBLEMS[key][0])))


# -- the stored form --


def full_workflow() -> StoredWorkflow:
    role = StoredRole(
        "d", "g", ("c",), "p", "o", {"type": "object"}, "claude", "bounded", Limits(turns=3), {"model": "m"}
    )
    return StoredWorkflow(
        name="do-it",
        description="d",
        version="2",
        roles={"a": role, "b": StoredRole(schema={"type": "string"})},
        graph={"$START": (Edge("a"),), "a": (Edge("b", "done", None, "p", "/x"), Edge("$END", None, "c"))},
        conditions={"c": Condition("true", "d")},
        limits=Limits(cost=1.5, minutes=2),
        python="flows:do_it",
    )


def test_the_stored_form_comes_back_exactly_and_fits_its_type() -> None:
    kind = schema.Type(WORKFLOW_SCHEMA)
    assert schema.problems_of(WORKFLOW_SCHEMA) == []
    for workflow in (full_workflow(), require(parse(SOUND)), StoredWorkflow("x")):
        ids = {name: f"000000000000{index}" for index, name in enumerate(workflow.roles)}
        payload = to_payload(workflow, ids)
        assert kind.misfits(payload) == []
        assert set(kind.refs(payload)) == set(ids.values())
        assert schema_ids_of(payload) == ids
        assert (
            from_payload(payload, {ids[name]: role.schema for name, role in workflow.roles.items()})
            == workflow
        )


def test_the_predecessors_stored_form_is_read() -> None:
    role = {
        "description": "d",
        "goal": "g",
        "capabilities": [],
        "procedure": "p",
        "output": "o",
        "frontmatter": "X",
    }
    target = {"role": "a", "prompt": "go", "location": None}
    payload = {
        "name": "old",
        "description": "",
        "roles": {"a": role},
        "graph": {"$START": {"_": target}, "a": {"done": {"role": "$END", "prompt": "bye"}, "again": target}},
    }
    workflow = from_payload(payload, {"X": {"type": "object"}})
    assert workflow.graph == {
        "$START": (Edge("a", None, None, "go"),),
        "a": (Edge("$END", "done", None, "bye"), Edge("a", "again", None, "go")),
    }
    assert workflow.roles["a"] == StoredRole("d", "g", (), "p", "o", {"type": "object"})
    later = {**payload, "version": 2, "graph": {"$START": {"new": target}, "a": {"done": target}}}
    assert from_payload(later, {"X": {}}).graph["$START"] == (Edge("a", None, None, "go"),)


# -- any text --


@given(st.text(max_size=80))
@settings(max_examples=150, deadline=None)
def test_any_text_is_a_definition_with_problems(text: str) -> None:
    result = parse(text)
    assert result.workflow is None
    assert errors_in(result)


LINES = SOUND.splitlines(keepends=True)
BITS = [
    "",
    "[]",
    "{}",
    "null",
    "3",
    "x",
    "$END",
    "_",
    ": ",
    "- ",
    "{{",
    "}}",
    "{{x}}",
    "\n",
    "  ",
    "&a ",
    "*a",
    "!!int ",
]


@given(st.lists(st.tuples(st.integers(0, len(SOUND)), st.integers(0, 12), st.sampled_from(BITS)), max_size=3))
@settings(max_examples=300, deadline=None)
def test_a_mutated_definition_never_breaks_the_reader(cuts: list[tuple[int, int, str]]) -> None:
    text = SOUND
    for at, length, bit in cuts:
        text = text[:at] + bit + text[at + length :]
    result = parse(text)
    assert (result.workflow is None) == bool(errors_in(result))


KEYS = (
    *(
        "name",
        "roles",
        "graph",
        "conditions",
        "limits",
        "role",
        "prompt",
        "condition",
        "meta",
        "type",
        "a",
        "b",
    ),
    *(
        "properties",
        "oneOf",
        "const",
        "enum",
        "$status",
        "$START",
        "_",
        "required",
        "expression",
        "steps",
        "items",
    ),
)
ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from(["a", "b", "$END", "_", "{{a}}", "true"]),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from(KEYS), part, max_size=5),
    max_leaves=25,
)
SHAPED = st.fixed_dictionaries(
    {
        "name": st.just("do-it"),
        "roles": st.dictionaries(st.sampled_from(["a", "b"]), st.fixed_dictionaries({"meta": ANY}) | ANY),
        "graph": st.dictionaries(st.sampled_from(["a", "b", "$START"]), ANY),
        "conditions": ANY,
    }
)


@given(ANY | SHAPED)
@settings(max_examples=400, deadline=None)
def test_any_shape_never_breaks_the_reader(value: Any) -> None:
    import json

    result = parse(json.dumps(value))
    assert (result.workflow is None) == bool(errors_in(result))


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("readonly", "read_only"),
        ("Read-Only", "read_only"),
        ("no-shell-exec", "no_shell_exec"),
        ("no_file_edits", "no_file_edit"),
    ],
)
def test_a_word_that_was_meant_to_restrict_a_role_is_an_error(word: str, meant: str) -> None:
    text = (
        "name: run-it\nroles:\n  a:\n    goal: Go.\n    capabilities: [coding, planning, WORD]\n"
        "    meta: {type: object}\ngraph: {$START: a, a: $END}\n"
    )
    assert yaml.parse(text.replace("WORD", meant), source="run-it.yaml").workflow is not None
    read = yaml.parse(text.replace("WORD", word), source="run-it.yaml")
    (problem,) = [problem for problem in read.problems if problem.severity == "error"]
    assert f"'{word}' restricts nothing" in str(problem) and f"Did you mean '{meant}'?" in str(problem)
    assert "run-it.yaml:5:" in str(problem)


THREADS = (
    "name: run-it\nroles:\n  a:\n    goal: Go.\n    may_start_threads: MAY\n"
    "    capabilities: [WORD]\n    meta: {type: object}\ngraph: {$START: a, a: $END}\n"
)


@pytest.mark.parametrize(("may", "expected"), [("true", True), ("false", False), ("null", False)])
def test_a_role_says_whether_it_may_start_threads_and_the_stored_form_keeps_it(
    may: str, expected: bool
) -> None:
    read = yaml.parse(THREADS.replace("MAY", may).replace("WORD", "coding"), source="run-it.yaml")
    assert read.workflow is not None and read.workflow.roles["a"].may_start_threads is expected
    stored = to_payload(read.workflow, {"a": "0" * 13})
    assert from_payload(stored, {"0" * 13: read.workflow.roles["a"].schema}) == read.workflow
    assert ("may_start_threads" in stored["roles"]["a"]) is expected
    assert yaml.parse(document.to_yaml(read.workflow), source="run-it.yaml").workflow == read.workflow
    assert jsonschema_rs.is_valid(yaml.json_schema(), document.to_document(read.workflow))
    assert schema.Type(type_of(stored)).misfits(stored) == []


@pytest.mark.parametrize(
    ("may", "word", "message"),
    [
        ("maybe", "coding", "must be true or false"),
        (
            "true",
            "no_file_edit",
            "may not start threads, because it has the restriction 'no_file_edit'",
        ),
    ],
)
def test_a_wrong_may_start_threads_is_named(may: str, word: str, message: str) -> None:
    read = yaml.parse(THREADS.replace("MAY", may).replace("WORD", word), source="run-it.yaml")
    (problem,) = [problem for problem in read.problems if problem.severity == "error"]
    assert message in str(problem) and "run-it.yaml:5:" in str(problem)


CRASHES = (
    "name: run-it\non_crash: FLOW\nroles:\n  a:\n    goal: Go.\n    on_crash: ROLE\n"
    "    meta: {type: object}\ngraph: {$START: a, a: $END}\n"
)


@pytest.mark.parametrize(
    ("key", "of_workflow", "of_role", "expected"),
    [
        ("on_crash", "null", "null", "keep"),
        ("on_crash", "restore", "null", "restore"),
        ("on_crash", "restore", "keep", "keep"),
        ("on_crash", "null", "restore", "restore"),
        ("reuse", "null", "null", None),
        ("reuse", "true", "null", True),
        ("reuse", "true", "false", False),
        ("reuse", "null", "true", True),
    ],
)
def test_a_setting_of_the_role_or_the_workflow_is_stored_only_where_it_is_given(
    key: str, of_workflow: str, of_role: str, expected: object
) -> None:
    def text(of_workflow: str, of_role: str) -> str:
        return CRASHES.replace("on_crash", key).replace("FLOW", of_workflow).replace("ROLE", of_role)

    read = yaml.parse(text(of_workflow, of_role), source="run-it.yaml")
    assert read.workflow is not None
    found = on_crash_of(read.workflow, "a") if key == "on_crash" else reuse_of(read.workflow, "a")
    assert found == expected
    stored = to_payload(read.workflow, {"a": "0" * 13})
    given = (key in stored, key in stored["roles"]["a"])
    assert given == (of_workflow != "null", of_role != "null")
    assert from_payload(stored, {"0" * 13: read.workflow.roles["a"].schema}) == read.workflow
    assert yaml.parse(document.to_yaml(read.workflow), source="run-it.yaml").workflow == read.workflow
    assert jsonschema_rs.is_valid(yaml.json_schema(), document.to_document(read.workflow))
    assert schema.Type(type_of(stored)).misfits(stored) == []
    bare = yaml.parse(text("null", "null"), source="run-it.yaml").workflow
    assert bare is not None
    changed = [str(change) for change in document.changes(bare, read.workflow)]
    assert len(changed) == sum(given) and all(key in change for change in changed)


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("on_crash: undo", "must be one of keep, restore"),
        ("on_crash: restore\n    times: 2\n    workdir: shared", "share a folder"),
    ],
)
def test_a_wrong_on_crash_is_named(role: str, message: str) -> None:
    text = CRASHES.replace("FLOW", "keep").replace("on_crash: ROLE", role)
    read = yaml.parse(text, source="run-it.yaml")
    (problem,) = [problem for problem in read.problems if problem.severity == "error"]
    assert message in str(problem) and "run-it.yaml:6:" in str(problem)


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("reuse: sometimes", "must be true or false"),
        ("reuse: true\n    agent: human", "never reused, because a person plays it"),
        ("reuse: true\n    roles: [b]", "belongs to the roles of its members"),
    ],
)
def test_a_wrong_reuse_is_named(role: str, message: str) -> None:
    text = CRASHES.replace("on_crash: FLOW\n", "").replace("on_crash: ROLE", role)
    text = text.replace("graph:", "  b: {goal: Go., meta: {type: object}}\ngraph:")
    (problem,) = [one for one in yaml.parse(text, source="run-it.yaml").problems if "reuse" in str(one)]
    assert message in str(problem) and "run-it.yaml:5:" in str(problem)


def test_a_file_that_is_wrong_in_thousands_of_places_is_checked_all_the_same() -> None:
    count = 3_000
    roles = "".join(f"  role{n}: {{goal: g, meta: {{type: object}}}}\n" for n in range(count))
    edges = "".join(f"  role{n}: rolx{n}\n" for n in range(count))
    text = f"name: w\ndescription: d\nroles:\n{roles}graph:\n  $START: role0\n{edges}"
    hints = [one.hint for one in yaml.parse(text, source="w.yaml").problems]
    assert len(hints) > count and all(len(hint) < 2_000 for hint in hints)


def test_a_long_chain_of_roles_is_checked() -> None:
    count = 3_000
    roles = "".join(f"  r{n}: {{goal: g, meta: {{type: object}}}}\n" for n in range(count))
    edges = "".join(f"  r{n}: r{n + 1}\n" for n in range(count - 1))
    text = f"name: w\ndescription: d\nroles:\n{roles}graph:\n  $START: r0\n{edges}  r{count - 1}: $END\n"
    assert not yaml.parse(text, source="w.yaml").problems

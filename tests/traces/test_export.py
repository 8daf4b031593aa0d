"""Threads as traces: what a collector decodes, and that an agent knew the span it works for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from collector import attributes, collecting, decode
from modelserver import Calls, Item, ModelServer, Says
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from rolecall.agents.sandbox import find_layers
from rolecall.traces import conventions

if TYPE_CHECKING:
    from conftest import Rolecall

FLOW = """
name: two-roles
description: One works, one checks
roles:
  worker:
    description: Works
    prompt: Work.
    agent: "command:sh agent.sh"
    schema: {type: object, properties: {$status: {enum: [done]}, seen: {type: string}}, required: [$status]}
  checker:
    description: Checks
    prompt: Check.
    agent: human
    schema: {type: object, properties: {$status: {enum: [good]}}, required: [$status]}
graph: {$START: worker, worker: {done: checker}, checker: {good: $END}}
"""
AGENT = """
if [ ! -e asked ]; then touch asked; echo "no credit $SECRET_KEY" >&2; exit 3; fi
printf -- '---\\n$status: done\\nseen: "%s %s"\\n---\\nThe report about %s.\\n' \\
  "$TRACEPARENT" "$TRACESTATE" "$SECRET_KEY"
"""
TEAM = """
name: team
roles:
  one: &member
    prompt: Work.
    agent: "command:sh agent.sh"
    workdir: shared
    schema: {type: object, properties: {$status: {enum: [done]}, seen: {type: string}}, required: [$status]}
  two: *member
  both: {roles: [one, two]}
  nested: {prompt: Go on., agent: "workflow:inner.yaml", schema: {type: object}}
graph: {$START: both, both: {done: nested, partly: $FAIL, failed: $FAIL}, nested: {_: {role: $END}}}
"""
INNER = """
name: inner
roles:
  writer:
    prompt: Write.
    agent: "command:sh agent.sh"
    schema: {type: object, properties: {$status: {enum: [done]}, seen: {type: string}}, required: [$status]}
graph: {$START: writer, writer: {done: $END}}
"""
KEY = "a-key-that-was-no-secret-then"
TELLING = 'printf -- \'---\\n$status: done\\nseen: "%s"\\n---\\nHello.\\n\' "$TRACEPARENT$HIDDEN"\n'


def run(rolecall: Rolecall, folder: Path, env: dict[str, str]) -> str:
    """A thread whose first attempt fails, and which a person ends."""
    (folder / "two-roles.yaml").write_text(FLOW)
    (folder / "agent.sh").write_text(AGENT)
    rolecall("run", "./two-roles.yaml", "-p", "The task", cwd=folder, env=env, check=7)
    rolecall("thread", "resume", "--run", cwd=folder, env=env, check=7)
    rolecall("thread", "answer", "--output", '{"$status": "good"}', cwd=folder, env=env)
    return str(rolecall.json("thread", "list", "--all", cwd=folder)[0]["thread"])


def by_name(spans: list[Any], name: str) -> list[Any]:
    return [span for span in spans if span.name == name]


def export(rolecall: Rolecall, *words: str, env: dict[str, str] | None = None) -> list[Any]:
    lines = rolecall("trace", "export", *words, "--as", "json", env=env or {}, check=0).stdout.splitlines()
    return [span for line in lines for span in decode(line.encode()).resource_spans[0].scope_spans[0].spans]


def name_span(span: Any) -> str:
    """A span as its own agent is told of it."""
    return f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"


def test_a_collector_reads_a_thread_and_the_agent_knew_its_span(rolecall: Rolecall, tmp_path: Path) -> None:
    env = {
        "SECRET_KEY": "a-secret-of-ours",
        "TRACEPARENT": f"00-{'1' * 32}-{'2' * 16}-01",
        "TRACESTATE": "a=b",
    }
    ident = run(rolecall, tmp_path, env)
    with collecting() as collector:
        sent = rolecall.json("trace", "export", ident, "--otlp", collector.url, env=env)
        once = [span.SerializeToString() for span in collector.spans]
        rolecall("trace", "export", ident, "--otlp", f"{collector.url}/v1/traces", env=env, check=0)
        assert [span.SerializeToString() for span in collector.spans] == once * 2
        spans = collector.spans[: len(once)]
        rolecall("trace", "export", ident, "--content", "--otlp", collector.url, env=env, check=0)
        whole = collector.spans[2 * len(once) :]

    assert sent == {"threads": 1, "spans": len(once), "rejected": 0, "reason": ""}
    [top] = by_name(spans, "invoke_workflow two-roles")
    failed, worked = by_name(spans, "invoke_agent worker")
    [person] = by_name(spans, "human checker")
    assert {span.trace_id for span in spans} == {top.trace_id}
    assert not top.parent_span_id
    assert {span.parent_span_id for span in (failed, worked, person)} == {top.span_id}
    assert failed.status.code == 2 and "no credit" in failed.status.message
    assert attributes(failed)["error.type"] == "failed"
    about = attributes(worked)
    assert (about["rolecall.thread"], about["rolecall.step"], about["rolecall.attempt"]) == (ident, 1, 2)
    assert about["rolecall.status"] == "done"
    assert "gen_ai.response.finish_reasons" not in about, "a program without a model finishes for no reason"
    assert worked.start_time_unix_nano <= worked.end_time_unix_nano <= top.end_time_unix_nano
    schemas = {scope.schema_url for scope in collector.requests[0].resource_spans[0].scope_spans}
    assert schemas == {conventions.SCHEMA}

    step = rolecall.json("thread", "step-details", f"{ident}#1")
    message = f"00-{worked.trace_id.hex()}-{worked.span_id.hex()}-01 "
    assert step["output"]["seen"] == message
    assert b"The report" not in b"".join(once) and b"The task" not in b"".join(once)
    text = b"".join(span.SerializeToString() for span in whole)
    assert b"The report about ***MASKED***" in text and b"The task" in text
    assert b"a-secret-of-ours" not in text + b"".join(once)


def test_reused_steps_and_forks_link_to_the_step_and_the_span_of_an_agent_is_not_in_its_key(
    rolecall: Rolecall, tmp_path: Path
) -> None:
    (tmp_path / "one.yaml").write_text(
        "name: one\nroles: {writer: {prompt: Write., schema: {type: object},"
        " agent: 'command:printf %s ---\\n---\\nHello'}}\n"
        "graph: {$START: writer, writer: {_: {role: $END}}}\n"
    )
    words = ("run", "./one.yaml", "-p", "x", "--reuse")
    rolecall(*words, cwd=tmp_path, env={"TRACEPARENT": f"00-{'1' * 32}-{'2' * 16}-01"}, check=0)
    rolecall(*words, cwd=tmp_path, env={"TRACEPARENT": f"00-{'3' * 32}-{'4' * 16}-01"}, check=0)
    ids = sorted(one["thread"] for one in rolecall.json("thread", "list", "--all", cwd=tmp_path))
    rolecall("thread", "fork", ids[0], "--at", "1", cwd=tmp_path, check=0)
    after = sorted(one["thread"] for one in rolecall.json("thread", "list", "--all", cwd=tmp_path))
    [fork] = set(after) - set(ids)
    spans = export(rolecall, *ids, fork)
    asked, reused = by_name(spans, "invoke_agent writer")
    [top] = [
        one for one in by_name(spans, "invoke_workflow one") if attributes(one)["rolecall.thread"] == fork
    ]
    assert attributes(reused)["rolecall.reused"] is True
    for span in (reused, top):
        assert [(link.trace_id, link.span_id) for link in span.links] == [(asked.trace_id, asked.span_id)]
        assert span.trace_id != asked.trace_id


def test_members_of_groups_and_nested_workflows_are_under_the_step_that_they_play(
    rolecall: Rolecall, tmp_path: Path
) -> None:
    for name, text in (("team.yaml", TEAM), ("inner.yaml", INNER), ("agent.sh", TELLING)):
        (tmp_path / name).write_text(text)
    rolecall("run", "./team.yaml", "-p", "x", cwd=tmp_path, check=0)
    ident = max(
        one["thread"]
        for one in rolecall.json("thread", "list", "--all", cwd=tmp_path)
        if one["name"] == "team"
    )
    spans = export(rolecall, ident)
    tree = {span.span_id: span for span in spans}
    assert len(tree) == len(spans) and len({span.trace_id for span in spans}) == 1
    above = {span.name: getattr(tree.get(span.parent_span_id), "name", None) for span in spans}
    assert above == {
        "invoke_workflow team": None,
        "invoke_workflow both": "invoke_workflow team",
        "invoke_agent one": "invoke_workflow both",
        "invoke_agent two": "invoke_workflow both",
        "invoke_agent nested": "invoke_workflow team",
        "invoke_workflow inner": "invoke_agent nested",
        "invoke_agent writer": "invoke_workflow inner",
    }
    for role in ("one", "two", "writer"):  # in the traces of their own threads, too
        [span] = by_name(spans, f"invoke_agent {role}")
        about = attributes(span)
        step = rolecall.json("thread", "step-details", f"{about['rolecall.thread']}#{about['rolecall.step']}")
        assert step["output"]["seen"] == name_span(span)
        assert span in export(rolecall, about["rolecall.thread"])


def test_turns_and_tool_calls_of_a_model_are_spans_below_its_attempt(
    rolecall: Rolecall, tmp_path: Path
) -> None:
    flow = "name: one\nroles: {writer: {prompt: Write., schema: {type: object}}}\n"
    (tmp_path / "one.yaml").write_text(flow + "graph: {$START: writer, writer: {_: {role: $END}}}\n")
    (tmp_path / "notes.txt").write_text("secret plans\n")
    script: list[Item] = [
        Calls("read_file", {"path": "notes.txt"}, "I look."),
        Says(f"---\n---\n{'x' * 19_982}{KEY}", cached_tokens=4),
    ]
    with ModelServer(script) as server:
        rolecall("config", "set", "providers.ours.baseUrl", server.base_url, check=0)
        words = ("run", "./one.yaml", "-p", "x", "--agent", "builtin:ours/a-model")
        rolecall(*words, cwd=tmp_path, check=0)
    [ident] = [one["thread"] for one in rolecall.json("thread", "list", "--all", cwd=tmp_path)]
    spans = export(rolecall, ident)
    [asked] = by_name(spans, "invoke_agent writer")
    first, second = by_name(spans, "chat a-model")
    [tool] = by_name(spans, "execute_tool read_file")
    assert {span.parent_span_id for span in (first, tool, second)} == {asked.span_id}
    assert (first.kind, tool.kind) == (3, 1), "the model is another service, the tool is not"
    times = [(span.start_time_unix_nano, span.end_time_unix_nano) for span in (first, tool, second)]
    edges = [edge for period in times for edge in period]
    assert edges == sorted(edges)
    assert asked.start_time_unix_nano <= edges[0] and edges[-1] <= asked.end_time_unix_nano
    about = attributes(asked)
    assert about["gen_ai.response.finish_reasons"] == ["stop"]
    tokens = {key: about[f"gen_ai.usage.{key}"] for key in ("input_tokens", "output_tokens")}
    assert tokens == {"input_tokens": 20, "output_tokens": 10}
    assert about["gen_ai.usage.cache_read.input_tokens"] == 4
    for span in (asked, first):
        about = attributes(span)
        assert (about["gen_ai.request.model"], about["gen_ai.provider.name"]) == ("a-model", "ours")
    assert attributes(tool)["gen_ai.tool.name"] == "read_file"
    assert "rolecall.estimated" not in attributes(tool), "its times were measured"
    assert not any("secret plans" in str(attributes(span)) for span in spans)
    whole = export(rolecall, ident, "--content", env={"OUR_KEY": KEY})
    [said] = json.loads(attributes(by_name(whole, "invoke_agent writer")[0])["gen_ai.output.messages"])
    turns = [
        json.loads(attributes(one)["gen_ai.output.messages"])[0] for one in by_name(whole, "chat a-model")
    ]
    assert [one["finish_reason"] for one in (*turns, said)] == ["tool_call", "stop", "stop"]
    assert turns[0]["parts"][0]["content"] == "I look."
    answer = said["parts"][0]["content"]
    assert len(answer) == 20_000 and answer.endswith("x***MASKED*"), "it is masked before it is cut"
    [tool] = by_name(whole, "execute_tool read_file")
    assert "secret plans" in attributes(tool)["gen_ai.tool.call.result"]


@pytest.mark.skipif(not find_layers().namespaces, reason="this machine has no sandbox")
def test_an_agent_in_a_sandbox_knows_its_span_though_other_variables_do_not_pass(
    rolecall: Rolecall, tmp_path: Path
) -> None:
    (tmp_path / "inner.yaml").write_text(
        INNER.replace("    schema:", "    sandbox: {env: [LANGUAGE]}\n    schema:")
    )
    (tmp_path / "agent.sh").write_text(TELLING)
    rolecall("run", "./inner.yaml", "-p", "x", cwd=tmp_path, env={"HIDDEN": "hidden"}, check=0)
    [ident] = [one["thread"] for one in rolecall.json("thread", "list", "--all", cwd=tmp_path)]
    [span] = by_name(export(rolecall, ident), "invoke_agent writer")
    step = rolecall.json("thread", "step-details", f"{ident}#1")
    assert step["output"]["seen"] == name_span(span)


def test_requests_are_printed_as_lines_and_nothing_is_sent(rolecall: Rolecall, tmp_path: Path) -> None:
    ident = run(rolecall, tmp_path, {})
    lines = rolecall("trace", "export", "--since", "1h", "--as", "json", check=0).stdout.splitlines()
    [request] = [decode(line.encode()) for line in lines]
    names = [span.name for span in request.resource_spans[0].scope_spans[0].spans]
    assert names == [
        "invoke_workflow two-roles",
        "invoke_agent worker",
        "invoke_agent worker",
        "human checker",
    ]
    done = rolecall("trace", "export", ident)
    assert done.returncode == 2 and "traces.otlp" in done.stderr
    done = rolecall("trace", "export", ident, "--otlp", "localhost:4318")
    assert done.returncode == 2 and "--otlp: the address must begin with http:// or https://" in done.stderr
    for address in ("http://[::1", "http://host:port", "http://host:70000", "http://name:password@host"):
        done = rolecall("trace", "export", ident, "--otlp", address)
        assert done.returncode == 2 and "is not of the form http://HOST:PORT" in done.stderr


def test_a_collector_that_is_away_or_refuses_is_named(rolecall: Rolecall, tmp_path: Path) -> None:
    ident = run(rolecall, tmp_path, {})
    with collecting() as collector:
        collector.answers = [(403, b"who are you")]
        refused = rolecall("trace", "export", ident, "--otlp", collector.url)
        collector.answers = [(200, b'{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old"}}')]
        partly = rolecall("trace", "export", ident, "--otlp", collector.url)
    gone = rolecall("trace", "export", ident, "--otlp", collector.url)
    assert refused.returncode == 5 and "answered 403: who are you" in refused.stderr
    assert partly.returncode == 1 and "2 were not accepted: too old" in partly.stdout
    assert gone.returncode == 5 and "cannot be reached" in gone.stderr


def test_only_the_configured_collector_gets_the_headers(rolecall: Rolecall, tmp_path: Path) -> None:
    ident = run(rolecall, tmp_path, {})
    env = {"OTLP_HEADERS": "authorization=Basic%20abc, x-team=us"}
    with collecting() as ours, collecting() as other:
        rolecall("config", "set", "traces.otlp", ours.url, check=0)
        rolecall("config", "set", "traces.headersEnv", "OTLP_HEADERS", check=0)
        rolecall("trace", "export", ident, env=env, check=0)
        rolecall("trace", "export", ident, "--otlp", other.url, env=env, check=0)
        done = rolecall("trace", "export", ident)
        assert done.returncode == 2 and "'OTLP_HEADERS', which holds the headers" in done.stderr
        rolecall("trace", "export", ident, "--otlp", other.url, check=0)
    assert (ours.headers[0]["Authorization"], ours.headers[0]["X-Team"]) == ("Basic abc", "us")
    assert not any("Authorization" in headers for headers in other.headers)


def test_the_names_are_those_of_the_conventions() -> None:
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    ours = {
        value
        for value in vars(conventions).values()
        if isinstance(value, str) and value.startswith("gen_ai.")
    }
    assert ours <= known
    operations = {one.value for one in gen_ai_attributes.GenAiOperationNameValues}
    assert {
        conventions.INVOKE_WORKFLOW,
        conventions.INVOKE_AGENT,
        conventions.EXECUTE_TOOL,
        conventions.CHAT,
    } <= (operations)
    providers = {one.value for one in gen_ai_attributes.GenAiProviderNameValues}
    assert set(conventions.PROVIDERS.values()) <= providers
    assert re.fullmatch(r"\d+\.\d+\.\d+", conventions.VERSION)

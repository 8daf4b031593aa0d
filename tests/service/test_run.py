"""`rolecall run`: the same words and codes whether a service runs the threads or this process does."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servicestage import PATIENCE, STEPS, Service, done, served

from rolecall.threads import thread


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Service]:
    """A home without a service."""
    service = Service(tmp_path)
    (tmp_path / "do-steps.yaml").write_text(STEPS.format(name="do-steps"))
    yield service
    service.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with served(tmp_path, "--concurrency", "3") as service:
        (tmp_path / "do-steps.yaml").write_text(STEPS.format(name="do-steps"))
        yield service


def run(service: Service, *args: str, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    given = service.rolecall("run", "./do-steps.yaml", *args, "--cwd", "work", **options)
    assert given.returncode == code, (given.returncode, given.stdout, given.stderr)
    return given


def plain(service: Service, text: str) -> str:
    """Output without what is another every time: folders, ids, times, process numbers, marks of runs."""
    text = text.replace(str(service.folder), "FOLDER")
    text = re.sub(r"01[0-9A-Z]{24}", "THREAD", text)
    text = re.sub(r"'?\b[0-9A-Z]{13}\b'?", "NODE", text)
    text = re.sub(r"""("?pid"?): [0-9]+""", r"\1: 0", text)
    text = re.sub(r"""("?run"?): ["']?[0-9a-f]{16}["']?""", r"\1: RUN", text)
    text = re.sub(r"""(, |\n +)"?minutes"?: [0-9.e-]+""", "", text)  # none at all when it was quick
    text = re.sub(r"[0-9]+\.[0-9]s", "0.0s", text)
    return text.replace(", 0.0s", "")  # none at all when it was quick


ENDINGS = {
    "completed": ([done(usage={"input_tokens": 90, "output_tokens": 10}), done("end")], 0),
    "failed": ([done(), done("fail")], 6),
    "suspended": ([{"output": {"$status": "$SUSPEND", "reason": "Which one?"}}], 7),
    "agent failed": ([done(), {"fail": {"ending": "failed", "reason": "no credit"}}], 7),
    "with a process": ([done("end", run=[["echo", "hello"]], emit=[{"kind": "text", "text": "hm"}])], 0),
}


@pytest.mark.parametrize("form", ["text", "json", "yaml"])
def test_what_is_printed_is_the_same_with_a_service_and_without(
    tmp_path_factory: pytest.TempPathFactory, form: str
) -> None:
    received: list[dict[str, tuple[str, str]]] = []
    for is_served in (False, True):
        service = Service(tmp_path_factory.mktemp("home"))
        outputs = {}
        try:
            if is_served:
                service.start()
            (service.folder / "do-steps.yaml").write_text(STEPS.format(name="do-steps"))
            for number, (ending, (entries, code)) in enumerate(ENDINGS.items()):
                agent = service.script(*entries, name=f"script-{number}")
                given = run(service, "-p", "Do it", "--agent", agent, "--format", form, code=code)
                outputs[ending] = (plain(service, given.stdout), plain(service, given.stderr))
            states = [ref.state for ref in service.store.refs("thread/")]
            assert [("service" in state) for state in states] == [is_served] * len(ENDINGS)
        finally:
            service.close()
        received.append(outputs)
    assert received[0] == received[1]
    assert all("THREAD" in output for output, _ in received[0].values())


def test_a_thread_that_is_detached_waits_and_its_id_is_all_that_is_printed(alone: Service) -> None:
    agent = alone.script(done("end"))
    text = run(alone, "-p", "Do it", "--agent", agent, "--detach", "--format", "text")
    name = text.stdout.strip()
    assert alone.thread_status(name) == "queued"
    assert "no service is running here" in text.stderr
    reply = json.loads(
        run(alone, "-p", "Do it", "--agent", agent, "--detach", "--priority", "9", "--json").stdout
    )
    assert reply["status"] == "queued"
    assert alone.state(reply["thread"])["service"]["priority"] == 9
    alone.start()
    assert alone.ended(name, reply["thread"]) == ["completed", "completed"]
    started = [event.stream for event in alone.store.events() if event.kind == "started"]
    assert started == [reply["thread"], name]


def test_a_detached_thread_is_run_by_the_service_that_is_there(service: Service) -> None:
    result = run(service, "-p", "Do it", "--agent", service.script(done("end")), "--detach", "--json")
    assert result.stderr == ""
    assert service.ended(json.loads(result.stdout)["thread"]) == ["completed"]


PROMPTS = """Fix the first one

{"prompt": "Fix the\\nsecond one", "priority": 4}
"Fix the \\"third\\" one"
"quoted" at the beginning only
{"prompt": "Elsewhere", "cwd": "inner"}
"""
EXPECTED = [
    ("Fix the first one", 0, "work"),
    ("Fix the\nsecond one", 4, "work"),
    ('Fix the "third" one', 0, "work"),
    ('"quoted" at the beginning only', 0, "work"),
    ("Elsewhere", 0, "inner"),
]


@pytest.mark.parametrize("source", ["file", "standard input"])
def test_each_line_of_a_file_becomes_a_thread_in_the_order_of_the_lines(
    service: Service, source: str
) -> None:
    (service.work / "inner").mkdir()
    (service.folder / "prompts.txt").write_text(PROMPTS)
    given = "prompts.txt" if source == "file" else "-"
    result = run(
        service,
        "--each",
        given,
        "--agent",
        service.script(done("end")),
        "--detach",
        "--json",
        input=PROMPTS if source != "file" else "",
    )
    names = [entry["thread"] for entry in json.loads(result.stdout)]
    starts = [thread.Chain(service.store, thread.find(service.store, name).head).start for name in names]
    found = [
        (start.prompt, service.state(name)["service"]["priority"], Path(start.cwd).name)
        for name, start in zip(names, starts, strict=True)
    ]
    assert found == EXPECTED
    queued = [(service.state(name)["service"]["queued_at"], name) for name in names]
    assert queued == sorted(queued)  # those of one millisecond stand in the order of their ids
    assert set(service.ended(*names)) == {"completed"}


def test_many_threads_are_followed_and_how_each_ended_is_told_in_order(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    outputs = []
    for is_served in (False, True):
        service = Service(tmp_path_factory.mktemp("home"))
        try:
            if is_served:
                service.start("--concurrency", "3")
            (service.folder / "do-steps.yaml").write_text(STEPS.format(name="do-steps"))
            (service.folder / "prompts.txt").write_text("one\ntwo\nthree\nfour\n")
            given = run(
                service,
                "--each",
                "prompts.txt",
                "--agent",
                service.script(done(), done("fail")),
                "--json",
                code=6,
            )
            lines = [json.loads(line) for line in given.stdout.splitlines()]
            assert [line["status"] for line in lines] == ["failed"] * 4
            names = [ref.name[7:] for ref in service.store.refs("thread/")]
            assert [line["thread"] for line in lines] == sorted(names)
            outputs.append((plain(service, given.stdout), plain(service, given.stderr)))
        finally:
            service.close()
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"prompt": 7}', "must have a `prompt`"),
        ('{"promt": "x"}', "'promt'"),
        ('{"prompt": "x", "priority": 10}', "priority"),
        ('{"prompt": "x", "priority": 5.0}', "priority"),
        ('{"prompt": "x", "priority": true}', "priority"),
        ('{"prompt": "x"', "begins like JSON"),
        ('""', "empty prompt"),
        ('{"prompt": "x", "cwd": "nowhere"}', "nowhere', which does not exist"),
        ('{"prompt": "\\ud800"}', "half of a character"),
        ("", "has no prompts"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line_before_any_thread_is_made(
    alone: Service, line: str, told: str
) -> None:
    (alone.folder / "prompts.txt").write_text(f"a good one\n{line}\n" if line else "\n")
    given = run(alone, "--each", "prompts.txt", "--agent", alone.script(done("end")), code=2)
    assert told in given.stderr
    assert "prompts.txt:2" in given.stderr or not line
    assert alone.store.refs("thread/") == []


def test_only_the_end_of_a_line_ends_a_prompt(alone: Service) -> None:
    text = '\ufeff{"prompt": "one\u2028more"}\r\n\r\ntwo\x0cmore\x85\r\n'
    (alone.folder / "prompts.txt").write_bytes(text.encode())
    run(alone, "--each", "prompts.txt", "--agent", alone.script(done("end")), "--detach")
    prompts = [
        thread.Chain(alone.store, ref.target or "").start.prompt for ref in alone.store.refs("thread/")
    ]
    assert sorted(prompts) == ["one\u2028more", "two\x0cmore"]


def test_how_far_it_came_is_told_where_a_thread_cannot_be_made(alone: Service) -> None:
    text = STEPS.format(name="do-steps").replace("roles:", "workdir: worktree\nroles:", 1)
    (alone.folder / "do-steps.yaml").write_text(text)
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        who = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
        subprocess.run(["git", *who, *words], cwd=alone.work, env=alone.env, check=True)
    (alone.folder / "no-repository").mkdir()
    lines = ["one", "two", json.dumps({"prompt": "three", "cwd": str(alone.folder / "no-repository")})]
    (alone.folder / "prompts.txt").write_text("\n".join(lines))
    given = run(alone, "--each", "prompts.txt", "--agent", alone.script(done("end")), "--detach", code=2)
    last = max(ref.name[7:] for ref in alone.store.refs("thread/"))
    assert f"2 of 3 threads were queued; the last is {last}" in given.stderr


def test_an_agent_that_cannot_be_had_is_told_before_anything_is_queued(service: Service) -> None:
    given = run(service, "-p", "Do it", "--agent", "command:no-such-program", "--detach", code=3)
    assert "no-such-program" in given.stderr
    assert service.store.refs("thread/") == []


def test_the_priority_of_a_workflow_is_the_projects(alone: Service) -> None:
    (alone.folder / "rolecall.yaml").write_text("workflows: {do-steps: {priority: 6}}\n")
    agent = alone.script(done("end"))
    name = json.loads(run(alone, "-p", "Do it", "--agent", agent, "--detach", "--json").stdout)["thread"]
    assert alone.state(name)["service"]["priority"] == 6
    name = json.loads(
        run(alone, "-p", "Do it", "--agent", agent, "--detach", "--priority", "1", "--json").stdout
    )["thread"]
    assert alone.state(name)["service"]["priority"] == 1


def test_whoever_stops_following_leaves_the_thread_to_the_service(service: Service) -> None:
    agent = service.script({"hang": True, "again": [done("end")]})
    following = service.spawn(
        "run", "./do-steps.yaml", "-p", "Do it", "--agent", agent, "--cwd", "work", "--json"
    )
    assert following.stdout is not None
    for line in following.stdout:
        if json.loads(line).get("event") == "step_started":
            name = json.loads(line)["thread"]
            break
    following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=PATIENCE)
    assert following.returncode == 130
    assert errors.splitlines()[-2:] == [
        f"{name} continues in the service",
        f"watch: rolecall thread watch {name}",
    ]
    assert service.thread_status(name) == "running"


def test_whoever_follows_waits_for_a_service_that_died_to_come_back(service: Service) -> None:
    agent = service.script({"hang": True, "again": [done("end")]})
    following = service.spawn(
        "run", "./do-steps.yaml", "-p", "Do it", "--agent", agent, "--cwd", "work", "--format", "text"
    )
    name = service.until(lambda: [ref.name[7:] for ref in service.store.refs("thread/")])[0]
    service.event(name, "step_started")
    service.kill()
    assert following.stderr is not None
    errors = next(line for line in following.stderr if not line.startswith("thread "))
    assert errors == "the service has ended; the thread is waiting for it to run again\n"
    service.start()
    output, _ = following.communicate(timeout=PATIENCE)
    assert following.returncode == 0
    assert re.search(r"✗ crashed: process \d+ on .*, which ran it, is gone", output)
    assert f"{name} is completed" in output.splitlines()


def test_a_service_on_another_store_is_not_asked(service: Service) -> None:
    other = service.folder / "other.db"
    agent = service.script(done("end"))
    given = run(service, "-p", "Do it", "--agent", agent, "--store", str(other), "--json")
    assert json.loads(given.stdout.splitlines()[-1])["status"] == "completed"
    assert service.store.refs("thread/") == []


def test_a_discarded_thread_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "rolecall.yaml").write_text("workflows: {do-steps: {overflow: drop}}\n")
    with served(tmp_path) as service:
        (tmp_path / "do-steps.yaml").write_text(STEPS.format(name="do-steps"))
        busy = service.enter(service.workflow(), service.script({"hang": True}, name="hangs"))
        service.event(busy, "step_started")
        given = run(service, "-p", "Do it", "--agent", service.script(done("end")), "--json", code=9)
        last = json.loads(given.stdout.splitlines()[-1])
        assert (last["status"], last["done"]) == ("discarded", True)
        assert "was busy" in last["reason"]


def test_thread_watch_tells_the_whole_life_with_its_times(service: Service) -> None:
    name = service.enter(service.workflow(), service.script(done("end")))
    service.ended(name)
    shown = [
        json.loads(line) for line in service.rolecall("thread", "watch", name, "--json").stdout.splitlines()
    ]
    life = [(line["event"], line["at"] > 0) for line in shown if "event" in line]
    received = [kind for kind, _ in life]
    assert [kind for kind in received if kind in ("queued", "started", "step", "completed")] == [
        "queued", "started", "step", "completed",
    ]  # fmt: skip
    assert all(has_time for _, has_time in life)


COUNT_UP = """
from rolecall import END, Role, Workflow

async def one(context):
    return {{"content": "{word}", "meta": {{}}}}

workflow = Workflow("count-up", {{"one": Role.function(one)}}, lambda context: END if context.steps else "one")
"""


def test_copies_of_python_workflows_that_no_thread_was_started_with_go_with_the_garbage(
    alone: Service,
) -> None:
    file = alone.folder / "workflows" / "count-up.py"
    file.parent.mkdir()
    for word, prompt in (("first", "Count"), ("second", "Count"), ("never", " ")):
        file.write_text(COUNT_UP.format(word=word))
        alone.rolecall("run", "count-up", "-p", prompt, "--detach")
    waiting = [ref.name[7:] for ref in alone.store.refs("thread/")]
    assert len(waiting) == 2
    copies = alone.home / "versions"
    assert len(list(copies.glob("*/*/count-up.py"))) == 3
    for options, count, left in ((["--grace", "1h", "--delete"], 0, 3), (["--grace", "0", "--delete"], 1, 2)):
        assert json.loads(alone.rolecall("cas", "gc", *options, "--json").stdout)["copies"] == count
        assert len(list(copies.glob("*/*/count-up.py"))) == left
    alone.start()
    assert alone.ended(*waiting) == ["completed"] * 2
    assert [step.body for name in waiting for step in alone.steps(name)] == ["first", "second"]

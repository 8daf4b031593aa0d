"""The JSON interface and its events, over real HTTP, with threads that real processes run."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from time import monotonic, sleep

import pytest
from webstage import AGAIN, DAILY, HOSTILE, PATIENCE, PROGRAM, Project, Site, served, until

WRONG = {"roles": {"worker": [{"fail": {}, "usage": {"input_tokens": 7, "output_tokens": 0}}]}}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("interface"))


@pytest.fixture(scope="module")
def site(project: Project) -> Iterator[Site]:
    with served(project) as found:
        yield found.sign_in()


def test_a_thread_started_on_the_page_runs_and_is_live(project: Project, site: Site) -> None:
    with site.events() as events:
        next(events)
        made = site.post(
            "/threads",
            {
                "workflow": "loop",
                "prompt": "Go",
                "agents": {"worker": "scripted:again.yaml"},
                "limits": {"steps": 9},
            },
        )
        assert made["runs"] == "process"
        seen = until(events, "step", status="completed")
    mine = [event for event in seen if event.get("thread") == made["thread"]]
    assert [event["kind"] for event in mine if event["kind"] == "step"] == ["step"] * 5
    assert all(event["kind"] not in ("text", "usage", "tool_call") for event in mine)

    # A page that was away gets what it missed, once, and everything of the thread it looks at.
    numbers = [event["id"] for event in seen if event["id"]]
    with site.events(last=numbers[1], thread=made["thread"]) as events:
        later = until(events, "step", status="completed")
    assert [event["id"] for event in later if event["kind"] == "step"] == [
        event["id"] for event in mine if event["kind"] == "step"
    ]
    assert [event["id"] for event in later[1:]] == sorted({event["id"] for event in later[1:]})
    shown = site.get(f"/threads/{made['thread']}")
    assert (shown["status"], shown["steps"], shown["limits"]["steps"]) == ("completed", 5, 9)
    assert site.get(f"/threads/{made['thread']}/graph")["visits"] == {"worker": 5}


def test_events_of_another_process_arrive(project: Project, site: Site) -> None:
    ident = project.start("loop", script="again.yaml")
    with site.events(thread=ident) as events:
        next(events)
        project.run(ident)
        kinds = [event["kind"] for event in until(events, "step", status="completed")]
    assert kinds.count("step") == 5


def test_a_killed_process_is_noticed(project: Project, site: Site) -> None:
    ident = project.rolecall("thread", "start", "loop", "-p", "Wait", "--agent", "command:sleep 300")
    with site.events() as events:
        next(events)
        child = subprocess.Popen(
            [PROGRAM, "thread", "run", ident],
            cwd=project.folder,
            env=project.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(events, "step_started")
        child.kill()
        child.wait()
        until(events, "crashed")
    assert site.get(f"/threads/{ident}")["question"]["kind"] == "crashed"
    site.post(f"/threads/{ident}/kill")  # which also ends its agent


def test_a_person_plays_a_role_and_a_second_answer_is_told_who_was_first(
    project: Project, site: Site
) -> None:
    ident = project.start("approve")
    project.run(ident, code=7)
    [item] = [one for one in site.get("/inbox")["items"] if one["thread"] == ident]
    assert item["kind"] == "answer"
    question = site.get(f"/threads/{ident}")["question"]
    assert [form["status"] for form in question["forms"]] == ["approved", "rejected"]
    head = question["head"]

    wrong = site.post(
        f"/threads/{ident}/answer", {"output": {"status": "approved"}, "head": head}, status=422
    )
    assert any("points" in problem for problem in wrong["problems"])

    comments = [{"path": "work.txt", "line": 2, "side": "new", "quote": "<b>two</b>", "text": "Say three."}]
    answer = {
        "output": {"status": "rejected", "why": "no"},
        "body": "Look.",
        "head": head,
        "comments": comments,
    }
    with site.events(thread=ident) as events:
        next(events)
        done = site.post(f"/threads/{ident}/answer", answer, X_Rolecall_Person="Ada%20L.")
        assert done["runs"] == "process"
        until(events, "suspended")  # the worker has answered, and the person is asked again
    late = site.post(f"/threads/{ident}/answer", answer, status=409)
    assert "continued before your answer arrived" in late["error"]

    steps = site.get(f"/threads/{ident}/steps")["steps"]
    assert [step["role"] for step in steps] == ["worker", "person", "worker"]
    assert steps[1]["by"] == {"person": "Ada L.", "door": "web", "address": "127.0.0.1"}
    prompt = site.get(f"/steps/{steps[0]['id']}")["prompt"]
    assert "- `work.txt`, line 2: `<b>two</b>`\n  Say three." in prompt

    # Two people answer the same question.
    question = site.get(f"/threads/{ident}")["question"]
    output = {"output": {"status": "approved", "points": 3}, "head": question["head"]}
    site.post(f"/threads/{ident}/answer", output, X_Rolecall_Person="Ada")
    assert "Ada answered as person" in site.post(f"/threads/{ident}/answer", output, status=409)["error"]
    assert site.get(f"/threads/{ident}")["status"] == "completed"


def test_a_limit_is_raised_and_a_fork_and_a_kill_are_made(project: Project, site: Site) -> None:
    ident = project.start("loop", script="again.yaml", limits=("steps=2",))
    project.run(ident, code=7)
    question = site.get(f"/threads/{ident}")["question"]
    assert (question["kind"], question["limit"]) == ("raise", "steps")
    fork = site.post(f"/threads/{ident}/fork", {"at": "1", "run": False})["thread"]
    assert site.get(f"/threads/{fork}")["actions"] == ["run", "kill", "fork"]
    site.post(f"/threads/{fork}/kill", {"reason": "not needed"})
    assert site.get(f"/threads/{fork}")["reason"].endswith(": not needed")
    with site.events() as events:
        next(events)
        site.post(f"/threads/{ident}/resume", {"limits": {"steps": 9}, "head": question["head"]})
        until(events, "step", status="completed")
    assert site.get("/compare", one=ident, other=fork)["commonSteps"] == 1
    ahead = site.post("/forecast", {"workflow": "loop", "prompt": "Go", "agent": "scripted:again.yaml"})
    assert ahead["asks"] == "worker" and ahead["threads"] >= 1
    assert site.get("/workflows/loop")["limits"] == {"steps": 30}


def test_what_agents_write_is_never_script(project: Project, site: Site) -> None:
    ident = project.start("loop")
    project.run(ident)
    [step] = site.get(f"/threads/{ident}/steps")["steps"]
    found = site.get(f"/steps/{step['id']}")
    assert found["body"] == HOSTILE
    assert not re.search(r"<script|<img|href=\"javascript", found["bodyHtml"])
    assert "<em>fine</em>" in found["bodyHtml"]
    [part] = site.get(f"/threads/{ident}/diff")["parts"]
    assert "+<b>two</b>" in part["diff"]


def test_a_secret_in_a_file_is_masked(tmp_path: Path) -> None:
    own = Project(tmp_path)
    script = {
        "roles": {"worker": [{"edit": {"a.txt": "key = s3cret-of-mine\n"}, "output": {"status": "done"}}]}
    }
    (own.folder / "leak.yaml").write_text(json.dumps(script))
    ident = own.start("loop", script="leak.yaml")
    own.run(ident)
    with served(own, SOME_API_KEY="s3cret-of-mine") as site:
        [part] = site.sign_in().get(f"/threads/{ident}/diff")["parts"]
        assert "+key = ***MASKED***" in part["diff"] and "s3cret" not in json.dumps(part)


def test_a_large_change_is_sent_in_parts(project: Project, site: Site) -> None:
    edits = {"aaa.txt": "small\n", "big.txt": "line\n" * 10_000, "long.txt": "x" * 2_100_000}
    script = {"roles": {"worker": [{"edit": edits, "output": {"status": "done"}}]}}
    (project.folder / "large.yaml").write_text(json.dumps(script))
    ident = project.start("loop", script="large.yaml")
    project.run(ident)
    [part] = site.get(f"/threads/{ident}/diff")["parts"]
    assert {"aaa.txt", "big.txt", "long.txt"} <= {change["path"] for change in part["changes"]}
    assert "+small" in part["diff"] and set(part["omitted"]) == {"big.txt", "long.txt"}
    [part] = site.get(f"/threads/{ident}/diff", query={"path": "big.txt"})["parts"]
    assert part["diff"].count("+line") == 10_000 and "isCut" not in part
    [part] = site.get(f"/threads/{ident}/diff", query={"path": "long.txt"})["parts"]
    assert part["isCut"] and len(part["diff"]) <= 2_000_000
    for name in edits:
        (project.folder / name).unlink()


def test_lists_have_pages_and_filters(project: Project, site: Site) -> None:
    project.run(project.start("loop"))
    for _ in range(3):
        project.start("loop")
    every = [row["thread"] for row in site.get("/threads", max="200")["threads"]]
    pages: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = site.get("/threads", max="2", after=cursor)
        pages += [row["thread"] for row in page["threads"]]
        cursor = page["next"]
    assert pages == every
    idle = site.get("/threads", query={"status": "idle", "workflow": "loop"})["threads"]
    assert len(idle) >= 3 and {row["status"] for row in idle} == {"idle"}
    assert site.get("/threads", cost="0.4")["threads"]


def test_bad_requests_say_what_is_wrong(site: Site) -> None:
    assert site.get("/threads", status=400, max="x")["code"] == "usage"
    assert site.get("/threads/01NOSUCHTHREAD", status=404)["code"] == "not_found"
    assert site.get("/steps/0000000000000", status=404)["code"] == "not_found"
    assert site.get("/nothing", status=404)["code"] == "not_found"
    assert site.post("/threads", {"workflow": "none", "prompt": "x"}, status=404)["error"]
    assert site.post("/threads", {"workflow": "loop"}, status=422)["problems"]
    assert site.send("POST", "/api/threads", X_Rolecall="1").status == 422
    assert site.send("GET", "/api/threads/%00").status == 400


def test_a_workflow_of_a_pack_is_refused_with_the_command_that_allows_it(
    project: Project, site: Site
) -> None:
    lock = project.folder / ".workflows" / "lock.yaml"
    lock.write_text(f"workflows: {{loop: {{source: ../flows, content: 'sha256:{'0' * 64}'}}}}\n")
    try:
        refused = site.post("/threads", {"workflow": "loop", "prompt": "x"}, status=400)
        assert "has changed since" in refused["error"] and "`rolecall workflow trust loop`" in refused["hint"]
        shown = site.get("/workflows/loop")
        assert shown["refused"] == {"error": refused["error"], "hint": refused["hint"]}
        assert shown["places"] and "worker" in shown["powers"][0]["lines"][0]
    finally:
        lock.unlink()


def test_the_page_says_what_a_workflow_of_a_pack_may_do_as_the_command_line_does(
    project: Project, site: Site
) -> None:
    folder = project.folder / ".workflows"
    lock, chosen = folder / "lock.yaml", folder / "choose-program.yaml"
    chosen.write_text(
        "name: choose-program\ndescription: Choose.\nroles:\n"
        "  worker: {prompt: Go., capabilities: [read_only], agent: 'claude:opus executable=./coder', "
        "schema: {type: object}, extract: {baseUrl: 'https://example.com/v1', apiKeyEnv: SOME_KEY, model: m}}\n"
        "graph: {$START: {_: {role: worker}}, worker: {_: {role: $END}}}\n"
    )
    lock.write_text(f"workflows: {{choose-program: {{source: ../flows, content: 'sha256:{'0' * 64}'}}}}\n")
    try:
        [powers] = site.get("/workflows/choose-program")["powers"]
        assert powers["lines"][0] == (
            "worker: runs the program of its choice: claude:opus executable=./coder; sends its answers to "
            "https://example.com/v1 with the value of SOME_KEY"
        )
    finally:
        lock.unlink()
        chosen.unlink()


def test_a_damaged_thread_is_shown_and_the_rest_works(project: Project, site: Site) -> None:
    project.run(project.start("loop"))
    ident = project.start("loop")
    with sqlite3.connect(project.home / "store.db") as db:
        db.execute("UPDATE refs SET target = '0000000000000' WHERE name = ?", (f"thread/{ident}",))
    rows = {row["thread"]: row["status"] for row in site.get("/threads", max="200")["threads"]}
    assert rows[ident] == "damaged" and "completed" in rows.values()
    shown = site.get(f"/threads/{ident}")
    assert (shown["status"], shown["actions"]) == ("damaged", [])


def test_a_thread_that_nobody_runs_after_a_limit_is_in_the_inbox(project: Project, site: Site) -> None:
    late, early = project.start("loop"), project.start("loop")
    with sqlite3.connect(project.home / "store.db") as db:
        for ident, until in ((late, 1_700_000_000_000), (early, 4_000_000_000_000)):
            db.execute(
                "UPDATE refs SET state = json_set(state, '$.until', ?) WHERE name = ?",
                (until, f"thread/{ident}"),
            )
    items = {item["thread"]: item for item in site.get("/inbox")["items"]}
    assert items[late]["kind"] == "run" and early not in items
    assert site.get(f"/threads/{early}")["until"] == 4_000_000_000_000
    assert site.get("/me")["waiting"] >= 1


def test_long_answers_are_shortened_unless_asked_for(project: Project, site: Site) -> None:
    output = {"status": "done", "note": "n" * 9_000}
    script = {"roles": {"worker": [{"output": output, "body": "b" * 90_000}]}}
    (project.folder / "wordy.yaml").write_text(json.dumps(script))
    ident = project.start("loop", script="wordy.yaml")
    project.run(ident)
    [step] = site.get(f"/threads/{ident}/steps")["steps"]
    assert len(step["output"]["note"]) < 5_000
    assert len(site.get(f"/steps/{step['id']}")["body"]) < 61_000
    assert len(site.get(f"/steps/{step['id']}", whole="1")["body"]) == 90_000


def test_spending_counts_each_step_once(project: Project, site: Site, tmp_path: Path) -> None:
    own = Project(tmp_path)
    (own.folder / "wrong.yaml").write_text(json.dumps(WRONG))
    ident = own.start("loop")
    own.run(ident)
    own.rolecall("thread", "fork", ident)
    with served(own) as place:
        place.sign_in()
        [row] = place.get("/spend")["rows"]
        assert (row["steps"], row["tokens"], row["cost"], row["unpriced"]) == (1, 110, 0.5, 0)
        found = place.get("/search", q="alert done")
        assert [one["thread"] for one in found["found"]][-1] == ident

        # An attempt that failed counts at once, and not again when a step follows it.
        ident = own.start("loop", script="wrong.yaml")
        own.run(ident, code=7)
        assert count(place.get("/spend")["rows"]) == [1, 1, 117]
        (own.folder / "wrong.yaml").write_text(json.dumps(AGAIN))
        own.rolecall("thread", "resume", ident)
        own.rolecall("thread", "step", ident)
        assert count(place.get("/spend")["rows"]) == [2, 1, 117]


def count(rows: list[dict[str, int]]) -> list[int]:
    return [sum(row[name] for row in rows) for name in ("steps", "attempts", "tokens")]


def test_work_that_could_not_be_merged_waits_until_it_is(tmp_path: Path) -> None:
    own = Project(tmp_path)
    parent = own.set_aside()
    with served(own) as site:
        [item] = site.sign_in().get("/inbox")["items"]
        assert (item["kind"], item["parent"], item["reason"]) == (
            "conflict",
            parent,
            "conflicts in notes.txt",
        )
        assert item["conflict"]["files"][0]["path"] == "notes.txt"
        assert site.get("/me")["waiting"] == 1
        assert "could not be merged" in site.post(f"/threads/{item['thread']}/merge", status=400)["error"]
        own.git("merge", "--quiet", "-X", "ours", "-m", "Settle it", item["branch"])
        assert site.get("/inbox")["items"] == []
        site.post(f"/threads/{item['thread']}/folders/remove")


def test_threads_near_a_limit_are_listed(project: Project, site: Site) -> None:
    near = project.start("loop", script="again.yaml", limits=("steps=2",))
    project.run(near, code=7)
    far = project.start("loop", script="again.yaml", limits=("steps=20",))
    project.rolecall("thread", "step", far)
    found = {one["thread"]: one for one in site.get("/limits")["threads"]}
    assert (found[near]["limit"], found[near]["used"], found[near]["most"]) == ("steps", 2, 2)
    assert far not in found


def test_a_trigger_is_fired_and_paused(tmp_path: Path) -> None:
    own = Project(tmp_path)
    (own.folder / "rolecall.yaml").write_text(DAILY)
    with served(own) as site:
        [row] = site.sign_in().get("/service")["triggers"]
        assert (row["trigger"], row["state"], row["fired"]) == ("loop/daily", "on", 0)
        assert site.post("/triggers/loop/daily/pause")["state"] == "paused"
        thread = site.post("/triggers/loop/daily/fire")["thread"]
        [row] = site.get("/service")["triggers"]
        assert (row["state"], row["next"], row["fired"], row["thread"]) == ("paused", None, 1, thread)
        assert site.get(f"/threads/{thread}")["prompt"] == "Count the stock"
        assert site.post("/triggers/loop/daily/resume")["state"] == "on"
        assert site.get("/service")["triggers"][0]["next"]
        assert "unknown trigger" in site.post("/triggers/loop/weekly/fire", status=404)["error"]


def test_with_a_project_file_that_cannot_be_used_nothing_is_fired(tmp_path: Path) -> None:
    own = Project(tmp_path)
    (own.folder / "rolecall.yaml").write_text(DAILY + "service: {spend_per_day: much}\n")
    with served(own) as site:
        assert "spend_per_day" in site.sign_in().get("/service")["triggersProblem"]
        refused = site.post("/triggers/loop/daily/fire", status=400)
        assert "rolecall.yaml cannot be used" in refused["error"]


def test_a_search_of_a_page_that_changes_nothing_leaves_a_damaged_index_alone(tmp_path: Path) -> None:
    own = Project(tmp_path)
    (own.folder / "guide.md").write_text("# Lanterns\n\nLanterns hang at the gate.\n")
    own.rolecall("knowledge", "init")
    own.rolecall("knowledge", "sync")
    [index] = own.folder.glob("knowledge.db")
    index.write_bytes(b"damaged")
    with served(own, "--read-only") as site:
        assert "Rebuild it" in site.sign_in().get("/knowledge", q="lanterns")["problem"]
        assert index.read_bytes() == b"damaged"


def test_a_service_gets_what_the_page_starts(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.rolecall("serve", "--detach")
    try:
        with served(project) as site:
            site.sign_in()
            with site.events() as events:
                next(events)
                body = {"workflow": "loop", "prompt": "Go", "agent": "scripted:again.yaml"}
                assert site.post("/threads", body)["runs"] == "service"
                until(events, "step", status="completed")
            assert site.get("/service")["running"] is True
    finally:
        project.rolecall("serve", "stop")


def test_a_service_serves_the_page(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.rolecall("serve", "--detach", "--web")
    link = ""
    try:
        log, kept = project.home / "service.log", project.home / "web.link"
        wait_for(lambda: "page: http" in log.read_text())
        assert "once=" not in log.read_text() and kept.stat().st_mode & 0o777 == 0o600
        link = kept.read_text().strip()
        place = Site(None, link).sign_in()
        assert place.get("/service")["running"] is True
    finally:
        project.rolecall("serve", "stop")
    wait_for(lambda: not answers(place))


def answers(site: Site) -> bool:
    try:
        return site.send("GET", "/").status == 200
    except OSError:
        return False


def wait_for(happens: Callable[[], bool]) -> None:
    until_time = monotonic() + PATIENCE
    while not happens():
        assert monotonic() < until_time
        sleep(0.05)


def test_the_document_describes_the_interface(site: Site) -> None:
    found = site.get("/schema")
    assert found["openapi"].startswith("3.1")
    paths = found["paths"]
    for path in (
        "/me",
        "/events",
        "/signout",
        "/links",
        "/threads/{thread}/report",
        "/triggers/{trigger}/fire",
    ):
        assert f"/api{path}" in paths
    for path, verbs in paths.items():
        for verb, item in verbs.items():
            names = {one["name"] for one in item["parameters"]}
            assert ("X-Rolecall" in names) == ("requestBody" in item) == (verb == "post"), path
            assert set(re.findall(r"\{(\w+)\}", path)) <= names
    started = paths["/api/threads"]["post"]
    assert "Idempotency-Key" in {one["name"] for one in started["parameters"]}


def test_vendored_files_are_those_that_are_listed() -> None:
    folder = Path(__file__).parents[2] / "src/rolecall/web/static/vendor"
    listed = json.loads((folder / "vendor.json").read_text())
    for one in listed:
        assert sha256((folder / one["file"]).read_bytes()).hexdigest() == one["sha256"], one["file"]
        assert f"{one['package']} {one['version']}" in (folder / "LICENSES.txt").read_text()
    assert {path.name for path in folder.iterdir()} == {one["file"] for one in listed} | {
        "vendor.json",
        "LICENSES.txt",
    }


def test_a_run_of_a_suite_is_listed_and_shown(project: Project, site: Site) -> None:
    project.write_suite(repeat=2)
    with site.events() as events:
        next(events)
        project.rolecall("eval", "run", "suite.yaml")
        kinds = [event["kind"] for event in until(events, "eval", status="done")]
    assert kinds.count("eval") >= 10  # its beginning, eight results and its end
    [row] = site.get("/evals")["runs"]
    assert (row["suite"], row["status"], row["threads"], row["variants"]) == (
        "suite",
        "done",
        8,
        ["quick", "slow"],
    )
    assert row["counts"] == {"passed": 4, "failed": 4, "infrastructure": 0, "open": 0}
    shown = site.get(f"/evals/{row['run']}")
    titles = [section["title"] for section in shown["sections"]]
    assert titles == ["Variants", "Differences from quick", "Cost and quality", "Tasks", "What was run"]
    cells = shown["sections"][3]["html"]
    links = re.findall(r'href="/threads/(\w+)"', cells)
    assert len(set(links)) == 8
    assert site.get(f"/threads/{links[0]}")["status"] == "completed"
    assert "style=" not in str(shown["sections"])  # which the page's policy forbids
    assert site.get(f"/evals/{row['run']}", base="slow")["base"] == "slow"
    assert (
        site.get(f"/evals/{row['run']}", base="none", status=400)["error"] == "the run has no variant 'none'"
    )
    assert "there is no evaluation" in site.get("/evals/none", status=404)["error"]
    texts = site.get(f"/evals/{row['run']}/tasks")["tasks"]
    assert [one["task"] for one in texts] == ["first", "second"]
    assert "Do the &lt;first&gt; thing" in texts[0]["html"]
    report = site.send("GET", f"/api/evals/{row['run']}/report")
    assert report.text.startswith("<!DOCTYPE html>")
    assert report.headers["content-disposition"] == f'attachment; filename="{row["run"]}.html"'

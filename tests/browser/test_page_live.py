"""The page follows what happens: in tabs that nobody looks at, while it loads, under filters, and when signed out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

import pytest
from browser_fixture import Console, Open
from webstage import PATIENCE, PROGRAM, Project, Site, served

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

ODD = """
name: odd
roles:
  first:
    agent: human
    prompt: Choose.
    schema:
      oneOf:
        - {type: object, properties: {name: {type: string}}, required: [name]}
        - {type: object, properties: {number: {type: integer}}, required: [number]}
  second:
    agent: human
    prompt: Say more.
    schema:
      type: object
      properties: {note: {type: [string, "null"]}, size: {anyOf: [{type: string}, {type: "null"}]}}
      required: [note, size]
graph: {$START: first, first: second, second: $END}
"""
HIDE = "Object.defineProperty(document, 'hidden', { get: () => window.isSeen !== true, configurable: true });"
LOOK = "(isSeen) => { window.isSeen = isSeen; document.dispatchEvent(new Event('visibilitychange')); }"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("live"))
    made.commit()
    return made


@pytest.fixture(scope="module")
def site(project: Project) -> Iterator[Site]:
    with served(project) as found:
        yield found.sign_in()


def row_of(page: Page, ident: str) -> str:
    return f'tr:has(a[href="/threads/{ident}"])'


def test_tabs_in_the_background_leave_the_connections_to_those_that_are_seen(
    site: Site, project: Project, open_page: Open
) -> None:
    page = open_page(site, "/threads")
    page.context.add_init_script(HIDE)
    for _ in range(6):  # a browser has six connections to a server
        tab = page.context.new_page()
        tab.goto(f"{site.address}/threads")
        tab.wait_for_selector("main h1")
    ident = project.start("loop")
    page.locator(row_of(page, ident)).wait_for()
    assert tab.locator(row_of(tab, ident)).count() == 0
    tab.evaluate(LOOK, True)
    tab.locator(row_of(tab, ident)).wait_for()


def test_a_page_of_an_empty_store_that_was_in_the_background_goes_on(tmp_path: Path, open_page: Open) -> None:
    project = Project(tmp_path)
    with served(project) as site:
        page = open_page(site.sign_in(), "/threads")
        page.evaluate(f"() => {{ {HIDE} }}")
        page.evaluate(LOOK, False)
        ident = project.start("loop")
        page.evaluate(LOOK, True)
        page.locator(row_of(page, ident)).wait_for()
        page.close()


def test_what_happens_to_a_thread_while_its_page_loads_is_not_missed(
    site: Site, project: Project, open_page: Open
) -> None:
    ident = project.start("approve")
    page = open_page(site)

    def delay(route: Route) -> None:
        project.run(ident, code=7)  # after the thread was read, before the stream opens
        route.continue_()

    page.route("**/api/threads/*/graph", delay, times=1)
    page.goto(f"{site.address}/threads/{ident}")
    page.wait_for_selector(".status.suspended")
    page.locator("li.card.step", has_text="worker").wait_for()


def test_a_browser_that_was_signed_out_elsewhere_says_so(
    tmp_path: Path, open_page: Open, console: Console
) -> None:
    console.expected += ["status of 401", "MIME type"]
    with served(Project(tmp_path)) as site:
        page = open_page(site.sign_in(), "/threads")
        page.evaluate(f"() => {{ {HIDE} }}")
        page.evaluate(LOOK, False)
        site.post("/signout")
        page.evaluate(LOOK, True)
        page.get_by_text("This browser is not signed in.").wait_for()
        page.close()


def test_a_filtered_list_follows_what_happens(site: Site, project: Project, open_page: Open) -> None:
    ident = project.start("approve")
    waiting = open_page(site, "/threads?status=suspended")
    idle = open_page(site, "/threads?status=idle")
    idle.locator(row_of(idle, ident)).wait_for()
    project.run(ident, code=7)
    waiting.locator(row_of(waiting, ident)).get_by_text("$0.50").wait_for()
    idle.locator(row_of(idle, ident)).wait_for(state="detached")


def test_what_was_typed_outlasts_a_look_at_another_page(
    site: Site, project: Project, open_page: Open
) -> None:
    ident = project.start("approve")
    project.run(ident, code=7)
    page = open_page(site)
    card = page.locator("li.card", has=page.locator(f'a[href="/threads/{ident}"]'))
    card.get_by_label("rejected").check()
    card.get_by_label("why").fill("Not like this")
    card.get_by_role("link", name="See what changed").click()
    page.get_by_role("tab", name="Files", selected=True).wait_for()
    page.go_back()
    assert card.get_by_label("why").input_value() == "Not like this"
    assert card.get_by_label("rejected").is_checked()
    site.post(f"/threads/{ident}/kill")


def test_selecting_text_out_of_a_dialog_does_not_close_it(
    site: Site, project: Project, open_page: Open
) -> None:
    page = open_page(site, f"/threads/{project.start('loop')}")
    page.get_by_role("button", name="Fork", exact=True).click()
    task = page.get_by_label("Another task")
    task.fill("A long task")
    task.hover()
    page.mouse.down()
    page.mouse.move(5, 5)
    page.mouse.up()
    assert task.input_value() == "A long task"
    page.mouse.click(5, 5)
    task.wait_for(state="detached")


def script(project: Project, *entries: object) -> str:
    (project.folder / "told.yaml").write_text(json.dumps({"roles": {"worker": entries}}))
    return project.start("loop", script="told.yaml")


def test_what_the_agent_did_so_far_is_there_after_a_reload(
    site: Site, project: Project, open_page: Open
) -> None:
    said = {"kind": "text", "text": "I read the tests first."}
    call = {"kind": "tool_call", "name": "Bash", "arguments": {"command": "ls tests"}}
    ident = script(project, {"hang": True, "emit": [said, call]})
    page = open_page(site, f"/threads/{ident}")
    page.get_by_role("button", name="Run", exact=True).click()
    for _ in range(2):
        page.locator(".now").get_by_text("I read the tests first.").wait_for()
        page.locator(".now").get_by_text("ls tests").wait_for()
        assert page.locator(".now .says").inner_text().count("I read") == 1
        page.reload()
    site.post(f"/threads/{ident}/kill")
    page.wait_for_selector(".status.killed")


def test_a_thread_that_waits_for_a_limit_says_until_when_and_can_go_on(
    site: Site, project: Project, open_page: Open
) -> None:
    limit = {"ending": "api_failure", "reason": f"Claude AI usage limit reached|{int(time()) + 3600}"}
    ident = script(project, {"fail": limit, "again": [{"output": {"status": "done"}}]})
    page = open_page(site, f"/threads/{ident}")
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("because its agent has reached a limit").wait_for()
    page.wait_for_selector(".status.waiting")
    assert page.get_by_role("button", name="Run", exact=True).count() == 0
    page.get_by_role("button", name="Continue now").click()
    page.wait_for_selector(".status.completed")


def test_the_address_of_a_step_leads_to_it(site: Site, project: Project, open_page: Open) -> None:
    ident = project.start("loop", script="again.yaml")
    project.run(ident)
    page = open_page(site)
    page.route(
        "**/steps?max=40", lambda route: route.continue_(url=route.request.url.replace("max=40", "max=2"))
    )
    page.goto(f"{site.address}/threads/{ident}?step=1")
    card = page.locator("li.card.step[value='1']")
    card.get_by_role("tab", name="Prompt").wait_for()
    assert card.locator("button.title").evaluate("(one) => one === document.activeElement")


def test_schemas_without_a_list_of_fields_and_fields_that_may_be_null(
    site: Site, project: Project, open_page: Open
) -> None:
    (project.folder / ".workflows" / "odd.yaml").write_text(ODD)
    ident = project.start("odd")
    project.run(ident, code=7)
    page = open_page(site, f"/threads/{ident}")
    page.get_by_label("answer as JSON").fill('{"number": 3}')
    page.get_by_role("button", name="Send").click()
    page.get_by_label("note").fill("hello")
    page.get_by_role("button", name="Send").click()
    page.wait_for_selector(".status.completed")
    steps = site.get(f"/threads/{ident}/steps")["steps"]
    assert [step["output"] for step in steps] == [{"note": "hello", "size": None}, {"number": 3}]


def hold(page: Page, pattern: str) -> list[Route]:
    """The next request for an address, which waits until the test lets it go on."""
    held: list[Route] = []
    page.route(pattern, lambda route: route.continue_() if held else held.append(route))
    return held


def finish(page: Page, route: Route, body: object) -> None:
    """Give a held request this reply, and let the page show it."""
    with page.expect_event("requestfinished", lambda request: request == route.request):
        route.fulfill(json=body)
    page.evaluate("() => new Promise((done) => setTimeout(() => requestAnimationFrame(done)))")


def test_a_late_reply_does_not_replace_a_newer_list_of_threads(
    site: Site, project: Project, open_page: Open
) -> None:
    page = open_page(site, "/threads")
    page.locator("tbody tr, .empty").first.wait_for()
    old = site.get("/threads", max="50")
    held = hold(page, "**/api/threads?max=50")
    with page.expect_request("**/api/threads?max=50"):
        project.start("loop")
    ident = project.start("loop")
    page.locator(row_of(page, ident)).wait_for()
    finish(page, held[0], old)
    assert page.locator(row_of(page, ident)).count() == 1


def test_a_late_reply_does_not_replace_a_newer_chain(site: Site, project: Project, open_page: Open) -> None:
    ident = project.start("approve")
    project.run(ident, code=7)
    page = open_page(site, f"/threads/{ident}")
    page.locator("ol.chain > li").wait_for()
    old = site.get(f"/threads/{ident}/steps", max="20")
    held = hold(page, "**/steps?max=20")
    answer = {"output": {"status": "rejected", "why": "no"}, "head": site.get(f"/threads/{ident}")["head"]}
    site.post(f"/threads/{ident}/answer", answer)
    page.locator("ol.chain > li").nth(2).wait_for()
    finish(page, held[0], old)
    assert page.locator("ol.chain > li").count() == 3


def test_visits_that_happen_while_the_page_of_a_thread_loads_are_counted(
    site: Site, project: Project, open_page: Open
) -> None:
    ident = project.start("loop", script="again.yaml")
    page = open_page(site)
    rest = [hold(page, f"**/api/threads/{ident}"), hold(page, "**/api/me")]

    def delay(route: Route) -> None:
        reply = route.fetch()
        project.run(ident)  # after the graph was read, before the rest is
        route.fulfill(response=reply)

    page.route("**/graph", delay, times=1)
    with page.expect_response("**/graph"), page.expect_request("**/api/me"):
        page.goto(f"{site.address}/threads/{ident}")
    for [held] in rest:
        held.continue_()
    page.wait_for_selector(".status.completed")
    page.locator(".graph .badge", has_text="5").wait_for()


def test_earlier_steps_that_could_not_be_loaded_are_loaded_again(
    site: Site, project: Project, open_page: Open, console: Console
) -> None:
    console.expected.append("ERR_FAILED")
    ident = project.start("loop", script="again.yaml")
    project.run(ident)
    page = open_page(site)
    page.route(
        "**/steps?max=40",
        lambda route: route.continue_(url=route.request.url.replace("max=40", "max=2")),
        times=1,
    )
    page.route("**/steps?before=*", lambda route: route.abort(), times=1)
    page.goto(f"{site.address}/threads/{ident}")
    page.get_by_role("button", name="Try again").click()
    page.locator("li.card.step").nth(4).wait_for()


def test_the_plan_is_up_to_date_after_it_loaded_and_in_a_tab_that_comes_back(
    tmp_path: Path, open_page: Open
) -> None:
    project = Project(tmp_path)
    project.commit()
    with served(project) as site:
        page = open_page(site.sign_in(), "/search")
        held = hold(page, "**/api/events?*")
        with page.expect_request("**/api/events?*"):
            page.goto(f"{site.address}/plan")
            page.get_by_text("There is no plan yet.").wait_for()
        project.rolecall("task", "add", "Write it", "--context", "Now")  # before the stream opens
        held[0].continue_()
        page.get_by_label("Ready").get_by_text("Write it").wait_for()
        page.evaluate(f"() => {{ {HIDE} }}")
        page.evaluate(LOOK, False)
        project.rolecall("task", "update", "1", "completed")
        page.evaluate(LOOK, True)
        page.get_by_label("Done").get_by_text("Write it").wait_for()
        page.close()


def test_words_that_are_typed_slowly_keep_their_spaces(site: Site, open_page: Open) -> None:
    page = open_page(site, "/threads")
    page.get_by_label("Words in title").focus()
    page.keyboard.type("Do ")
    page.wait_for_url("**/threads?text=Do")
    page.keyboard.type("it")
    page.wait_for_url("**/threads?text=Do+it")


def test_a_comment_that_is_being_written_outlasts_the_next_step(
    site: Site, project: Project, open_page: Open
) -> None:
    (project.folder / "work.txt").unlink(missing_ok=True)
    ident = project.start("approve")
    project.run(ident, code=7)
    page = open_page(site, f"/threads/{ident}?tab=files")
    page.get_by_role("button", name="Comment on line 1 of work.txt").click()
    page.get_by_label("Your comment").fill("Say zero.")
    answer = {"output": {"status": "rejected", "why": "no"}, "head": site.get(f"/threads/{ident}")["head"]}
    site.post(f"/threads/{ident}/answer", answer)
    page.locator(".code").get_by_text("three").wait_for()
    assert page.get_by_label("Your comment").input_value() == "Say zero."


def test_a_run_of_a_suite_fills_up_while_one_looks_and_its_cells_lead_to_threads(
    tmp_path: Path, open_page: Open
) -> None:
    project = Project(tmp_path)
    gate = tmp_path / "gate"
    (project.folder / "agent.sh").write_text(
        f"case $(cat) in *second*) while [ ! -e {gate} ]; do sleep 0.05; done;; esac\n"
        "printf -- '---\\nstatus: done\\n---\\nDone.\\n'\n"
    )
    agent = {"worker": f"command:sh {project.folder}/agent.sh"}
    project.write_suite(variants={"only": {"agents": agent}})
    with served(project) as site:
        page = open_page(site.sign_in(), "/evals")
        page.get_by_text("No suite has been run yet.").wait_for()
        child = subprocess.Popen(
            [PROGRAM, "eval", "run", "suite.yaml"],
            cwd=project.folder,
            env=project.env,
            stdout=subprocess.DEVNULL,
        )
        try:
            row = page.locator("tr", has_text="suite")
            row.get_by_text("1 of 2").wait_for()
            row.locator(".status.running").wait_for()
            row.get_by_role("link", name="suite").click()
            cells = page.locator(".cells td")
            cells.nth(0).get_by_text("✓").wait_for()
            cells.nth(1).get_by_text("…").wait_for()
            gate.touch()
            cells.nth(1).get_by_text("✓").wait_for()
            page.locator(".status.done").wait_for()
        finally:
            gate.touch()
            assert child.wait(PATIENCE) == 0
        page.get_by_text("What the tasks ask for").click()
        page.get_by_text("Do the <first> thing").wait_for()
        with page.expect_download() as download:
            page.get_by_role("link", name="Report").click()
        assert "Do the &lt;first&gt; thing" in Path(download.value.path()).read_text()
        thread = site.get("/evals/01")["sections"][-2]["html"].partition("/threads/")[2][:26]
        cells.nth(0).get_by_role("link").click()
        page.wait_for_url(f"**/threads/{thread}")
        page.get_by_role("heading", name="suite · only · first · 1").wait_for()
        page.close()

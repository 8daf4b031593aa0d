"""What the page does when something is wrong: other people are faster, answers do not fit, records are damaged."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser_fixture import Console, Open
from ports import held_port
from webstage import Project, Site, served

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("faults"))
    made.commit()
    return made


@pytest.fixture(scope="module")
def site(project: Project) -> Iterator[Site]:
    with served(project) as found:
        yield found.sign_in()


def ask(project: Project) -> str:
    """A thread that waits for the answer of a person."""
    ident = project.start("approve")
    project.run(ident, code=7)
    return ident


def approve(page: Page, points: str) -> None:
    form = page.locator(".question")
    form.get_by_label("approved").check()
    form.get_by_label("points").fill(points)
    form.get_by_role("button", name="Send").click()


def test_whoever_is_second_is_told_who_was_first(
    site: Site, project: Project, open_page: Open, console: Console
) -> None:
    console.expected.append("status of 409")
    ident = ask(project)
    first, second = open_page(site, f"/threads/{ident}"), open_page(site, f"/threads/{ident}")
    first.evaluate("() => localStorage.setItem('person', 'Ada')")
    second.locator(".question").get_by_label("approved").wait_for()
    # The second does not hear of the answer before it sends its own.
    second.route("**/api/events*", lambda route: route.abort())
    console.expected.append("ERR_FAILED")
    second.reload()
    second.locator(".question").get_by_label("approved").wait_for()
    approve(first, "3")
    first.wait_for_selector(".status.completed")
    approve(second, "1")
    reported = second.locator(".question .problem", has_text="continued before you answered")
    reported.get_by_text(re.compile(r"Ada \(web\) answered as person")).wait_for()
    second.wait_for_selector(".status.completed")  # what happened is shown, and the message is still there
    assert reported.is_visible()
    reported.get_by_role("button", name="OK").click()
    second.locator(".question").wait_for(state="detached")


def test_an_answer_that_is_written_in_the_inbox_stays_there_when_somebody_else_was_first(
    site: Site, project: Project, open_page: Open
) -> None:
    ident = ask(project)
    page = open_page(site)
    card = page.locator("li.card", has=page.locator(f'a[href="/threads/{ident}"]'))
    card.get_by_label("rejected").check()
    card.get_by_label("why").fill("Not like this")
    head = site.get(f"/threads/{ident}")["head"]
    body = {"output": {"status": "approved", "points": 2}, "head": head}
    site.post(f"/threads/{ident}/answer", body, X_Rolecall_Person="Ben")
    card.get_by_text(re.compile(r"Ben \(web\) answered as person")).wait_for()
    assert card.get_by_label("why").input_value() == "Not like this"
    card.get_by_role("button", name="OK").click()
    card.wait_for(state="detached")


def test_a_problem_that_the_server_finds_is_shown_at_its_field(
    site: Site, project: Project, open_page: Open, console: Console
) -> None:
    console.expected.append("status of 422")
    page = open_page(site, f"/threads/{ask(project)}")
    approve(page, "1.5")
    field = page.locator(".question label.field", has_text="points")
    field.locator(".wrong").wait_for()
    assert "integer" in field.locator(".wrong").inner_text()
    assert page.locator(".question .problem").count() == 0
    field.locator("input").fill("2")
    field.locator("input").press("Enter")
    page.wait_for_selector(".status.completed")


def test_a_damaged_thread_is_shown_as_damaged_and_the_rest_works(
    site: Site, project: Project, open_page: Open, console: Console
) -> None:
    console.expected.append("status of 404")
    sound, ident = project.start("loop"), project.start("loop")
    with sqlite3.connect(project.home / "store.db") as db:
        db.execute("UPDATE refs SET target = '0000000000000' WHERE name = ?", (f"thread/{ident}",))
    page = open_page(site, "/threads")
    row = page.locator("tr", has=page.locator(f'a[href="/threads/{ident}"]'))
    row.locator(".status.damaged").wait_for()
    row.get_by_role("link").click()
    page.get_by_role("heading", name="This thread is damaged").wait_for()
    page.get_by_role("link", name="All threads").click()
    page.locator(f'a[href="/threads/{sound}"]').click()
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_selector(".status.completed")


def test_a_step_that_cannot_be_drawn_does_not_end_the_page(
    site: Site, project: Project, open_page: Open, console: Console
) -> None:
    ident = project.start("loop", script="again.yaml", limits=("steps=3",))
    project.run(ident, code=7)
    console.expected.append("TypeError")
    page = open_page(site)

    def spoil(route: Route) -> None:
        reply = route.fetch()
        found = reply.json()
        found["steps"][1]["attempts"] = "none"  # not a list, and longer than none
        found["steps"][1]["usage"] = None
        route.fulfill(response=reply, body=json.dumps(found))

    page.route("**/api/threads/*/steps*", spoil)
    page.goto(f"{site.address}/threads/{ident}")
    page.get_by_text("Step 2 cannot be shown.").wait_for()
    page.locator("li.card.step", has_text="3").first.wait_for()
    assert page.locator("li.card.step").count() == 2
    page.get_by_role("tab", name="Facts").click()
    page.locator("dl.facts-list").wait_for()


def test_a_thread_whose_workflow_is_gone_says_so(
    site: Site, project: Project, open_page: Open, console: Console
) -> None:
    console.expected.append("status of 4")
    path = project.folder / ".workflows" / "gone.yaml"
    path.write_text((project.folder / ".workflows" / "loop.yaml").read_text().replace("loop", "gone", 1))
    ident, other = (project.start("gone", script="again.yaml", limits=("steps=2",)) for _ in range(2))
    project.run(ident, code=7)
    path.unlink()
    page = open_page(site, f"/threads/{ident}")
    page.locator(".graph .place", has_text="worker").wait_for()  # the thread keeps its workflow
    with sqlite3.connect(project.home / "store.db") as db:
        gone = site.get(f"/threads/{ident}")["workflow"]
        db.execute("DELETE FROM nodes WHERE id = ?", (gone,))
    page.goto(f"{site.address}/threads/{other}")
    page.get_by_text("Its workflow cannot be shown").wait_for()
    page.goto(f"{site.address}/start/gone")
    page.get_by_text("gone").first.wait_for()
    page.get_by_role("link", name="All workflows").click()
    page.get_by_role("link", name="loop").wait_for()


def test_a_thread_whose_reply_was_lost_is_started_once(site: Site, open_page: Open, console: Console) -> None:
    console.expected.append("ERR_CONNECTION_RESET")
    page = open_page(site, "/start/loop")

    def lose(route: Route) -> None:
        route.fetch()  # the server has started it
        route.abort("connectionreset")

    page.route("**/api/threads", lose, times=1)
    page.get_by_label("What should be done?").fill("Only one of this")
    page.get_by_label("Agent for every role").fill("scripted:script.yaml")
    page.get_by_role("button", name="Start", exact=True).click()
    page.get_by_text("the server cannot be reached").wait_for()
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_selector(".status.completed")
    assert len(site.get("/threads", text="Only one of this")["threads"]) == 1


def test_the_page_survives_a_restart_of_the_server(
    project: Project, open_page: Open, console: Console
) -> None:
    console.expected += ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET"]
    with held_port() as port, served(project, "--port", str(port)) as first:
        first.sign_in()
        page = open_page(first, "/threads")
        page.wait_for_selector("h1")
        assert first.child is not None
        first.child.kill()
        page.get_by_text("Connection lost").wait_for()
        with served(project, "--port", str(port)):
            page.get_by_text("Connection lost").wait_for(state="detached")
            ident = project.start("loop")
            page.locator(f'a[href="/threads/{ident}"]').wait_for()
            page.close()


def test_a_chart_that_cannot_be_drawn_leaves_the_numbers(
    site: Site, project: Project, open_page: Open, console: Console
) -> None:
    console.expected.append("ERR_FAILED")
    project.run(project.start("loop"))
    page = open_page(site)
    page.route("**/vendor/uplot.js", lambda route: route.abort())
    page.goto(f"{site.address}/spend?by=day")
    page.get_by_text("The chart cannot be drawn.").wait_for()
    page.get_by_role("columnheader", name="Reported cost").wait_for()


def test_unknown_addresses_say_so(site: Site, open_page: Open, console: Console) -> None:
    console.expected.append("status of 404")
    page = open_page(site, "/nothing/here")
    page.get_by_role("heading", name="Nothing is here").wait_for()
    page.goto(f"{site.address}/threads/01NOSUCH")
    page.get_by_text("there is no thread").wait_for()


def test_signing_out_ends_the_session_of_this_browser(
    tmp_path: Path, open_page: Open, console: Console
) -> None:
    console.expected.append("status of 401")
    with served(Project(tmp_path)) as site:
        page = open_page(site.sign_in())
        page.get_by_role("button", name="Settings").click()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_text("This browser is not signed in.").wait_for()
        page.close()


def test_what_happens_while_the_page_loads_is_not_missed(
    site: Site, project: Project, open_page: Open
) -> None:
    page = open_page(site)
    started = []

    def delay(route: Route) -> None:
        started.append(project.start("loop"))  # before the stream opens
        route.continue_()

    page.route("**/api/me", delay, times=1)
    with page.expect_response("**/api/threads?max=50"), page.expect_response("**/api/me"):
        page.goto(f"{site.address}/threads")
    page.locator(f'a[href="/threads/{started[0]}"]').wait_for()


def test_what_happens_while_the_code_of_the_page_loads_is_not_missed(
    site: Site, project: Project, open_page: Open
) -> None:
    from playwright.sync_api import TimeoutError as Late

    page = open_page(site)
    held: list[Route] = []
    page.route("**/pages/threads.js", lambda route: held.append(route), times=1)
    with page.expect_response("**/api/threads?max=50"):
        page.goto(f"{site.address}/threads", wait_until="commit")
    started = project.start("loop")
    page.get_by_role("link", name="Threads").wait_for()
    with suppress(Late), page.expect_response("**/api/events?*", timeout=1000):
        pass  # a stream that opens now has nobody to tell
    held[0].continue_()
    page.locator(f'a[href="/threads/{started}"]').wait_for()

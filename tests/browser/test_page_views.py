"""The page in a real Chromium, against a real server, store and scripted agents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_fixture import Console, Open, check_access
from webstage import DAILY, Project, Site, served


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Threads in every state, and a plan."""
    made = Project(tmp_path_factory.mktemp("browser"))
    made.commit()
    made.rolecall(
        "plan", "start", "Format", "--issue", "Header?", "--issue", "Checksum?", "--research", "*Two*"
    )
    made.rolecall("plan", "decide", "1", "No header")
    made.rolecall("task", "add", "Write it", "--context", "Format 2")
    made.rolecall("task", "add", "Test it", "--context", "With old files", "--dep", "1")
    done = made.start("loop")
    made.run(done)
    limited = made.start("loop", script="again.yaml", limits=("steps=2",))
    made.run(limited, code=7)
    asked = made.start("approve")
    made.run(asked, code=7)
    return made


@pytest.fixture(scope="module")
def site(project: Project) -> Iterator[Site]:
    with served(project) as found:
        yield found.sign_in()


def threads(site: Site, **query: str) -> list[str]:
    return [row["thread"] for row in site.get("/threads", query=query)["threads"]]


def test_a_thread_is_started_and_watched(site: Site, open_page: Open) -> None:
    watcher = open_page(site, "/threads")
    page = open_page(site, "/start/loop")
    page.get_by_label("What should be done?").fill("Watch this one")
    page.get_by_label("Agent for every role").fill("scripted:first.yaml")  # which does not exist
    page.get_by_text("Agents of single roles").click()
    page.get_by_label("worker", exact=True).fill("scripted:again.yaml")
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url(re.compile(r"/threads/01"))
    page.wait_for_selector(".status.completed")
    page.wait_for_selector(".graph .place.done >> text=end")
    page.locator(".graph .badge", has_text="5").wait_for()
    page.locator("ol.chain > li").nth(4).wait_for()
    assert page.locator(".graph .badge").count() == 1
    assert page.locator("ol.chain > li").count() == 5
    row = watcher.locator("tr", has_text="Watch this one")
    row.locator(".status.completed").wait_for()


def test_a_person_answers_by_the_form_with_a_comment_on_a_line(
    project: Project, site: Site, open_page: Open
) -> None:
    (project.folder / "work.txt").unlink(missing_ok=True)
    ident = project.start("approve")
    project.run(ident, code=7)
    page = open_page(site, f"/threads/{ident}")
    page.get_by_role("tab", name="Files", exact=True).click()
    page.get_by_role("button", name="Comment on line 2 of work.txt").click()
    page.get_by_label("Your comment").fill("Say three.")
    page.get_by_role("button", name="Keep the comment").click()
    page.get_by_role("tab", name="Chain").click()
    form = page.locator(".question")
    form.get_by_text("1 comment on lines").wait_for()
    form.get_by_label("rejected").check()
    form.get_by_role("button", name="Send").click()
    form.get_by_text("Needed.").wait_for()
    form.get_by_label("why").fill("Not yet")
    form.get_by_role("button", name="Send").click()
    page.locator("ol.chain > li").nth(2).wait_for()  # the worker answered again
    page.locator(".question").get_by_label("approved").wait_for()
    newest = site.get(f"/threads/{ident}/steps")["steps"][0]
    prompt = site.get(f"/steps/{newest['id']}")["prompt"]
    assert "Rejected: Not yet" in prompt and "line 2: `<b>two</b>`\n  Say three." in prompt

    # It goes on while something is typed: what was typed stays, and is not sent before it was read.
    form = page.locator(".question")
    form.get_by_label("rejected").check()
    form.get_by_label("why").fill("Still not")
    question = site.get(f"/threads/{ident}")["question"]
    again = {"output": {"status": "rejected", "why": "no"}, "head": question["head"]}
    site.post(f"/threads/{ident}/answer", again)
    form.get_by_role("button", name="I have read it").click()
    assert form.get_by_label("why").input_value() == "Still not"
    form.get_by_label("approved").check()

    # Two browsers at once: what one sends, the other shows without a click.
    other = open_page(site, f"/threads/{ident}")
    other.locator(".question").get_by_label("approved").wait_for()
    page.locator(".question").get_by_label("points").fill("3")
    page.locator(".question").get_by_role("button", name="Send").click()
    page.wait_for_selector(".status.completed")
    other.wait_for_selector(".status.completed")


def test_a_limit_is_raised_in_the_inbox(site: Site, project: Project, open_page: Open) -> None:
    ident = project.start("loop", script="again.yaml", limits=("steps=1",))
    project.run(ident, code=7)
    page = open_page(site, "/", "phone")
    card = page.locator("li.card", has=page.locator(f'a[href="/threads/{ident}"]'))
    card.get_by_label("New limit on steps").fill("9")
    card.get_by_role("button", name="Raise the limit").click()
    card.wait_for(state="detached")
    page.goto(f"{site.address}/threads/{ident}")
    page.wait_for_selector(".status.completed")


def test_a_thread_is_forked_and_killed(site: Site, project: Project, open_page: Open) -> None:
    ident = project.start("loop", script="again.yaml", limits=("steps=3",))
    project.run(ident, code=7)
    page = open_page(site, f"/threads/{ident}", "phone")
    page.get_by_role("button", name="Fork here").first.click()
    page.get_by_label("Another task").fill("Do it otherwise")
    page.get_by_label("Run it at once").uncheck()
    page.get_by_role("dialog").get_by_role("button", name="Fork", exact=True).click()
    page.get_by_role("heading", name="Do it otherwise").wait_for()
    page.get_by_role("button", name="Kill").click()
    page.get_by_role("dialog").get_by_label("Reason").fill("enough")
    page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    page.wait_for_selector(".status.killed")
    page.get_by_text("enough").wait_for()


def test_two_threads_are_compared_where_they_part(site: Site, project: Project, open_page: Open) -> None:
    (project.folder / "work.txt").unlink(missing_ok=True)
    ident = project.start("loop", script="again.yaml", limits=("steps=2",))
    project.run(ident, code=7)
    fork = project.rolecall(
        "thread", "fork", ident, "--at", "1", "--prompt", "Do it twice", "--agent", "scripted:script.yaml"
    )
    project.run(fork)
    page = open_page(site, f"/threads/{ident}")
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_role("dialog").get_by_label("Thread").fill(fork[-8:])
    page.get_by_role("dialog").get_by_role("button", name="Compare").click()
    page.get_by_text("They share 1 step and part after that.").wait_for()
    task, step = page.locator("section.card").nth(0), page.locator("section.card").nth(1)
    assert task.locator(".removed").all_inner_texts() == ["-Do it\n"]
    assert task.locator(".added").all_inner_texts() == ["+Do it twice\n"]
    step.get_by_role("heading", name="2 worker ↔ 3 worker").wait_for()
    step.get_by_text("+Better.").wait_for()
    page.locator(".diff").get_by_text("work.txt").first.wait_for()
    row = page.get_by_role("row", name="Tokens")
    assert row.get_by_role("cell").all_inner_texts() == ["0", "55"]


def test_triggers_of_a_running_service(tmp_path: Path, open_page: Open, axe: str, shots: Path) -> None:
    project = Project(tmp_path)
    (project.folder / "rolecall.yaml").write_text(DAILY)
    project.rolecall("config", "set", "defaultAgent", "scripted:script.yaml")
    project.rolecall("serve", "--detach")
    try:
        with served(project) as site:
            page = open_page(site.sign_in(), "/service")
            page.get_by_text("as process").wait_for()
            row = page.locator("tr", has_text="loop/daily")
            page.screenshot(path=shots / "service-triggers-light.png", full_page=True)
            assert check_access(page, axe) == []
            row.get_by_role("button", name="Pause").click()
            row.get_by_role("button", name="Resume").click()
            row.get_by_role("button", name="Pause").wait_for()
            row.get_by_role("button", name="Fire now").click()
            row.get_by_role("link").click()
            page.get_by_role("heading", name="Count the stock").wait_for()
            page.wait_for_selector(".status.completed")
            page.close()
    finally:
        project.rolecall("serve", "stop")


def test_work_that_was_set_aside_is_merged_in_the_inbox(
    tmp_path: Path, open_page: Open, axe: str, shots: Path, console: Console
) -> None:
    console.expected.append("status of 400")
    project = Project(tmp_path)
    project.set_aside()
    with served(project) as site:
        page = open_page(site.sign_in())
        card = page.locator("li.card", has_text="could not be merged")
        card.get_by_text("conflicts in notes.txt").wait_for()
        card.get_by_text("notes.txt", exact=True).click()
        card.get_by_text("part 2").first.wait_for()
        page.screenshot(path=shots / "inbox-conflict-light.png", full_page=True)
        assert check_access(page, axe) == []
        card.get_by_role("button", name="Merge", exact=True).click()
        card.get_by_text("could not be merged into").wait_for()
        card.get_by_role("button", name="Discard its work").click()
        page.get_by_role("dialog").get_by_role("button", name="Remove").click()
        page.get_by_text("Nothing waits for you.").wait_for()
        page.close()


def test_what_an_agent_writes_is_text(site: Site, open_page: Open) -> None:
    [done] = threads(site, status="completed", workflow="loop")[-1:]
    page = open_page(site, f"/threads/{done}")
    page.locator(".prose em", has_text="fine").first.wait_for()
    page.get_by_text("<script>alert(1)</script>").first.wait_for()
    assert page.locator(".prose script, .prose img, .prose a[href^=javascript]").count() == 0


def test_the_plan_is_decided_on_the_board(site: Site, project: Project, open_page: Open) -> None:
    page = open_page(site, "/plan")
    page.get_by_label("Decision").fill("SHA-256")
    page.get_by_role("button", name="Decide").click()
    page.get_by_text("SHA-256").wait_for()
    page.get_by_label("Ready").get_by_role("button", name="Begin").click()
    page.get_by_label("In progress").get_by_text("Write it").wait_for()
    project.rolecall("task", "update", "1", "completed")  # from the command line, seen live
    page.get_by_label("Done").get_by_text("Write it").wait_for()
    page.get_by_label("Ready").get_by_text("Test it").wait_for()


def test_it_works_by_keyboard(site: Site, project: Project, open_page: Open) -> None:
    ident = project.start("approve")
    project.run(ident, code=7)
    page = open_page(site, "/")
    press = page.keyboard.press
    press("g")
    press("t")
    page.wait_for_selector("a[data-row]")
    press("j")
    press("Enter")
    page.wait_for_url(re.compile(r"/threads/01"))
    page.get_by_role("tab", name="Chain").focus()
    press("ArrowRight")
    page.wait_for_selector('[role="tab"][aria-selected="true"] >> text=Time')

    # Answer a role without a mouse: choose, fill in, send.
    page.goto(f"{site.address}/threads/{ident}")
    page.get_by_label("approved").focus()
    press("Space")
    page.get_by_label("points").focus()
    page.keyboard.type("5")
    page.get_by_label("Your report").focus()
    page.keyboard.type("Good.")
    press("Control+Enter")
    page.wait_for_selector(".status.completed")
    assert "Good." in site.get(f"/steps/{site.get(f'/threads/{ident}')['head']}")["body"]

    # A role of the graph, a dialog that gives the focus back, the help.
    page.locator(".graph .place", has_text="worker").focus()
    press("Enter")
    page.get_by_text("Only steps of").wait_for()
    page.get_by_role("button", name="Compare", exact=True).focus()
    press("Enter")
    page.get_by_role("dialog").wait_for()
    press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    assert page.evaluate("document.activeElement.textContent") == "Compare"
    press("?")
    page.get_by_role("dialog").get_by_text("this help").wait_for()


def test_an_address_opens_the_same_view_in_another_browser(site: Site, open_page: Open) -> None:
    [done] = threads(site, status="completed", workflow="loop")[-1:]
    page = open_page(site, "/threads")
    page.get_by_label("Status", exact=True).select_option("completed")
    page.get_by_label("Workflow", exact=True).select_option("loop")
    page.locator(f'a[href="/threads/{done}"]').wait_for()
    other = open_page(site, page.url.removeprefix(site.address))
    other.locator(f'a[href="/threads/{done}"]').wait_for()
    assert other.get_by_label("Status", exact=True).input_value() == "completed"
    other.locator(f'a[href="/threads/{done}"]').click()
    other.get_by_role("tab", name="Time").click()
    other.locator("ol.waterfall").wait_for()
    third = open_page(site, other.url.removeprefix(site.address))
    third.locator("ol.waterfall").wait_for()


def test_vendored_files_come_from_npm(place: Path) -> None:
    folder = Path(__file__).parents[2] / "src/rolecall/web/static/vendor"
    for one in json.loads((folder / "vendor.json").read_text()):
        source = place / "npm" / f"{one['package']}-{one['version']}" / "package" / one["path"]
        assert (folder / one["file"]).read_bytes() == source.read_bytes(), one["file"]


def test_long_lists_load_as_one_scrolls(tmp_path: Path, open_page: Open) -> None:
    project = Project(tmp_path)
    (project.folder / "prompts").write_text("".join(f"Task {number}\n" for number in range(120)))
    project.rolecall("run", "loop", "--each", "prompts", "--detach", "--agent", "scripted:script.yaml")
    with served(project) as site:
        page = open_page(site.sign_in(), "/threads")
        page.locator("tbody tr").nth(49).wait_for()
        page.locator("tbody tr").last.scroll_into_view_if_needed()
        page.locator("tbody tr").nth(99).wait_for()
        page.locator("tbody tr").last.scroll_into_view_if_needed()
        page.locator("tbody tr").nth(119).wait_for()
        shown = page.locator("tbody a[data-row]").all_inner_texts()
        assert shown == [f"Task {number}" for number in reversed(range(120))]
        page.close()  # before the server ends, about which it would complain

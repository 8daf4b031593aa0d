"""Every page in light, dark and phone width: no violation of accessibility, nothing wider than the window, and a
screenshot in build/screenshots for a person to look at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser_fixture import Console, Open, check_access, settle
from showcase import Showcase, show
from webstage import DAILY, Project, Site, served

if TYPE_CHECKING:
    from playwright.sync_api import Page

MODES = ("light", "dark", "phone")
MOST_PIXELS = 3000
"""A longer page is shown as far as the window goes."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Showcase]]:
    project = Project(tmp_path_factory.mktemp("looks"), "shop")
    (project.folder / "rolecall.yaml").write_text(DAILY)
    with show(project) as threads:
        project.rolecall(
            *(
                "plan",
                "start",
                "Settings that explain themselves",
                "--research",
                "Three files are read, **in order**.",
            ),
            *("--issue", "Which file wins?", "--issue", "Do we keep the old keys, and for how long?"),
        )
        project.rolecall("plan", "decide", "1", "The project's file, then the home's")
        for words in (
            ("Read settings in one place", "--context", "Today three modules read files"),
            ("Name the file in errors", "--context", "See the issue", "--dep", "1"),
            ("Suggest the nearest key", "--context", "difflib is enough", "--dep", "1"),
            (
                "Describe it in the guide",
                "--context",
                "With an example for each file",
                "--dep",
                "2",
                "--dep",
                "3",
            ),
        ):
            project.rolecall("task", "add", *words)
        project.rolecall("task", "update", "1", "in_progress")
        project.write_suite(repeat=3)
        project.rolecall("eval", "run", "suite.yaml")
        with served(project) as site:
            yield site.sign_in(), threads


def pages(threads: Showcase) -> dict[str, str]:
    thread = f"/threads/{threads.completed}"
    return {
        "inbox": "/",
        "threads": "/threads",
        "threads-none": "/threads?text=no-such-words",
        "thread": thread,
        "thread-step": f"{thread}?step=2",
        "thread-asks": f"/threads/{threads.asks}",
        "thread-limited": f"/threads/{threads.limited}",
        "thread-broken": f"/threads/{threads.broken}",
        "thread-group": f"/threads/{threads.group}",
        "thread-running": f"/threads/{threads.running}",
        "thread-time": f"{thread}?tab=time",
        "thread-files": f"{thread}?tab=files",
        "thread-task": f"{thread}?tab=task",
        "thread-facts": f"{thread}?tab=facts",
        "compare": f"/compare?one={threads.completed}&other={threads.asks}",
        "start": "/start",
        "start-workflow": "/start/fix-issue",
        "plan": "/plan",
        "evals": "/evals",
        "eval": "/evals/01",
        "spend": "/spend",
        "service": "/service",
        "search": "/search?q=exit+code",
        "nothing": "/no/such/page",
        "thread-damaged": f"/threads/{threads.damaged}",
    }


def look(page: Page, shots: Path, name: str, mode: str, axe: str, wrong: dict[str, object]) -> None:
    settle(page)
    height = page.evaluate("document.documentElement.scrollHeight")
    is_whole = height < MOST_PIXELS and not page.locator("dialog").count()
    page.screenshot(path=shots / f"{name}-{mode}.png", full_page=is_whole)
    width = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    if width > 0:
        wrong[f"{name} is wide"] = f"{width} pixels wider than the window"
    if found := check_access(page, axe):
        wrong[name] = found


@pytest.mark.parametrize("mode", MODES)
def test_every_page_looks_right(
    shop: tuple[Site, Showcase], open_page: Open, axe: str, shots: Path, mode: str, console: Console
) -> None:
    site, threads = shop
    page = open_page(site, "/", mode)
    wrong: dict[str, object] = {}
    for name, path in pages(threads).items():
        if name == "thread-damaged":  # whose steps cannot be read
            assert console == []
            console.expected.append("status of 404")
        page.goto(site.address + path)
        page.wait_for_selector("main h1")
        look(page, shots, name, mode, axe, wrong)
    page.goto(f"{site.address}/threads")
    page.get_by_role("button", name="members").first.click()
    page.locator("tr.member").nth(3).wait_for()
    look(page, shots, "threads-members", mode, axe, wrong)
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("dialog").wait_for()
    look(page, shots, "settings", mode, axe, wrong)
    page.goto(f"{site.address}/threads/{threads.completed}")
    page.get_by_role("button", name="Fork", exact=True).click()
    page.get_by_role("dialog").wait_for()
    look(page, shots, "fork", mode, axe, wrong)
    assert not wrong, json.dumps(wrong, indent=1)


@pytest.mark.parametrize("mode", MODES)
def test_a_page_without_data_says_what_to_do_first(
    tmp_path: Path, open_page: Open, axe: str, shots: Path, mode: str
) -> None:
    project = Project(tmp_path)
    project.commit()
    wrong: dict[str, object] = {}
    with served(project) as site:
        page = open_page(site.sign_in(), "/", mode)
        for name, path, words in (
            ("inbox", "/", "Start a thread"),
            ("threads", "/threads", "Start a thread"),
            ("plan", "/plan", "Start a plan"),
            ("evals", "/evals", "rolecall eval run SUITE"),
            ("spend", "/spend", "Start a thread"),
            ("service", "/service", "rolecall serve --detach"),
            ("search", "/search", "What are you looking for?"),
            ("start", "/start", "From the gallery"),
            ("compare", "/compare", "Open a thread and press"),
        ):
            page.goto(site.address + path)
            page.get_by_text(words).first.wait_for()
            look(page, shots, f"empty-{name}", mode, axe, wrong)
        page.close()
    assert not wrong, json.dumps(wrong, indent=1)


def test_the_screenshots_of_the_readme(shop: tuple[Site, Showcase], open_page: Open, shots: Path) -> None:
    """Copy them to docs/images after a change that shows."""
    site, threads = shop
    page = open_page(site, f"/threads/{threads.completed}?role=developer")
    page.set_viewport_size({"width": 1100, "height": 760})
    page.get_by_role("tab", name="Files (").first.click()
    page.locator(".diff").first.wait_for()
    settle(page)
    page.screenshot(path=shots / "web-thread.png")
    page.goto(f"{site.address}/")
    page.locator("li.card").first.get_by_label("merge").check()
    page.get_by_label("confidence").fill("4")
    settle(page)
    page.screenshot(path=shots / "web-inbox.png")

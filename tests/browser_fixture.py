"""A real Chromium for the tests of the page: `make test-browser` installs it and sets ROLECALL_TEST_BROWSER."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PLACE = os.environ.get("ROLECALL_TEST_BROWSER", "")
MODES: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 900}},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "has_touch": True},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not PLACE and item.path.parent.name == "browser":
            item.add_marker(pytest.mark.skip(reason="no browser; `make test-browser` installs one"))


@pytest.fixture(scope="session")
def place() -> Path:
    """The folder with the browser and the packages from npm."""
    return Path(PLACE)


@pytest.fixture(scope="session")
def shots() -> Path:
    """Where screenshots go, for a person to look at."""
    folder = Path(os.environ.get("ROLECALL_TEST_SHOTS") or "build/screenshots").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def browser(place: Path) -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    folder = place / "browser"
    env: dict[str, str | float | bool] = {
        "LD_LIBRARY_PATH": str(folder / "lib"),
        "FONTCONFIG_FILE": str(folder / "fonts.conf"),
        "HOME": os.environ["HOME"],
        "LANG": "en_US.UTF-8",
    }
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=folder / "chromium",
            args=["--no-sandbox", "--disable-gpu", "--no-zygote"],
            env=env,
        )
        yield running
        running.close()


@pytest.fixture(scope="session")
def axe(place: Path) -> str:
    """The text of axe-core."""
    return (place / "axe.js").read_text()


def settle(page: Page) -> None:
    """Wait until everything that a page loads is drawn."""
    page.wait_for_function(
        "() => document.readyState === 'complete'"
        " && !document.querySelector('#app .loading, .graph:empty, .chart > div:empty')"
    )
    # What is out of sight is drawn when it is scrolled to, which a screenshot of the whole page does not do.
    page.evaluate(
        "() => document.styleSheets[0].insertRule("
        "'.chain > li, .waterfall li { content-visibility: visible !important }')"
    )
    page.evaluate("() => document.fonts.ready.then(() => new Promise(requestAnimationFrame))")


def check_access(page: Page, axe: str) -> list[Any]:
    """What axe-core finds wrong on a page."""
    page.evaluate(axe)  # not a script element, which the page's policy refuses
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        {"rule": one["id"], "help": one["help"], "nodes": [node["html"][:200] for node in one["nodes"][:3]]}
        for one in found["violations"]
    ]


class Console(list[str]):
    """What a page complained about."""

    def __init__(self) -> None:
        self.expected: list[str] = []

    def unexpected(self) -> list[str]:
        return [line for line in self if not any(part in line for part in self.expected)]


Open = Callable[..., "Page"]


@pytest.fixture
def console() -> Console:
    return Console()


@pytest.fixture
def open_page(browser: Browser, console: Console) -> Iterator[Open]:
    """Opens pages, each in a browser profile of its own that is signed in to `site`. No page may complain."""
    contexts = []

    def open_page(site: Any, path: str = "/", mode: str = "light") -> Page:
        context = browser.new_context(locale="en-US", timezone_id="UTC", **MODES[mode])
        contexts.append(context)
        name, _, value = site.cookie.partition("=")
        context.add_cookies([{"name": name, "value": value, "url": site.address}])
        page = context.new_page()
        page.set_default_timeout(60_000)  # the machine may be busy
        page.on("console", lambda one: console.append(one.text) if one.type in ("error", "warning") else None)
        page.on("pageerror", lambda one: console.append(f"error: {one}"))
        page.on("dialog", lambda one: console.append(f"dialog: {one.message}"))
        page.goto(site.address + path)
        page.wait_for_selector("main h1, main .question")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert console.unexpected() == []

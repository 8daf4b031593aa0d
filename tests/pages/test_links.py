"""Links in the documentation lead to files, and their anchors to headings, as GitHub and the site name them."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")})
_FENCE = re.compile(r"^ *(```+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]*(?:\([^()]*\)[^()\s]*)*)\)")
_PAGE = re.compile(r"(?<![\w/.-])docs/[\w/.-]+\.md(?:#[\w-]+)?")
_TEST = re.compile(r"(?<![\w/.-])tests/[a-z0-9_/]+\.py")


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings; equal headings are numbered."""
    found: dict[str, int] = {}
    anchors = set()
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", _FENCE.sub("", page.read_text("utf-8")), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
        anchors.add(f"{slug}-{found[slug]}" if slug in found else slug)
        found[slug] = found.get(slug, 0) + 1
    return anchors


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(
        r"`[^`\n]+`", lambda code: code[0].replace("[", " "), _FENCE.sub("", page.read_text("utf-8"))
    )
    broken = []
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
        elif page.is_relative_to(ROOT / "docs") and not target.is_relative_to(ROOT / "docs"):
            broken.append(f"{link} is not on the site")
    assert broken == []


def test_pages_that_the_code_names_exist() -> None:
    broken = []
    for file in [*ROOT.glob("src/**/*.py"), ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md"]:
        for mention in _PAGE.findall(file.read_text("utf-8")):
            path, _, anchor = mention.partition("#")
            if not (ROOT / path).exists() or (anchor and anchor not in anchors_of(ROOT / path)):
                broken.append(f"{file.relative_to(ROOT)}: {mention}")
    assert broken == []


def test_tests_that_pages_name_exist() -> None:
    named = {name for page in PAGES for name in _TEST.findall(page.read_text("utf-8"))}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_page_is_in_the_navigation_of_the_site_or_of_the_gallery() -> None:
    site = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    gallery = (ROOT / "docs" / "gallery" / "index.md").read_text("utf-8")
    listed = {*re.findall(r"[\w/-]+\.md", site), *(f"gallery/{name}" for name in _LINK.findall(gallery))}
    assert {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.parent != ROOT} - listed == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_row_of_a_table_is_a_line(page: Path) -> None:
    joined = re.findall(r"^.*\|[ -]*---.*$", _FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    assert [line for line in joined if not re.fullmatch(r" *\|?[ :|-]+", line)] == []

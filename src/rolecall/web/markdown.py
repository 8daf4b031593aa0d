"""Renders Markdown by people and agents as HTML without scripts, styles and foreign images."""

from __future__ import annotations

from functools import lru_cache

import nh3
from markdown_it import MarkdownIt

LONGEST = 200_000
"""Longer texts are shown as plain text, because rendering one would take seconds."""
_TAGS = {
    "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "pre", "code", "em", "strong", "s", "del",
    "ul", "ol", "li", "a", "table", "thead", "tbody", "tr", "th", "td", "sup", "sub", "kbd",
}  # fmt: skip
# `html: False` shows tags as text; nh3 is the second fence.
_markdown = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])


@lru_cache(maxsize=256)
def render(text: str) -> str:
    """HTML of a text; empty for a blank one."""
    if not text.strip():
        return ""
    if len(text) > LONGEST:
        return f"<pre>{nh3.clean_text(text)}</pre>"
    return nh3.clean(
        _markdown.render(text),
        tags=_TAGS,
        attributes={"a": {"href", "title"}, "code": {"class"}, "ol": {"start"}},
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )

"""Render Markdown from people and agents as HTML, without scripts, styles or images from other sites."""

from __future__ import annotations

from functools import lru_cache

import nh3
from markdown_it import MarkdownIt

LONGEST = 200_000
"""Texts of more characters are shown as plain text, because rendering them would take seconds."""
_TAGS = {
    "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "pre", "code", "em", "strong", "s", "del",
    "ul", "ol", "li", "a", "table", "thead", "tbody", "tr", "th", "td", "sup", "sub", "kbd",
}  # fmt: skip
# `html: False` shows tags as text. nh3 is the second line of defence.
_markdown = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])


@lru_cache(maxsize=256)
def render(text: str) -> str:
    """Return a text as HTML, or an empty text if it is blank."""
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

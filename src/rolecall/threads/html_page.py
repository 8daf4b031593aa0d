"""The frame of a self-contained HTML page, and the conversion of texts to HTML.

Texts from agents and people are rendered as Markdown without embedded HTML and images. Links can point only to the web,
to mail addresses and to places in the page. A page has no scripts, and its content security policy prevents it from
fetching anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

from rolecall.store.lazy import Module
from rolecall.threads.report import pretty, shorten

if TYPE_CHECKING:
    import markdown_it
else:
    markdown_it = Module("markdown_it")

LONGEST_MARKDOWN = 100_000
"""The maximum length of a text that is rendered as Markdown; a longer text is shown as plain text."""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{content}
</main>
</body>
</html>
"""

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2024; --soft: #60656c; --line: #dfe2e6; --tint: #f5f6f8;
  --good: #18794e; --bad: #c62a2f; --wait: #946800; --link: #2456c9; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181f; --ink: #e6e8ea; --soft: #9ba1a6; --line: #33373b;
  --tint: #1e232b; --good: #4cc38a; --bad: #ff7a7f; --wait: #f0c000; --link: #8ab0ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.55 system-ui, sans-serif; }
main { max-width: 52rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .75rem; padding-bottom: .25rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
a { color: var(--link); text-decoration: none; } a:hover { text-decoration: underline; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1.25rem; margin: .6rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
dd ul { margin: 0; padding-left: 1.1rem; white-space: normal; }
table { border-collapse: collapse; margin: .6rem 0; } th, td { padding: .3rem .9rem .3rem 0; text-align: left;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; vertical-align: top; }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: 6px; padding: .7rem .85rem;
  margin: .6rem 0; overflow: auto; max-height: 36rem; white-space: pre-wrap; overflow-wrap: anywhere; }
pre, code { font: 13px/1.5 ui-monospace, monospace; }
code { background: var(--tint); border-radius: 4px; padding: .1em .3em; overflow-wrap: anywhere; }
pre code { background: none; padding: 0; }
.text { overflow-wrap: anywhere; margin: .6rem 0; } .text > :first-child { margin-top: 0; }
.text > :last-child { margin-bottom: 0; }
.text p, .text ul, .text ol, .text blockquote { margin: .6rem 0; } .text ul, .text ol { padding-left: 1.4rem; }
.text h1, .text h2, .text h3, .text h4, .text h5, .text h6 { font-size: 1rem; margin: 1rem 0 .4rem; padding: 0;
  border: 0; } .text h1 { font-size: 1.1rem; }
.text blockquote { border-left: 3px solid var(--line); color: var(--soft); padding-left: .8rem; margin-left: 0; }
.text table { display: block; overflow-x: auto; } .text hr { border: 0; border-top: 1px solid var(--line); }
.text.plain { white-space: pre-wrap; }
.small { color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--soft); } details { margin: .4rem 0; } details details { margin-left: 1rem; }
.status { font-weight: 600; } .good { color: var(--good); } .bad { color: var(--bad); } .wait { color: var(--wait); }
.wide { overflow-x: auto; }
@media (max-width: 34rem) { main { padding: 1.25rem .9rem 3rem; } h1 { font-size: 1.3rem; }
  th, td { padding-right: .5rem; font-size: .8rem; } dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .35rem; } }
@media print { details::details-content { content-visibility: visible; } pre { max-height: none; } }
"""
TONES = {
    "completed": "good",
    "suspended": "wait",
    **dict.fromkeys(("failed", "killed", "discarded", "crashed", "damaged"), "bad"),
}


def fill_page(title: str, content: str, style: str = "") -> str:
    """Return a whole page. `style` is added to the common style."""
    return _PAGE.format(title=safe(title), style=_STYLE + style, content=content)


_CODES = (*range(9), 11, 12, *range(14, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_STEERING = {code: f"\\u{code:04x}" for code in _CODES}


def _plain(value: Any) -> str:
    """Return the value as text, with terminal control characters and bidirectional overrides escaped."""
    return str(value).translate(_STEERING)


def safe(value: Any) -> str:
    """Return the value as escaped HTML."""
    return escape(_plain(value))


def render_text(text: str, limit: int | None) -> str:
    """Render a Markdown text from an agent or a person as HTML."""
    whole = text.strip()
    cut = whole if limit is None else whole[:limit]
    if not cut:
        return ""
    more = count_rest(whole, cut)
    if len(cut) > LONGEST_MARKDOWN:
        return f'<div class="text plain">{safe(cut)}</div>{more}'
    return f'<div class="text">{_markdown().render(_plain(cut))}</div>{more}'


def count_rest(whole: str, cut: str) -> str:
    rest = len(whole) - len(cut)
    return f'<p class="small">… ({rest:,} more characters)</p>' if rest else ""


@cache
def _markdown() -> Any:
    # The parser would leave out text that is nested more deeply than this limit.
    made: Any = markdown_it.MarkdownIt("commonmark", {"html": False, "maxNesting": 100})
    made.enable(["table", "strikethrough"]).disable("image")
    made.validateLink = lambda url: bool(re.match(r"(?:https?://|mailto:|#)", url, re.IGNORECASE))
    return made


def render_fields(rows: Sequence[tuple[str, Any]]) -> str:
    """Return a definition list of names and values. A list of plain values becomes an HTML list."""
    parts = []
    for name, value in rows:
        tone = f' class="status {TONES.get(str(value), "")}"' if name == "status" else ""
        shown = safe(_word(value))
        if isinstance(value, (list, Mapping)):
            shown = f"<pre>{safe(pretty(value))}</pre>"
        if isinstance(value, list) and value and not any(isinstance(item, (list, Mapping)) for item in value):
            shown = f"<ul>{''.join(f'<li>{safe(_word(item))}</li>' for item in value)}</ul>"
        parts.append(f"<dt>{safe(name)}</dt><dd{tone}>{shown}</dd>")
    return f"<dl>{''.join(parts)}</dl>" if parts else ""


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def fold_text(name: str, text: str, limit: int | None) -> str:
    return f"<details><summary>{safe(name)}</summary><pre>{safe(shorten(text, limit))}</pre></details>"

"""JSON texts as people and programs leave them: any layout, with and without line ends, empty brackets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

KEYS = st.sampled_from(
    ("mcpServers", "hooks", "permissions", "allow", "PreToolUse", "Stop", "other", "ü x", "")
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**20),
    st.sampled_from((0.5, -1e-7)),
    st.text(max_size=6),
    st.just('a"\\\n{}[],:// '),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)
SERVERS = st.dictionaries(KEYS, VALUES, max_size=2)
HOOKS = st.dictionaries(st.sampled_from(("PreToolUse", "Stop", "Notification")), st.lists(VALUES, max_size=2))


@st.composite
def settings(draw: st.DrawFn) -> dict[str, Any]:
    """An object as a host's settings may be: ours would find room in it, wherever it ends."""
    value = draw(st.dictionaries(st.sampled_from(("model", "env", "ü", "")), VALUES, max_size=3))
    for key, fitting in (
        ("mcpServers", SERVERS),
        ("hooks", HOOKS),
        (
            "permissions",
            st.fixed_dictionaries({}, optional={"allow": st.lists(st.text(max_size=4), max_size=2)}),
        ),
        ("enabledMcpjsonServers", st.lists(st.text(max_size=4), max_size=2)),
    ):
        if draw(st.booleans()):
            value[key] = draw(fitting)
    order = draw(st.permutations(list(value)))
    return {key: value[key] for key in order}


@st.composite
def texts(draw: st.DrawFn, value: Any) -> str:
    """A text of the value: laid out by a program, or with any blanks between its parts."""
    style = draw(st.sampled_from(("indented", "flat", "wild")))
    line_end = draw(st.sampled_from(("\n", "\r\n")))
    if style == "wild":
        blanks = st.text(" \t\n", max_size=3)
        text = _wild(value, lambda: draw(blanks))
    elif style == "flat":
        text = json.dumps(value, ensure_ascii=draw(st.booleans()), separators=draw(_SEPARATORS))
    else:
        text = json.dumps(value, ensure_ascii=False, indent=draw(_INDENTS))
    return (text + draw(st.sampled_from(("", "\n", "\n\n", " ")))).replace("\n", line_end)


_INDENTS: st.SearchStrategy[int | str] = st.sampled_from((1, 2, 4, "\t"))
_SEPARATORS = st.sampled_from(((",", ":"), (", ", ": ")))


def _wild(value: Any, blank: Callable[[], str]) -> str:
    if isinstance(value, dict):
        parts = [
            f"{blank()}{json.dumps(key)}{blank()}:{blank()}{_wild(one, blank)}{blank()}"
            for key, one in value.items()
        ]
    elif isinstance(value, list):
        parts = [f"{blank()}{_wild(one, blank)}{blank()}" for one in value]
    else:
        return json.dumps(value)
    inside = ",".join(parts) or blank()
    return f"{{{inside}}}" if isinstance(value, dict) else f"[{inside}]"

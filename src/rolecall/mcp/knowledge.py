"""The tools of a repository's knowledge. `knowledge_verbs.py` implements them and is imported at the first call."""

from __future__ import annotations

from functools import partial

from rolecall.mcp.tools import checked_tool, flag, text, whole
from rolecall.settings.capabilities import FILES

_tool = partial(checked_tool, "rolecall.mcp.knowledge_verbs")


TOOLS = (
    _tool(
        "knowledge_query",
        "query",
        "Search this repository's code and documents by meaning and by words: a question, a name from the code, or an"
        " error message. Replies the best passages with file and lines; open the file for what is around them.",
        {"query": text("What to look for.", minLength=1, maxLength=10_000)},
        {
            "limit": whole("How many passages; 8 if left out.", minimum=1, maximum=20),
            "path": text("Only files that match, as in a .gitignore: docs/, *.py."),
        },
    ),
    _tool(
        "knowledge_init",
        "init",
        "Write a knowledge.yaml for this repository, which says what is indexed. Then knowledge_sync.",
        {},
        effect="adds",
        classes=FILES,
    ),
    _tool(
        "knowledge_sync",
        "sync",
        "Index the files of this repository that have changed since the last time, for knowledge_query.",
        {},
        {"rebuild": flag("Index everything again.")},
        effect="adds",
        classes=FILES,
        is_long=True,
    ),
)

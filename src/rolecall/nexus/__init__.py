"""A project's decisions, tasks and lessons, kept in its own `.nexus/` folder.

`tools` holds the eleven tools, each a plain function over a project folder; `dispatch` calls them by name
with arguments from outside. Below them: `archive` (the history), `longlist` (files that are one long list),
`artifact`, `shape` (what the files may hold), `statefile` (bytes, lock, atomic replacement) and `place`
(where everything is; the clock and the branch).
"""

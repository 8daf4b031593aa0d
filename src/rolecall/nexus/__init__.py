"""A project's decisions, tasks and lessons, kept in its own `.nexus/` folder.

`tools` contains the eleven tools, each a function over a project folder; `dispatch` calls them by name with external
arguments. The tools build on `state` (plan, tasks and cycles as typed values), `history` (closed cycles), `artifact`,
`overview` (plan and tasks for hooks), `state_file` (bytes, the lock, atomic replacement) and `project_paths`; `reply`
has the types of their replies. `memory` and `rule` keep notes, `catalog` loads agents, skills and the vocabulary, and
`conformance` runs fixtures.
"""

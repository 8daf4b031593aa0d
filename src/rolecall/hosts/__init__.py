"""Claude Code, Codex and OpenCode as hosts: handling their events, answering them, and installation.

A host runs `rolecall hook HOST EVENT` around the model. `HOST/events.py` converts the host's payload to one of the
eight events in `event.py`, and a `HostAnswer` to the host's format. `lifecycle.py` finds the function for an event in
`on_session`, `on_message`, `on_agent`, `on_tool` or `gate`; `gate` decides what is blocked. `tool_shape` and
`shell_writes` work out what a tool call does, `project_summary` describes the project, and `sessions` and `tool_log`
store what hooks remember.

Hooks run at every tool call, so these modules import only what they need: `hook_compile` compiles data that is slow to
read, and a module that few events need is imported where it is used, with a comment that gives the reason.
`HOST/install.py` and `HOST/words.py` define what is installed; `installation.py` plans the changes, and
`file_change.py` writes them.
"""

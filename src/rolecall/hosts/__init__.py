"""Claude Code, Codex and OpenCode: their events in, our answers out, and installation.

A host runs `rolecall hook HOST EVENT` around the model. `HOST/events.py` turns its payload into one of the eight events
of `event.py`, and an `Answer` into its format. `lifecycle.py` finds the function for an event in `on_session`,
`on_message`, `on_agent`, `on_tool` or `gate`, which decides what is blocked. `tool_shape` and `shell_writes` tell what
a tool call does, `project_summary` describes the project, and `sessions` and `tool_log` keep what hooks must remember.

Hooks run at every tool call, so these modules import only what they need: what is slow to read is compiled by
`hook_compile`, and a module that few events need is imported by name where it is used, with the reason beside it.

`HOST/install.py` and `HOST/words.py` say what is installed; `installation.py` plans it, `file_change.py` writes it.
"""

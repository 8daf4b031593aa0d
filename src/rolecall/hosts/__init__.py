"""What happens in a host around the model, and what we do about it: eight events, whoever the host is.

`event.py` has the words, and `lifecycle.py` finds the function for an event: `on_session`, `on_message`, `on_agent`,
`on_tool`, and `gate.py`, which decides what is blocked. `hosts/` translates between a host's own words and ours.
`toolshape`, `shellwrites` and `shellwords` tell what a call of a tool does; `snapshot` says how a project stands;
`sessions` and `toollog` keep what hooks have to remember.

A host runs `rolecall hook HOST EVENT` at every call of a tool, so nothing here imports what it does not need, and what
is costly to read comes compiled from `kit.py`.
"""

"""Threads that start by themselves: `trigger.py` says what a project configured, `schedule.py` when it is due,
`sources.py` looks, `hook.py` hears requests, `delivery.py` decides by `memory.py` and lets `firing.py` start the
thread; `run.py` keeps them all going."""

"""Triggers start threads automatically. `trigger.py` has their values, `schedule.py` computes when they are due,
`sources.py` looks for changes, `hook.py` receives requests, `delivery.py` checks each signal against `memory.py` and
has `firing.py` start the thread, and `run.py` keeps it all running."""

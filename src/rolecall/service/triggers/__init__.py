"""Triggers start threads automatically. `trigger.py` has their values, `schedule.py` computes when they are due,
`sources.py` looks for changes, `hook.py` receives requests, `firing.py` checks each signal against `memory.py` and
starts the thread, `run.py` keeps it all running, and `by_hand.py` has what a person does to them."""

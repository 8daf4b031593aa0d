"""Triggers start threads automatically.

- `trigger.py` defines their values, and `schedule.py` computes when they are due.
- `sources.py` looks for changes, and `hook.py` receives requests.
- `firing.py` checks each signal against `memory.py` and starts the thread.
- `run.py` keeps the triggers running.
- `by_hand.py` contains the operations that a person performs on them.
"""

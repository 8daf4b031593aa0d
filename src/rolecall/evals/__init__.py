"""Evaluations: suites of tasks, judges, and what their verdicts say.

`statistics.py`, `sequential.py`, `power.py` and `search.py` are pure: they work on counts and amounts, without threads
or stores.
"""

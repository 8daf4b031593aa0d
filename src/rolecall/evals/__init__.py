"""Evaluations: suites of tasks, judges, and what their verdicts say.

`statistics.py`, `sequential.py`, `power.py` and `search.py` are pure: they take counts and amounts, and know neither
threads nor stores.
"""

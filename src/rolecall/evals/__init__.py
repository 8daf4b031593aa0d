"""Evaluations: suites of tasks, judges, and what their verdicts say.

`statistics.py` and `search.py` are pure: they work on counts and amounts, without threads or stores.
"""

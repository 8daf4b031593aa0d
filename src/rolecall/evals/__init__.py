"""Evaluations: suites of tasks, judges, and what their verdicts mean.

`statistics.py` and `search.py` are pure. They work with counts and amounts, without threads or stores.
"""

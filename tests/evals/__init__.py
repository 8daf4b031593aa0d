"""Evaluations: exact values against SciPy, and promises against simulated suites of known rates."""

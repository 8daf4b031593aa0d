"""Runs a plan whose issues are decided: each task becomes a thread of a workflow built from the task and the catalogue.

`assignment.py` decides who does a task and who checks it, `taskflow.py` builds the workflow, `schedule.py` decides
which tasks can start now, and `runner.py` runs them. The first three have no side effects. Everything that a thread can
do (continue after a crash, wait for a person, be forked and replayed, keep to its limits) is left to the engine.
"""

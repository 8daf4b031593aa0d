"""A decided plan carried out: each task is a thread of a workflow that is made from the task and the catalogue.

`assignment.py` says who does a task and who checks it, `taskflow.py` makes the workflow, `schedule.py` which task can
begin now, `runner.py` lets them run. All but the last are values. Whatever a thread can do (go on after a crash, wait
for a person, be forked and replayed, keep to limits) the engine does; nothing of it is repeated here.
"""

"""What tests ask of a workflow that was read from YAML."""

from __future__ import annotations

from rolecall.settings.yaml12 import Problem
from rolecall.workflow.model import StoredWorkflow
from rolecall.workflow.yaml import Definition


def errors_in(read: Definition) -> tuple[Problem, ...]:
    return tuple(problem for problem in read.problems if problem.severity == "error")


def require(read: Definition) -> StoredWorkflow:
    assert read.workflow is not None, errors_in(read)
    return read.workflow

"""The environment variables that GitHub Actions and GitLab CI set for a job. Only `rolecall ci` imports this module."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, NamedTuple

from rolecall.errors import Hint, UsageError
from rolecall.settings import config

TOKENS = ("ROLECALL_FORGE_TOKEN", "GITHUB_TOKEN", "GH_TOKEN", "GITLAB_TOKEN", "CI_JOB_TOKEN")
"""The environment variables that can contain the forge's token. The first one that is set counts."""
_PRIVATE = (
    *TOKENS,
    *("ACTIONS_RUNTIME_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "ACTIONS_CACHE_SERVICE_TOKEN"),
    *("CI_BUILD_TOKEN", "CI_DEPLOY_PASSWORD", "CI_DEPENDENCY_PROXY_PASSWORD", "CI_REGISTRY_PASSWORD"),
    *("CI_JOB_JWT", "CI_JOB_JWT_V1", "CI_JOB_JWT_V2", "CI_REPOSITORY_URL", "CI_BUILD_REPO"),
)
"""Environment variables that agents do not get, because a program that has them can write to the repository or act as
the job."""
_RUNNER_FILES = ("GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STATE", "GITHUB_STEP_SUMMARY")
"""The variables that name files with which a step changes the environment, path and outputs of later steps. Agents do
not get these variables either."""
_EVENT_VARIABLES = ("CI_MERGE_REQUEST_", "CI_COMMIT_", "CI_DEFAULT_BRANCH", "GITLAB_USER_")
"""The prefixes of GitLab's variables about the event."""
_FOLDER = "/tmp/rolecall-ci"  # noqa: S108 -- has to be the same on every runner; the folders in it are private


class Job(NamedTuple):
    """What a forge says about the job in which this process runs."""

    forge: Literal["github", "gitlab"]
    api: str
    """The address of the forge's API."""
    project: str
    """`owner/name` on GitHub, or the project's number on GitLab."""
    token: str
    event: str
    """The kind of event, in the forge's own words."""
    payload: str
    """The path of the file with the event as JSON, or empty if there is none."""
    run: str
    """An identifier of the run. A job that is run again has the same one."""
    address: str
    """The address at which people can see the job."""
    folder: str
    """The folder in which threads work and keep their store. It must be the same on every runner, because steps record
    paths."""
    outputs: str = ""
    """The file for outputs that later steps of the job read, or empty if the forge has no such file."""
    summary: str = ""
    """The file for the summary that the forge shows with the job, or empty if the forge has no such file."""
    variables: Mapping[str, str] = {}
    """GitLab's variables about the event."""


def read_job(environ: Mapping[str, str] = os.environ) -> Job:
    """Read the variables of a job. Raise UsageError if this process is not in a job, or if a variable is missing."""
    missing: list[str] = []

    def need(name: str) -> str:
        if not environ.get(name):
            missing.append(name)
        return environ.get(name, "")

    token = next((environ[name].strip() for name in TOKENS if environ.get(name)), "")
    folder = os.path.realpath(environ.get("ROLECALL_CI_FOLDER") or _FOLDER)
    if environ.get("GITHUB_ACTIONS"):
        project, run = need("GITHUB_REPOSITORY"), need("GITHUB_RUN_ID")
        job = Job(
            "github",
            api=need("GITHUB_API_URL"),
            project=project,
            token=token,
            event=need("GITHUB_EVENT_NAME"),
            payload=need("GITHUB_EVENT_PATH"),
            run=run,
            address=f"{need('GITHUB_SERVER_URL')}/{project}/actions/runs/{run}",
            folder=folder,
            outputs=environ.get("GITHUB_OUTPUT", ""),
            summary=environ.get("GITHUB_STEP_SUMMARY", ""),
        )
    elif environ.get("GITLAB_CI"):
        job = Job(
            "gitlab",
            api=need("CI_API_V4_URL"),
            project=need("CI_PROJECT_ID"),
            token=token,
            event=need("CI_PIPELINE_SOURCE"),
            payload=environ.get("TRIGGER_PAYLOAD", ""),
            run=need("CI_PIPELINE_ID"),
            address=environ.get("CI_JOB_URL", ""),
            folder=folder,
            variables={name: environ[name] for name in environ if name.startswith(_EVENT_VARIABLES)},
        )
    else:
        raise UsageError(
            "this is not a job of GitHub Actions or GitLab CI: neither GITHUB_ACTIONS nor GITLAB_CI is set",
            hint=Hint("Run a workflow elsewhere", "run_workflow"),
        )
    if missing or not token:
        what = ", ".join([*missing, *([] if token else ["a token"])])
        raise UsageError(
            f"the job does not say everything that is needed: {what}",
            hint="Pass the token as ROLECALL_FORGE_TOKEN; the forge sets the other variables.",
        )
    return job


def withhold_tokens() -> None:
    """Remove the job's tokens, which stay masked, and the runner's files from the environment of every process that
    this one starts."""
    config.withhold(_PRIVATE)
    for name in _RUNNER_FILES:
        os.environ.pop(name, None)

"""`rolecall.yaml` as a value: what it says, and everything that is wrong with it at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rolecall.errors import UsageError
from rolecall.knowledge.settings import KnowledgeSettings
from rolecall.service import project_file
from rolecall.service.policy import StartRate, WorkflowPolicy
from rolecall.service.project_file import Hooks, ProjectReading
from rolecall.service.triggers.trigger import (
    Clock,
    Cron,
    Every,
    Hook,
    Sense,
    Trigger,
    WatchedCommand,
    WatchedFiles,
)
from rolecall.service.triggers.trigger_form import KEYS as TRIGGER_KEYS

WHOLE = """\
name: shop
extract: {baseUrl: "http://localhost:1/v1", model: small, apiKeyEnv: KEY, timeout: 5}
service:
  limit: 8
  rates: {claude: 30/min}
  spend_per_day: 12.5
hooks: {host: 127.0.0.1, port: 9000}
knowledge: {include: ["src/**"], exclude: ["*.lock"]}
workflows:
  review-code:
    concurrency: 3
    overflow: queue
    max_queue: 20
    priority: 4
    triggers:
      nightly: {cron: "0  3 * * 1-5", timezone: Europe/Berlin, prompt: "Look at {{scheduled}}."}
      often: {every: 90s, prompt: Look., cooldown: 10m}
      edited: {files: ["src/**/*.py", README.md], prompt: "Changed: {{files}}"}
      moved: {command: [git, rev-parse, HEAD], every: 5m, timeout: 10s, prompt: "{{output}}"}
      pushed:
        http: {secret_env: SECRET, signature: X-Hub-Signature-256}
        prompt: "{{body.after}}"
        dedupe: "{{body.after}}"
      flaky: {sense: flaky_tests, every: 1h}
  clean-up: {overflow: drop}
"""


def parsed(text: str) -> ProjectReading:
    return project_file.parse(text, path="/work/shop/rolecall.yaml")


def problems(text: str) -> list[str]:
    return [str(problem).removeprefix("/work/shop/rolecall.yaml:") for problem in parsed(text).problems]


def test_a_whole_file_is_read_without_a_problem() -> None:
    reading = parsed(WHOLE)
    assert reading.problems == ()
    project = reading.project
    assert (project.name, project.folder) == ("shop", "/work/shop")
    assert project.extract == {
        "baseUrl": "http://localhost:1/v1",
        "model": "small",
        "apiKeyEnv": "KEY",
        "timeout": 5,
    }
    assert (project.policy.limit, project.policy.spend_per_day) == (8, 12.5)
    assert project.policy.rates == {"claude": StartRate(30, 60)}
    assert project.policy.workflows == {
        "review-code": WorkflowPolicy(3, "queue", 20, 4),
        "clean-up": WorkflowPolicy(overflow="drop"),
    }
    assert project.hooks == Hooks("127.0.0.1", 9000)
    assert project.knowledge == KnowledgeSettings(include=("src/**",), exclude=("*.lock",))
    work = "review-code"
    assert project.triggers == (
        Trigger(work, "nightly", Clock(), Cron("0 3 * * 1-5", "Europe/Berlin"), "Look at {{scheduled}}."),
        Trigger(work, "often", Clock(), Every(90), "Look.", cooldown=600),
        Trigger(work, "edited", WatchedFiles(("src/**/*.py", "README.md")), None, "Changed: {{files}}"),
        Trigger(work, "moved", WatchedCommand(("git", "rev-parse", "HEAD"), 10), Every(300), "{{output}}"),
        Trigger(
            work,
            "pushed",
            Hook("SECRET", "X-Hub-Signature-256"),
            None,
            "{{body.after}}",
            dedupe="{{body.after}}",
        ),
        Trigger(work, "flaky", Sense("flaky_tests"), Every(3600), ""),
    )


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "workflows:\n", "service: {}\n"])
def test_an_empty_file_is_a_project_with_nothing_configured(text: str) -> None:
    reading = parsed(text)
    assert reading.problems == ()
    assert (reading.project.name, reading.project.triggers) == ("shop", ())


def test_what_is_wrong_with_the_knowledge_settings_is_told_as_the_search_itself_tells_it() -> None:
    text = "knowledge:\n  includ: [x]\n  chunk: {tokens: 1}\n  weights: {words: -1}\n  embedding: {provider: mine}\n"
    found = problems(text)
    assert [line.partition(": error: ")[0] for line in found] == ["1:1", "2:3", "3:19", "4:20", "5:14"], found
    assert "Did you mean 'include'" in found[1]


def test_every_problem_is_told_at_once_with_its_place() -> None:
    text = """\
name: "not a name!"
servise: {}
extract: {model: 5, apiKey: sk-1, baseUrl: nowhere}
service: {limit: 0, rates: {claude: often}}
hooks: {port: 99999, address: x}
workflows:
  review-code:
    concurency: 3
    triggers:
      nothing: {prompt: When?}
      both: {every: 1h, cron: "* * * * *", prompt: x}
      bad: {cron: "61 * * * *", timezone: Mars/Olympus, prompt: x}
      told: {every: 1h, prompt: "{{outputt}}"}
      shell: {command: "git fetch && echo", every: 5m, prompt: x}
      away: {files: ../other, prompt: x}
      open: {http: {}, prompt: x}
      fast: {every: 10ms, prompt: x}
      mute: {every: 1h}
"""
    found = problems(text)
    lines = [int(problem.split(":")[0]) for problem in found]
    assert lines == sorted(lines)
    message = "\n".join(found)
    for line, part in (
        (1, "name must be a name, not 'not a name!'"),
        (2, "Did you mean 'service'?"),
        (3, "extract.model must be text"),
        (3, "an API key does not belong in the project's file"),
        (3, "extract.baseUrl must be an address"),
        (4, "service.limit"),
        (4, "service.rates.claude must be a rate"),
        (5, "hooks.port must be a port, not 99999"),
        (5, "'address' is not a key of hooks"),
        (8, "Did you mean 'concurrency'?"),
        (10, "does not say when"),
        (11, "`every` or `cron`, not both"),
        (12, "is not a schedule: Bad minute"),
        (12, "'Mars/Olympus' is not a time zone"),
        (13, "a signal has no {{outputt}}"),
        (14, "must be a list of texts"),
        (15, "the pattern '../other' is not accepted"),
        (16, "'secret_env' is missing"),
        (17, "every must be a duration from 1s to 366d, not '10ms'"),
        (18, "has no `prompt`"),
    ):
        assert any(problem.startswith(f"{line}:") and part in problem for problem in found), (part, message)
    assert len(found) == 20, message


def test_what_is_wrong_counts_as_not_said_and_the_rest_is_kept() -> None:
    text = """\
workflows:
  good: {concurrency: 2, triggers: {right: {every: 1h, prompt: x}, wrong: {every: 1h}}}
  bad: 7
"""
    reading = parsed(text)
    assert [trigger.id for trigger in reading.project.triggers] == ["good/right"]
    assert reading.project.policy.of("good").concurrency == 2
    with pytest.raises(UsageError, match=r"rolecall\.yaml cannot be used:\n.*\n"):
        reading.require()


def test_a_file_that_is_no_yaml_is_one_problem_with_its_line() -> None:
    [problem] = parsed("workflows:\n  a: [1\n").problems
    assert problem.line == 3
    assert "not valid YAML" in problem.message


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("/x/Shop Front", "Shop-Front"),
        ("/x/.hidden", "hidden"),
        ("/", "project"),
        ("/x/" + "a" * 99, "a" * 60),
    ],
)
def test_a_project_without_a_name_is_named_after_its_folder(given: str, name: str) -> None:
    assert project_file.parse("", path=f"{given}/rolecall.yaml").project.name == name


def test_the_nearest_file_up_to_the_repository_counts(tmp_path: Path) -> None:
    (tmp_path / "rolecall.yaml").write_text("name: outside\n")
    repository = tmp_path / "repository"
    (repository / ".git").mkdir(parents=True)
    (repository / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    deep = repository / "a" / "b"
    deep.mkdir(parents=True)
    assert project_file.find(str(deep)) is None
    (repository / "rolecall.yaml").write_text("name: whole\n")
    assert project_file.load(str(deep)).project.name == "whole"
    (repository / "a" / "rolecall.yaml").write_text("name: part\n")
    assert project_file.load(str(deep)).project.name == "part"
    assert project_file.load(str(deep)).project.folder == str(repository / "a")


def test_a_link_that_leads_nowhere_and_a_folder_in_its_place_are_problems(tmp_path: Path) -> None:
    (tmp_path / "rolecall.yaml").symlink_to("gone.yaml")
    [problem] = project_file.load(str(tmp_path)).problems
    assert "leads nowhere" in problem.message
    (tmp_path / "rolecall.yaml").unlink()
    (tmp_path / "rolecall.yaml").mkdir()
    [problem] = project_file.load(str(tmp_path)).problems
    assert "is not a file" in problem.message


def test_the_example_of_the_documentation_is_right() -> None:
    page = (Path(__file__).parents[2] / "docs" / "project-file.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    reading = parsed(example)
    assert reading.problems == ()
    assert [trigger.id for trigger in reading.project.triggers] == ["fix-bug/nightly", "fix-bug/reported"]
    for key in (*project_file.KEYS, *TRIGGER_KEYS):
        assert f"`{key}" in page or f"{key}:" in page, key

"""What the doctor finds out: programs are real executables, endpoints real servers on loopback."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakeagent import CLAUDE_HELP, executable, fake_claude

from rolecall.agents.adapters.acp import acp
from rolecall.agents.adapters.claude import Claude, claude
from rolecall.agents.adapters.command import command
from rolecall.agents.adapters.subworkflow import workflow as played_by
from rolecall.agents.presence import adapter_of, check_present
from rolecall.checks.doctor import (
    AgentFinding,
    AgentNeed,
    Diagnosis,
    DoctorPlace,
    diagnose,
    examine,
    needs_of,
)
from rolecall.checks.machine import check_endpoint, check_extract
from rolecall.errors import NotFound, UsageError
from rolecall.settings.models import Endpoint as ModelEndpoint
from rolecall.threads.engine import Cast
from rolecall.workflow.model import StoredRole, StoredWorkflow, Workdir
from rolecall.workflow.playbook import Playbook

KEY = "sk-secret-0123456789"
SIGNED_IN = {"ANTHROPIC_API_KEY": KEY}


def place_in(tmp_path: Path, env: Mapping[str, str] = {}, *, patience: float = 10.0) -> DoctorPlace:
    """A machine of its own: only what lies in `bin` is installed, and its user has an empty home."""
    (tmp_path / "user").mkdir(exist_ok=True)
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    return DoctorPlace({"PATH": path, "HOME": str(tmp_path / "user"), **env}, tmp_path, patience)


def look(place: DoctorPlace, *casts: Cast, **options: bool) -> list[AgentFinding]:
    return asyncio.run(examine(casts, place, **options))


def look_at_claude(place: DoctorPlace, **options: Any) -> AgentFinding:
    [finding] = look(place, Cast("claude", claude(**options)))
    return finding


# -- programs --


def test_a_program_is_found_with_version_flags_and_sign_in(tmp_path: Path) -> None:
    path = fake_claude(tmp_path / "bin")
    finding = look_at_claude(place_in(tmp_path, SIGNED_IN))
    assert finding.is_ready
    assert (finding.path, finding.version, finding.state) == (str(path), "2.1.325", "ready")
    assert finding.signed_in == ("yes", "ANTHROPIC_API_KEY is set")
    assert KEY not in repr(finding)


def test_a_program_that_is_not_there_comes_with_the_command_that_installs_it(tmp_path: Path) -> None:
    finding = look_at_claude(place_in(tmp_path))
    assert finding.state == "not installed"
    [trouble] = finding.troubles
    assert "'claude'" in trouble.text
    assert trouble.fix == "npm install -g @anthropic-ai/claude-code"


def test_a_flag_counts_only_as_a_word_of_the_help(tmp_path: Path) -> None:
    text = CLAUDE_HELP.replace("--resume", "--resume-all").replace("--model", "--fallback-model")
    fake_claude(tmp_path / "bin", help=text)
    finding = look_at_claude(place_in(tmp_path, SIGNED_IN))
    assert finding.missing_flags == ("--resume", "--model")
    assert finding.state == "does not fit"
    assert "--resume, --model" in finding.troubles[0].text


def test_flags_are_compared_only_when_that_is_asked_for(tmp_path: Path) -> None:
    fake_claude(tmp_path / "bin", help="")
    cast = Cast("claude", claude())
    [finding] = look(place_in(tmp_path, SIGNED_IN), cast, has_flags=False)
    assert finding.is_ready


def test_a_program_that_breaks_is_quoted(tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "claude", "echo 'no such runtime: node' >&2; exit 127")
    finding = look_at_claude(place_in(tmp_path, SIGNED_IN))
    assert finding.state == "does not run"
    assert "no such runtime: node" in finding.troubles[0].text


def test_a_program_that_hangs_is_ended_in_time(tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "claude", "sleep 600 & wait")
    finding = look_at_claude(place_in(tmp_path, SIGNED_IN, patience=0.5))
    assert finding.state == "does not run"
    assert "ran longer than 0.5 s" in finding.troubles[0].text


def test_a_program_runs_in_a_folder_of_its_own_without_input_and_without_updates(tmp_path: Path) -> None:
    script = f'pwd >"{tmp_path}/seen"; cat >>"{tmp_path}/seen"; echo $DISABLE_AUTOUPDATER >>"{tmp_path}/seen"; echo 1.0'
    executable(tmp_path / "bin" / "claude", script)
    look_at_claude(place_in(tmp_path, SIGNED_IN))
    folder, switch = (tmp_path / "seen").read_text().split()
    assert Path(folder).name.startswith("rolecall-")
    assert not Path(folder).exists()
    assert switch == "1"


def test_no_more_than_two_programs_run_at_once(tmp_path: Path) -> None:
    """The first two wait for each other, so that both are there when they count."""
    marks, begun = tmp_path / "marks", tmp_path / "begun"
    marks.mkdir()
    begun.mkdir()
    script = f"""
        mkdir '{marks}'/$$ '{begun}'/$$
        while [ "$(ls '{begun}' | wc -l)" -lt 2 ]; do sleep 0.02; done
        ls '{marks}' | wc -l >>'{tmp_path}/counts'
        sleep 0.1
        rmdir '{marks}'/$$
        echo 1.0
    """
    casts = []
    for number in range(4):
        path = executable(tmp_path / f"claude{number}", script)
        casts.append(Cast(f"alias{number}", claude(executable=str(path))))
    findings = look(place_in(tmp_path, patience=60), *casts, has_flags=False)
    assert [finding.agent for finding in findings] == ["alias0", "alias1", "alias2", "alias3"]
    counts = [int(line) for line in (tmp_path / "counts").read_text().split()]
    assert len(counts) == 4
    assert max(counts) == 2


def test_a_command_of_anybodys_is_looked_for_and_never_run(tmp_path: Path) -> None:
    executable(tmp_path / "agent.sh", f"touch '{tmp_path}/was-run'")
    (tmp_path / "plain.txt").write_text("no program")
    place = place_in(tmp_path)
    found, plain, missing = look(
        place,
        Cast("command:./agent.sh", command(["./agent.sh"])),
        Cast("command:./plain.txt", command(["./plain.txt"])),
        Cast("command:nowhere", command(["nowhere"])),
    )
    assert found.is_ready
    assert found.path == str(tmp_path / "agent.sh")
    assert not (tmp_path / "was-run").exists()
    assert plain.troubles[0].fix == f"chmod +x {tmp_path / 'plain.txt'}"
    assert str(place.env["PATH"]) in missing.troubles[0].fix


# -- sign-ins --


@pytest.mark.parametrize(
    ("env", "file", "state"),
    [
        ({}, None, "no"),
        ({"ANTHROPIC_API_KEY": ""}, None, "no"),
        ({"ANTHROPIC_AUTH_TOKEN": KEY}, None, "yes"),
        ({}, ".claude/.credentials.json", "yes"),
        ({"HOME": ""}, None, "unknown"),
    ],
)
@pytest.mark.skipif(sys.platform == "darwin", reason="there the keychain may know more")
def test_a_sign_in_is_told_by_names_of_variables_and_files(
    tmp_path: Path, env: dict[str, str], file: str | None, state: str
) -> None:
    fake_claude(tmp_path / "bin")
    place = place_in(tmp_path, env)
    if file:
        (tmp_path / "user" / file).parent.mkdir()
        (tmp_path / "user" / file).touch(mode=0o000)
    finding = look_at_claude(place)
    assert finding.signed_in is not None
    assert finding.signed_in.state == state
    assert finding.is_ready == (state != "no")


def test_an_agents_own_variables_count_for_its_sign_in(tmp_path: Path) -> None:
    fake_claude(tmp_path / "bin")
    finding = look_at_claude(place_in(tmp_path), env={"ANTHROPIC_API_KEY": KEY})
    assert finding.signed_in == ("yes", "ANTHROPIC_API_KEY is set")


def test_settings_that_may_hold_a_sign_in_leave_it_unknown(tmp_path: Path) -> None:
    class Settled(Claude):
        signed_in: ClassVar[tuple[str, ...]] = ("ANTHROPIC_API_KEY", "~/.claude/settings.json?")

    fake_claude(tmp_path / "bin")
    place = place_in(tmp_path)
    [finding] = look(place, Cast("claude", Settled()))
    assert finding.signed_in == ("no", "looked for ANTHROPIC_API_KEY")
    (tmp_path / "user" / ".claude").mkdir()
    (tmp_path / "user" / ".claude" / "settings.json").touch()
    [finding] = look(place, Cast("claude", Settled()))
    assert finding.signed_in == ("unknown", "it may be in what ~/.claude/settings.json holds")
    assert finding.is_ready


@pytest.mark.skipif(sys.platform == "darwin", reason="there the keychain may know more")
def test_an_agent_of_the_client_protocol_is_not_run_and_has_the_sign_in_of_its_program(
    tmp_path: Path,
) -> None:
    executable(tmp_path / "bin" / "codex-acp", f"touch '{tmp_path}/was-run'")
    cast = Cast("acp:codex-acp", acp("codex-acp"))
    [finding] = look(place_in(tmp_path), cast)
    assert finding.state == "not signed in"
    assert finding.troubles[0].fix.startswith("Run `codex` and sign in")
    [finding] = look(place_in(tmp_path, {"OPENAI_API_KEY": KEY}), cast)
    assert finding.is_ready
    assert not (tmp_path / "was-run").exists()


# -- before a run --


def test_a_missing_program_is_refused_with_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="needs the program 'claude'") as caught:
        check_present(claude(), env={"PATH": str(tmp_path)})
    assert caught.value.hint == "Install it: npm install -g @anthropic-ai/claude-code"
    with pytest.raises(NotFound) as caught:
        check_present(claude(executable="/nowhere/claude"), env={"PATH": str(tmp_path)})
    assert "npm" not in caught.value.hint


def test_a_program_that_is_there_passes_and_so_does_an_agent_without_one(tmp_path: Path) -> None:
    fake_claude(tmp_path)

    async def agent(prompt: str, context: object) -> str:
        return prompt

    check_present(claude(), env={"PATH": str(tmp_path)})
    check_present(agent, env={})


def test_a_relative_program_is_only_looked_for_where_the_work_folder_is_known(tmp_path: Path) -> None:
    agent = command(["./agent.sh"])
    check_present(agent, env={})
    with pytest.raises(NotFound, match=r"'\./agent\.sh'"):
        check_present(agent, env={}, folder=tmp_path)
    executable(tmp_path / "agent.sh", "")
    check_present(agent, env={}, folder=tmp_path)


def test_an_adapter_without_its_package_is_refused_with_the_extra_that_installs_it() -> None:
    source = """
import sys
sys.modules["pydantic_ai"] = None
from rolecall.agents.adapters.builtin import builtin
from rolecall.agents.presence import check_present
from rolecall.errors import NotFound
try:
    check_present(builtin(), env={})
except NotFound as error:
    print(error.hint)
"""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "Install it: pip install 'rolecall[llm]'\n"


# -- what workflows need --


def book(name: str, workdir: Workdir | None = None, **agents: str | None) -> Playbook:
    roles = {role: StoredRole(agent=agent) for role, agent in agents.items()}
    return Playbook(StoredWorkflow(name, roles=roles, workdir=workdir))


def cast_by_name(book: Playbook, role: str) -> Cast:
    name = book.workflow.roles[role].agent
    if name is None:
        raise UsageError("no agent is named", hint="Name one.")
    is_workflow = name.startswith("workflow:")
    return Cast(name, played_by(name.partition(":")[2]) if is_workflow else command([name]))


def find_in(*books: Playbook) -> Any:
    known = {each.workflow.name: each for each in books}

    def find(name: str) -> Playbook:
        if name not in known:
            raise NotFound(f"there is no workflow {name!r}")
        return known[name]

    return find


def test_needs_include_the_roles_of_workflows_that_play_roles() -> None:
    outer = book("outer", writer="writes", checker="workflow:inner")
    inner = book("inner", reader="reads", again="workflow:outer")
    needs = needs_of([outer], cast_by_name, find_in(outer, inner))
    assert [(need.workflow, need.role) for need in needs] == [
        ("outer", "writer"),
        ("outer", "checker"),
        ("inner", "reader"),
        ("inner", "again"),
    ]
    assert all(need.trouble is None for need in needs)


def test_a_role_that_nobody_can_play_is_a_need_with_its_trouble() -> None:
    needs = needs_of([book("outer", lost="workflow:nowhere", idle=None)], cast_by_name, find_in())
    assert [(need.cast, need.trouble) for need in needs] == [
        (None, ("there is no workflow 'nowhere'", "")),
        (None, ("no agent is named", "Name one.")),
    ]


def test_a_role_written_in_python_needs_nobody() -> None:
    async def write(_context: object) -> dict[str, Any]:
        return {}

    one = Playbook(StoredWorkflow("w", roles={"writer": StoredRole()}), functions={"writer": write})
    assert needs_of([one], cast_by_name, find_in()) == []


def diagnosed(
    place: DoctorPlace,
    needs: list[AgentNeed],
    *,
    besides: tuple[Cast, ...] = (),
    settings: Mapping[str, Any] = {},
) -> Diagnosis:
    return asyncio.run(diagnose(needs, place, settings=settings, besides=besides))


def test_only_what_is_needed_keeps_the_doctor_from_saying_ready(tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "writes", "")
    needs = needs_of([book("w", writer="writes", again="writes")], cast_by_name, find_in())
    found = diagnosed(place_in(tmp_path), needs, besides=(Cast("claude", claude()),))
    assert found.is_ready
    assert list(found.findings) == ["writes", "claude"]
    assert [need.role for need in found.needs_for("writes")] == ["writer", "again"]
    assert not found.findings["claude"].is_ready

    needs += needs_of([book("v", reader="reads")], cast_by_name, find_in())
    found = diagnosed(place_in(tmp_path), needs)
    assert not found.is_ready
    assert [trouble.text for trouble in found.troubles()] == [
        "reads: the agent 'command' needs the program 'reads', which was not found"
    ]


def test_one_program_with_several_models_is_one_line(tmp_path: Path) -> None:
    agents = {"big": claude(model="opus"), "small": claude(model="haiku")}
    needs = needs_of(
        [book("w", big="x", small="x")], lambda _book, role: Cast(f"claude:{role}", agents[role]), find_in()
    )
    fake_claude(tmp_path / "bin")
    found = diagnosed(place_in(tmp_path, SIGNED_IN), needs)
    assert list(found.findings) == ["claude"]
    assert len(found.needs_for("claude")) == 2


def test_a_worktree_needs_a_repository_with_a_commit(tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "writes", "")
    place = place_in(tmp_path)
    needs = needs_of([book("w", "worktree", writer="writes")], cast_by_name, find_in())

    def git() -> Any:
        return next(check for check in diagnosed(place, needs).checks if check.name == "git")

    assert git().state == "problem"
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    subprocess.run(["git", "init", "-q", tmp_path], check=True, env=env)
    assert git().state == "problem"
    commit = ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "--allow-empty", "-m", "x"]
    subprocess.run(["git", "-C", tmp_path, *commit], check=True, env=env)
    assert git().state == "ok"


def test_git_is_only_missed_where_a_role_needs_it(tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "writes", "")
    place = DoctorPlace({"PATH": str(tmp_path / "bin")}, tmp_path)
    for workdir, state in ((None, "warning"), ("worktree", "problem")):
        needs = needs_of([book("w", workdir, writer="writes")], cast_by_name, find_in())  # type: ignore[arg-type]
        checks = {check.name: check.state for check in diagnosed(place, needs).checks}
        assert checks["git"] == state


# -- the endpoint that reads answers --


class Endpoint:
    """Answers every GET with one status and one kind of body."""

    def __init__(self, status: int, kind: str, headers: Mapping[str, str]) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.ended = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.asked.append((self.path, self.headers["Authorization"]))
                if not status:
                    endpoint.ended.wait(120)
                    return
                self.send_response(status)
                for name, value in {"Content-Type": kind, **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(KEY.encode())

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/v1"

    @property
    def settings(self) -> ModelEndpoint:
        return ModelEndpoint(self.base_url, "tiny", KEY)


@contextmanager
def endpoint(
    status: int = 200, kind: str = "application/json", headers: Mapping[str, str] = {}
) -> Iterator[Endpoint]:
    """`status` 0 never answers."""
    server = Endpoint(status, kind, headers)
    thread = threading.Thread(target=server.http.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.http.shutdown()
        server.http.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("status", "kind", "state"),
    [
        (200, "application/json", "ok"),
        (404, "application/json", "ok"),
        (404, "text/html; charset=utf-8", "problem"),
        (405, "text/html", "ok"),
        (401, "application/json", "problem"),
        (403, "application/json", "problem"),
        (503, "application/json", "warning"),
    ],
)
def test_an_endpoint_is_judged_by_its_answer_to_a_free_question(status: int, kind: str, state: str) -> None:
    with endpoint(status, kind) as server:
        check = asyncio.run(check_endpoint(server.settings))
    assert server.asked == [("/v1/models", f"Bearer {KEY}")]
    assert check.state == state
    assert f"HTTP {status}" in check.text
    assert KEY not in repr(check)


def test_a_redirect_is_a_problem_and_the_key_does_not_follow_it() -> None:
    with endpoint() as other, endpoint(302, headers={"Location": other.base_url}) as server:
        check = asyncio.run(check_endpoint(server.settings))
    assert check.state == "problem"
    assert other.asked == []


def test_an_endpoint_that_says_nothing_is_given_up() -> None:
    with endpoint(0) as server:
        check = asyncio.run(check_endpoint(server.settings, patience=0.2))
    assert check.state == "problem"
    assert "did not answer within 0.2 s" in check.text


def test_an_endpoint_that_is_not_there_is_a_problem() -> None:
    with endpoint() as server:
        settings = server.settings
    check = asyncio.run(check_endpoint(settings))
    assert check.state == "problem"
    assert "cannot be reached" in check.text


@pytest.mark.parametrize("key", ["two words", "line\r\nX-Other: 1", "kéy"])
def test_a_key_that_cannot_be_sent_is_not_sent(key: str) -> None:
    with endpoint() as server:
        check = asyncio.run(check_endpoint(server.settings._replace(api_key=key)))
    assert check.state == "problem"
    assert key not in check.text
    assert server.asked == []


def test_each_endpoint_is_asked_once_and_no_key_goes_where_a_workflow_says() -> None:
    with endpoint() as own, endpoint() as other:
        settings = {"extract": {"baseUrl": own.base_url, "model": "tiny", "apiKeyEnv": "OWN_KEY"}}
        overrides = [
            None,
            {"model": "big"},
            {"baseUrl": other.base_url, "model": "tiny", "apiKeyEnv": "OWN_KEY"},
        ]
        checks = asyncio.run(check_extract(overrides, settings, {"OWN_KEY": KEY}))
    assert [check.state for check in checks] == ["ok", "ok"]
    assert own.asked == [("/v1/models", f"Bearer {KEY}")]
    assert other.asked == [("/v1/models", None)]


def test_an_endpoint_that_is_configured_wrongly_is_a_problem_without_a_request() -> None:
    with endpoint() as own:
        settings = {"extract": {"baseUrl": own.base_url, "model": "tiny", "apiKeyEnv": "OWN_KEY"}}
        [check] = asyncio.run(check_extract([None], settings, {}))
    assert check.state == "problem"
    assert "OWN_KEY" in check.text
    assert own.asked == []


def test_without_an_endpoint_there_is_nothing_to_ask() -> None:
    [check] = asyncio.run(check_extract([], {}, {}))
    assert check.state == "ok"


def test_the_adapter_of_an_agent_is_known_by_its_module() -> None:
    assert adapter_of(claude()) == "claude"
    assert adapter_of(played_by("inner")) == "workflow"
    assert adapter_of(object()) == ""

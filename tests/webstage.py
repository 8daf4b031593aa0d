"""What the tests of the page share: a project with scripted agents, a real server in a child process, and a client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

PROGRAM = str(Path(sys.executable).parent / "rolecall")
PATIENCE = 90.0

WORKFLOWS = {
    "loop": """
name: loop
description: Work until somebody approves.
limits: {steps: 30}
roles:
  worker:
    prompt: Work.
    schema: {type: object, properties: {status: {enum: [done, again]}, note: {type: string}}, required: [status]}
graph:
  $START: worker
  worker: {again: worker, done: $END}
""",
    "approve": """
name: approve
description: A worker works, a person approves.
roles:
  worker:
    prompt: Work.
    schema: {type: object, properties: {status: {const: done}}, required: [status]}
  person:
    agent: human
    prompt: Decide.
    schema:
      oneOf:
        - {type: object, properties: {status: {const: approved}, points: {type: integer}}, required: [status, points]}
        - {type: object, properties: {status: {const: rejected}, why: {type: string}}, required: [status, why]}
graph:
  $START: worker
  worker: {done: {role: person, prompt: Is it right?}}
  person: {rejected: {role: worker, prompt: "Rejected: {{why}}"}, approved: $END}
""",
}
PARTS = """
name: parts
description: Two write the same file, and what is second cannot be merged.
roles:
  writer:
    times: 2
    at_once: 1
    workdir: worktree
    merge: queue
    prompt: Write part {{number}}.
    schema: {type: object, properties: {note: {type: string}}, required: [note]}
graph:
  $START: writer
  writer: {done: $END, partly: $END, failed: $FAIL}
"""
WRITER = """\
number=$(grep -o 'Write part [0-9]*' | head -n 1 | grep -o '[0-9]*$')
echo "part $number" > notes.txt
printf -- '---\nnote: part %s\n---\nWrote it.\n' "$number"
"""
DAILY = "name: shop\nworkflows: {loop: {triggers: {daily: {every: 1d, prompt: Count the stock}}}}\n"
"""A project file with a trigger."""
HOSTILE = (
    "# Done\n\n<script>alert(1)</script> <img src=x onerror=alert(2)> [x](javascript:alert(3))\n\n*fine*"
)
SCRIPT = {
    "roles": {
        "worker": [
            {
                "edit": {"work.txt": "one\n<b>two</b>\n"},
                "output": {"status": "done"},
                "body": HOSTILE,
                "usage": {"input_tokens": 100, "output_tokens": 10, "turns": 1, "cost": 0.5},
            },
            {
                "edit": {"work.txt": "one\nthree\n"},
                "output": {"status": "done"},
                "body": "Better.",
                "usage": {"input_tokens": 50, "output_tokens": 5, "turns": 1},
            },
            {"output": {"status": "done"}, "body": "The same."},
        ]
    }
}
AGAIN = {
    "roles": {
        "worker": [*[{"output": {"status": "again"}, "body": "More."}] * 4, {"output": {"status": "done"}}]
    }
}


SUITE = {
    "workflow": "loop",
    "variants": {
        "quick": {"agents": {"worker": "scripted:script.yaml"}},
        "slow": {"agents": {"worker": "scripted:again.yaml"}},
    },
    "tasks": [
        {"id": "first", "prompt": "Do the <first> thing", "tags": ["quick"]},
        {"id": "second", "prompt": "Do the second thing"},
    ],
    "judges": {"short": {"expression": "steps_count < 3"}},
}
"""A suite whose first variant passes and whose second fails."""


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Project:
    """A folder with workflows and scripts, and a home of its own."""

    def __init__(self, folder: Path, name: str = "project") -> None:
        self.folder = folder / name
        self.home = folder / "home"
        (self.folder / ".workflows").mkdir(parents=True)
        for name, text in WORKFLOWS.items():
            (self.folder / ".workflows" / f"{name}.yaml").write_text(text)
        (self.folder / "script.yaml").write_text(json.dumps(SCRIPT))
        (self.folder / "again.yaml").write_text(json.dumps(AGAIN))
        self.env = {**os.environ, "ROLECALL_HOME": str(self.home), "HOME": str(folder)}

    def rolecall(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [PROGRAM, *words],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout.strip()

    def git(self, *words: str) -> None:
        who = ("-c", "user.name=me", "-c", "user.email=me@localhost")
        subprocess.run(["git", *who, *words], cwd=self.folder, check=True, env=self.env, capture_output=True)

    def commit(self) -> None:
        """Make the folder a git repository with one commit."""
        for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "A project")):
            self.git(*words)

    def write_suite(self, **changes: Any) -> None:
        (self.folder / "suite.yaml").write_text(json.dumps({**SUITE, **changes}))

    def set_aside(self) -> str:
        """Run a group whose second member conflicts with the first, in a repository, and return its thread."""
        (self.folder / ".workflows" / "parts.yaml").write_text(PARTS)
        (self.folder / "writer.sh").write_text(WRITER)
        self.commit()
        words = ("-p", "Write notes", "--agent", f"command:sh {self.folder}/writer.sh")
        ident = self.rolecall("thread", "start", "parts", *words)
        self.run(ident)
        return ident

    def start(self, workflow: str, *, script: str = "script.yaml", limits: tuple[str, ...] = ()) -> str:
        more = [word for limit in limits for word in ("--limit", limit)]
        return self.rolecall(
            "thread", "start", workflow, "-p", "Do it", "--agent", f"scripted:{script}", *more
        )

    def run(self, ident: str, *, code: int = 0) -> None:
        self.rolecall("thread", "run", ident, code=code)


class Site:
    """A server and a browser's worth of cookies."""

    def __init__(self, child: subprocess.Popen[str] | None, link: str) -> None:
        self.child = child
        self.link = link
        place = urlsplit(link)
        self.host, self.port = str(place.hostname), int(place.port or 80)
        self.address = f"http://{self.host}:{self.port}"
        self.cookie = ""

    def send(self, verb: str, path: str, body: Any = None, **headers: str) -> Reply:
        return self.send_text(verb, path, None if body is None else json.dumps(body), **headers)

    def send_text(self, verb: str, path: str, data: str | None = None, **headers: str) -> Reply:
        connection = HTTPConnection(self.host, self.port, timeout=PATIENCE)
        try:
            found = self._ask(connection, verb, path, data, headers)
            return Reply(found.status, dict(found.headers.items()), found.read().decode())
        finally:
            connection.close()

    def _ask(
        self,
        connection: HTTPConnection,
        verb: str,
        path: str,
        data: str | None,
        headers: Mapping[str, str],
    ) -> HTTPResponse:
        own = {"Cookie": self.cookie} if self.cookie else {}
        known = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(verb, path, data, {**own, **known})
        return connection.getresponse()

    def sign_in(self) -> Site:
        place = urlsplit(self.link)
        reply = self.send("GET", f"{place.path}?{place.query}")
        assert reply.status == 303, reply
        self.cookie = reply.headers["set-cookie"].partition(";")[0]
        return self

    def get(
        self, path: str, *, status: int = 200, query: Mapping[str, str] | None = None, **more: str
    ) -> Any:
        reply = self.send("GET", f"/api{path}?{urlencode({**(query or {}), **more})}")
        assert reply.status == status, reply
        return reply.json

    def post(self, path: str, body: Any = None, *, status: int = 200, **headers: str) -> Any:
        reply = self.send("POST", f"/api{path}", body or {}, X_Rolecall="1", **headers)
        assert reply.status == status, reply
        return reply.json

    @contextmanager
    def events(self, *, last: int | None = None, **query: str) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of the stream for as long as a test may take, each with its number as `id`."""
        late = monotonic() + PATIENCE
        connection = HTTPConnection(self.host, self.port, timeout=PATIENCE)
        headers = {} if last is None else {"Last-Event-ID": str(last)}
        reply = self._ask(connection, "GET", f"/api/events?{urlencode(query)}", None, headers)
        assert reply.status == 200, reply.read()

        def read() -> Iterator[dict[str, Any]]:
            number = 0
            while line := reply.readline():
                assert monotonic() < late, "the event did not come"
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "id":
                    number = int(value)
                elif name == "data":
                    yield {**json.loads(value), "id": number}
                    number = 0

        try:
            yield read()
        finally:
            connection.close()


def until(events: Iterator[dict[str, Any]], kind: str, **body: Any) -> list[dict[str, Any]]:
    """The events up to the first of a kind whose body has these values."""
    found = []
    for event in events:
        found.append(event)
        known = event.get("body", {})
        if event["kind"] == kind and all(known.get(name) == value for name, value in body.items()):
            return found
    raise AssertionError(f"the stream ended before {kind}: {found}")


@contextmanager
def served(project: Project, *options: str, **more: str) -> Iterator[Site]:
    """A server, which is killed after a while so that a test fails instead of hanging."""
    with open(project.home.parent / "web.err", "ab") as errors:
        child = subprocess.Popen(
            [PROGRAM, "web", "--no-open", *options],
            cwd=project.folder,
            env={**project.env, **more},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    watchdog = Timer(3600, child.kill)  # it may serve every test of a module, on a busy machine
    watchdog.start()
    assert child.stdout is not None
    try:
        yield Site(child, child.stdout.readline().strip())
    finally:
        watchdog.cancel()
        child.terminate()
        child.wait()
        child.stdout.close()

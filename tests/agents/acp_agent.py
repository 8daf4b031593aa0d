"""A stand-in for an agent that speaks the Agent Client Protocol: JSON lines, and nothing but Python.

    python acp_agent.py FOLDER [SETTINGS]

FOLDER keeps the sessions and `heard.jsonl`, every message that came in. SETTINGS is a JSON object: `turns`, a
list of actions for each prompt (the last one again when there are more); `can`, what it says it can do (load,
resume, fork); further keys are in `Agent`. An action is an object with one key, the name of a method `do_…`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any


class Cancelled(Exception):
    pass


class Agent:
    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.settings = settings
        self.prompts = 0
        self.asked = 0
        self.session = self.prompt = ""
        self.result: dict[str, Any] = {}
        self.error: dict[str, Any] | None = None

    # -- messages --

    def send(self, **message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def receive(self) -> dict[str, Any]:
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        with open(self.folder / "heard.jsonl", "a") as log:
            log.write(json.dumps({"pid": os.getpid(), **json.loads(line)}) + "\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def update(self, **update: Any) -> None:
        self.send(method="session/update", params={"sessionId": self.session, "update": update})

    def serve(self) -> None:
        while True:
            message = self.receive()
            answer = getattr(self, "on_" + message["method"].replace("/", "_"), None)
            if answer is None:
                self.send(id=message["id"], error={"code": -32601, "message": "Method not found"})
            elif "id" in message:
                self.error = None
                result = answer(message["params"])
                self.send(id=message["id"], **({"error": self.error} if self.error else {"result": result}))

    # -- what it is asked --

    def on_initialize(self, _params: dict[str, Any]) -> dict[str, Any]:
        can = self.settings.get("can", ["load"])
        sessions: dict[str, Any] = {name: {} for name in ("resume", "fork") if name in can}
        return {
            "protocolVersion": self.settings.get("version", 1),
            "agentCapabilities": {"loadSession": "load" in can, "sessionCapabilities": sessions},
        }

    def on_session_new(self, _params: dict[str, Any]) -> dict[str, Any]:
        if "new_error" in self.settings:
            self.error = self.settings["new_error"]
        for number in count(1):  # two agents may begin a session at the same moment
            with suppress(FileExistsError):
                (self.folder / f"s-{number}").touch(exist_ok=False)
                session = f"s-{number}"
                break
        return {"sessionId": session, **self.settings.get("offers", {})}

    def on_session_load(self, params: dict[str, Any]) -> dict[str, Any] | None:
        self.session = params["sessionId"]
        if not self.known(params):
            return None
        for text in (self.folder / self.session).read_text().splitlines():
            self.update(sessionUpdate="user_message_chunk", content={"type": "text", "text": text})
            self.update(
                sessionUpdate="agent_message_chunk",
                content={"type": "text", "text": f"the answer to {text}"},
            )
            self.update(sessionUpdate="tool_call", toolCallId="old", title="old", kind="edit", status="completed",
                        content=[{"type": "diff", "path": "old.txt", "newText": "x"}])  # fmt: skip
        return {}

    def on_session_resume(self, params: dict[str, Any]) -> dict[str, Any] | None:
        return {} if self.known(params) else None

    def on_session_fork(self, params: dict[str, Any]) -> dict[str, Any] | None:
        return self.on_session_new(params) if self.known(params) else None

    def known(self, params: dict[str, Any]) -> bool:
        if (self.folder / params["sessionId"]).exists():
            return True
        if not self.settings.get("is_silent"):
            self.error = {"code": -32002, "message": "Resource not found"}
        return False

    def on_session_set_mode(self, _params: dict[str, Any]) -> dict[str, Any]:
        return {}

    def on_session_set_config_option(self, params: dict[str, Any]) -> dict[str, Any]:
        if params["value"] == "no-such-model":
            self.error = {"code": -32602, "message": "Invalid params", "data": {"details": "no such model"}}
        return {"configOptions": []}

    def on_session_prompt(self, params: dict[str, Any]) -> dict[str, Any]:
        self.session = params["sessionId"]
        text = self.prompt = params["prompt"][0]["text"]
        with open(self.folder / self.session, "a") as log:
            log.write(text[:40].replace("\n", " ") + "\n")
        turns = self.settings.get("turns") or [[{"say": "All is well."}]]
        actions = turns[min(self.prompts, len(turns) - 1)]
        self.prompts += 1
        self.result = {"stopReason": "end_turn"}
        try:
            self.act(actions)
        except Cancelled:
            self.result = {"stopReason": "cancelled"}
        return self.result

    # -- what it does --

    def act(self, actions: list[dict[str, Any]]) -> None:
        for action in actions:
            for name, value in action.items():
                getattr(self, f"do_{name}")(value)

    def do_say(self, text: str) -> None:
        self.update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": text})

    def do_echo(self, _: Any) -> None:
        self.do_say(self.prompt)

    def do_update(self, update: dict[str, Any]) -> None:
        self.update(**update)

    def do_elsewhere(self, update: dict[str, Any]) -> None:
        """An update about another session, such as that of a subagent."""
        self.send(method="session/update", params={"sessionId": "another", "update": update})

    def do_message(self, message: dict[str, Any]) -> None:
        self.send(**message)

    def do_print(self, line: str) -> None:
        print(line, flush=True)

    def do_stderr(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def do_flood(self, size: int) -> None:
        """This many megabytes in small messages."""
        for _ in range(size):
            for _ in range(16):
                self.do_say("x" * 65536)

    def do_long_line(self, size: int) -> None:
        block = "x" * 1024 * 1024
        sys.stdout.write('{"jsonrpc": "2.0", "method": "session/update", "params": "')
        for _ in range(size):
            sys.stdout.write(block)
        sys.stdout.write('"}\n')
        sys.stdout.flush()

    def do_ask(self, question: dict[str, Any]) -> None:
        """Ask for permission, and go on by the answer: `then` where it was given, else `otherwise`."""
        self.asked += 1
        options = question.get("options") or [
            {"optionId": "always", "name": "Always", "kind": "allow_always"},
            {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
            {"optionId": "no", "name": "No", "kind": "reject_once"},
        ]
        ident = f"question-{self.asked}"
        params = {"sessionId": self.session, "toolCall": question["call"], "options": options}
        self.send(id=ident, method="session/request_permission", params=params)
        while (message := self.receive()).get("id") != ident:
            if message.get("method") == "session/cancel":
                raise Cancelled
        chosen = message["result"]["outcome"].get("optionId", "")
        self.act(question.get("then" if chosen == "yes" else "otherwise", []))

    def do_write(self, name: str) -> None:
        Path(name).write_text("written")

    def do_tell_variable(self, name: str) -> None:
        self.do_say(f"{name}={os.environ.get(name, '')}")

    def do_tell_pid(self, _: Any) -> None:
        self.do_say(str(os.getpid()))

    def do_start_child(self, _: Any) -> None:
        """A child that outlives its parent unless somebody ends it."""
        subprocess.Popen([sys.executable, "-I", "-c", "import signal\nwhile True: signal.pause()"])

    def do_wait_for_cancel(self, _: Any) -> None:
        while self.receive().get("method") != "session/cancel":
            pass
        raise Cancelled

    def do_hang(self, _: Any) -> None:
        """Does not read what it is told."""
        while True:
            signal.pause()

    def do_close_stdout(self, _: Any) -> None:
        os.close(1)
        while True:
            signal.pause()

    def do_exit(self, code: int) -> None:
        sys.stdout.flush()
        os._exit(code)

    def do_die(self, name: str) -> None:
        os.kill(os.getpid(), getattr(signal, name))

    def do_result(self, result: dict[str, Any]) -> None:
        self.result = result

    def do_error(self, error: Any) -> None:
        self.error = error


if __name__ == "__main__":
    Agent(Path(sys.argv[1]), json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}).serve()

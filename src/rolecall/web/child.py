"""Run a verb in a separate process (`python -m rolecall.web.child`) if the verb loads a workflow in Python. The code of
such a workflow can hang, print, or end its process, and the page must keep working."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from rolecall.agents import process
from rolecall.api import Rolecall
from rolecall.errors import AgentError
from rolecall.settings import config
from rolecall.threads.requests import Request
from rolecall.web import failure, service, threads
from rolecall.web.failure import Failure
from rolecall.web.verbs import VERBS, ApiVerb, Ask, Call, GoesOn, JsonObject

_SECONDS = 60
_LARGEST_REPLY = 8_000_000
_MODULES = (threads, service)
"""The modules whose verbs load workflows."""


async def run(verb: ApiVerb, call: Call, *, folder: str, store: str | None) -> Any:
    """Return the result of the verb, or the `Failure` with which the verb ended."""
    try:
        ended = await process.run(
            [sys.executable, "-P", "-m", "rolecall.web.child"],
            cwd=Path(folder),
            env=config.child_environment(ROLECALL_STORE=config.full_store_address(store)),
            prompt=json.dumps({"verb": verb.path, "call": vars(call)}),
            timeout=_SECONDS,
            max_output=_LARGEST_REPLY,
        )
    except AgentError as error:  # the process could not be started
        return failure.describe(error)
    if ended.ending == "timeout":
        return Failure(504, "slow", f"the code of this workflow did not finish within {_SECONDS} seconds")
    try:
        answer = json.loads(ended.stdout)
    except ValueError:
        last = config.mask().text(ended.stderr.strip().rpartition("\n")[2][:300])
        return Failure(502, "failed", f"the code of this workflow ended its process: {ended.reason}. {last}")
    match answer:
        case {"goesOn": found}:
            return GoesOn(*found)
        case {"failure": found}:
            return Failure(*found)
    return answer["value"]


def main() -> None:
    asked = json.load(sys.stdin)
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a workflow in Python can print
    [verb] = [verb for verb in VERBS if verb.is_writing and verb.path == asked["verb"]]
    request = asked["call"].pop("request")
    answer: JsonObject
    try:
        with Rolecall() as rolecall:
            ask = Ask(**asked["call"], request=Request(*request) if request else None, rolecall=rolecall)
            found = verb.run(ask)
            answer = {"goesOn": found} if isinstance(found, GoesOn) else {"value": found}
    except failure.EXPECTED as error:
        answer = {"failure": failure.describe(error)}
    json.dump(answer, output)
    output.flush()
    os._exit(0)  # also ends Python threads that the workflow has left running


if __name__ == "__main__":
    main()

"""A tool server for agents, in plain JSON lines over stdio: it adds numbers and tells a variable."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

_ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "inputSchema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


def answer(method: str, params: Any) -> Any:
    if method == "initialize":
        version = params["protocolVersion"]
        info = {"name": "tiny", "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [_ADD]}
    if method == "tools/call":
        given = params["arguments"]
        text = f"SUM={given['a'] + given['b']} {os.environ.get('TINY', 'nothing')}"
        return {"content": [{"type": "text", "text": text}]}
    return None


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = answer(message["method"], message.get("params"))
        problem = {"error": {"code": -32601, "message": "no such method"}}
        reported = problem if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reported}), flush=True)


if __name__ == "__main__":
    main()

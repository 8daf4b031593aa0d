"""Programs that listen: a webhook, and a pipe that a program writes to."""

from __future__ import annotations

import json
import os
import select
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue
from typing import Any


class Hook:
    """A webhook that keeps what it gets."""

    def __init__(self, status: int = 200) -> None:
        got = self.got = Queue[dict[str, Any]]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/T0KEN/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Pipe:
    """A pipe with a name; every wait for what programs write to it is bounded."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._end = os.open(path, os.O_RDWR)

    def read(self) -> str:
        assert select.select([self._end], [], [], 60)[0], f"nobody has written to {self.path}"
        return os.read(self._end, 65536).decode()

    def close(self) -> None:
        os.close(self._end)

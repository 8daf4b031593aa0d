"""A stand-in of the HTTP interfaces of GitHub and GitLab on loopback: comments, rights, issues, requests for a merge.

It keeps what it is sent, and can be told to fail: `failures` has the answers to give before anything else.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

TOKEN = "forge-token-1234567890"


class Failure(NamedTuple):
    code: int
    headers: Mapping[str, str] = {}
    on: str = ""
    """A part of the requests that fail: method and path."""
    is_late: bool = False
    """Whether the request is carried out although it is answered with a failure."""


class Forge:
    def __init__(self) -> None:
        self.writers = {"alice": "7"}
        """Who may push, with their ids on GitLab."""
        self.readers = {"reader": "8"}
        self.comments: list[dict[str, Any]] = []
        self.issues: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.failures: list[Failure] = []
        self.seen: list[str] = []
        """Every request: method and path."""
        self.page_size = 2
        self.address = ""

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """The answer to a request of either interface."""
        url = urlsplit(path)
        asked = {key: values[0] for key, values in parse_qs(url.query).items()}
        place = re.sub(r"^/(repos/o/r|projects/5)", "", url.path)
        if place == url.path:
            return 404, {"message": "Not Found"}
        is_gitlab = url.path.startswith("/projects")
        if found := re.fullmatch(r"/collaborators/(.+)/permission", place):
            rights = {**dict.fromkeys(self.writers, "write"), **dict.fromkeys(self.readers, "read")}
            name = found[1]
            return (200, {"permission": rights[name]}) if name in rights else (404, {})
        if found := re.fullmatch(r"/members/all/(.+)", place):
            levels = {**dict.fromkeys(self.writers.values(), 30), **dict.fromkeys(self.readers.values(), 20)}
            ident = found[1]
            return (200, {"access_level": levels[ident]}) if ident in levels else (404, {})
        if found := re.fullmatch(r"/(issues|merge_requests)/(\d+)/(?:comments|notes)", place):
            if method == "POST":
                new = {"id": 100 + len(self.comments), "on": int(found[2]), "body": body["body"]}
                self.comments.append(new)
                return 201, new
            return 200, [one for one in self.comments if one["on"] == int(found[2])]
        if found := re.fullmatch(r"/(?:issues/comments|(?:issues|merge_requests)/\d+/notes)/(\d+)", place):
            for one in self.comments:
                if one["id"] == int(found[1]):
                    one["body"] = body["body"]
                    return 200, one
            return 404, {"message": "Not Found"}
        text = "description" if is_gitlab else "body"
        if place == "/issues":
            if method == "POST":
                number = 50 + len(self.issues)
                new = {"number": number, "iid": number, "title": body["title"], text: body[text]}
                self.issues.append(new)
                return 201, new
            return 200, self.issues
        if place in ("/pulls", "/merge_requests"):
            branch = body.get("head") or body.get("source_branch") or ""
            if method == "POST":
                number = 90 + len(self.requests)
                address = f"{self.address}/change/{number}"
                new = {**body, "number": number, "iid": number, "html_url": address, "web_url": address}
                self.requests.append({**new, "branch": branch})
                return 201, new
            wanted = asked.get("source_branch") or asked.get("head", "").partition(":")[2]
            return 200, [one for one in self.requests if one["branch"] == wanted]
        if found := re.fullmatch(r"/(?:pulls|merge_requests)/(\d+)", place):
            one = next(one for one in self.requests if one["number"] == int(found[1]))
            one.update(body)
            return 200, one
        return 404, {"message": "Not Found"}


@contextmanager
def serve_forge() -> Iterator[Forge]:
    forge, lock = Forge(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def _handle(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            with lock:
                forge.seen.append(f"{self.command} {self.path}")
                code, value = 401, dict[str, Any](message="Bad credentials")
                headers: Mapping[str, str] = {}
                failing = [one for one in forge.failures if one.on in forge.seen[-1]]
                failure = failing[0] if failing else None
                if failure:
                    forge.failures.remove(failure)
                if self.headers["Authorization"] == f"Bearer {TOKEN}" and (not failure or failure.is_late):
                    code, value = forge.answer(self.command, self.path, body)
                    if isinstance(value, list):
                        value, headers = self._cut(value)
                if failure:
                    code, value, headers = failure.code, {"message": "as the test wants"}, failure.headers
            data = json.dumps(value).encode()
            self.send_response(code)
            for name, text in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(data)

        def _cut(self, value: list[Any]) -> tuple[Any, Mapping[str, str]]:
            page = int(parse_qs(urlsplit(self.path).query)["page"][0])
            end = page * forge.page_size
            is_last = len(value) <= end
            headers = (
                {} if is_last else {"X-Next-Page": str(page + 1), "Link": f'<x?page={page + 1}>; rel="next"'}
            )
            return value[end - forge.page_size : end], headers

        do_GET = do_POST = do_PATCH = do_PUT = _handle

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    forge.address = f"http://127.0.0.1:{server.server_address[1]}"
    worker = threading.Thread(target=server.serve_forever)
    worker.start()
    try:
        yield forge
    finally:
        server.shutdown()
        worker.join()
        server.server_close()

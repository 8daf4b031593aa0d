"""The parts of the HTTP APIs of GitHub and GitLab that a job needs: comments, permissions, and pull or merge requests.

After a temporary failure (429, 5xx, an exhausted rate limit, a broken connection), a request is sent again. A request
that creates something first checks whether an earlier attempt has created it. Redirects are not followed, because the
new address would receive the token.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from email.message import Message
from http.client import HTTPException
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, urlencode

from rolecall.errors import NotFound, StorageError, UsageError
from rolecall.forge.event import Person, Subject
from rolecall.settings.direct_http import open_address
from rolecall.settings.forge import Job
from rolecall.store.canonical import JsonObject

T = TypeVar("T")

_TRIES = 4
_LONGEST_PAUSE = 60.0
_SECONDS = 30.0
_MOST_BYTES = 32 * 1024**2
_MOST_PAGES = 50
_HINTS = {
    401: "Check the token: pass it as ROLECALL_FORGE_TOKEN.",
    403: "Give the token the right to do this; docs/ci.md lists what a job needs.",
    404: "Check the project, and whether the token may see it.",
    301: "The project has moved: use its new address.",
}
_DEVELOPER = 30
"""The lowest GitLab access level with push access."""


class Unavailable(StorageError):
    """Raised if the forge could not be reached, or failed temporarily."""

    def __init__(self, message: str, pause: float | None) -> None:
        super().__init__(message, hint="Run the job again; nothing that was saved is lost.")
        self.pause = pause


class ForgeRefused(UsageError):
    """Raised if the forge refused a request."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, hint=_HINTS.get(code, ""))


class Response(NamedTuple):
    value: Any
    headers: Message


class Http:
    """Sends JSON to one address, with a token."""

    def __init__(
        self, api: str, headers: dict[str, str], *, wait: Callable[[float], object] = time.sleep
    ) -> None:
        if not api.startswith(("https://", "http://")):
            raise UsageError(f"the address of the forge is {api!r}, which is neither https nor http")
        self._api = api.rstrip("/")
        self._headers = {"User-Agent": "rolecall", "Accept": "application/json", **headers}
        self._wait = wait

    def send(self, method: str, path: str, body: JsonObject | None = None) -> Response:
        """Send a request once."""
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers | ({"Content-Type": "application/json"} if data else {})
        request = urllib.request.Request(self._api + path, data, headers, method=method)  # noqa: S310 -- see above
        what = f"{method} {self._api}{path.partition('?')[0]}"
        try:
            with open_address(request, timeout=_SECONDS) as reply:
                text = reply.read(_MOST_BYTES)
                return Response(json.loads(text) if text else None, reply.headers)
        except urllib.error.HTTPError as error:
            with error:
                said = " ".join(error.read(2_000).decode("utf-8", "replace").split())[:300]
            message = f"{what} was answered with {error.code}: {said}"
            if error.code in (403, 429):
                if (after := error.headers.get("Retry-After", "")).isdecimal():
                    raise Unavailable(message, float(after)) from None
                if error.headers.get("X-RateLimit-Remaining") == "0" or error.code == 429:
                    reset = error.headers.get("X-RateLimit-Reset", "")
                    raise Unavailable(
                        message, float(reset) - time.time() if reset.isdecimal() else None
                    ) from None
            if error.code >= 500:
                raise Unavailable(message, None) from None
            if error.code == 404:
                raise NotFound(message, hint=_HINTS[404]) from None
            raise ForgeRefused(message, error.code) from None
        except (OSError, HTTPException, ValueError) as error:
            raise Unavailable(f"{what} failed: {error}", None) from error

    def retry(self, action: Callable[[], T]) -> T:
        """Send a request that can be repeated safely, and retry it after temporary failures."""
        for number in range(1, _TRIES + 1):
            try:
                return action()
            except Unavailable as error:
                pause = 2.0**number if error.pause is None else max(error.pause, 0.0)
                if number == _TRIES or pause > _LONGEST_PAUSE:
                    raise
                self._wait(pause)
        raise AssertionError

    def get(self, path: str) -> Response:
        return self.retry(lambda: self.send("GET", path))

    def put(self, method: str, path: str, body: JsonObject) -> Any:
        """Send an idempotent change."""
        return self.retry(lambda: self.send(method, path, body)).value

    def pages(self, path: str) -> Iterator[JsonObject]:
        """Yield the entries of a list, which is read page by page."""
        for page in range(1, _MOST_PAGES + 1):
            answer = self.get(f"{path}{'&' if '?' in path else '?'}per_page=100&page={page}")
            yield from answer.value
            if 'rel="next"' not in answer.headers.get("Link", "") and not answer.headers.get("X-Next-Page"):
                return


class ChangeRequest(NamedTuple):
    """A pull request or a merge request to open."""

    branch: str
    target: str
    title: str
    text: str


class Forge(Protocol):
    def may_write(self, person: Person) -> bool:
        """Return whether a person has push access to the project."""

    def comment(self, subject: Subject, text: str, *, mark: str, known: str) -> str:
        """Write Rolecall's comment, which begins with `mark`, and return the comment's id. `known` is the id of the
        existing comment, or empty."""

    def open_issue(self, title: str, text: str, *, mark: str) -> int:
        """Open an issue whose text begins with `mark`, unless such an issue is already open. Return its number."""

    def open_request(self, request: ChangeRequest) -> str:
        """Open a pull or merge request, or update the existing one, and return its URL."""


class GitHub:
    def __init__(self, api: str, project: str, token: str, **options: Any) -> None:
        headers = {"Authorization": f"Bearer {token}", "X-GitHub-Api-Version": "2022-11-28"}
        self._http = Http(api, headers, **options)
        self._at = f"/repos/{quote(project)}"
        self._owner = project.partition("/")[0]

    def may_write(self, person: Person) -> bool:
        # Do not use the author's association: a member of an organisation can lack write access.
        try:
            found = self._http.get(f"{self._at}/collaborators/{quote(person.name, safe='')}/permission")
        except NotFound:
            return False
        return found.value["permission"] in ("admin", "maintain", "write")

    def comment(self, subject: Subject, text: str, *, mark: str, known: str) -> str:
        comments = f"{self._at}/issues/{subject.number}/comments"
        edit = ("PATCH", f"{self._at}/issues/comments")
        return _write(self._http, comments, {"body": text}, edit, mark=mark, known=known)

    def open_issue(self, title: str, text: str, *, mark: str) -> int:
        issues, body = f"{self._at}/issues", {"title": title, "body": text}
        return int(_create(self._http, issues, body, f"{issues}?state=open", mark)["number"])

    def open_request(self, request: ChangeRequest) -> str:
        body = {"title": request.title, "body": request.text}
        asked = urlencode({"state": "open", "head": f"{self._owner}:{request.branch}"})
        new = {**body, "head": request.branch, "base": request.target}
        made = _create(self._http, f"{self._at}/pulls", new, f"{self._at}/pulls?{asked}")
        if made["body"] != request.text:
            self._http.put("PATCH", f"{self._at}/pulls/{made['number']}", body)
        return str(made["html_url"])


class GitLab:
    def __init__(self, api: str, project: str, token: str, **options: Any) -> None:
        self._http = Http(api, {"Authorization": f"Bearer {token}"}, **options)
        self._at = f"/projects/{quote(project, safe='')}"

    def may_write(self, person: Person) -> bool:
        try:
            found = self._http.get(f"{self._at}/members/all/{quote(person.id, safe='')}")
        except NotFound:
            return False
        is_active = found.value.get("state", "active") == "active"
        return bool(is_active and found.value["access_level"] >= _DEVELOPER)

    def comment(self, subject: Subject, text: str, *, mark: str, known: str) -> str:
        kind = "issues" if subject.kind == "issue" else "merge_requests"
        notes = f"{self._at}/{kind}/{subject.number}/notes"
        listed = f"{notes}?sort=asc&order_by=created_at"
        return _write(
            self._http, notes, {"body": text}, ("PUT", notes), mark=mark, known=known, listed=listed
        )

    def open_issue(self, title: str, text: str, *, mark: str) -> int:
        issues, body = f"{self._at}/issues", {"title": title, "description": text}
        return int(_create(self._http, issues, body, f"{issues}?state=opened", mark)["iid"])

    def open_request(self, request: ChangeRequest) -> str:
        body = {"title": request.title, "description": request.text}
        asked = urlencode({"state": "opened", "source_branch": request.branch})
        new = {**body, "source_branch": request.branch, "target_branch": request.target}
        requests = f"{self._at}/merge_requests"
        made = _create(self._http, requests, new, f"{requests}?{asked}")
        if made["description"] != request.text:
            self._http.put("PUT", f"{self._at}/merge_requests/{made['iid']}", body)
        return str(made["web_url"])


def open_forge(job: Job, **options: Any) -> Forge:
    return (GitHub if job.forge == "github" else GitLab)(job.api, job.project, job.token, **options)


def _create(http: Http, path: str, body: JsonObject, listed: str, mark: str = "") -> JsonObject:
    """Return the existing entry of the list at `listed` whose text begins with `mark`; if there is none, create one."""

    def create() -> JsonObject:
        for one in http.pages(listed):
            if str(one.get("body") or one.get("description") or "").startswith(mark):
                return one
        made: JsonObject = http.send("POST", path, body).value
        return made

    return http.retry(create)


def _write(
    http: Http,
    path: str,
    body: JsonObject,
    edit: tuple[str, str],
    *,
    mark: str,
    known: str,
    listed: str = "",
) -> str:
    """Change Rolecall's comment, or create it if it is unknown or was deleted. `edit` contains the HTTP method that
    changes comments, and the path before their ids."""
    method, place = edit
    if known:
        try:
            http.put(method, f"{place}/{known}", body)
            return known
        except NotFound:
            pass
    made = _create(http, path, body, listed or path, mark)
    ident = str(made["id"])
    if made["body"] != body["body"]:
        http.put(method, f"{place}/{ident}", body)
    return ident

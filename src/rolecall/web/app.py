"""The application: routes, and who may call them.

The page itself is public, because it contains no data. Everything under `/api` needs the cookie from a sign-in, or the
token as a bearer token. A request that changes something also needs the header `X-Rolecall: 1`, which a foreign page
cannot send. `service/http.py` has already checked Host and Origin.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolecall import __version__
from rolecall.api import Rolecall
from rolecall.errors import RolecallError, UsageError
from rolecall.nexus import project_paths
from rolecall.service.runner import Assignment, ThreadRunner
from rolecall.settings import config
from rolecall.threads.requests import Request as RepeatableRequest
from rolecall.threads.thread import LIMITS
from rolecall.web import (
    child,
    evals,
    failure,
    inbox,
    project,
    schema,
    search,
    service,
    spend,
    threads,
    workflows,
)
from rolecall.web.assets import Assets
from rolecall.web.failure import Failure
from rolecall.web.live import LiveEvents, PageStream, frames_of
from rolecall.web.signin import LINK_MINUTES, BrowserSignIn
from rolecall.web.verbs import VERBS, ApiVerb, Ask, Call, GoesOn, JsonObject

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]

_MODULES = (threads, inbox, workflows, evals, project, spend, service, search)
"""The modules that declare verbs."""
_HEADER = "x-rolecall"
_SIGN_OUT = "/api/signout"
_LARGEST_BODY = 2_000_000
_SHARED = 0.3
"""The number of seconds for which all pages share one count of the inbox. It is smaller than the time between an event
and the requests that pages make because of that event."""
_KEY = re.compile(r"[A-Za-z0-9_-]{16,100}")
_SIGN_IN_FAILED = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>Rolecall</title>"
    f"<p>This sign-in link has been used, or is older than {LINK_MINUTES} minutes. <code>rolecall web</code> has "
    "printed a fresh one; for a service, its log names the file that has it. A page that is signed in can also make "
    "one."
)


@dataclass(frozen=True)
class SiteSettings:
    """The store and folder on which the server works, and the options of the server."""

    folder: str
    store: str | None
    is_read_only: bool


class WorkerThreads:
    """The Python threads that run verbs. Each thread keeps its own `Rolecall`, because a connection to a store belongs
    to one Python thread. There are separate pools for slow verbs and for verbs that change something, so that a request
    to kill a thread never waits."""

    def __init__(self, settings: SiteSettings) -> None:
        self._settings = settings
        self._own = threading.local()
        self._pools = {
            (is_slow, is_writing): ThreadPoolExecutor(1 if is_slow else 3)
            for is_slow in (False, True)
            for is_writing in (False, True)
        }

    def open(self) -> Rolecall:
        return Rolecall(self._settings.store, folder=self._settings.folder)

    async def run(
        self, work: Callable[[Rolecall], T], *, is_slow: bool = False, is_writing: bool = False
    ) -> T:
        def call() -> T:
            if not hasattr(self._own, "rolecall"):
                self._own.rolecall = self.open()
            return work(self._own.rolecall)

        return await asyncio.get_running_loop().run_in_executor(self._pools[is_slow, is_writing], call)


class _Counted(NamedTuple):
    """A count of the items that wait for a person."""

    number: int
    event: int
    """The number of the newest event before the count."""
    problems: Mapping[str, str]
    until: float
    """When the count expires."""


class WebSite:
    """The handlers of all routes."""

    def __init__(self, settings: SiteSettings, signin: BrowserSignIn, *, tell: Callable[[str], None]) -> None:
        """`tell` is called with the path of each fresh sign-in link."""
        self._settings = settings
        self._signin = signin
        self._tell = tell
        self._workers = WorkerThreads(settings)
        watched = [os.path.join(_project_folder(settings.folder), ".nexus", "state")]
        self.live = LiveEvents(self._workers.open, watched)
        self._runner = ThreadRunner(
            settings.store, tell=lambda thread, text: self.live.notify("problem", thread=thread, text=text)
        )
        self._user = config.user_name()
        self._counting = threading.Lock()
        self._counted = _Counted(0, -1, {}, 0.0)

    # -- signing in --

    async def sign_in(self, request: Request) -> Response:
        """Sign a browser in: GET accepts a one-time link, and POST accepts a token."""
        if request.method == "GET":
            found = self._signin.take_link(request.query_params.get("once", ""))
            if found != "unknown":
                self._tell(self._link())
            if found != "valid":
                return Response(_SIGN_IN_FAILED, 403, media_type="text/html")
            reply: Response = RedirectResponse("/", 303)
        else:
            try:
                body = await _read_body(request)
                is_token = self._signin.is_token(str(body.get("token", "")))
            except (UsageError, ValueError) as error:
                return _reply_failure(failure.describe(error))
            if not is_token:
                return _refuse(403, "sign_in", "this is not the token of the server")
            reply = JSONResponse({"signedIn": True})
        reply.headers["Set-Cookie"] = self._signin.header(_cookie_name(request))
        reply.headers["Cache-Control"] = "no-store"
        return reply

    async def sign_out(self, request: Request) -> Response:
        name = _cookie_name(request)
        try:
            self._signin.end_cookie(name, request.cookies.get(name, ""))
            self.live.end_refused()
            reply = _reply({"signedOut": True})
        except RolecallError as error:
            reply = _reply_failure(failure.describe(error))
        reply.headers["Set-Cookie"] = self._signin.header_out(name)
        return reply

    def _link(self) -> str:
        return f"/signin?once={self._signin.make_link()}"

    def _refuse_stranger(self, request: Request) -> Response | None:
        """Return the refusal of a request that may not use the interface, or None if the request is allowed."""
        name = _cookie_name(request)
        cookie = request.cookies.get(name, "")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        is_known = bool(cookie) and self._signin.is_cookie(name, cookie)
        is_known = is_known or (scheme.lower() == "bearer" and self._signin.is_token(token.strip()))
        if not is_known:
            how = "token" if self._signin.takes_token else "link"
            return _refuse(401, "sign_in", "sign in first", signIn=how)
        site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
        is_own_page = site in (None, "same-origin", "none") and (
            origin is None or origin.partition("://")[2].lower() == request.headers.get("host", "").lower()
        )
        if not is_own_page:
            return _refuse(403, "origin", "only this server's own page may send requests")
        if request.method != "GET":
            if request.headers.get(_HEADER) != "1":
                return _refuse(
                    403, "header", "a request that changes something needs the header X-Rolecall: 1"
                )
            if self._settings.is_read_only and request.url.path != _SIGN_OUT:
                return _refuse(403, "read_only", "this page changes nothing: it was started with --read-only")
        return None

    def guard(self, run: Handler) -> Handler:
        """Return a handler that refuses callers who may not use the interface, and reports errors."""

        async def check_and_run(request: Request) -> Response:
            try:
                return self._refuse_stranger(request) or await run(request)
            except failure.EXPECTED as error:
                return _reply_failure(failure.describe(error))

        return check_and_run

    # -- the interface --

    async def show_me(self, _request: Request) -> Response:
        def look(rolecall: Rolecall) -> JsonObject:
            newest = rolecall.newest_event()  # read first, so that the page misses no later event
            # Count at most 100 waiting items. All pages ask for the count after the same events, so share it.
            problems = self._runner.problems
            with self._counting:
                known = self._counted
                is_fresh = known.event >= newest and monotonic() < known.until and known.problems == problems
                if not is_fresh:
                    event = rolecall.newest_event()
                    number = sum(1 for _ in islice(inbox.find_waiting(rolecall, problems), 100))
                    self._counted = known = _Counted(number, event, problems, monotonic() + _SHARED)
            address = config.without_password(config.full_store_address(self._settings.store))
            return {
                "lastEvent": newest,
                "version": __version__,
                "person": self._user,
                "folder": self._settings.folder,
                "project": os.path.basename(_project_folder(self._settings.folder)),
                "store": config.mask().text(address),
                "readOnly": self._settings.is_read_only,
                "limits": list(LIMITS),
                "waiting": known.number,
            }

        return _reply(await self._workers.run(look))

    async def make_link(self, _request: Request) -> Response:
        return _reply({"path": self._link()})

    async def show_schema(self, _request: Request) -> Response:
        return _reply(schema.describe(VERBS))

    def handle(self, verb: ApiVerb) -> Handler:
        def carry_on(found: GoesOn, rolecall: Rolecall) -> JsonObject:
            thread = rolecall.thread(found.thread)
            run = self._runner.carry_on(thread) if found.is_run else Assignment("nobody")
            return {**found.reply, "thread": thread.id, "status": thread.status, **run._asdict()}

        async def handle(request: Request) -> Response:
            found = await self._run(verb, await self._read_call(verb, request))
            if isinstance(found, GoesOn):
                found = await self._workers.run(partial(carry_on, found), is_writing=True)
            if isinstance(found, Failure):
                return _reply_failure(found)
            return found if isinstance(found, Response) else _reply(found)

        return handle

    async def _read_call(self, verb: ApiVerb, request: Request) -> Call:
        body = {} if verb.body is None else await _read_body(request)
        verb.check(body)
        name = unquote(request.headers.get("x-rolecall-person", ""))[:100].strip()
        by = {"person": name or self._user, "door": "web"}
        by |= {"address": request.client.host} if request.client else {}
        key, repeatable = request.headers.get("idempotency-key"), None
        if key is not None and verb.is_repeatable:
            if not _KEY.fullmatch(key):
                raise UsageError("an Idempotency-Key has 16 to 100 letters, digits, _ and -")
            content = json.dumps([verb.path, request.path_params, body], sort_keys=True)
            repeatable = RepeatableRequest(key, content)
        return Call(
            path=request.path_params,
            query=dict(request.query_params),
            body=body,
            by=by,
            is_read_only=self._settings.is_read_only,
            request=repeatable,
        )

    async def _run(self, verb: ApiVerb, call: Call) -> Any:
        """Return the result of a verb: a reply or, if a thread should then run, a `GoesOn`. If the verb runs in its own
        process and fails there, return the `Failure`."""

        def complete(rolecall: Rolecall) -> Ask:
            return Ask(**vars(call), rolecall=rolecall, problems=self._runner.problems)

        def runs_code(rolecall: Rolecall) -> bool:
            name = verb.loads(complete(rolecall)) if verb.loads else None
            return name is not None and rolecall.is_python(name)

        def find_made(rolecall: Rolecall) -> GoesOn | None:
            made = rolecall.find_requested(call.request) if call.request else None
            return GoesOn(made.id, is_run=call.body.get("run", True), reply=call.path) if made else None

        if call.request and (repeated := await self._workers.run(find_made)):
            return repeated  # the workflow might no longer exist, so it is not looked up
        if verb.loads is not None and await self._workers.run(runs_code):
            return await child.run(verb, call, folder=self._settings.folder, store=self._settings.store)

        def answer(rolecall: Rolecall) -> GoesOn | Response:
            found = verb.run(complete(rolecall))
            return found if isinstance(found, GoesOn) else _reply(found)  # encodes replies that may be long

        is_slow = verb.is_slow(call) if callable(verb.is_slow) else verb.is_slow
        return await self._workers.run(answer, is_slow=is_slow, is_writing=verb.is_writing)

    async def send_report(self, request: Request) -> Response:
        """Send a thread's report as a download."""
        is_markdown = request.query_params.get("format") == "markdown"
        ident = request.path_params["thread"]
        text = await self._workers.run(
            lambda rolecall: rolecall.thread(ident).export("markdown" if is_markdown else "html"),
            is_slow=True,
        )
        return _send_file(text, ident, "md" if is_markdown else "html")

    async def send_eval_report(self, request: Request) -> Response:
        """Send the page of an evaluation as a download."""
        query, ident = request.query_params, request.path_params["run"]
        text = await self._workers.run(
            lambda rolecall: rolecall.evals().page(ident, base=query.get("base", "")), is_slow=True
        )
        return _send_file(text, ident, "html")

    async def stream_events(self, request: Request) -> Response:
        given = request.headers.get("last-event-id") or request.query_params.get("after") or ""
        wanted = filter(None, request.query_params.get("thread", "").upper().split(","))
        stream = PageStream(list(wanted)[:100], lambda: self._refuse_stranger(request) is None)

        async def read(after: int) -> Any:
            return await self._workers.run(lambda rolecall: rolecall.events(after=after))

        frames = frames_of(self.live, stream, int(given) if given.isdecimal() else None, read)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(frames, media_type="text/event-stream", headers=headers)


def _send_file(text: str, ident: str, ending: str) -> Response:
    name = f"{re.sub(r'[^0-9A-Za-z]', '', ident)}.{ending}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(text, media_type={"md": "text/markdown", "html": "text/html"}[ending], headers=headers)


def make_app(settings: SiteSettings, signin: BrowserSignIn, *, tell: Callable[[str], None]) -> ASGIApp:
    site, assets = WebSite(settings, signin, tell=tell), Assets()
    others: dict[str, Handler] = {
        "/events": site.stream_events,
        "/links": site.make_link,
        "/me": site.show_me,
        "/schema": site.show_schema,
        "/signout": site.sign_out,
        "/threads/{thread}/report": site.send_report,
        "/evals/{run}/report": site.send_eval_report,
    }
    verbs = [(one.method, one.path, others[one.path]) for one in schema.OTHERS]
    verbs += [(verb.method, verb.path, site.handle(verb)) for verb in VERBS]
    routes = [
        Route("/signin", site.sign_in, methods=["GET", "POST"]),
        *(Route(f"/api{path}", site.guard(run), methods=[method]) for method, path, run in verbs),
        Route("/api/{path:path}", site.guard(_no_such_verb), methods=["GET", "POST"]),
        Route("/static/{path:path}", assets.send_file),
        Route("/{path:path}", assets.send_page),
    ]
    return _SecureHeaders(Starlette(routes=routes), assets.policy)


class _SecureHeaders:
    """Middleware that adds the headers that restrict what Rolecall's pages can do in a browser."""

    def __init__(self, app: ASGIApp, policy: str) -> None:
        self._app = app
        self._headers = {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        await self._app(scope, receive, send_with if scope["type"] == "http" else send)


def _project_folder(folder: str) -> str:
    """Return the project around a folder. Outside a git repository, return the folder itself, so that its threads can
    still be shown."""
    try:
        return project_paths.find(folder)
    except RolecallError:
        return folder


def _cookie_name(request: Request) -> str:
    server = request.scope.get("server") or ("", 0)
    return f"rolecall_{server[1]}"


async def _read_body(request: Request) -> JsonObject:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _LARGEST_BODY:
            raise UsageError(f"the request is larger than {_LARGEST_BODY:,} bytes")
    try:
        found = json.loads(data or b"{}")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the request is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError("the request must be a JSON object")
    return found


async def _no_such_verb(request: Request) -> Response:
    return _refuse(404, "not_found", f"there is nothing at {request.url.path}")


def _reply(value: Any) -> Response:
    data = json.dumps(value, separators=(",", ":"), default=str).encode()
    return Response(data, media_type="application/json", headers={"Cache-Control": "no-store"})


def _reply_failure(found: Failure) -> Response:
    return _refuse(found.status, found.code, found.error, hint=found.hint, problems=list(found.problems))


def _refuse(status: int, code: str, error: str, **more: Any) -> Response:
    kept = {key: value for key, value in more.items() if value}
    data = {"error": error, "code": code, **kept}
    with suppress(ValueError):
        return JSONResponse(data, status, headers={"Cache-Control": "no-store"})
    return JSONResponse({"error": ascii(error), "code": code}, status)

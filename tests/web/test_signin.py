"""Who may use the page: real servers, and requests that a browser or a stranger sends."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from ports import held_port
from webstage import Project, Site, served

from rolecall.web.signin import LINK_MINUTES, BrowserSignIn


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("signin"))


@pytest.fixture(scope="module")
def site(project: Project) -> Iterator[Site]:
    with served(project) as found:
        yield found.sign_in()


@pytest.fixture
def port() -> Iterator[str]:
    with held_port() as port:
        yield str(port)


def test_a_link_signs_one_browser_in_and_the_cookie_outlasts_the_server(project: Project, port: str) -> None:
    with served(project, "--port", port) as first:
        assert first.send("GET", "/api/me").status == 401
        place = urlsplit(first.link)
        reply = first.send("GET", f"{place.path}?{place.query}")
        assert (reply.status, reply.headers["location"]) == (303, "/")
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(reply.headers["set-cookie"].split("; "))
        assert first.send("GET", f"{place.path}?{place.query}").status == 403
        first.cookie = reply.headers["set-cookie"].partition(";")[0]
        assert first.get("/me")["project"] == project.folder.name
        path = first.post("/links")["path"]
        assert first.send("GET", path).status == 303
    with served(project, "--port", port) as second:
        second.cookie = first.cookie
        assert second.send("GET", "/api/me").status == 200
        assert second.send("GET", "/signin?once=%C3%A9").status == 403
        second.cookie = first.cookie[:-1] + ("0" if first.cookie[-1] != "0" else "1")
        assert second.send("GET", "/api/me").status == 401
    key = project.home / "web.key"
    assert key.stat().st_mode & 0o777 == 0o600


def test_a_link_is_valid_once_and_for_minutes(tmp_path: Path) -> None:
    now = 0.0
    signin = BrowserSignIn(str(tmp_path), token=None, clock=lambda: now)
    used, kept = signin.make_link(), signin.make_link()
    now = 60 * LINK_MINUTES - 1
    assert [signin.take_link(used), signin.take_link(used)] == ["valid", "unknown"]
    now += 1
    assert signin.take_link(kept) == "old"
    assert signin.take_link("") == "unknown"


def test_signing_out_ends_the_cookie_also_after_a_restart(project: Project, port: str) -> None:
    with served(project, "--read-only", "--port", port) as site:
        kept = site.sign_in().cookie
        assert site.send("POST", "/api/signout").status == 403  # without the header
        with site.events() as events:
            assert next(events)["kind"] == "hello"
            reply = site.send("POST", "/api/signout", X_Rolecall="1")
            assert list(events) == []  # the stream has ended
        assert (reply.status, reply.json) == (200, {"signedOut": True})
        assert reply.headers["set-cookie"].startswith(f"{kept.partition('=')[0]}=; Max-Age=0;")
        assert site.send("GET", "/api/me").status == 401
    with served(project, "--read-only", "--port", port) as again:
        again.cookie = kept
        assert again.send("GET", "/api/me").status == 401


def test_a_key_that_is_too_short_is_refused(tmp_path: Path) -> None:
    own = Project(tmp_path)
    own.home.mkdir()
    (own.home / "web.key").write_bytes(b"short")
    own.rolecall("web", "--no-open", code=5)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (421, {"Host": "evil.example"}),
        (403, {"Origin": "http://evil.example"}),
        (403, {"Origin": "http://127.0.0.1:1"}),  # another server of this machine
        (403, {"Origin": "null"}),
        (403, {"Sec_Fetch_Site": "cross-site"}),
        (403, {"Sec_Fetch_Site": "same-site"}),
        (401, {"Cookie": "rolecall_0=1.2.3"}),
    ],
)
def test_strangers_are_refused(site: Site, status: int, headers: dict[str, str]) -> None:
    assert site.send("GET", "/api/threads", **headers).status == status
    body = {"workflow": "loop", "prompt": "x"}
    assert site.send("POST", "/api/threads", body, X_Rolecall="1", **headers).status == status


def test_a_request_that_changes_something_needs_the_header(site: Site) -> None:
    reply = site.send("POST", "/api/threads", {"workflow": "loop", "prompt": "x"})
    assert (reply.status, reply.json["code"]) == (403, "header")


def test_a_read_only_page_changes_nothing(project: Project, port: str) -> None:
    with served(project, "--read-only", "--port", port) as site:
        site.sign_in()
        assert site.get("/me")["readOnly"] is True
        assert site.post("/threads", {"workflow": "loop", "prompt": "x"}, status=403)["code"] == "read_only"
        assert site.post("/links", status=403)["code"] == "read_only"
    with served(project, "--port", port) as other:
        other.cookie = site.cookie
        assert other.send("GET", "/api/me").status == 401


def test_outside_loopback_a_token_signs_in(project: Project, port: str) -> None:
    project.rolecall("web", "--no-open", "--host", "0.0.0.0", code=2)
    token = "a-token-of-this-test-that-is-long-enough"
    words = ("--port", port, "--token-env", "PAGE_TOKEN")
    with served(project, "--host", "0.0.0.0", *words, PAGE_TOKEN=token) as site:
        site.host = "127.0.0.1"
        assert site.send("GET", "/api/me").json["signIn"] == "token"
        assert site.send("GET", "/api/me", Authorization=f"Bearer {token}").status == 200
        assert site.send("GET", "/api/me", Authorization=f"Bearer {token}x").status == 401
        assert site.send("POST", "/signin", {"token": "wrong"}).status == 403
        assert site.send("POST", "/signin", {"token": "\ud800"}).status == 400
        assert site.send_text("POST", "/signin", "[" * 100_000).status == 400
        reply = site.send("POST", "/signin", {"token": token})
        site.cookie = reply.headers["set-cookie"].partition(";")[0]
        assert site.send("GET", "/api/me").status == 200
    # Another token ends all cookies.
    with served(project, *words, PAGE_TOKEN=f"{token}!") as other:
        other.cookie = site.cookie
        assert other.send("GET", "/api/me").status == 401


def test_a_page_runs_only_its_own_scripts(site: Site) -> None:
    page = site.send("GET", "/threads/anything")
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    inline = re.findall(r"<script(?![^>]*src=)[^>]*>(.*?)</script>", page.text, re.S)
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in inline]
    assert policy["script-src"] == " ".join(["'self'", *(f"'sha256-{one}'" for one in hashes)])
    assert len(inline) == 1
    assert "unsafe" not in page.headers["content-security-policy"]
    assert not re.search(r"\son\w+=|style=|javascript:", page.text)
    for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text):
        assert site.send("GET", path).status == 200, path
    assert site.send("GET", "/static/../app.py").status in (400, 404)
    assert site.send("GET", "/static/%2e%2e/app.py").status == 404


def test_the_assets_are_small(site: Site) -> None:
    folder = Path(__file__).parents[2] / "src/rolecall/web/static"
    total = 0
    for path in folder.rglob("*"):
        if path.suffix in (".js", ".css", ".html", ".svg"):
            reply = site.send("GET", f"/static/{path.relative_to(folder)}")
            assert reply.status == 200
            total += len(site_bytes(site, f"/static/{path.relative_to(folder)}"))
    assert total < 150_000


def site_bytes(site: Site, path: str) -> bytes:
    from http.client import HTTPConnection

    connection = HTTPConnection(site.host, site.port, timeout=120)
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    data = connection.getresponse().read()
    connection.close()
    return data

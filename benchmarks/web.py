"""What the web page costs: lists and long threads over HTTP, live events, idle streams, memory, assets.

The server is the real one in a process of its own. With ROLECALL_TEST_BROWSER (see `make test-browser`) the same is
measured in a real Chromium: until something is painted, from an event to the pixel, and what the server does for pages
that are open there.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks.measure import Row, print_table
from benchmarks.threads import crowd, played
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_STREAMS = 20
_PAGES = 20
"""Half of them look at the list, the others at a thread each, like browsers of as many people."""
_RUNNING = 50
"""Threads that record an event twice a second."""
_STATIC = Path(__file__).parents[1] / "src/rolecall/web/static"


def main(*, quick: bool = False) -> None:
    rounds, seconds = (5, 2.0) if quick else (15, 5.0)
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder:
        store = os.path.join(folder, "store.db")
        long = played(store, 300 if quick else 2_000)[1]
        crowd(store, 10_000 if quick else 100_000)
        with serve(folder, store) as server:
            rows = [
                *requests(server, long, rounds),
                *streams(server, store, seconds),
                memory(server),
                assets(),
            ]
            print_table(f"The page's server (medians of {rounds}, {_load()})", rows)
            if place := os.environ.get("ROLECALL_TEST_BROWSER"):
                found = list(browser(server, store, long, Path(place), rounds, seconds))
                print_table(f"In Chromium ({_load()})", found)
            else:
                print("ROLECALL_TEST_BROWSER is not set: nothing was measured in a browser")


def _load() -> str:
    return f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


class Server:
    def __init__(self, child: subprocess.Popen[str], link: str) -> None:
        self.pid = child.pid
        place = urlsplit(link)
        self.host, self.port = str(place.hostname), int(place.port or 0)
        self.cookie = ""
        reply = self.ask(f"{place.path}?{place.query}")
        reply.read()
        self.cookie = str(reply.headers["set-cookie"]).partition(";")[0]

    def ask(self, path: str) -> HTTPResponse:
        connection = HTTPConnection(self.host, self.port, timeout=60)
        connection.request("GET", path, headers={"Cookie": self.cookie} if self.cookie else {})
        return connection.getresponse()

    def get(self, path: str) -> Any:
        return json.loads(self.ask(f"/api{path}").read())

    def cpu(self) -> float:
        """Processor seconds that the server has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serve(folder: str, store: str) -> Iterator[Server]:
    child = subprocess.Popen(
        [sys.executable, "-m", "rolecall", "web", "--no-open", "--store", store, "--project", folder],
        env={**os.environ, "ROLECALL_HOME": os.path.join(folder, "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    try:
        yield Server(child, child.stdout.readline().strip())
    finally:
        child.terminate()
        child.wait()
        child.stdout.close()


def requests(server: Server, long: str, rounds: int) -> Iterator[Row]:
    deep = server.get("/threads?max=200")["next"]
    works: dict[str, tuple[str, float | None]] = {
        "first page of all threads": ("/threads?max=50", 300),
        "a page further down": (f"/threads?max=50&after={deep}", 300),
        "2,000 threads, none with a rare word": ("/threads?max=50&text=no-such-word-anywhere", None),
        "inbox": ("/inbox", 300),
        "a long thread": (f"/threads/{long}", 500),
        "its newest 100 steps": (f"/threads/{long}/steps?max=100", 500),
        "spending, counted before": ("/spend?days=30", None),
    }
    first = _seconds(lambda: _count_all(server))
    yield Row("spending of all threads, the first time", f"{first:.1f} s")
    for name, (path, most) in works.items():
        server.get(path)
        found = median(_seconds(lambda path=path: server.get(path)) for _ in range(rounds)) * 1e3  # type: ignore[misc]
        yield Row(
            name,
            f"{found:.1f} ms",
            target=f"≤ {most:g} ms" if most else "",
            met=found <= most if most else None,
        )


def _count_all(server: Server) -> None:
    while server.get("/spend?days=30")["left"]:
        pass


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def streams(server: Server, store: str, seconds: float) -> Iterator[Row]:
    """The load of open pages: silent, and while threads record events. Each page looks at a thread of its own."""
    threads = [row["thread"] for row in server.get(f"/threads?max={_RUNNING}")["threads"]]
    with ExitStack() as stack:
        late: list[float] = []
        for number in range(_STREAMS):
            thread = threads[number % len(threads)]
            connection = HTTPConnection(server.host, server.port, timeout=60)
            connection.request("GET", f"/api/events?thread={thread}", headers={"Cookie": server.cookie})
            reply = connection.getresponse()
            # A close would wait for the thread that reads.
            stack.callback(connection.sock.shutdown, socket.SHUT_RDWR)
            threading.Thread(target=_listen, args=(reply, late), daemon=True).start()
        time.sleep(0.5)
        for name, is_busy, most in (("silent", False, 1.0), (f"{_RUNNING} threads running", True, 5.0)):
            began, used = time.perf_counter(), server.cpu()
            written = None
            if is_busy:
                written = _write(store, threads, seconds)
            else:
                time.sleep(seconds)
            took = time.perf_counter() - began
            share = 100 * (server.cpu() - used) / took
            yield _share_row(f"{_STREAMS} streams open, {_word(name, written, took)}", share, most)
        time.sleep(0.3)
        found = median(late) * 1e3 if late else 0.0
        yield Row("from an event to a page", f"{found:.0f} ms", target="≤ 200 ms", met=found <= 200)


def _word(name: str, written: int | None, seconds: float) -> str:
    return f"{name} ({written / seconds:.0f} events a second)" if written else name


def _share_row(name: str, share: float, most: float) -> Row:
    return Row(name, f"{share:.1f} % of a core", target=f"≤ {most:g} %", met=share <= most)


def _listen(reply: HTTPResponse, late: list[float]) -> None:
    with suppress(OSError, ValueError, AttributeError):
        while line := reply.readline():
            if found := re.search(rb'"sent":([0-9.]+)', line):
                late.append(time.time() - float(found[1]))


def _write(path: str, threads: list[str], seconds: float) -> int:
    """Record events as running threads do: each of them two a second, every tenth of which moves the thread. Return
    how many there were, because a busy machine lets through fewer."""
    with Store(SqliteBackend(path, durability="never")) as store:
        pause, until, count = 1 / (2 * _RUNNING), time.perf_counter() + seconds, 0
        while time.perf_counter() < until:
            draft, count = store.draft(), count + 1
            kind = "text" if count % 10 else "step_started"
            draft.event(threads[count % len(threads)], kind, {"text": "A few words. ", "sent": time.time()})
            draft.commit()
            time.sleep(pause)
        return count


def memory(server: Server) -> Row:
    text = Path(f"/proc/{server.pid}/status").read_text()
    found = int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1024
    return Row("memory", f"{found:.0f} MB", target="≤ 120 MB", met=found <= 120)


def assets() -> Row:
    import gzip

    files = [path for path in _STATIC.rglob("*") if path.suffix in (".js", ".css", ".html", ".svg")]
    total = sum(len(gzip.compress(path.read_bytes(), 9)) for path in files) / 1000
    return Row("all assets, compressed", f"{total:.0f} KB", target="≤ 150 KB", met=total <= 150)


def browser(server: Server, store: str, long: str, place: Path, rounds: int, seconds: float) -> Iterator[Row]:
    from playwright.sync_api import sync_playwright

    folder = place / "browser"
    env: dict[str, str | float | bool] = {
        "LD_LIBRARY_PATH": str(folder / "lib"),
        "FONTCONFIG_FILE": str(folder / "fonts.conf"),
        "HOME": tempfile.gettempdir(),
        "LANG": "en_US.UTF-8",
    }
    args = ["--no-sandbox", "--disable-gpu", "--no-zygote"]
    root = f"http://{server.host}:{server.port}"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=folder / "chromium", args=args, env=env)
        context = chromium.new_context(locale="en-US")
        name, _, value = server.cookie.partition("=")
        context.add_cookies([{"name": name, "value": value, "url": root}])
        page = context.new_page()
        for title, path, wanted, most in (
            ("the list of threads is painted", "/threads", "table.list tbody tr", 300),
            ("a long thread is painted", f"/threads/{long}", "ol.chain > li", 500),
        ):
            found = []
            for _ in range(rounds + 1):
                began = time.perf_counter()
                page.goto(root + path, wait_until="commit")
                page.wait_for_selector(wanted)
                found.append(time.perf_counter() - began)
            shown = median(found[1:]) * 1e3
            yield Row(title, f"{shown:.0f} ms", target=f"≤ {most} ms", met=shown <= most)
        page.evaluate(
            "() => { window.long = []; new PerformanceObserver((list) => long.push(...list.getEntries()"
            ".map((one) => one.duration))).observe({entryTypes: ['longtask']}); }"
        )
        for _ in range(40):
            page.mouse.wheel(0, 800)
            page.wait_for_timeout(30)
        tasks = page.evaluate("() => window.long")
        yield Row(
            "longest task while it scrolls",
            f"{max(tasks, default=0):.0f} ms",
            target="≤ 50 ms",
            met=max(tasks, default=0) <= 50,
        )

        page.goto(f"{root}/threads")
        row = server.get("/threads?max=1")["threads"][0]["thread"]
        page.wait_for_selector(f'a[href="/threads/{row}"]')
        found = []
        with Store(SqliteBackend(store, durability="never")) as writer:
            for number in range(rounds + 1):
                page.wait_for_timeout(37 * number % 100)
                draft, began = writer.draft(), time.perf_counter()
                draft.event(row, "step_started", {"role": f"probe-{number}-"})
                draft.commit()
                page.wait_for_selector(f"text=probe-{number}-")
                found.append(time.perf_counter() - began)
        shown = median(found[1:]) * 1e3
        yield Row("from an event to the pixel", f"{shown:.0f} ms", target="≤ 200 ms", met=shown <= 200)
        context.close()
        yield from open_pages(chromium, server, store, seconds)
        chromium.close()


def open_pages(chromium: Browser, server: Server, store: str, seconds: float) -> Iterator[Row]:
    """What the server does while real pages are open, each in a profile of its own, and threads record events."""
    threads = [row["thread"] for row in server.get(f"/threads?max={_RUNNING}")["threads"]]
    name, _, value = server.cookie.partition("=")
    root = f"http://{server.host}:{server.port}"
    contexts, pages = [], []
    for number in range(_PAGES):
        context = chromium.new_context(locale="en-US")
        context.add_cookies([{"name": name, "value": value, "url": root}])
        contexts.append(context)
        page = context.new_page()
        page.goto(f"{root}/threads/{threads[number]}" if number % 2 else f"{root}/threads")
        page.wait_for_selector(".graph svg" if number % 2 else "table.list tbody tr")
        pages.append(page)
    for title, is_busy, most in (("silent", False, 1.0), (f"{_RUNNING} threads running", True, 5.0)):
        pages[0].wait_for_timeout(3000)  # what was loaded before is over
        began, used = time.perf_counter(), server.cpu()
        written = None
        if is_busy:
            with ThreadPoolExecutor(1) as pool:
                writer = pool.submit(_write, store, threads, seconds)
                while not writer.done():
                    pages[0].wait_for_timeout(100)
                written = writer.result()
        else:
            pages[0].wait_for_timeout(1000 * seconds)
        took = time.perf_counter() - began
        share = 100 * (server.cpu() - used) / took
        yield _share_row(f"{_PAGES} pages open, {_word(title, written, took)}", share, most)
    yield memory(server)._replace(name=f"memory of the server with {_PAGES} pages")
    for context in contexts:
        context.close()


if __name__ == "__main__":
    main()

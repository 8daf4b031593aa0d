"""What the tests of the fleet share: a database of their own, machines as processes, and lines that can be cut.

A machine has a home of its own and, where the system lets us, a host name of its own, so that others go by its lease
and not by its process. It reaches PostgreSQL through a relay, which can be stopped from passing anything on.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, LiteralString
from uuid import uuid4

import psycopg
from psycopg import sql
from servicestage import PATIENCE, PROGRAM, STEPS, Service, book, gone

from rolecall.settings.mask import Mask
from rolecall.store.postgres import PostgresBackend
from rolecall.store.store import Store
from rolecall.threads import lifecycle, thread
from rolecall.workflow import registry

LEASE = 12.0
"""Seconds, where a machine is lost and others wait for its lease to end. Where none is, a lease is so long that nobody
loses it however busy the system is."""
KEEPALIVE = 11.0
"""Seconds after which PostgreSQL ends a session with a machine that has gone (see `service/fleet/database.py`)."""
IMPORTS = ("rolecall.service.fleet.serving",)
"""What every machine imports, which takes it most of a second."""
_AS_HOST = "import os, socket, sys; socket.sethostname(sys.argv[1]); os.execvp(sys.argv[2], sys.argv[2:])"


CLOCK = """
import os, time
_true = time.time_ns
def time_ns():
    try:
        with open(os.environ["TEST_CLOCK"]) as file:
            return _true() + int(file.read() or 0) * 1_000_000_000
    except OSError:
        return _true()
time.time_ns, time.time = time_ns, lambda: time_ns() / 1e9
"""
"""Python imports it before anything else: a machine's clock that can be set."""


def can_unshare(*kinds: str) -> bool:
    """Whether a machine can be given a host name, a network or mounts of its own here."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", *kinds, "true"], capture_output=True, check=False).returncode == 0


HAS_HOST_NAMES = can_unshare("--uts")
HAS_NETWORKS = can_unshare("--uts", "--net") and shutil.which("ip") is not None
HAS_MOUNTS = can_unshare("--uts", "--mount")


class Relay:
    """Passes on what a machine and PostgreSQL say to each other, until it is cut: then it passes on nothing, closes
    nothing and answers nobody, as a network does that has fallen apart. A session of the server to which something has
    been on its way for `KEEPALIVE` seconds is ended, as the server does over TCP; the relay uses a socket file."""

    def __init__(self, url: str, listener: socket.socket | None = None) -> None:
        self._server = psycopg.conninfo.conninfo_to_dict(url)
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self._is_open = threading.Event()
        self._is_open.set()
        self._ends: list[socket.socket] = [self._listener]
        self._is_closed = False
        self._changing = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        name, user = self._server["dbname"], self._server["user"]
        return f"postgresql://{user}:very-secret-password@127.0.0.1:{self._listener.getsockname()[1]}/{name}"

    def cut(self) -> None:
        self._is_open.clear()

    def mend(self) -> None:
        self._is_open.set()

    def mend_for_new_lines(self) -> None:
        """Those that are open stay as they are: nothing comes of them any more."""
        self._is_open = threading.Event()
        self._is_open.set()

    def close(self) -> None:
        with self._changing:
            self._is_closed = True
        self._is_open.set()
        for end in self._ends:
            _end(end)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._is_open.wait()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(
                os.path.join(str(self._server["host"]), f".s.PGSQL.{self._server.get('port') or 5432}")
            )
        except OSError:  # the server is away
            near.close()
            far.close()
            return
        with self._changing:
            if self._is_closed:  # somebody who came while nothing was passed on
                _end(near)
                _end(far)
                return
            self._ends += [near, far]
        for one, other in ((near, far), (far, near)):
            threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                if not self._is_open.wait(KEEPALIVE) and one.family == socket.AF_INET:
                    other.shutdown(socket.SHUT_RDWR)
                self._is_open.wait()
                other.sendall(data)
        self._is_open.wait()
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _end(line: socket.socket) -> None:
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    line.close()


class Network:
    """A network of a machine's own that has nothing but itself; PostgreSQL is reached through a relay in it. Cut, it
    is down."""

    def __init__(self) -> None:
        self._keeper = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.path = f"/proc/{self._keeper.pid}/ns/net"
        own = os.stat("/proc/self/ns/net").st_ino
        deadline = time.monotonic() + PATIENCE
        while os.stat(self.path).st_ino == own:  # until it has begun, it is in ours
            assert time.monotonic() < deadline
        self.set_link("up")

    def listener(self) -> socket.socket:
        """A socket in that network. A thread goes there, makes it, and ends."""
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self._listener).result()

    def _listener(self) -> socket.socket:
        libc = ctypes.CDLL(None, use_errno=True)
        with open(self.path, "rb") as place:
            assert libc.setns(place.fileno(), 0x40000000) == 0, os.strerror(ctypes.get_errno())
        return socket.create_server(("127.0.0.1", 0))

    def set_link(self, state: str) -> None:
        subprocess.run(["nsenter", f"--net={self.path}", "ip", "link", "set", "lo", state], check=True)

    def close(self) -> None:
        self._keeper.kill()
        self._keeper.wait(PATIENCE)


class Host(Service):
    """One machine: a home, and its process."""

    def __init__(self, fleet: Fleet, name: str, *, slots: int, has_network: bool = False) -> None:
        folder = fleet.folder / name
        folder.mkdir()
        super().__init__(folder)
        self.fleet = fleet
        self.name = name
        self.slots = slots
        self.network = Network() if has_network else None
        self.relay = Relay(fleet.url, self.network.listener() if self.network else None)
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.env |= {"ROLECALL_STORE": self.relay.url, "TMPDIR": str(self.temporary)}
        self.disk_mb: int | None = None
        """How large the disk under its home is, for one that `is_own_child`; None: that of everybody."""
        self.work = fleet.work
        self.project = self.folder
        """The folder whose rolecall.yaml counts."""
        self._ready: int | None = None

    def start(self, *options: str) -> None:
        self.begin(*options)
        self.joined()

    def begin(self, *options: str) -> None:
        """Start it, and do not wait until it is there."""
        if self._ready is not None:
            os.close(self._ready)
        self._ready, write = os.pipe()
        # The address is in the environment, where nobody else sees its password.
        words = [PROGRAM, "serve", "--database", "--machine", self.name]
        words += ["--slots", str(self.slots), "--lease", str(self.fleet.lease)]
        words += ["--project", str(self.project), *self.fleet.options, *options]
        place = {
            "host": self.name if HAS_HOST_NAMES else "",
            "network": self.network.path if self.network else "",
        }
        self._begin(words, write, self._as_host(), **place, imports=IMPORTS)

    def joined(self) -> None:
        assert self._ready is not None
        read, self._ready = self._ready, None
        with open(read, "rb") as ready:
            assert ready.read() == b"ready", self.output()

    def stop(self, *options: str) -> None:
        if self._ready is not None:  # begun, and on a busy machine perhaps not there yet
            self.joined()
        super().stop(*options)

    def cut(self) -> None:
        """Let nothing pass between the machine and the database."""
        if self.network is not None:
            self.network.set_link("down")
        else:
            self.relay.cut()

    def mend(self) -> None:
        if self.network is not None:
            self.network.set_link("up")
        else:
            self.relay.mend()

    def _as_host(self) -> list[str]:
        named = [sys.executable, "-c", _AS_HOST, self.name]
        own = ["nsenter", f"--net={self.network.path}"] if self.network else []
        if self.disk_mb is not None:
            mount = f'mount -t tmpfs -o size={self.disk_mb}m tmpfs {self.home} && exec "$@"'
            return [*own, "unshare", "--uts", "--mount", "--", "sh", "-c", mount, "sh", *named]
        return [*own, "unshare", "--uts", "--", *named] if HAS_HOST_NAMES else own

    def fill_disk(self) -> None:
        """Write under its home, as the machine sees it, until there is no room for a single byte."""
        assert self.process is not None
        with open(f"/proc/{self.process.pid}/root{self.home}/ballast", "wb", buffering=0) as ballast:
            try:
                while ballast.write(bytes(1 << 20)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC

    def empty_disk(self) -> None:
        assert self.process is not None
        os.unlink(f"/proc/{self.process.pid}/root{self.home}/ballast")

    def rolecall(self, *args: str, input: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._as_host(), PROGRAM, *args],
            input=input,
            capture_output=True,
            text=True,
            env=self.env,
            cwd=self.folder,
            timeout=PATIENCE,
            check=False,
        )

    @property
    def store(self) -> Store:
        return self.fleet.store

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE)
            self.process = None
        self.end_all()
        self.relay.close()
        if self.network is not None:
            self.network.close()
        if self._ready is not None:
            os.close(self._ready)


class Fleet:
    """A database, and the machines that share it."""

    def __init__(self, folder: Path, server: str, *, has_tables: bool = True) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.work.mkdir()
        self.options: tuple[str, ...] = ()
        """What every machine is started with besides."""
        self.lease = 30.0
        self._server = server
        self._name = f"fleet_{os.getpid()}_{uuid4().hex[:12]}"
        create_database(server, self._name, template=migrated(server) if has_tables else "template1")
        self.url = url_of(server, self._name)
        self.hosts: dict[str, Host] = {}

    @cached_property
    def store(self) -> Store:
        return Store(PostgresBackend(self.url))

    def host(self, name: str, *, slots: int = 4, has_network: bool = False) -> Host:
        host = self.hosts[name] = Host(self, name, slots=slots, has_network=has_network)
        return host

    def started(self, *names: str, slots: int = 4, has_network: bool = False) -> list[Host]:
        """Machines that have joined, all begun at once."""
        hosts = [self.host(name, slots=slots, has_network=has_network) for name in names]
        for host in hosts:
            host.begin()
        for host in hosts:
            host.joined()
        return hosts

    def agent(self, *entries: Mapping[str, Any], name: str = "script", **roles: Mapping[str, Any]) -> str:
        """A scripted agent for the role of `servicestage.STEPS`, and for each of the `roles` with one entry."""
        parts = {"worker": list(entries), **{role: [entry] for role, entry in roles.items()}}
        path = self.folder / f"{name}.json"
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps({"roles": parts, "after_last": "repeat"}))
        draft.rename(path)  # steps of threads that were entered before may be reading it
        return f"scripted:{path}"

    def enter(self, agent: str, name: str = "do-steps", **more: Any) -> str:
        """Queue a thread from somewhere that is no machine of the fleet."""
        ref = lifecycle.start(
            self.store,
            registry.register(self.store, book(name, more.pop("text", STEPS))),
            "Do it",
            cwd=str(more.pop("cwd", self.work)),
            mask=Mask([]),
            agent=agent,
            queue=more.pop("priority", 0),
            work=more.pop("work", None),
        )
        return ref.id

    def status(self, name: str) -> str:
        return str(thread.find(self.store, name).state.status)

    def kinds(self, name: str) -> list[str]:
        life = ("queued", "started", "step", "completed", "failed", "crashed", "killed", "suspended")
        return [event.kind for event in self.store.events(name) if event.kind in life]

    def orders(self) -> list[tuple[str, str]]:
        """Every order there ever was, with what became of it, oldest first."""
        found = self.rows(
            "SELECT workflow_uuid, status FROM rolecall_dbos.workflow_status ORDER BY created_at"
        )
        return [(order, status) for order, status in found]

    def open_orders(self) -> list[str]:
        return [order for order, status in self.orders() if status in ("ENQUEUED", "PENDING")]

    def rows(self, question: LiteralString) -> list[tuple[Any, ...]]:
        """What the database itself says."""
        with psycopg.connect(self.url, autocommit=True) as db:
            return db.execute(question).fetchall()

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()
        self.store.close()
        with psycopg.connect(self._server, autocommit=True) as db:
            db.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(self._name)))

    # -- waiting --

    def until(self, is_so: Callable[[], Any], *, patience: float = PATIENCE) -> Any:
        """What `is_so` gives once it gives something, asked whenever a ref of the store has moved."""
        deadline = time.monotonic() + patience
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute("LISTEN rolecall_news")
            while not (found := is_so()):
                assert time.monotonic() < deadline, self.describe_state()
                for _ in db.notifies(timeout=0.2, stop_after=1):
                    pass
        return found

    def ended(self, *names: str, patience: float = PATIENCE) -> list[str]:
        over = (*thread.ENDED, "suspended")

        def statuses() -> list[str] | None:
            found = [str(thread.find(self.store, name).state.status) for name in names]
            return found if all(status in over for status in found) else None

        return list(self.until(statuses, patience=patience))

    def describe_state(self) -> str:
        lines = [f"== {name}\n{host.output()}" for name, host in self.hosts.items()]
        with suppress(psycopg.Error):
            sessions = self.rows(
                "SELECT pid, pg_blocking_pids(pid), now() - state_change, state, wait_event, left(query, 200)"
                " FROM pg_stat_activity WHERE datname = current_database() ORDER BY pid"
            )
            lines += ["== sessions of the database", *(" | ".join(map(str, row)) for row in sessions)]
        return "\n".join(lines)

    # -- what the chain proves --

    def assert_whole(self, *names: str, steps: int) -> None:
        """Each thread has each of its steps once, and nothing is left of any of them."""
        for name in names:
            chain = list(thread.Chain(self.store, thread.find(self.store, name).head))[::-1]
            assert [step.number for step in chain] == list(range(1, steps + 1)), (name, self.describe_state())
            bodies = [event.body["step"] for event in self.store.events(name) if event.kind == "step"]
            assert bodies == [step.id for step in chain], name
        assert self.store.backend.names("slot/") == []
        assert self.store.backend.names("queue/") == []
        assert [ref.name for ref in self.store.refs("thread/") if "lease" in ref.state] == []
        mine = {*names}
        self.until(lambda: not [order for order in self.open_orders() if order.split(":")[0] in mine])

    def assert_left_clean(self) -> None:
        """Machines that stop leave nothing: no process, no temporary file, no machine that is thought to be there."""
        for host in self.hosts.values():
            host.stop()
            for pid in host.processes():
                gone(pid)
            assert host.processes() == [], host.output()
            assert list(host.temporary.iterdir()) == []
            known = {"service.lock", "service.log", "config.yaml", "work", "cache", "trees"}
            assert {path.name for path in host.home.iterdir()} <= known
        assert self.store.backend.names("machine/") == []


def create_database(server: str, name: str, *, template: str = "template1") -> None:
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )


def url_of(server: str, name: str) -> str:
    return server.replace("/postgres?", f"/{name}?")


@cache
def migrated(server: str) -> str:
    """A database of that server with all tables in it, to be copied: making them anew takes seconds."""
    name = f"fleet_template_{os.getpid()}"
    create_database(server, name)
    code = f"from rolecall.service.fleet.database import migrate; migrate({url_of(server, name)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)
    return name


# -- what agents log --

AT_WORK = 'echo "$MACHINE_HOME $$ $(date +%s%N)" >> at-work'
"""What an agent does again and again as long as it is at work."""


def spells(work: Path) -> list[tuple[int, int, str]]:
    """From when to when agents were at work in a folder, by their own log, and on whose machine; oldest first."""
    seen: dict[tuple[str, str], list[int]] = {}
    for line in (work / "at-work").read_text().splitlines():
        home, pid, at = line.split()
        seen.setdefault((home, pid), []).append(int(at))
    return sorted((times[0], times[-1], home) for (home, _), times in seen.items())


def assert_one_after_the_other(work: Path) -> None:
    found = spells(work)
    overlaps = [(one, other) for one, other in pairwise(found) if one[1] >= other[0]]
    assert overlaps == []


@contextmanager
def fleet_in(folder: Path, server: str, *, has_tables: bool = True) -> Iterator[Fleet]:
    fleet = Fleet(folder, server, has_tables=has_tables)
    try:
        yield fleet
    finally:
        fleet.close()

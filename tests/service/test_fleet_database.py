"""A machine and its database: tables are made once, and a line that breaks loses nothing and doubles nothing."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, LiteralString
from uuid import uuid4

import psycopg
import pytest
from fleetstage import Relay, create_database, fleet_in, migrated, url_of
from psycopg import sql
from servicestage import PATIENCE, done

from rolecall.errors import Conflict, Hint, StorageError, UsageError
from rolecall.service.fleet import database, machines
from rolecall.service.fleet.needs import Here, Need, check_agent
from rolecall.service.fleet.reach import ServerLine
from rolecall.service.fleet.shared import SharedBackend
from rolecall.service.policy import ServicePolicy, StartRate, WorkerLimits, WorkflowPolicy
from rolecall.store.backend import Change, Move
from rolecall.store.postgres import PostgresBackend
from rolecall.store.store import Store

TRIGGERS: LiteralString = "SELECT tgname FROM pg_trigger WHERE tgname LIKE 'fleet%' ORDER BY 1"
MIGRATE = "import sys; from rolecall.service.fleet.database import migrate; migrate(sys.argv[1])"


@pytest.fixture
def url(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database: empty, or where a test hears news, with all tables."""
    name = f"fleet_{uuid4().hex}"
    has_tables = "lines" in request.fixturenames
    create_database(postgres_url, name, template=migrated(postgres_url) if has_tables else "template1")
    yield url_of(postgres_url, name)
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def eventually(is_so: Callable[[], Any]) -> Any:
    """What `is_so` gives once it gives something."""
    for _ in range(round(PATIENCE / 0.05)):
        if found := is_so():
            return found
        threading.Event().wait(0.05)
    raise AssertionError("it never came")


# -- the tables --


def test_machines_that_come_at_once_make_the_tables_once_even_after_one_died_over_it(
    tmp_path: Path, postgres_server: Any
) -> None:
    with fleet_in(tmp_path, str(postgres_server.get_uri()), has_tables=False) as fleet:
        first = subprocess.Popen([sys.executable, "-c", MIGRATE, fleet.url])
        made: LiteralString = "SELECT count(*) FROM pg_tables WHERE schemaname = 'rolecall_dbos'"
        eventually(lambda: fleet.rows(made)[0][0] >= 3)
        first.send_signal(signal.SIGKILL)
        first.wait(PATIENCE)
        fleet.started("alpha", "beta", "gamma")
        assert fleet.rows("SELECT count(*) FROM pg_index WHERE NOT indisvalid") == [(0,)]
        assert fleet.rows("SELECT count(*) FROM rolecall_dbos.dbos_migrations") == [(1,)]
        assert fleet.rows(TRIGGERS) == [("fleet_moved",), ("fleet_put",), ("fleet_removed",)]
        name = fleet.enter(fleet.agent(done("end")))
        assert fleet.ended(name) == ["completed"]
        assert not [host.name for host in fleet.hosts.values() if "Traceback" in host.output()]


def test_a_database_of_an_older_fleet_is_brought_up_to_date_and_keeps_what_is_in_it(url: str) -> None:
    with Store(PostgresBackend(url)) as store:
        kept = store.move("thread/one", None, state={"status": "idle"})
    older = """
        CREATE FUNCTION rolecall.fleet_news() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER fleet_put AFTER INSERT ON rolecall.refs FOR EACH ROW EXECUTE FUNCTION rolecall.fleet_news();
    """
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(older)
    subprocess.run([sys.executable, "-c", MIGRATE, url], check=True, timeout=PATIENCE)
    with psycopg.connect(url, autocommit=True) as db:
        assert [name for (name,) in db.execute(TRIGGERS)] == ["fleet_moved", "fleet_put", "fleet_removed"]
        db.execute("LISTEN rolecall_news")
        with Store(PostgresBackend(url)) as store:
            assert store.ref("thread/one") == kept
            store.move("queue/do-it/9000", None, state={})
        news = next(db.notifies(timeout=PATIENCE))
    assert news.payload == "INSERT queue/do-it/9000"


@pytest.mark.parametrize(
    ("newer", "told"),
    [
        (
            "COMMENT ON FUNCTION rolecall.fleet_news() IS '3'",
            "has version 3; this program knows versions up to 2",
        ),
        ("UPDATE rolecall.format SET version = 2", "has format 2; this program knows formats up to 1"),
    ],
    ids=["fleet", "store"],
)
def test_a_database_of_a_newer_program_is_refused_and_left_as_it_is(
    rolecall: Any, postgres_url: str, newer: LiteralString, told: str
) -> None:
    name = f"fleet_{uuid4().hex}"
    create_database(postgres_url, name, template=migrated(postgres_url))
    try:
        with psycopg.connect(url_of(postgres_url, name), autocommit=True) as db:
            db.execute(newer)
        refused = rolecall("serve", "--database", url_of(postgres_url, name), check=5)
        assert told in refused.stderr and "Upgrade Rolecall" in refused.stderr
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as db:
            db.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.mark.parametrize("address", ["store.db", "files:somewhere", "mysql://host/name"])
def test_an_address_that_is_no_postgresql_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(UsageError) as refused:
        database.mask_address(address)
    assert isinstance(refused.value.hint, Hint) and refused.value.hint.code == "name_database"


def test_an_address_is_shown_without_user_and_password() -> None:
    shown = database.mask_address("postgresql://me:top-secret@db.example:6000/fleet?sslmode=require")
    assert shown == "postgresql://db.example:6000/fleet"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--slots", "2"], "--slots is for a machine of a fleet"),
        (["--database"], "a fleet needs the address of a PostgreSQL database"),
        (["--database", "store.db"], "a fleet needs the address of a PostgreSQL database"),
        (["--database", "files:x"], "rolecall serve --database postgresql://user@host/database"),
        (["--database", "postgresql://me@db.example/x", "--lease", "1"], "'1' is not a number of seconds"),
    ],
)
def test_a_machine_that_cannot_join_says_why_before_anything_is_made(
    rolecall: Any, words: list[str], told: str
) -> None:
    refused = rolecall("serve", *words, check=2)
    assert told in refused.stderr
    assert not (rolecall.home / "service.lock").exists()


def test_a_server_that_is_not_there_is_named_without_its_password(rolecall: Any) -> None:
    refused = rolecall("serve", "--database", "postgresql://me:top-secret@127.0.0.1:9/x", check=5)
    assert "postgresql://127.0.0.1:9/x" in refused.stderr
    assert "top-secret" not in refused.stderr + refused.stdout


@pytest.fixture
def guarded_url(postgres_server: Any) -> Iterator[str]:
    """The address of a user who needs a password, through a relay."""
    server, user = str(postgres_server.get_uri()), f"user_{uuid4().hex[:12]}"
    rules = Path(postgres_server.pgdata) / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"local all {user} scram-sha-256\n{before}")
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'the-right-one'").format(sql.Identifier(user)))
        db.execute("SELECT pg_reload_conf()")
    relay = Relay(server)
    yield re.sub(r"//[^@]*@", f"//{user}:a-wrong-one@", relay.url)
    relay.close()
    rules.write_text(before)
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(user)))
        db.execute("SELECT pg_reload_conf()")


def test_a_wrong_password_is_refused_at_once_and_not_shown(rolecall: Any, guarded_url: str) -> None:
    for words in (["serve"], ["serve", "--detach"], ["fleet", "status"]):
        refused = rolecall(*words, "--database", guarded_url, check=5)
        assert "password authentication failed" in refused.stderr
        assert "a-wrong-one" not in refused.stderr + refused.stdout
    left = [path for path in rolecall.home.rglob("*") if path.is_file()]
    assert not [path for path in left if b"a-wrong-one" in path.read_bytes()]


def test_a_user_who_may_make_nothing_is_told_what_is_missing(rolecall: Any, guarded_url: str) -> None:
    url = guarded_url.replace("a-wrong-one", "the-right-one")
    refused = rolecall("serve", "--database", url, check=5)
    assert "permission denied" in refused.stderr
    assert "the-right-one" not in refused.stderr


def test_what_reads_and_asks_imports_neither_dbos_nor_the_driver() -> None:
    names = "rolecall.cli.fleet, rolecall.cli.run, rolecall.cli.serve, rolecall.service.fleet.machines"
    code = f"import sys, {names}; print({{'dbos', 'psycopg', 'sqlalchemy'}} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


# -- a line that breaks --


class BreakingRelay(Relay):
    """Breaks a line at the next COMMIT: before the server hears of it, or before the client hears of its success."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.breaks: str | None = None
        self.broken = 0
        self._muted: socket.socket | None = None
        self._has_answered = threading.Event()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                self._is_open.wait()
                if one is self._muted:
                    self._has_answered.set()
                    break
                if self.breaks and one.family == socket.AF_INET and b"COMMIT" in data:
                    self._break(other, data)
                    break
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _break(self, server: socket.socket, data: bytes) -> None:
        when, self.breaks = self.breaks, None
        self.broken += 1
        if when == "after":
            self._muted = server
            server.sendall(data)
            assert self._has_answered.wait(PATIENCE)


def test_every_verb_of_a_step_is_one_of_the_store() -> None:
    assert {name for name in SharedBackend._VERBS if not hasattr(PostgresBackend, name)} == set()
    assert {"record", "records", "find_stored", "ref", "refs"} <= SharedBackend._VERBS
    Store(SharedBackend("postgresql://nowhere/nothing", size=1))  # which takes the backend's verbs


@pytest.fixture
def shared(url: str) -> Iterator[tuple[Store, BreakingRelay]]:
    PostgresBackend(url).close()
    relay = BreakingRelay(url)
    backend = SharedBackend(relay.url, size=2)
    yield Store(backend), relay
    backend.close()
    relay.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_during_which_the_line_breaks_happens_once_and_is_known_to_have(
    shared: tuple[Store, BreakingRelay], when: str
) -> None:
    store, relay = shared
    first = store.move("thread/one", None, state={"status": "idle"})
    relay.breaks = when
    draft = store.draft()
    draft.move("thread/one", first, state={"status": "running"})
    draft.move("slot/do-it/one", None, state={"since": 1})
    draft.event("one", "started", {})
    moved = draft.commit(durable=True)
    assert relay.broken == 1
    assert [(ref.name, ref.version) for ref in moved] == [("thread/one", 2), ("slot/do-it/one", 1)]
    assert store.ref("thread/one") == moved[0]
    assert [event.kind for event in store.events("one")] == ["started"]


def test_what_somebody_else_has_moved_meanwhile_is_a_conflict_all_the_same(
    shared: tuple[Store, BreakingRelay], url: str
) -> None:
    store, relay = shared
    first = store.move("thread/one", None, state={"status": "idle"})
    with Store(PostgresBackend(url)) as other:
        other.move("thread/one", first, state={"status": "killed"})
    relay.breaks = "before"
    with pytest.raises(Conflict):
        store.move("thread/one", first, state={"status": "running"})
    found = store.ref("thread/one")
    assert found is not None and found.state == {"status": "killed"}


def test_a_question_to_which_no_answer_comes_is_asked_again_on_another_line(
    shared: tuple[Store, BreakingRelay],
) -> None:
    store, relay = shared
    store.move("thread/one", None, state={"status": "idle"})
    relay.cut()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(store.ref, "thread/one")
        backend: Any = store.backend
        eventually(lambda: backend._busy)
        relay.mend_for_new_lines()
        backend.abort(older_than=0.0)
        found = asked.result(PATIENCE)
    assert found is not None and found.state == {"status": "idle"}


class Frozen(list[Move]):
    """Moves during the first writing of which the machine stands still, until the server has given it up."""

    def __init__(self, moves: list[Move], backend: Any, url: str) -> None:
        super().__init__(moves)
        self._backend: Any = backend
        self._url = url

    def __iter__(self) -> Iterator[Move]:
        (inside,) = self._backend._busy if self._backend else (None,)
        self._backend = None
        if inside is not None:
            inside._db.execute("SET idle_in_transaction_session_timeout = '50ms'")
            pid = inside._db.info.backend_pid
            with psycopg.connect(self._url, autocommit=True) as db:
                alive: LiteralString = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
                eventually(lambda: db.execute(alive, (pid,)).fetchone() is None)
        return super().__iter__()


def test_a_machine_that_stood_still_in_a_transaction_writes_it_anew(url: str) -> None:
    PostgresBackend(url).close()
    backend = SharedBackend(url, size=1)
    moves = Frozen([Move("thread/one", 0, None, {"status": "idle"})], backend, url)
    (moved,) = backend.commit(Change(moves=moves), now=1, durable=True)
    assert moved == backend.ref("thread/one")
    backend.close()


def test_a_machine_that_is_cut_off_in_a_transaction_holds_the_others_up_for_seconds_only(url: str) -> None:
    PostgresBackend(url).close()
    relay = Relay(url)
    lost = PostgresBackend(database.with_timeouts(relay.url))
    inside, is_over = threading.Event(), threading.Event()

    def decide() -> None:
        with suppress(StorageError), lost.alone("admission"):
            inside.set()
            is_over.wait(PATIENCE)

    with ThreadPoolExecutor(1) as pool, Store(PostgresBackend(url)) as other:
        pool.submit(decide)
        assert inside.wait(PATIENCE)
        relay.cut()
        backend: Any = other.backend
        with backend.alone("admission"):
            other.move("thread/one", None, state={})
        relay.mend()
        is_over.set()
    lost.close()
    relay.close()


def test_the_server_notices_within_seconds_that_a_machine_has_gone(url: str) -> None:
    """In the middle of a pipeline the transaction is not idle, so its own limit does not end it."""
    with psycopg.connect(database.with_timeouts(url)) as db:
        found = db.execute("SELECT name, reset_val FROM pg_settings WHERE name LIKE 'tcp_keepalives_%'")
        assert dict(found.fetchall()) == {
            "tcp_keepalives_idle": "5",
            "tcp_keepalives_interval": "2",
            "tcp_keepalives_count": "3",
        }


# -- the line that hears news --


@pytest.fixture
def lines(url: str) -> Iterator[Callable[..., ServerLine]]:
    opened: list[ServerLine] = []

    def line(
        address: str = url, *, silence: float = 30.0, heard: Callable[[str], object] = lambda _news: None
    ) -> ServerLine:
        """The server ends one of which it hears nothing for `silence`, as of a process that gets no turn."""
        made = ServerLine(address, silence=silence, heard=heard)
        made.open()
        opened.append(made)
        return made

    yield line
    for one in opened:
        one.close()


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] in range(4096), reason="so many cannot be open"
)
def test_a_line_of_a_process_with_a_thousand_open_files_goes_on(lines: Callable[..., ServerLine]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, limits[1]))
    with ExitStack() as files:
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        for _ in range(1100):
            files.enter_context(open(os.devnull, "rb"))
        line = lines()
        before = line.contact
        eventually(lambda: line.contact > before or not line.is_alive())
        assert line.is_alive()


def test_one_machine_leads_and_when_it_is_cut_off_another_does(
    lines: Callable[..., ServerLine], url: str
) -> None:
    relay = Relay(url)
    first = lines(relay.url, silence=2.0)
    eventually(lambda: first.is_leading)
    second = lines()
    assert not second.is_leading
    relay.cut()  # and says nothing more, so the server ends its session
    eventually(lambda: second.is_leading)
    relay.close()


def test_the_line_tells_the_servers_time_and_hears_what_moves(
    lines: Callable[..., ServerLine], url: str
) -> None:
    news: list[str] = []
    line = lines(heard=news.append)
    with psycopg.connect(url) as db:
        row = db.execute("SELECT extract(epoch FROM clock_timestamp()) * 1000").fetchone()
    assert row is not None and abs(line.now() - float(row[0])) < 5_000
    with Store(PostgresBackend(url)) as store:
        entry = store.move("queue/do-it/9000", None, state={"maker": {}})
        entry = store.move("queue/do-it/9000", entry, state={})  # its folders are there
        slot = store.move("slot/do-it/one", None, state={"since": 1})
        slot = store.move("slot/do-it/one", slot, state={"since": 1, "order": "one:head"})
        store.move("slot/do-it/one", slot)
        store.move("queue/do-it/9000", entry)
        store.move("thread/one", None, state={})
    wanted = [
        "INSERT queue/do-it/9000",
        "UPDATE queue/do-it/9000",
        "UPDATE slot/do-it/one",
        "DELETE slot/do-it/one",
        "DELETE queue/do-it/9000",
    ]
    eventually(lambda: [one for one in news if " " in one] == wanted)
    assert {one for one in news if " " not in one} == {"connected", "leads"}


def test_a_line_on_which_much_is_heard_asks_the_server_all_the_same(
    lines: Callable[..., ServerLine], url: str
) -> None:
    news: list[str] = []
    line = lines(silence=6.0, heard=news.append)
    before = line.contact
    with psycopg.connect(url, autocommit=True) as db:

        def has_asked_meanwhile() -> bool:
            db.execute("NOTIFY rolecall_news, 'INSERT something'")
            return line.contact > before + 8

        eventually(has_asked_meanwhile)
    assert news.count("connected") == 1  # or the server would have taken it for dead


# -- what a machine says of itself --


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store(PostgresBackend(url)) as store:
        yield store


def test_a_policy_that_was_published_is_read_back_as_it_was(store: Store) -> None:
    policy = ServicePolicy(
        limit=7,
        workflows={"clean-up": WorkflowPolicy(2, "drop", None, 3)},
        default=WorkflowPolicy(concurrency=4),
        rates={"claude": StartRate(30, 60)},
        spend_per_day=12.5,
        worker=WorkerLimits(None, 60),
    )
    assert machines.read_policy(store) is None
    assert machines.publish(store, policy, machine="alpha")
    assert not machines.publish(store, policy, machine="beta")
    assert machines.read_policy(store) == policy


def test_a_machine_whose_promise_is_over_is_gone_and_its_name_is_free(store: Store) -> None:
    now = 1_790_000_000_000
    store.now = lambda: now
    first = machines.Presence(store, "alpha", "alpha:1", lease_ms=1_000)
    first.enter(machines.Facts(slots=4))
    assert [(one.name, one.is_alive) for one in machines.list_machines(store)] == [("alpha", True)]
    second = machines.Presence(store, "alpha", "alpha:2", lease_ms=1_000)
    with pytest.raises(Conflict, match="'alpha' is in this fleet already"):
        second.enter(machines.Facts())
    now += 1_001
    assert [one.is_alive for one in machines.list_machines(store)] == [False]
    second.enter(machines.Facts(slots=2))
    with pytest.raises(Conflict, match="another machine now has the name"):
        first.tell(machines.Facts(slots=4))
    first.leave()
    assert [(one.executor, one.facts.slots) for one in machines.list_machines(store)] == [("alpha:2", 2)]


def test_a_machine_that_has_left_is_not_there_whoever_says_so_in_that_moment(url: str) -> None:
    PostgresBackend(url).close()
    backend = SharedBackend(url, size=3)
    store, is_over = Store(backend), threading.Event()
    machine = machines.Presence(store, "alpha", "alpha:1", lease_ms=60_000)
    machine.enter(machines.Facts(slots=4))

    def say_so() -> None:
        while not is_over.is_set():
            machine.tell(machines.Facts(slots=4))

    with ThreadPoolExecutor(2) as pool:
        talking = [pool.submit(say_so) for _ in range(2)]
        eventually(lambda: store.refs("machine/")[0].version > 20)
        machine.leave()
        is_over.set()
        for one in talking:
            one.result(PATIENCE)
    assert machines.list_machines(store) == []
    backend.close()


# -- what a step needs --


def test_what_steps_need_is_read_back_as_it_was() -> None:
    need = Need("command:sh -c 'a | b, \"c\"'", ("/srv/a folder", "/srv/flow.py"))
    assert Need.of(need.text) == need


def test_a_machine_lacks_what_is_not_there_and_says_what(tmp_path: Path) -> None:
    here = Here()
    assert here.lacks(Need("", (str(tmp_path),))) == ""
    assert here.lacks(Need("", (str(tmp_path / "gone"),))) == f"{tmp_path / 'gone'} does not exist"
    assert "no-such-program" in here.lacks(Need("command:no-such-program", ()))
    assert here.lacks(Need("command:sh -c true", ())) == ""
    assert "there is no agent 'nobody'" in here.lacks(Need("nobody", ()))


@pytest.mark.parametrize("agent", ["", "human", "workflow:review"])
def test_whom_no_program_plays_is_everywhere(agent: str) -> None:
    check_agent(agent)

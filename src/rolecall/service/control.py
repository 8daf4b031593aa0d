"""How other processes find the service of a home and talk to it: a lock file that names its holder, and a socket next
to it.

The socket carries no work. A process that queues, kills or resumes a thread writes that into the store and then pokes
the service, which makes it read the store sooner. Messages are lines of JSON, in both directions:

    {"do": "poke", "thread": ID}     look at the store; the thread is optional
    {"do": "follow", "thread": ID}   reply with an empty line now and for each new event (without ID, of any thread)
    {"do": "status"}                 the status of the service
    {"do": "fleet"}                  the status of the whole fleet, from one of its machines
    {"do": "stop", "finish": BOOL}   stop; with `finish`, only after the running steps end
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rolecall.errors import Conflict, Hint, NotFound, StorageError
from rolecall.settings import config
from rolecall.settings.service_socket import connect as connect
from rolecall.settings.service_socket import poke as poke
from rolecall.settings.service_socket import short_path
from rolecall.settings.service_socket import socket_path as socket_path
from rolecall.settings.service_socket import to_line as to_line
from rolecall.store import holder
from rolecall.store.canonical import JsonObject
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.service.fleet import machines
    from rolecall.store.store import Store
else:
    machines = Module("rolecall.service.fleet.machines")

_GLANCE = 0.02


def lock_path(home: str) -> str:
    return os.path.join(home, "service.lock")


def log_path(home: str) -> str:
    return os.path.join(home, "service.log")


def link_path(home: str) -> str:
    """Return the path of the file with the newest link that signs in to the service's page; others cannot read it."""
    return os.path.join(home, "web.link")


def page_path(home: str) -> str:
    """Return the path of the file that records the address and the process of a running page."""
    return os.path.join(home, "web.address")


def note_page(home: str, address: str) -> None:
    """Record the address of the page that this process serves, for use in notifications."""
    with suppress(OSError), open(page_path(home), "w", encoding="utf-8") as file:
        json.dump({"address": address, "holder": holder.identify_self("web")}, file)


def find_running_page(home: str) -> str:
    """Return the address of the page that is running in this home, or an empty string if none is."""
    try:
        with open(page_path(home), encoding="utf-8") as file:
            found = json.load(file)
        return str(found["address"]) if holder.is_alive(found["holder"], now=0) else ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""


def errors_path(home: str) -> str:
    """Return the path of the file for a background service's output outside its log, such as why it did not start."""
    return os.path.join(home, "service.err")


# -- the lock --


class Lock:
    """A lock that makes this process the service of a home. The operating system releases it when the process ends."""

    def __init__(self, home: str, *, store: str) -> None:
        """`store` is the address of the store that is served."""
        try:
            os.makedirs(home, exist_ok=True)
            self._path = lock_path(home)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise start_error(home, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            raise already_running_error(home) from error
        os.ftruncate(self._file, 0)
        known = {**holder.process(os.getpid()), "store": config.without_password(store)}
        os.pwrite(self._file, json.dumps(known).encode(), 0)

    def is_in_place(self) -> bool:
        """Return whether other processes still see this lock. They do not if the home was deleted or replaced."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._file))
        except OSError:
            return False

    def close(self) -> None:
        os.ftruncate(self._file, 0)
        os.close(self._file)


def already_running_error(home: str) -> Conflict:
    found = find_service(home)
    process = holder.describe(found) if found else "a process that is just starting or ending"
    return Conflict(
        f"the service of {home} is running already: {process}", hint=Hint("See or stop it", "manage_service")
    )


def start_error(home: str, error: OSError) -> StorageError:
    return StorageError(
        f"the service cannot be started in {home}: {error.strerror}",
        hint="Set ROLECALL_HOME to a folder that the service can write to.",
    )


def find_service(home: str) -> JsonObject | None:
    """Return the process of a home's service, with its store's address (without password), or None."""
    try:
        with open(lock_path(home), encoding="utf-8") as file:
            found: JsonObject = json.loads(file.read() or "{}")
    except (OSError, ValueError):
        return None
    return found if found and holder.is_alive(found, now=0) else None


def serves(home: str, url: str | None) -> bool:
    """Return whether a service of this home serves the store at `url`, or the configured store if `url` is None."""
    found = find_service(home)
    return found is not None and found.get("store") == config.without_password(config.full_store_address(url))


def is_served(home: str, url: str | None, store: Store) -> bool:
    """Return whether the service of this home, or a machine of a fleet, runs the threads of an open store."""
    if serves(home, url):
        return True
    if not config.is_postgres(config.full_store_address(url)):
        return False
    return any(machine.is_alive for machine in machines.list_machines(store))


# -- the socket --


@contextmanager
def bound(home: str) -> Iterator[socket.socket]:
    """Open the service's socket for this user only. Only the holder of the lock may replace an old socket."""
    path = socket_path(home)
    with short_path(path) as short, suppress(FileNotFoundError):
        os.unlink(short)
    server = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        with short_path(path) as short:
            server.bind(short)
    finally:
        os.umask(before)
    server.listen(100)
    try:
        yield server
    finally:
        server.close()
        with suppress(FileNotFoundError):
            os.unlink(path)


def ask(home: str, question: JsonObject) -> JsonObject:
    """Return the service's answer to a question, or an empty dictionary if the service has ended or is about to end."""
    pipe = connect(home)
    if pipe is None:
        raise NotFound(f"no service is running in {home}", hint=Hint("Start it", "start_service"))
    try:
        with pipe, pipe.makefile("rb") as answers:
            pipe.sendall(to_line(question))
            answer: JsonObject = json.loads(answers.readline() or b"{}")
    except TimeoutError as error:
        raise StorageError(
            f"the service of {home} does not answer", hint=Hint("See what it does", "read_service_log")
        ) from error
    except (OSError, ValueError):
        return {}
    return answer


def stop(home: str, *, finish: bool) -> None:
    """Stop the service and wait until its process has ended."""
    held, pipe = find_service(home), connect(home)
    if pipe is None:
        raise NotFound(
            f"no service is running in {home}",
            hint="If the service uses another home, set ROLECALL_HOME to that home.",
        )
    with pipe:
        pipe.settimeout(None)
        with suppress(OSError):
            pipe.sendall(to_line({"do": "stop", "finish": finish}))
            while pipe.recv(4096):
                pass
    # The service has closed the connection, so it is about to end. Wait for its process, not for the lock, which the
    # next service might already hold.
    while held is not None and holder.is_alive(held, now=0):
        time.sleep(_GLANCE)

"""Steps that are to be taken, as workflows of DBOS: one for each, on a queue for those that need the same.

An order's id is `<thread>:<head>`, the head being the node that the step extends; one that has to be given again for
the same head ends in `:2`, `:3` and so on. DBOS keeps orders and what became of them, lets no two machines take the
same one, and holds each queue to its limit across the fleet. That an order is taken twice all the same, by a
machine that was thought dead, does no harm: the thread's lease decides.

This is the only module that imports dbos. A machine takes from its queues itself (`take`), because the listeners
of DBOS poll every queue each for itself and know neither how many steps a machine takes in all nor that its disk
is full; for that two functions are used which DBOS keeps to itself, so its version is pinned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar
from uuid import uuid4

from dbos import DBOS, DBOSPortableJSONSerializer, Queue, SetEnqueueOptions, SetWorkflowID
from dbos import error as dbos_error
from dbos._core import execute_dequeued_workflow
from dbos._dbos import _get_dbos_instance
from psycopg import errors as pg
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from rolecall.errors import StorageError
from rolecall.service.fleet.database import ABANDONED, DBOS_SCHEMA, TIMEOUTS

VERSION = "rolecall-1"
"""Of what an order says; a machine takes orders of its own version only."""
_NAME = "rolecall.step"
_POOL = 4
_QUIET = 60.0
"""Seconds in which the same complaint is not passed on again."""
_HINT = "Check that the PostgreSQL server runs; it is tried again."
P = ParamSpec("P")
T = TypeVar("T")


class Order(NamedTuple):
    id: str
    thread: str
    workflow: str
    head: str


class Standing(NamedTuple):
    """How an order stands."""

    status: str
    """ENQUEUED: nobody has it. PENDING: a machine has. Anything else: it is over."""
    executor: str
    since: int
    """When a machine took it, in milliseconds."""

    @property
    def is_over(self) -> bool:
        return self.status not in ("ENQUEUED", "PENDING")


def order_id(thread: str, head: str, *, before: str = "") -> str:
    """The id of the next order for a thread's head, after the order `before`."""
    words = before.split(":")
    if words[:2] != [thread, head]:
        return f"{thread}:{head}"
    return f"{thread}:{head}:{int(words[2]) + 1 if len(words) > 2 else 2}"


def _translated(method: Callable[P, T]) -> Callable[P, T]:
    """What DBOS and its driver raise, as ours."""

    @wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> T:
        try:
            return method(*args, **options)
        except (SQLAlchemyError, dbos_error.DBOSException) as error:
            told = " ".join(str(error).splitlines()[:1])
            raise StorageError(f"orders cannot be read or written: {told}", hint=_HINT) from error

    return call


class Orders:
    """DBOS in this process. What asks the database may be called from any thread that runs no loop."""

    def __init__(
        self,
        url: str,
        *,
        executor: str,
        step: Callable[[Order], Awaitable[str]],
        log: Callable[[str], object],
    ) -> None:
        """`step` takes a step, on the loop that `open` was called from, and says what became of it."""
        self._url = url
        self._executor = executor
        self._step = step
        self._log = log
        self._limits: dict[str, int] = {}

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Launch DBOS; not from a thread that runs a loop, or DBOS takes that for its own."""
        logger = logging.getLogger("dbos")
        logger.handlers = [_Handler(self._log)]
        logger.propagate = False
        DBOS(
            config={
                "name": "rolecall",
                "system_database_url": self._url,
                "dbos_system_schema": DBOS_SCHEMA,
                "application_version": VERSION,
                "executor_id": self._executor,
                "run_migrations": False,
                "enable_otlp": False,
                "serializer": DBOSPortableJSONSerializer(),
                "log_level": "ERROR",
                "sys_db_pool_size": _POOL,
                "sys_db_idle_transaction_timeout_sec": float(ABANDONED),
                "db_engine_kwargs": {"connect_args": dict(TIMEOUTS), "pool_pre_ping": True},
                "scheduler_polling_interval_sec": 3600.0,
            }
        )
        step = self._step

        async def take_step(order: str, thread: str, workflow: str, head: str) -> str:
            work = step(Order(order, thread, workflow, head))
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(work), loop))

        self._workflow: Any = DBOS.workflow(name=_NAME)(take_step)
        DBOS.listen_queues([])
        DBOS.launch()

    def close(self) -> None:
        DBOS.destroy(workflow_completion_timeout_sec=0)

    # -- giving --

    @_translated
    def give(self, order: Order, queue: str, *, limit: int, priority: int) -> None:
        """Put an order on its queue; one that was put before stays as it is."""
        if self._limits.get(queue) != limit:
            self._register(queue, limit)
        # In DBOS 1 is before 2, and what has no priority before both.
        with SetWorkflowID(order.id), SetEnqueueOptions(priority=10 - priority):
            DBOS.enqueue_workflow(queue, self._workflow, *order)

    def _register(self, queue: str, limit: int) -> Queue:
        self._limits[queue] = limit
        return DBOS.register_queue(
            queue, global_concurrency=limit, worker_concurrency=limit, on_conflict="always_update"
        )

    # -- taking --

    @_translated
    def take(self, queue: str, *, most: int, limit: int) -> int:
        """Take up to so many orders from a queue, and begin them; how many that were. `limit` is the queue's where
        nobody has said one."""
        found = DBOS.retrieve_queue(queue) or self._register(queue, limit)
        allowed = found._worker_concurrency or limit
        dbos = _get_dbos_instance()
        claim = str(uuid4())
        try:
            ids, _ = dbos._sys_db.start_queued_workflows(
                found, self._executor, VERSION, None, allowed - min(most, allowed), owner_xid=claim
            )
        except OperationalError as error:
            if isinstance(error.orig, pg.LockNotAvailable | pg.SerializationFailure):
                return 0  # another machine takes from it just now
            raise
        for status in dbos._sys_db.get_workflow_statuses(ids):
            execute_dequeued_workflow(dbos, status, claim)
        return len(ids)

    # -- looking --

    @_translated
    def standing(self, ids: Collection[str]) -> dict[str, Standing]:
        """How orders stand; one that is not in it was never given."""
        if not ids:
            return {}
        found = DBOS.list_workflows(workflow_ids=list(ids), load_input=False, load_output=False)
        return {
            one.workflow_id: Standing(str(one.status), one.executor_id or "", one.dequeued_at or 0)
            for one in found
        }

    @_translated
    def taken(self) -> list[tuple[str, str]]:
        """Orders that machines have taken and that are not over, each with whose it is."""
        found = DBOS.list_workflows(status="PENDING", name=_NAME, load_input=False, load_output=False)
        return [(one.workflow_id, one.executor_id or "") for one in found]

    @_translated
    def cancel(self, orders: Sequence[str]) -> None:
        """Nobody is to take these orders any more, and nobody counts them who has."""
        if orders:
            DBOS.cancel_workflows(list(orders))

    @_translated
    def forget(self, *, before: int, queues: Collection[str]) -> int:
        """Remove orders that were over before a time, and queues that are not among these; how many orders."""
        count = 0
        while old := self._old(before):
            DBOS.delete_workflows(old)
            count += len(old)
        for queue in DBOS.list_queues():
            if queue.name not in queues:
                DBOS.delete_queue(queue.name)
                self._limits.pop(queue.name, None)
        return count

    def _old(self, before: int) -> list[str]:
        found = DBOS.list_workflows(
            status=["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"],
            completed_before=datetime.fromtimestamp(before / 1000, UTC).isoformat(),
            limit=1000,
            load_input=False,
            load_output=False,
        )
        return [one.workflow_id for one in found]


async def _awaited(work: Awaitable[str]) -> str:
    return await work


class _Handler(logging.Handler):
    """What DBOS has to say goes where everything else goes: its first line, and not the same again and again."""

    def __init__(self, log: Callable[[str], object]) -> None:
        super().__init__()
        self._log = log
        self._said: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().partition("\n")[0][:300]
        if self._said.get(text, 0.0) < record.created - _QUIET:
            self._said = {**dict(list(self._said.items())[-20:]), text: record.created}
            self._log(f"dbos: {text}")

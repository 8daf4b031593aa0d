"""Steps that are to be taken, as workflows of DBOS: one for each, on the queue of its thread's workflow.

An order's id is `<thread>:<head>`, the head being the node that the step extends; one that has to be given again for
the same head ends in `:2`, `:3` and so on. DBOS keeps orders and what became of them, lets no two machines take the
same one, and holds each queue to its limit across the fleet. That an order is taken twice all the same, by a
machine that was thought dead, does no harm: the thread's lease decides. A queue has a partition for all orders that
need the same of a machine.

This is the only module that imports dbos, `database.py` aside. A machine takes from the queues itself (`take`), because
the listeners of DBOS poll every queue each for itself and know neither how many steps a machine takes in all nor that
its disk is full. For that, and to end what in DBOS polls for nothing, a few names are used which DBOS keeps to itself,
so its version is pinned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar
from uuid import uuid4

from dbos import (
    DBOS,
    DBOSPortableJSONSerializer,
    Queue,
    SetEnqueueOptions,
    SetWorkflowID,
    WorkflowStatus,
)
from dbos import error as dbos_error
from dbos._core import execute_dequeued_workflow
from dbos._dbos import _get_dbos_instance
from psycopg import errors as pg
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from rolecall.errors import StorageError
from rolecall.service.fleet.database import DBOS_SCHEMA, TIMEOUTS, session_options

VERSION = "rolecall-1"
"""Of what an order says; a machine takes orders of its own version only."""
_NAME = "rolecall.step"
_POOL = 4
_QUIET = 60.0
"""Seconds in which the same complaint is not passed on again."""
_PROBED = 8
"""Ids that are asked about at once."""
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
    given: int
    """When it was given."""

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
        over: Callable[[Order], object],
        log: Callable[[str], object],
    ) -> None:
        """`step` takes a step and says what became of it; `over` is called once that is recorded, and the order counts
        no longer against its queue's limit. Both on the loop that `open` is given."""
        self._url = url
        self._executor = executor
        self._step = step
        self._over = over
        self._log = log
        self._queues: dict[str, Queue] = {}

    @_translated
    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Launch DBOS; not from a thread that runs a loop, or DBOS takes that for its own."""
        logger = logging.getLogger("dbos")
        logger.handlers = [_Handler(self._log)]
        logger.propagate = False
        # A server that crashes forgets the last of what nobody waited for, and all that came after it. A lease and a
        # step are waited for, so what they rest on is never forgotten; other orders are found missing and given again.
        options = session_options(self._url, "synchronous_commit=off")
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
                "db_engine_kwargs": {"connect_args": {**TIMEOUTS, "options": options}, "pool_pre_ping": True},
                # Of messages between workflows, which there are none of; to tell of them it wakes 100 times a second.
                "use_listen_notify": False,
            }
        )
        step, over = self._step, self._over

        async def take_step(order: str, thread: str, workflow: str, head: str) -> str:
            given = Order(order, thread, workflow, head)
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 -- DBOS runs a workflow as a task, which also records its end
            task.add_done_callback(lambda _: loop.call_soon_threadsafe(over, given))
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(step(given)), loop))

        self._workflow: Any = DBOS.workflow(name=_NAME)(take_step)
        DBOS.listen_queues([])
        DBOS.launch()
        self._end_polling()

    def _end_polling(self) -> None:
        """End the threads that ask every second for delayed, scheduled and overdue workflows: there are none."""
        dbos = _get_dbos_instance()
        for event in (*dbos.background_thread_stop_events, dbos._workflow_timeout_stop_event):
            event.set()

    def close(self) -> None:
        DBOS.destroy(workflow_completion_timeout_sec=0)

    # -- giving --

    @_translated
    def give(self, order: Order, partition: str, *, limit: int, priority: int) -> None:
        """Put an order on the queue of its workflow; one that was put before stays as it is."""
        queue = self._queue(order.workflow, limit)
        # In DBOS 1 is before 2, and what has no priority before both.
        options = SetEnqueueOptions(priority=10 - priority, queue_partition_key=partition)
        with SetWorkflowID(order.id), options:
            DBOS.enqueue_workflow(queue.name, self._workflow, *order)

    def next_id(self, thread: str, head: str) -> str:
        """The id of the next order for a thread's head, where nobody knows the one before: the first that is free,
        or that of one which waits or is being carried out. A thread that is resumed may have many that are over."""
        last = ""
        while True:
            ids = [last := order_id(thread, head, before=last) for _ in range(_PROBED)]
            known = self.standing(ids)
            for one in ids:
                if one not in known or not known[one].is_over:
                    return one

    def _queue(self, workflow: str, limit: int) -> Queue:
        """The queue of a workflow, with the limit that it has now. A partition's limit makes it have partitions."""
        known = self._queues.get(workflow)
        if known is None or known._concurrency != limit:
            known = self._queues[workflow] = DBOS.register_queue(
                workflow, global_concurrency=limit, partition_concurrency=limit, on_conflict="always_update"
            )
            known._worker_concurrency = (
                1  # taken at once, so that orders spread over the machines that are free
            )
        return known

    # -- taking --

    @_translated
    def take(self, workflow: str, partition: str, *, limit: int) -> bool:
        """Take an order from a partition of a workflow's queue and begin it; whether there was one to be had."""
        queue = self._queue(workflow, limit)
        dbos = _get_dbos_instance()
        claim = str(uuid4())
        try:
            ids, _ = dbos._sys_db.start_queued_workflows(
                queue, self._executor, VERSION, partition, owner_xid=claim
            )
        except OperationalError as error:
            if isinstance(error.orig, pg.LockNotAvailable | pg.SerializationFailure):
                return False  # another machine takes from it just now
            raise
        for status in dbos._sys_db.get_workflow_statuses(ids):
            execute_dequeued_workflow(dbos, status, claim)
        return bool(ids)

    # -- looking --

    @_translated
    def standing(self, ids: Collection[str]) -> dict[str, Standing]:
        """How orders stand; one that is not in it was never given."""
        if not ids:
            return {}
        return _standing(DBOS.list_workflows(workflow_ids=list(ids), load_input=False, load_output=False))

    @_translated
    def taken(self) -> dict[str, Standing]:
        """Orders that machines have taken and that are not over."""
        return _standing(
            DBOS.list_workflows(status="PENDING", name=_NAME, load_input=False, load_output=False)
        )

    @_translated
    def cancel(self, orders: Sequence[str]) -> None:
        """Nobody is to take these orders any more, and nobody counts them who has."""
        if orders:
            DBOS.cancel_workflows(list(orders))

    @_translated
    def given(self, *, before: int) -> list[str]:
        """Orders that were given before a time and wait all the same."""
        found = DBOS.list_workflows(
            status="ENQUEUED", name=_NAME, end_time=_iso(before), load_input=False, load_output=False
        )
        return [one.workflow_id for one in found]

    @_translated
    def forget(self, *, before: int) -> None:
        """Remove orders that were over before a time."""
        while old := self._old(before):
            DBOS.delete_workflows(old)

    def _old(self, before: int) -> list[str]:
        found = DBOS.list_workflows(
            status=["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"],
            completed_before=_iso(before),
            limit=1000,
            load_input=False,
            load_output=False,
        )
        return [one.workflow_id for one in found]


def _standing(found: Sequence[WorkflowStatus]) -> dict[str, Standing]:
    return {
        one.workflow_id: Standing(
            str(one.status), one.executor_id or "", one.dequeued_at or 0, one.created_at or 0
        )
        for one in found
    }


def _iso(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).isoformat()


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

"""Steps that are to be taken, as workflows of DBOS, each on the queue of the machine that is to take it.

An order's id is `<thread>:<head>`, the head being the node that the step extends; one that has to be given again for
the same head ends in `:2`, `:3` and so on. DBOS keeps orders and what became of them. Each machine listens to its own
queue, whose `worker_concurrency` is the machine's number of slots. If an order is carried out twice all the same, by a
machine that was thought dead, no harm is done: the thread's lease decides.

Only this module and `database.py` import dbos.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from dbos import DBOS, DBOSPortableJSONSerializer, SetEnqueueOptions, SetWorkflowID, WorkflowStatus
from dbos import error as dbos_error
from sqlalchemy.exc import SQLAlchemyError

from rolecall.errors import StorageError
from rolecall.service.fleet.database import DBOS_SCHEMA, TIMEOUTS, session_options

VERSION = "rolecall-2"
"""Of what an order says; a machine takes orders of its own version only."""
_NAME = "rolecall.step"
_POOL = 4
_POLL = 0.1
"""Seconds between two looks of a machine at its queue."""
_QUIET = 60.0
"""Seconds in which the same complaint is not passed on again."""
_PROBED = 8
"""Ids that are asked about at once."""
_OVER = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]
P = ParamSpec("P")
T = TypeVar("T")


class Order(NamedTuple):
    id: str
    thread: str
    workflow: str
    head: str
    need: str
    """What the step needs of a machine, as `needs.Need` writes it."""


class Standing(NamedTuple):
    """How an order stands."""

    status: str
    """ENQUEUED: it waits for its machine. PENDING: the machine has it. Anything else: it is over."""
    since: int
    """When the machine took it, in milliseconds."""
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


def _translate_errors(method: Callable[P, T]) -> Callable[P, T]:
    """What DBOS and its driver raise, as ours."""

    @wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> T:
        try:
            return method(*args, **options)
        except (SQLAlchemyError, dbos_error.DBOSException) as error:
            first = " ".join(str(error).splitlines()[:1])
            raise StorageError(
                f"orders cannot be read or written: {first}",
                hint="Check that the PostgreSQL server runs; it is tried again.",
            ) from error

    return call


class Orders:
    """DBOS in this process. What asks the database may be called from any thread that runs no loop."""

    def __init__(
        self,
        url: str,
        *,
        machine: str,
        executor: str,
        slots: int,
        step: Callable[[Order], Awaitable[str]],
        over: Callable[[Order], object],
        log: Callable[[str], object],
    ) -> None:
        """`step` takes a step and says what became of it; `over` is called once that is recorded. Both on the loop that
        `open` is given."""
        self._url = url
        self._machine = machine
        self._executor = executor
        self._slots = slots
        self._step = step
        self._over = over
        self._log = log

    @_translate_errors
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
                # For messages between workflows; we send none.
                "use_listen_notify": False,
            }
        )
        step, over = self._step, self._over

        async def begin(order: Order) -> str:
            return await step(order)

        async def take_step(*words: str) -> str:
            order = Order(*words)
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 -- DBOS runs a workflow as a task, which also records its end
            task.add_done_callback(lambda _: loop.call_soon_threadsafe(over, order))
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(begin(order), loop))

        self._workflow: Any = DBOS.workflow(name=_NAME)(take_step)
        DBOS.listen_queues([_queue_of(self._machine)])
        DBOS.launch()
        DBOS.register_queue(
            _queue_of(self._machine),
            worker_concurrency=self._slots,
            polling_interval_sec=_POLL,
            on_conflict="always_update",
        )

    def close(self) -> None:
        DBOS.destroy(workflow_completion_timeout_sec=0)

    @_translate_errors
    def give(self, order: Order, machine: str, *, priority: int) -> None:
        """Put an order on the queue of a machine; one that was put before stays as it is."""
        # In DBOS 1 is before 2, and what has no priority before both.
        with SetWorkflowID(order.id), SetEnqueueOptions(priority=10 - priority):
            DBOS.enqueue_workflow(_queue_of(machine), self._workflow, *order)

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

    @_translate_errors
    def standing(self, ids: Collection[str]) -> dict[str, Standing]:
        """How orders stand; one that is not in it was never given."""
        if not ids:
            return {}
        found = DBOS.list_workflows(workflow_ids=list(ids), load_input=False, load_output=False)
        return {
            one.workflow_id: Standing(str(one.status), one.dequeued_at or 0, one.created_at or 0)
            for one in found
        }

    @_translate_errors
    def cancel(self, orders: Iterable[str]) -> None:
        """Nobody is to take these orders any more."""
        if found := list(orders):
            DBOS.cancel_workflows(found)

    @_translate_errors
    def open_orders(self, *, before: int) -> list[str]:
        """Orders that were given before a time and are not over."""
        found = DBOS.list_workflows(
            status=["ENQUEUED", "PENDING"],
            name=_NAME,
            end_time=_iso(before),
            load_input=False,
            load_output=False,
        )
        return _ids(found)

    @_translate_errors
    def forget(self, *, before: int) -> None:
        """Remove orders that were over before a time."""

        def find_old() -> list[str]:
            found = DBOS.list_workflows(
                status=_OVER,
                completed_before=_iso(before),
                limit=1000,
                load_input=False,
                load_output=False,
            )
            return _ids(found)

        while old := find_old():
            DBOS.delete_workflows(old)

    @_translate_errors
    def forget_machine(self, machine: str) -> None:
        DBOS.delete_queue(_queue_of(machine))


def _queue_of(machine: str) -> str:
    return f"machine:{machine}"


def _ids(found: Sequence[WorkflowStatus]) -> list[str]:
    return [one.workflow_id for one in found]


def _iso(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).isoformat()


class _Handler(logging.Handler):
    """Logs the first line of what DBOS has to say, and not the same again and again."""

    def __init__(self, log: Callable[[str], object]) -> None:
        super().__init__()
        self._log = log
        self._said: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().partition("\n")[0][:300]
        if self._said.get(text, 0.0) < record.created - _QUIET:
            self._said = {**dict(list(self._said.items())[-20:]), text: record.created}
            self._log(f"dbos: {text}")

"""Orders for steps, as DBOS workflows, each on the queue of the machine that should take the step.

An order's id is `<thread>:<head>`, where the head is the node that the step extends. If an order for the same head must
be given again, its id ends in `:2`, `:3` and so on. DBOS keeps the orders and their outcomes. Each machine listens to
its own queue, whose `worker_concurrency` is the machine's number of slots. An order carried out twice, by a machine
that was presumed dead, does no harm: the thread's lease decides.

Only this module and `database.py` import dbos.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from dbos import DBOS, DBOSPortableJSONSerializer, SetEnqueueOptions, SetWorkflowID, WorkflowStatus
from dbos import error as dbos_error
from sqlalchemy.exc import SQLAlchemyError

from rolecall.errors import StorageError
from rolecall.service.fleet.database import DBOS_SCHEMA, TIMEOUTS, session_options
from rolecall.service.fleet.machines import MachineSettings

VERSION = "rolecall-2"
"""The version of the order format; a machine takes only orders of its own version."""
_NAME = "rolecall.step"
_POOL = 4
_POLL = 0.1
"""Seconds between two polls of a machine's queue."""
_QUIET = 60.0
"""Seconds before the same log message is repeated."""
_IDS_AT_ONCE = 16
"""The number of ids in one query. A query for a prefix of the ids could not use the table's index."""
OPEN = ["ENQUEUED", "PENDING"]
"""The states of orders that are not over."""
_OVER = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]


class Order(NamedTuple):
    id: str
    thread: str
    workflow: str
    head: str
    need: str
    """What the step needs from a machine, in the format of `needs.Need`."""


def order_id(thread: str, head: str, *, before: str = "") -> str:
    """Return the id of the next order for a thread's head, given the id of the previous order in `before`."""
    words = before.split(":")
    if words[:2] != [thread, head]:
        return f"{thread}:{head}"
    return f"{thread}:{head}:{int(words[2]) + 1 if len(words) > 2 else 2}"


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyError, dbos_error.DBOSException) as error:
        first = " ".join(str(error).splitlines()[:1])
        raise StorageError(
            f"orders cannot be read or written: {first}",
            hint="Check that the PostgreSQL server is running. The operation is retried.",
        ) from error


@dataclass
class Orders:
    """DBOS in this process. Methods that query the database can be called from any thread that runs no event loop."""

    url: str
    settings: MachineSettings
    step: Callable[[Order], Coroutine[Any, Any, str]]
    """Takes a step and describes the outcome, on the event loop given to `open`."""
    over: Callable[[Order], object]
    """Called on the same event loop once the outcome is recorded."""
    log: Callable[[str], object]

    @_translate_errors()
    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Launch DBOS. Do not call this from a thread with a running loop, or DBOS adopts that loop."""
        logger = logging.getLogger("dbos")
        logger.handlers = [_Handler(self.log)]
        logger.propagate = False
        # A server crash loses the latest asynchronous commits. Leases and steps are committed synchronously, which
        # saves all earlier commits too, so the orders on which they depend survive. Other orders are found missing and
        # given again.
        options = session_options(self.url, "synchronous_commit=off")
        DBOS(
            config={
                "name": "rolecall",
                "system_database_url": self.url,
                "dbos_system_schema": DBOS_SCHEMA,
                "application_version": VERSION,
                "executor_id": self.settings.executor,
                "run_migrations": False,
                "enable_otlp": False,
                "serializer": DBOSPortableJSONSerializer(),
                "log_level": "ERROR",
                "sys_db_pool_size": _POOL,
                "db_engine_kwargs": {"connect_args": {**TIMEOUTS, "options": options}, "pool_pre_ping": True},
                # Needed only for messages between workflows, which we do not send.
                "use_listen_notify": False,
            }
        )
        step, over = self.step, self.over

        async def take_step(*words: str) -> str:
            order = Order(*words)
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 -- DBOS runs a workflow as a task, which also records its end
            task.add_done_callback(lambda _: loop.call_soon_threadsafe(over, order))
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(step(order), loop))

        self._workflow: Any = DBOS.workflow(name=_NAME)(take_step)
        DBOS.listen_queues([_queue_of(self.settings.name)])
        DBOS.launch()
        DBOS.register_queue(
            _queue_of(self.settings.name),
            worker_concurrency=self.settings.slots,
            polling_interval_sec=_POLL,
            on_conflict="always_update",
        )

    def close(self) -> None:
        DBOS.destroy(workflow_completion_timeout_sec=0)

    @_translate_errors()
    def give(self, order: Order, machine: str, *, priority: int) -> None:
        """Put an order on the queue of a machine. If the order exists, leave it unchanged."""
        # In DBOS lower numbers come first, and a workflow without a priority comes before all of them.
        with SetWorkflowID(order.id), SetEnqueueOptions(priority=10 - priority):
            DBOS.enqueue_workflow(_queue_of(machine), self._workflow, *order)

    def next_id(self, thread: str, head: str) -> str:
        """Return the first id for a thread's head that is free, or whose order is not over."""
        ids = [order_id(thread, head)]
        while True:
            while len(ids) < _IDS_AT_ONCE:
                ids.append(order_id(thread, head, before=ids[-1]))
            known = self.find_statuses(ids)
            for ident in ids:
                if ident not in known or known[ident].status in OPEN:
                    return ident
            ids = [order_id(thread, head, before=ids[-1])]

    @_translate_errors()
    def find_statuses(self, ids: Collection[str]) -> dict[str, WorkflowStatus]:
        """Return the states of the given orders, leaving out orders that do not exist."""
        return {one.workflow_id: one for one in _list(workflow_ids=list(ids))} if ids else {}

    @_translate_errors()
    def cancel(self, orders: Iterable[str]) -> None:
        if found := list(orders):
            DBOS.cancel_workflows(found)

    @_translate_errors()
    def open_orders(self, *, before: int) -> list[str]:
        """Return the ids of the orders that were given before a time and are not over."""
        return [one.workflow_id for one in _list(status=OPEN, name=_NAME, end_time=_iso(before))]

    @_translate_errors()
    def forget(self, *, before: int) -> None:
        """Remove orders that ended before a time."""
        while old := _list(status=_OVER, completed_before=_iso(before), limit=1000):
            DBOS.delete_workflows([one.workflow_id for one in old])

    @_translate_errors()
    def forget_machine(self, machine: str) -> None:
        DBOS.delete_queue(_queue_of(machine))


def _queue_of(machine: str) -> str:
    return f"machine:{machine}"


def _list(**wanted: Any) -> list[WorkflowStatus]:
    return DBOS.list_workflows(**wanted, load_input=False, load_output=False)


def _iso(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).isoformat()


class _Handler(logging.Handler):
    """Logs the first line of each DBOS message, without frequent repeats."""

    def __init__(self, log: Callable[[str], object]) -> None:
        super().__init__()
        self._log = log
        self._said: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().partition("\n")[0][:300]
        if self._said.get(text, 0.0) < record.created - _QUIET:
            self._said = {**dict(list(self._said.items())[-20:]), text: record.created}
            self._log(f"dbos: {text}")

"""The event loop of a `Run`, which also works while Python waits for its threads before it exits."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 -- nothing can import it once the main thread has ended
from collections.abc import Callable
from concurrent.futures import Executor, Future
from threading import Thread
from typing import Any
from weakref import WeakSet


class RunLoop(asyncio.SelectorEventLoop):
    """An event loop that starts a thread for each call in its default executor. The executor of asyncio refuses calls
    once the main thread has ended."""

    def __init__(self) -> None:
        super().__init__()
        self._threads: WeakSet[Thread] = WeakSet()

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        if executor is not None:
            return super().run_in_executor(executor, func, *args)
        future: Future[Any] = Future()

        def call() -> None:
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(func(*args))
            except BaseException as error:
                future.set_exception(error)

        thread = Thread(target=call)
        thread.start()
        self._threads.add(thread)
        return asyncio.wrap_future(future, loop=self)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002 -- as in asyncio
        for thread in [*self._threads]:  # threads of calls whose callers were cancelled
            thread.join()

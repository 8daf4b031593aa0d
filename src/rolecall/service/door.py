"""The service's end of the socket in `control.py`, through which other processes query and notify the service."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from rolecall.settings.service_socket import to_line
from rolecall.store.canonical import JsonObject

Answer = Callable[[], Awaitable[JsonObject]]


@dataclass
class Door:
    poke: Callable[[str], object]
    """Called with the id of the thread that changed, or with an empty string if no thread is named."""
    stop: Callable[[bool], object]
    """Called to stop the service; the argument says whether the running steps are allowed to finish."""
    answers: Mapping[str, Answer]
    _server: asyncio.Server | None = None
    _followers: dict[str, set[asyncio.StreamWriter]] = field(default_factory=dict)
    _calls: set[tuple[asyncio.Task[None] | None, asyncio.StreamWriter]] = field(default_factory=set)

    async def open(self, place: socket.socket) -> None:
        self._server = await asyncio.start_unix_server(self._hear, sock=place)

    async def close(self) -> None:
        """Close every connection, which tells waiting clients that the service has stopped."""
        if self._server is not None:
            self._server.close()
        calls = list(self._calls)
        for _, writer in calls:
            writer.close()
        if tasks := [task for task, _ in calls if task is not None]:
            await asyncio.wait(tasks, timeout=1)

    def tell(self, name: str) -> None:
        """Wake the followers of a thread."""
        for writer in (*self._followers.get(name, ()), *self._followers.get("", ())):
            if not writer.is_closing():
                writer.write(b"\n")

    def tell_all(self) -> None:
        for name in list(self._followers):
            self.tell(name)

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = (asyncio.current_task(), writer)
        self._calls.add(call)
        try:
            words = json.loads(await reader.readline() or b"null")
            name = str(words.get("thread", ""))
            match words:
                case {"do": "poke"}:
                    self.poke(name)
                case {"do": "stop"}:
                    self.stop(bool(words.get("finish")))
                    # The only answer is that the connection closes once the service has stopped.
                    await reader.read()
                case {"do": "follow"}:
                    self._followers.setdefault(name, set()).add(writer)
                    writer.write(b"\n")
                    await reader.read()
                case {"do": str(asked)} if asked in self.answers:
                    writer.write(to_line(await self.answers[asked]()))
                    await writer.drain()
        except (ValueError, AttributeError, OSError):
            pass  # the caller does not speak our protocol, or has disconnected
        finally:
            writer.close()
            self._calls.discard(call)
            for followers in self._followers.values():
                followers.discard(writer)
            self._followers = {name: writers for name, writers in self._followers.items() if writers}

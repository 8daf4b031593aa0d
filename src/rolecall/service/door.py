"""Where a service is asked and told by others on its machine: the other end of `control.py`."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rolecall.settings.service_socket import to_line

Answer = Callable[[], Awaitable[Mapping[str, Any]]]

_MOST_UNREAD = 4096
"""Bytes that wait for a follower who does not listen: it has enough to read already."""


class Door:
    def __init__(
        self,
        *,
        poke: Callable[[str], object],
        stop: Callable[[bool], object],
        answers: Mapping[str, Answer],
    ) -> None:
        """`poke` hears of a thread or of none, `stop` whether steps that run are to be finished."""
        self._poke = poke
        self._stop = stop
        self._answers = answers
        self._server: asyncio.Server | None = None
        self._followers: dict[str, set[asyncio.StreamWriter]] = {}
        self._calls: set[tuple[asyncio.Task[None] | None, asyncio.StreamWriter]] = set()

    async def open(self, place: socket.socket) -> None:
        self._server = await asyncio.start_unix_server(self._hear, sock=place)

    async def close(self) -> None:
        """End every connection, which tells those who wait for it that the service has stopped."""
        if self._server is not None:
            self._server.close()
        calls = list(self._calls)
        for _, writer in calls:
            writer.close()
        if tasks := [task for task, _ in calls if task is not None]:
            await asyncio.wait(tasks, timeout=1)

    def tell(self, name: str) -> None:
        """Wake whoever follows a thread."""
        for writer in (*self._followers.get(name, ()), *self._followers.get("", ())):
            if not writer.is_closing() and writer.transport.get_write_buffer_size() < _MOST_UNREAD:
                writer.write(b"\n")

    def tell_all(self) -> None:
        for name in list(self._followers):
            self.tell(name)

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._calls.add((asyncio.current_task(), writer))
        try:
            words = json.loads(await reader.readline() or b"null")
            if isinstance(words, dict):
                await self._answer(words, reader, writer)
        except (ValueError, OSError):
            pass  # whoever it was does not speak our language, or has gone
        finally:
            writer.close()
            self._calls.discard((asyncio.current_task(), writer))

    async def _answer(
        self, words: Mapping[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        asked, name = str(words.get("do")), str(words.get("thread", ""))
        if asked == "poke":
            self._poke(name)
        elif asked == "stop":
            self._stop(bool(words.get("finish")))
            await reader.read()  # closed by us when all is over, which is the answer
        elif asked == "follow":
            await self._follow(name, reader, writer)
        elif asked in self._answers:
            writer.write(to_line(await self._answers[asked]()))
            await writer.drain()

    async def _follow(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._followers.setdefault(name, set()).add(writer)
        try:
            writer.write(b"\n")
            await reader.read()
        finally:
            self._followers[name].discard(writer)
            if not self._followers[name]:
                del self._followers[name]

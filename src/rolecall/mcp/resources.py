"""Resources (threads, the plan and its tasks, and notes), their addresses, and the subscriptions to their changes.

One Python thread examines the subscribed resources; it runs only while there are subscriptions. However much a resource
has changed between two looks, the change is announced once.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from itertools import islice
from time import perf_counter
from typing import NamedTuple
from urllib.parse import quote, unquote

from rolecall.api import Project, Rolecall, reader
from rolecall.errors import NotFound, RolecallError, UsageError
from rolecall.mcp import thread_verbs
from rolecall.mcp.hints import phrase
from rolecall.mcp.tools import Caller, McpToolbox, ToolContext, encode
from rolecall.nexus import project_paths
from rolecall.store.canonical import JsonObject

MOST_SUBSCRIPTIONS = 100
"""The maximum number of resources to which the clients of one server can be subscribed at once."""
_MOST_THREADS = 20
_MOST_NOTES = 200
_LONGEST_REPORT = 10_000
_LEAST = 0.2
"""The minimum number of seconds between two looks."""
_SHARE = 50
"""The pause after a look is this many times as long as the look, within the limits `_LEAST` and `_MOST`. Looking
therefore seldom takes more than 2 % of a core."""
_MOST = 5.0
_INNER = frozenset({"text", "tool_call", "usage", "session", "process", "permission", "remark"})
"""Kinds of events that do not change the state of a thread."""
_ADDRESS = re.compile(
    r"rolecall://(?P<kind>threads?|plan|tasks|memory)(?:/(?P<name>[^/]+)(?P<report>/report)?)?"
)


class _Address(NamedTuple):
    """The parsed address of a resource. `kind` is `threads`, `thread`, `report`, `plan`, `tasks`, `memory` or
    `note`."""

    kind: str
    name: str = ""


_GROUPS = {
    **dict.fromkeys(("threads", "thread", "report"), "threads"),
    **dict.fromkeys(("plan", "tasks"), "nexus"),
    **dict.fromkeys(("memory", "note"), "memory"),
}
"""The group of tools to which each kind of resource belongs."""
_FIXED = {
    "threads": "Threads that have not ended, the newest first.",
    "plan": "The plan: its topic, and every issue with its decision.",
    "tasks": "The tasks of this cycle, and how many of them are ready.",
    "memory": "The notes of this project, and how often each was read.",
}
_TEMPLATES = {
    "thread": (
        "rolecall://thread/{id}",
        "application/json",
        "A thread: its status, and its result if it has ended.",
    ),
    "report": (
        "rolecall://thread/{id}/report",
        "text/markdown",
        "What a thread's roles did: the newest steps.",
    ),
    "note": ("rolecall://memory/{name}", "text/markdown", "A note. The read is counted."),
}


class Library:
    """The resources that belong to the toolbox's groups."""

    def __init__(self, toolbox: McpToolbox) -> None:
        self._place = toolbox.place
        self._groups = frozenset(toolbox.groups)
        self._watcher = _Watcher(self._place)

    def list_resources(self) -> list[JsonObject]:
        found: list[JsonObject] = [
            {"uri": f"rolecall://{kind}", "name": kind, "description": text, "mimeType": "application/json"}
            for kind, text in _FIXED.items()
            if _GROUPS[kind] in self._groups
        ]
        if "threads" in self._groups:
            with reader(self._place.store, folder=self._place.project) as rolecall:
                for entry in islice(rolecall.entries(), _MOST_THREADS):
                    about = f"{entry['name']} ({entry['status']}): {entry['title'] or ''}"
                    found.append(_describe("thread", entry["thread"], about))
        if "memory" in self._groups:
            for one in Project(self._place.project).note_files()[:_MOST_NOTES]:
                found.append(_describe("note", one.name, "A note of this project."))
        return found

    def list_templates(self) -> list[JsonObject]:
        return [
            {"uriTemplate": uri, "name": kind, "description": text, "mimeType": mime}
            for kind, (uri, mime, text) in _TEMPLATES.items()
            if _GROUPS[kind] in self._groups
        ]

    def read(self, uri: str) -> JsonObject:
        """Return the contents of a resource."""
        address, place, caller = self._parse(uri), self._place, Caller()
        project = Project(place.project)
        match address.kind:
            case "threads":
                text = encode(thread_verbs.list_threads(place, caller)).decode()
            case "thread":
                text = encode(thread_verbs.show_thread(place, caller, address.name)).decode()
            case "report":
                with thread_verbs.find_thread(place, address.name) as thread:
                    text = thread.read_page(max_chars=_LONGEST_REPORT, phrase=phrase)["text"]
            case "plan" | "tasks":
                tool = "plan_status" if address.kind == "plan" else "task_list"
                text = project.call_tool(tool, {}, restrictions=place.restrictions).decode()
            case "memory":
                text = encode({"notes": project.memories()}).decode()
            case _:
                text = project.recall(address.name, agent=place.agent)
        mime = _TEMPLATES[address.kind][1] if address.kind in _TEMPLATES else "application/json"
        return {"uri": uri, "mimeType": mime, "text": text}

    def _parse(self, uri: str) -> _Address:
        found = _ADDRESS.fullmatch(uri)
        kind, name = (found["kind"], unquote(found["name"] or "")) if found else ("", "")
        if name:
            kind = {"thread": "thread", "memory": "note"}.get(kind, "")
        if found and found["report"]:
            kind = "report" if kind == "thread" else ""
        elif kind == "thread" and not name:
            kind = ""
        if _GROUPS.get(kind) not in self._groups:
            raise NotFound(f"there is no resource {uri!r}", hint="resources/list names those that exist.")
        return _Address(kind, name)

    def subscribe(self, uris: Collection[str], tell: Callable[[str], object]) -> Callable[[], None]:
        """Call `tell`, in another Python thread, with the address of each resource that changes. Return a function that
        ends the subscription."""
        return self._watcher.add({uri: self._parse(uri) for uri in uris}, tell)


def _describe(kind: str, name: str, about: str) -> JsonObject:
    uri, mime, _ = _TEMPLATES[kind]
    address = re.sub(r"\{.*\}", quote(name, safe=""), uri)
    return {"uri": address, "name": name, "description": about[:200], "mimeType": mime}


class _Watcher:
    def __init__(self, place: ToolContext) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._wanted: dict[object, tuple[Mapping[str, _Address], Callable[[str], object]]] = {}
        self._stamps: dict[str, object] = {}
        """For the address of each resource, a value that changes whenever the resource changes."""
        self._ended = threading.Event()
        self._is_running = False

    def add(self, addresses: Mapping[str, _Address], tell: Callable[[str], object]) -> Callable[[], None]:
        key = object()
        with reader(self._place.store, folder=self._place.project) as rolecall:
            # Read before the client is told that it is subscribed, so that the client misses no change.
            stamps = {uri: self._look(rolecall, address, None)[0] for uri, address in addresses.items()}
        with self._lock:
            if len(addresses) + sum(len(one) for one, _ in self._wanted.values()) > MOST_SUBSCRIPTIONS:
                raise UsageError(f"at most {MOST_SUBSCRIPTIONS} resources can be subscribed to at once")
            self._stamps = {**stamps, **self._stamps}
            self._wanted[key] = (addresses, tell)
            if addresses and not self._is_running:
                self._is_running = True
                threading.Thread(target=self._follow, name="resources", daemon=True).start()

        def end() -> None:
            with self._lock:
                self._wanted.pop(key, None)
                wanted = self._addresses()
                self._stamps = {uri: stamp for uri, stamp in self._stamps.items() if uri in wanted}
            self._ended.set()

        return end

    def _addresses(self) -> dict[str, _Address]:
        return {uri: address for one, _ in self._wanted.values() for uri, address in one.items()}

    def _follow(self) -> None:
        with reader(self._place.store, folder=self._place.project) as rolecall:
            while True:
                self._ended.clear()
                with self._lock:
                    wanted, stamps = self._addresses(), dict(self._stamps)
                    if not wanted:
                        self._is_running = False
                        return
                began = perf_counter()
                found: dict[str, tuple[object, bool]] = {}
                for uri, address in wanted.items():
                    with suppress(RolecallError):  # if the store is busy, the next look finds the change
                        try:
                            found[uri] = self._look(rolecall, address, stamps[uri])
                        except NotFound:
                            found[uri] = (None, stamps[uri] is not None)
                with self._lock:
                    self._stamps.update((uri, found[uri][0]) for uri in self._stamps.keys() & found.keys())
                    changed = [uri for uri in found if found[uri][1]]
                    tells = [
                        (tell, uri) for one, tell in self._wanted.values() for uri in changed if uri in one
                    ]
                for tell, uri in tells:
                    with suppress(RuntimeError):  # the client's event loop has ended
                        tell(uri)
                self._ended.wait(min(_MOST, max(_LEAST, _SHARE * (perf_counter() - began))))

    def _look(self, rolecall: Rolecall, address: _Address, seen: object) -> tuple[object, bool]:
        """Return a value that changes with a resource, and whether the resource changed. Raise an error if the resource
        does not exist."""
        if address.kind == "threads":  # the value is the number of the newest event
            if not isinstance(seen, int):
                return rolecall.newest_event(), False
            events = rolecall.events(after=seen)
            moves = any(event.kind not in _INNER for event in events)
            return events[-1].seq if events else seen, moves
        project = Project(self._place.project)
        stamp: object = None
        match address.kind:
            case "thread" | "report":
                thread = rolecall.thread(address.name)
                stamp = thread.head, thread.status, thread.reason
            case "plan" | "tasks":
                name = project_paths.PLAN if address.kind == "plan" else project_paths.TASKS
                with suppress(OSError):
                    found = os.stat(project_paths.state(project.folder, name))
                    stamp = found.st_mtime_ns, found.st_size, found.st_ino
            case "memory":
                stamp = project.note_files()
            case _:
                stamp = project.note_file(address.name)
        return stamp, stamp != seen

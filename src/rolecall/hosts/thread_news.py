"""Tells a model about the threads that it handed over. Imported only while there are such threads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from time import sleep

from rolecall.errors import RolecallError
from rolecall.hosts import handed_over
from rolecall.hosts.sessions import host_process
from rolecall.settings import stores
from rolecall.store import holder
from rolecall.store.store import Store
from rolecall.threads import views
from rolecall.threads.report import shorten
from rolecall.threads.state import Status, read_thread

_LONGEST = 400
_PAUSE = 0.5
_TO_DO = {
    Status.COMPLETED: "thread_show shows its result, thread_read what its roles did",
    Status.SUSPENDED: "thread_answer shows what it asks",
    Status.WAITING: "thread_list with `members` shows who waits for a person",
    Status.CRASHED: "thread_run continues it",
}


def take(project: str, threads: Sequence[str]) -> list[str]:
    """Return a text for each of these threads that has ended or waits for a person, and remove its note."""
    news = []
    for thread in threads:
        address, problem = handed_over.read(project, thread)
        if problem:
            text = f"Thread {thread}, which was handed over, could not be run: {problem}"
        else:
            try:
                with closing(stores.open_store(address or None, create=False)) as store:
                    text = _describe(store, thread)
            except RolecallError as error:
                text = f"Thread {thread}, which was handed over, cannot be read: {error.message}"
        if text and handed_over.forget(project, thread):
            news.append(text)
    return news


def wait(project: str, text: str) -> str:
    """Wait for the threads that are named in a text and were handed over, and return the news about them. The news is
    empty if it was reported in another way, or if the host has ended, in which case the next session reports it."""
    host = host_process()
    named = [thread for thread in handed_over.list_noted(project) if thread in text]
    news: list[str] = []
    while waits := [thread for thread in named if thread in handed_over.list_noted(project)]:
        if host is None or not holder.is_alive(host, now=0):
            return ""
        news += take(project, waits)
        if len(news) < len(named):
            sleep(_PAUSE)
    return "\n\n".join(news)


def _describe(store: Store, thread: str) -> str:
    """Return a text about the outcome of a thread; empty while the thread is running."""
    ref = read_thread(store, thread)
    if ref is None:
        return f"Thread {thread}, which was handed over, no longer exists."
    status = views.status_of(store, ref)
    if not (ref.state.has_ended or views.needs_person(store, ref) or status == Status.CRASHED):
        return ""
    about = f"Thread {thread} ({ref.state.name}: {shorten(ref.state.title, 80)}), which was handed over, "
    reason = f": {shorten(ref.state.reason, _LONGEST)}" if ref.state.reason else ""
    words = f"{about}{'waits for a person' if status == Status.WAITING else f'is {status.value}'}{reason}."
    lines = [words]
    if ref.state.has_ended and (found := views.result(store, ref)):
        lines.append(": ".join(filter(None, [found["role"], found["status"]])))
        lines += filter(None, [shorten(found["text"], _LONGEST)])
    return "\n".join([*lines, f"({_TO_DO.get(status, 'thread_read shows what its roles did')}.)"])

"""The problems that a service has at the moment, for its status and its log."""

from __future__ import annotations

from collections.abc import Callable

from rolecall.errors import Damaged


class Problems(dict[str, str]):
    """The current problems by subject."""

    def __init__(self, log: Callable[[str], object]) -> None:
        super().__init__()
        self._log = log

    def note_unreadable(self, thread: str, error: Damaged) -> None:
        self.note(thread, f"{thread} cannot be read: {error.message}")

    def note(self, about: str, problem: str) -> None:
        """Record a problem, or remove it if `problem` is empty, and log any change."""
        if problem == self.get(about, ""):
            return
        self._log(problem or f"{about}: all is well again")
        if problem:
            self[about] = problem
        else:
            del self[about]

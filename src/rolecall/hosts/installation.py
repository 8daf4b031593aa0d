"""What is written into Claude Code, Codex and OpenCode so that they use Rolecall, and how it is taken out again.

Each host module says in pieces what is to be there (`piece.py`), from one description (`setup.py`); installing,
showing a difference and removing are the same for all of them. `check.py` is what `rolecall doctor` asks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rolecall.hosts.names import HOSTS

if TYPE_CHECKING:
    from rolecall.hosts.managed_block import Wiring
    from rolecall.hosts.setup import Setup


def host_module(host: str) -> Any:
    """The module that knows a host's files; what it has is told in `setup.py`."""
    if host not in HOSTS:
        from rolecall.errors import NotFound

        raise NotFound(f"there is no host {host!r}", hint=f"Hosts: {', '.join(HOSTS)}.")
    return import_module(f"rolecall.hosts.{host}.install")


def wiring_of(host: str, setup: Setup) -> Wiring:
    """All that a host is to have. A project's files must lie in the project; a user may keep theirs elsewhere."""
    from rolecall.hosts.managed_block import Wiring

    module = host_module(host)
    return Wiring(module.pieces(setup), module.sweeps(setup), setup.project)

"""Names from several modules in one place. Each is imported when it is first used, because reading a node must not
wait for the engine to load."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolecall.settings.config import mask as mask
    from rolecall.settings.stores import open_backend as open_backend
    from rolecall.settings.stores import open_store as open_store
    from rolecall.settings.stores import store_if_any as store_if_any
    from rolecall.threads.casting import agent_from as agent_from
    from rolecall.threads.casting import binder as binder
    from rolecall.threads.casting import cast as cast
    from rolecall.threads.casting import miscast as miscast
    from rolecall.threads.casting import refuse_miscast as refuse_miscast
    from rolecall.threads.compose import engine as engine
    from rolecall.threads.compose import load_workflow as load_workflow
    from rolecall.threads.lifecycle import tell_service as tell_service

_HOMES = {
    "rolecall.settings.config": ("mask",),
    "rolecall.settings.stores": ("open_backend", "open_store", "store_if_any"),
    "rolecall.threads.casting": ("agent_from", "binder", "cast", "miscast", "refuse_miscast"),
    "rolecall.threads.compose": ("engine", "load_workflow"),
    "rolecall.threads.lifecycle": ("tell_service",),
}

if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise accept any name

    def __getattr__(name: str) -> Any:
        for module, names in _HOMES.items():
            if name in names:
                return getattr(import_module(module), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

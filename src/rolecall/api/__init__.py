"""The Python API: `rolecall.open()` returns a `Rolecall`, which starts and finds threads.

Every door reads and changes threads, workflows, projects, hosts and knowledge only through the methods of the classes
below. From the rooms below this one it imports values and pure functions (see tests/test_rooms.py). Each name is
imported when it is first used, so that a command about tasks does not load the modules that run threads.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolecall.api.evals import Evals as Evals
    from rolecall.api.knowledge import Knowledge as Knowledge
    from rolecall.api.project import Project as Project
    from rolecall.api.rolecall import MEMORY as MEMORY
    from rolecall.api.rolecall import LoadedWorkflow as LoadedWorkflow
    from rolecall.api.rolecall import Rolecall as Rolecall
    from rolecall.api.rolecall import WorkflowDefinition as WorkflowDefinition
    from rolecall.api.rolecall import open as open
    from rolecall.api.rolecall import reader as reader
    from rolecall.api.thread import Crew as Crew
    from rolecall.api.thread import Event as Event
    from rolecall.api.thread import Question as Question
    from rolecall.api.thread import Run as Run
    from rolecall.api.thread import Thread as Thread
    from rolecall.api.thread import check_limits as check_limits
    from rolecall.api.thread import own_words as own_words
else:
    _MODULES = {
        "evals": "Evals",
        "knowledge": "Knowledge",
        "project": "Project",
        "rolecall": "LoadedWorkflow MEMORY Rolecall WorkflowDefinition open reader",
        "thread": "Crew Event Question Run Thread check_limits own_words",
    }
    _HOMES = {name: f"rolecall.api.{module}" for module, names in _MODULES.items() for name in names.split()}

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'rolecall.api' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found

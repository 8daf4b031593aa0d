"""The child process that runs the user's code of a sense: `senses/<name>.py`, or `senses/<name>/index.py`.

It reads `{path, is_called}` from standard input and answers in JSON: `{signal}`, which is null if the sense has no
signal, or `{error, line}`. Anything that the sense prints goes to standard error.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from traceback import extract_tb
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolecall.store.canonical import JsonObject

FUNCTION = "sense"


class _Misfit(Exception):
    """Raised if a file is not a valid sense."""


def _load(path: str) -> Any:
    module = ModuleType("_rolecall_sense")
    module.__file__ = path
    # Load the file as a module of a package for its folder, so that `from .shared import x` finds the files next to it.
    module.__path__ = [os.path.dirname(path)]
    sys.modules[module.__name__] = module
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)  # noqa: S102 -- the user's own code
    function = getattr(module, FUNCTION, None)
    if not inspect.isroutine(function):
        raise _Misfit(f"it has no function `{FUNCTION}`")
    if inspect.iscoroutinefunction(function):
        raise _Misfit(f"`{FUNCTION}` must be a plain function, not an async one")
    needed = [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if needed:
        raise _Misfit(f"`{FUNCTION}` is called without arguments, but requires {', '.join(needed)}")
    return function


def _call(function: Any) -> JsonObject | None:
    signal = function()
    if signal is None:
        return None
    if isinstance(signal, str):
        return {"prompt": signal}
    if not isinstance(signal, dict):
        raise _Misfit(f"`{FUNCTION}` returned a {type(signal).__name__}; a signal is a dict, a text or None")
    try:
        plain: JsonObject = json.loads(json.dumps(signal, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise _Misfit(f"`{FUNCTION}` returned something that is not plain data: {error}") from error
    return plain


def main() -> None:
    order = json.loads(sys.stdin.read())
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    path = order["path"]
    answer: JsonObject
    try:
        function = _load(path)
        answer = {"signal": _call(function) if order["is_called"] else None}
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == path]
        line = error.lineno if isinstance(error, SyntaxError) and error.filename == path else None
        text = str(error) if isinstance(error, _Misfit) else f"{type(error).__name__}: {error}"
        answer = {"error": text[:2000], "line": line or (lines[-1] if lines else 1)}
    output.write(json.dumps(answer))
    output.flush()
    os._exit(0)  # do not wait for threads that the sense has started


if __name__ == "__main__":
    main()

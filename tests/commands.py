"""Run the installed command in a process of its own, forked from one that has imported Rolecall already.

Starting Python and importing our modules is most of what a short command costs, and the tests run thousands. A server
imports them once and forks for every command; a test process has one, and another for commands that need large
libraries, because a fork takes longer the more memory the server has. The child gets its words, environment, folder and
streams, and runs the installed script; if that is a service, its zygote is forked from the same server. What only a
start from nothing shows (the order of imports, the encoding of the streams, the end of the interpreter) needs a start
from nothing: with REAL_COMMANDS=1 every command gets one, and always where the environment would make Python itself
behave differently.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import pkgutil
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace
from typing import IO, Any, NoReturn, cast
from uuid import uuid4

SCRIPT = str(Path(sys.executable).parent / "rolecall")
PATIENCE = 120.0
"""Seconds after which a command is killed: far more than any takes, on a busy machine too."""
MARK, MARK_LENGTH = "SERVICE_TEST", 37
"""A variable by which a test finds every process of a service in `/proc`, and how long its value is."""
_HAS_NO_FORKS = "REAL_COMMANDS" in os.environ or sys.platform != "linux"
_PYTHONS_OWN = ("PYTHON", "LC_", "LANG", "LD_", "TZ")
_HEAVY = (
    "rolecall.acp",
    "rolecall.agents.adapters.acp",
    "rolecall.agents.acp_",
    "rolecall.agents.contract",
    "rolecall.agents.model",
    "rolecall.cli.lead_prompt",
    "rolecall.service.fleet",
    "rolecall.store.contract",
)
"""Modules that few commands need and whose libraries are large."""
_KNOWLEDGE = ("rolecall.knowledge.static", "numpy", "tokenizers", "tree_sitter")


def run(
    words: Sequence[str],
    *,
    input: str | bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Run a command as `subprocess.run` does, and capture its output, which has to be UTF-8."""
    environment = dict(os.environ if env is None else env)
    data = input.encode() if isinstance(input, str) else input
    if words[0] != SCRIPT or not can_fork(environment):
        done = subprocess.run(
            words, input=data, capture_output=True, env=environment, cwd=cwd, timeout=timeout, check=False
        )
        return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())
    with PipedChild(words, env=environment, cwd=cwd) as child, ThreadPoolExecutor(3) as pool:
        pool.submit(_write, child.stdin, data)
        texts = [pool.submit(stream.read) for stream in (child.stdout, child.stderr)]
        try:
            code = child.wait(timeout)
        except TimeoutError:
            child.kill()
            raise
        return subprocess.CompletedProcess(words, code, *(text.result().decode() for text in texts))


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment need not be started from nothing."""
    return not _HAS_NO_FORKS and _of_python(environment) == _server().knows


def spawn(script: str, *args: str) -> PipedChild:
    """Start a Python script that imports Rolecall. At the end of a `with` block it is dead and its pipes are closed."""
    if _HAS_NO_FORKS:
        words = [sys.executable, script, *args]
        return cast(PipedChild, _Process(words, stdin=PIPE, stdout=PIPE, stderr=PIPE))
    return PipedChild([script, *args])


class _Process(subprocess.Popen[bytes]):
    def __exit__(self, *error: Any) -> None:
        self.kill()
        super().__exit__(*error)


class Child:
    """A forked process, with as much of `subprocess.Popen` as the tests use."""

    def __init__(
        self,
        words: Sequence[str],
        streams: Sequence[int],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        is_leader: bool = False,
        host: str = "",
        network: str = "",
        imports: Sequence[str] = (),
    ) -> None:
        """`streams` are the descriptors that it has as 0, 1 and so on. It leads a session of its own if `is_leader`. It
        believes to be on a `host` of that name, and is in the `network` of that file. Its server has imported
        `imports` as well."""
        order = {
            "words": words,
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or os.getcwd()),
            "is_leader": is_leader,
            "host": host,
            "network": network,
        }
        data = json.dumps(order).encode() + b"\n"
        self._line = socket.socket(socket.AF_UNIX)
        self._line.settimeout(PATIENCE)
        large = imports or (_KNOWLEDGE if "knowledge" in words else ())
        self._line.connect(_own_server or _server(*large).address)
        sent = socket.send_fds(self._line, [data], [*streams])
        if sent < len(data):  # sending nothing fails, too, if the process has ended already
            self._line.sendall(data[sent:])
        self.pid = self._read_number()
        self.returncode: int | None = None

    def wait(self, timeout: float = PATIENCE) -> int:
        if self.returncode is None:
            self._line.settimeout(timeout)
            self.returncode = self._read_number()
            self._line.close()
        return self.returncode

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._line], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_number(self) -> int:
        """The next line of the server, and not a byte of the one after it, which `poll` looks for."""
        line = b""
        while not line.endswith(b"\n"):
            line += self._line.recv(1) or b"the server is gone\n"
        return int(line)


class PipedChild(Child):
    def __init__(
        self, words: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        (stdin, feed), (output, stdout), (errors, stderr) = (os.pipe() for _ in range(3))
        self.stdin = open(feed, "wb")  # noqa: SIM115
        self.stdout = open(output, "rb")  # noqa: SIM115
        self.stderr = open(errors, "rb")  # noqa: SIM115
        super().__init__(words, [stdin, stdout, stderr], env=env, cwd=cwd)
        for end in (stdin, stdout, stderr):
            os.close(end)

    def __enter__(self) -> PipedChild:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        with suppress(BrokenPipeError):
            self.stdin.close()
        self.stdout.close()
        self.stderr.close()


def _write(file: IO[bytes], data: bytes) -> None:
    with suppress(BrokenPipeError), file:
        file.write(data)


def _of_python(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_PYTHONS_OWN)}


class _Server:
    def __init__(self, imports: Sequence[str]) -> None:
        self.knows = _of_python(os.environ)
        self.address = f"\0rolecall-tests-{uuid4().hex}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno()), *imports],
                stdin=subprocess.PIPE,  # its end is that of the server
                pass_fds=[listener.fileno()],
                env={
                    **os.environ,
                    "OPENBLAS_NUM_THREADS": "1",  # numpy's threads would not be forked
                    MARK: "-" * MARK_LENGTH,
                },
            )
        atexit.register(self._process.communicate)


@cache
def _server(*imports: str) -> _Server:
    return _Server(imports)


# -- in the server --

_own_server = ""
"""The address of the server that this process is or was forked from; empty in a process of tests."""
_place: dict[str, str] = {}
"""The host and the network of this process, if they are not those of its server."""


def serve(listener: socket.socket, imports: Sequence[str]) -> None:
    """Fork for every connection; answer it with the process id and, at the end, the exit status."""
    global _own_server
    import jsonschema_rs  # noqa: F401 -- which functions import

    import rolecall
    from rolecall.service import workers

    _own_server = listener.getsockname().decode()
    vars(workers)["subprocess"] = SimpleNamespace(Popen=_fork_zygote, DEVNULL=subprocess.DEVNULL)
    for module in pkgutil.walk_packages(rolecall.__path__, "rolecall."):
        if not module.name.startswith(_HEAVY) and not module.name.endswith("__main__"):
            import_module(module.name)
    for name in imports:
        import_module(name)
    if "rolecall.knowledge.static" in imports:
        static = sys.modules["rolecall.knowledge.static"]
        loaded = (
            static._load()
        )  # the weights of the embedded model: most of what a short command about knowledge does
        static._load = lambda: loaded  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                return
            if key.fileobj is listener:
                line, _ = listener.accept()
                pid = _fork(line)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (line, pid))
            else:
                line, pid = key.data
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                selector.unregister(key.fd)
                os.close(key.fd)
                with line, suppress(BrokenPipeError):
                    line.sendall(b"%d\n" % code)


def _fork(line: socket.socket) -> int:
    data, streams, _, _ = socket.recv_fds(line, 1 << 20, 4)
    while not data.endswith(b"\n"):
        data += line.recv(1 << 20)
    order = json.loads(data)
    pid = os.fork()
    if pid == 0:
        _become(order, streams)
    for stream in streams:
        os.close(stream)
    line.sendall(b"%d\n" % pid)
    return pid


def _mark(mark: str) -> None:
    """Show a mark in `/proc`, where a process has the environment that it was started with."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    if len(mark) == MARK_LENGTH and (shown := libc.getenv(MARK.encode())):
        ctypes.memmove(shown, mark.encode(), MARK_LENGTH)


def _fork_zygote(
    words: Sequence[str], *, pass_fds: Sequence[int], env: Mapping[str, str], **rest: Any
) -> Any:
    """Start the zygote of a service, whose imports take longer than most tests of a service."""
    if _place["network"]:  # in which the server cannot be reached
        return subprocess.Popen(words, pass_fds=pass_fds, env=env, **rest)
    *_, module, _line, entry = words
    with open(os.devnull, "rb") as nothing:
        streams = [nothing.fileno(), 1, 2, *pass_fds]
        return Child([module, "3", entry], streams, env=env, is_leader=True, host=_place["host"])


def _move(host: str, network: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if network:
        with open(network, "rb") as place:
            assert libc.setns(place.fileno(), 0x40000000) == 0, os.strerror(ctypes.get_errno())
    if host:
        assert libc.unshare(0x04000000) == 0, os.strerror(ctypes.get_errno())
        socket.sethostname(host)


def _become(order: Mapping[str, Any], streams: Sequence[int]) -> NoReturn:
    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(len(streams), 1 << 16)
        if order["is_leader"]:
            os.setsid()
        _place.update(host=order["host"], network=order["network"])
        _move(**_place)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name, mode, buffering in (("stdin", "r", -1), ("stdout", "w", -1), ("stderr", "w", 1)):
            old = getattr(sys, name)
            new = open(old.fileno(), mode, buffering, old.encoding, old.errors, closefd=False)  # noqa: SIM115
            setattr(sys, name, new)
        _mark(order["env"].get(MARK, ""))
        os.environ.clear()
        os.environ.update(order["env"])
        tempfile.tempdir = None  # which the server may have looked up
        os.chdir(order["cwd"])
        sys.argv[:] = order["words"]
        if os.sep in sys.argv[0]:
            sys.path[0] = str(Path(sys.argv[0]).parent)
            runpy.run_path(sys.argv[0], run_name="__main__")
        else:
            del sys.path[0]
            import_module(sys.argv[0]).main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # The interpreter's own end would touch, and so copy, every object that the server has made.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for file in (sys.stdout, sys.stderr):
            if file is not None and not file.closed:
                file.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])

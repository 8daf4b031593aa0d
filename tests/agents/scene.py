"""What a sandboxed program wants to reach: a home with secrets around its work folder, and another program."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from rolecall.agents import sandbox
from rolecall.agents.sandbox import Layers, Policy
from rolecall.workflow.model import Sandbox

SECRET = "gold under the floor"
PYTHON = "/usr/bin/python3"
SECRETS = (
    ".ssh/id", ".aws/credentials", ".netrc", ".config/gh/hosts.yml", ".local/share/keyrings/login.keyring",
    ".mozilla/firefox/p/logins.json", ".rolecall/store.db",
)  # fmt: skip
SYSTEM_CALLS = {"x86_64": {"add_key": 248, "keyctl": 250}, "aarch64": {"add_key": 217, "keyctl": 219}}

SIBLING = """
import ctypes, json, os, selectors, socket, sys
places, secret = json.loads(sys.argv[1]), bytearray(os.environ["DEPLOY_TOKEN"].encode())
file = os.open("notes.txt", os.O_RDWR)
os.mkfifo("inbox")
inbox = os.open("inbox", os.O_RDWR)
letters = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
letters.bind(os.path.abspath("letters.sock"))
waiting = selectors.DefaultSelector()
for place in places:
    server = socket.socket(socket.AF_UNIX)
    server.bind(place)
    server.listen()
    waiting.register(server, selectors.EVENT_READ)
tcp = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
waiting.register(tcp, selectors.EVENT_READ)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("127.0.0.1", 0))
waiting.register(udp, selectors.EVENT_READ)
address = ctypes.addressof(ctypes.c_char.from_buffer(secret))
print(json.dumps([file, address, tcp.getsockname()[1], udp.getsockname()[1]]), flush=True)
while True:
    for key, _ in waiting.select():
        if key.fileobj is udp:
            udp.sendto(b"GOT OUT", udp.recvfrom(100)[1])
            continue
        guest, _ = key.fileobj.accept()
        with guest:
            if guest.family == socket.AF_UNIX:
                socket.send_fds(guest, [b"GOT OUT"], [file])
            else:
                guest.send(b"GOT OUT")
"""


class Scene:
    """Made again for a program that has changed it."""

    def __init__(self) -> None:
        # Not in /tmp, of which a sandboxed program has its own.
        self.root = Path(tempfile.mkdtemp(prefix="rc-scene-", dir="/var/tmp"))
        self.tmp = Path(tempfile.mkdtemp(prefix="rc-scene-", dir="/tmp"))
        # A user without a session has no place in /run.
        places = ("/run", os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp")
        runtime = next(place for place in places if os.access(place, os.W_OK))
        self.runtime = Path(tempfile.mkdtemp(prefix="rc-scene-", dir=runtime))
        self.home, self.outside = self.root / "home", self.root / "outside"
        self.work = self.home / "work"
        self._sibling: subprocess.Popen[bytes] | None = None
        self._before: dict[str, object] = {}
        self._template = self.root / "template"
        _make_work_folder(self._template, self.root)
        self._protected = _describe(self._template, _is_protected)
        self._name = self.root.name
        self.mark = str(int.from_bytes(os.urandom(5), "big"))
        """For the arguments of a process that is to be found again."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._shm = int.from_bytes(os.urandom(3), "big")
        self._segment = self._libc.shmget(self._shm, 4096, 0o1600)
        self._queue = self._libc.mq_open(f"/{self._name}".encode(), os.O_RDWR | os.O_CREAT, 0o600, None)
        Path("/dev/shm", self._name).write_text("shared")
        calls = SYSTEM_CALLS[os.uname().machine]
        self._key = self._libc.syscall(calls["add_key"], b"user", self._name.encode(), b"x", 1, -3)
        self._build()

    def close(self) -> None:
        self._end_sibling()
        self._libc.shmctl(self._segment, 0, None)
        self._libc.mq_unlink(f"/{self._name}".encode())
        os.close(self._queue)
        Path("/dev/shm", self._name).unlink()
        self._libc.syscall(SYSTEM_CALLS[os.uname().machine]["keyctl"], 3, self._key)
        for path in (self.root, self.tmp, self.runtime):
            shutil.rmtree(path)

    def set(self) -> None:
        """Put everything back as it was."""
        if self.has_changed() or self.sibling_state() not in "SR":
            self._build()
        shutil.rmtree(self.work)
        shutil.copytree(self._template, self.work, symlinks=True)

    def has_changed(self) -> bool:
        return not self.work.exists() or self._before != _describe(self.root, _is_outside)

    def has_changed_protected(self) -> bool:
        return self._protected != _describe(self.work, _is_protected)

    def sibling_state(self) -> str:
        assert self._sibling is not None
        stat = Path(f"/proc/{self._sibling.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]

    def sibling_has_ended(self) -> bool:
        return self.sibling_state() == "Z"

    @property
    def env(self) -> dict[str, str]:
        assert self._sibling is not None
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "OUT": str(self.outside),
            "DEPLOY_TOKEN": SECRET,
            "BUS": str(self.runtime / "bus"),
            "X11": str(self.tmp / "X0"),
            "ABSTRACT": self._name,
            "SIBLING": str(self._sibling.pid),
            "SIBLING_FILE": str(self._file),
            "SIBLING_ADDRESS": str(self._address),
            "TCP": str(self._tcp),
            "UDP": str(self._udp),
            "ADDRESS": _find_address(),
            "SHM": str(self._shm),
            "QUEUE": f"/{self._name}",
            "SHARED": self._name,
            "KEY_NAME": self._name,
            "DISK": _find_disk(),
            "MARK": self.mark,
            "ROLECALL": str(Path(sys.executable).parent / "rolecall"),
            "ROLECALL_PYTHON": sys.executable,
            "ROLECALL_HOME": str(self.home / ".rolecall/own"),
        }

    def plan(self, layers: Layers, said: Sandbox | None = None, *restrictions: str) -> Policy:
        policy = sandbox.plan(
            said or Sandbox(),
            restrictions,
            workdir=self.work,
            env=self.env,
            private=[str(self.home / ".rolecall")],
            layers=layers,
        )
        assert policy is not None
        return policy

    def _build(self) -> None:
        self._end_sibling()
        for path in self.root.iterdir():
            if path.is_symlink():
                path.unlink()
            elif path != self._template:
                shutil.rmtree(path)
        for path in (self.home / name for name in SECRETS):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(SECRET)
        (self.home / ".bashrc").write_text("true\n")
        (self.home / ".docker/run").mkdir(parents=True)
        (self.outside / "folder").mkdir(parents=True)
        (self.root / "link-to-outside").symlink_to("outside")
        (self.outside / "notes.txt").write_text("before\n")
        (self.outside / "folder/inner.txt").write_text("before\n")
        shutil.copytree(self._template, self.work, symlinks=True)
        for folder in (self.tmp, self.runtime):
            for path in folder.iterdir():
                path.unlink()
        places = [
            str(self.runtime / "bus"),
            str(self.tmp / "X0"),
            str(self.home / ".docker/run/docker.sock"),
            str(self.outside / "server.sock"),
            str(self.root / "link-to-outside/linked.sock"),
            f"\0{self._name}",
        ]
        self._sibling = subprocess.Popen(
            [PYTHON, "-I", "-S", "-c", SIBLING, json.dumps(places), SECRET],
            cwd=self.outside,
            env={"DEPLOY_TOKEN": SECRET},
            stdout=subprocess.PIPE,
        )
        assert self._sibling.stdout is not None
        self._file, self._address, self._tcp, self._udp = json.loads(self._sibling.stdout.readline())
        self._before = _describe(self.root, _is_outside)

    def _end_sibling(self) -> None:
        if self._sibling is not None:
            self._sibling.send_signal(signal.SIGKILL)
            self._sibling.communicate()


def _make_work_folder(folder: Path, root: Path) -> None:
    git = [
        "git",
        "-c",
        "init.defaultBranch=main",
        "-c",
        "user.name=x",
        "-c",
        "user.email=x@example.org",
        "-C",
        str(folder),
    ]
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("a\n")
    for words in (["init", "-q", "--template="], ["add", "a.txt"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    (folder / ".git/hooks").mkdir()
    (folder / ".git/hooks/sample").write_text("true\n")
    (folder / ".git/config.worktree").touch()
    (folder / ".nexus").mkdir()
    (folder / ".nexus/kept.txt").write_text("kept\n")
    (folder / "link-to-notes").symlink_to(root / "outside/notes.txt")
    (folder / "link-to-outside").symlink_to(root / "outside")


def _is_outside(path: str) -> bool:
    return not path.startswith(("template", "home/work/"))


def _is_protected(path: str) -> bool:
    return path.startswith((".git/hooks", ".git/config", ".nexus"))


def _describe(root: Path, is_meant: object) -> dict[str, object]:
    """Everything about the files of a folder that a program could change."""
    found: dict[str, object] = {}
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(folder, name)
            shown = str(path.relative_to(root))
            if not is_meant(shown):  # type: ignore[operator]
                continue
            stat = path.lstat()
            found[shown] = (
                stat.st_mode,
                stat.st_uid,
                path.read_bytes() if path.is_file() and not path.is_symlink() else b"",
                0 if shown in ("home", "home/work") or shown.startswith(".") else stat.st_mtime_ns,
                [] if path.is_symlink() or path.is_socket() else os.listxattr(path),
            )
    return found


def _find_disk() -> str:
    """A disk that root can open."""
    for block in sorted(Path("/sys/class/block").iterdir()):
        try:
            os.close(os.open(f"/dev/{block.name}", os.O_RDONLY))
        except OSError:
            continue
        return f"/dev/{block.name}"
    return "/dev/mem"


def _find_address() -> str:
    """An address of this machine other than that of the loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
            return str(sock.getsockname()[0])
        except OSError:
            return "127.0.0.2"

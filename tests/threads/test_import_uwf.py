"""Threads of the predecessor: a storage folder as it writes one, imported and looked at through the command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from uwffolder import BEGUN, CANCELLED, DONE, FRESH, IDLE, Folder, filled

if TYPE_CHECKING:
    from conftest import Rolecall


def test_the_types_are_those_the_predecessor_writes(tmp_path: Path) -> None:
    types = Folder(tmp_path / "uwf").types
    assert (types["workflow"], types["start"], types["step"]) == (
        "AZF3FA1TN3D4A",
        "44P8EP6N3NXZ5",
        "108DB063KRQWW",
    )


def test_imported_threads_are_listed_with_their_status_and_time(rolecall: Rolecall, tmp_path: Path) -> None:
    folder = filled(tmp_path / "uwf")
    done = rolecall.json("thread", "import", str(folder.root))
    assert sorted(done["threads"]) == sorted([IDLE, DONE, CANCELLED, FRESH])
    assert done["workflows"] == ["fix-issue"]
    assert (done["kept"], done["unread"], done["problems"]) == ([], [], [])
    entries = rolecall.json("thread", "list", "--all")
    assert [
        (entry["thread"], entry["status"], entry["currentRole"], entry["steps"], entry["title"])
        for entry in entries
    ] == [
        (FRESH, "idle", "planner", 0, "Add a flag."),
        (CANCELLED, "killed", None, 1, "Never mind."),
        (DONE, "completed", None, 3, "Write docs."),
        (IDLE, "idle", "coder", 2, "Fix the crash."),
    ]
    assert {entry["name"] for entry in entries} == {"fix-issue"}
    assert [entry["created"] for entry in entries] == [BEGUN + 3000, BEGUN + 2000, BEGUN + 1000, BEGUN]
    assert entries[2]["updated"] == BEGUN + 60_000
    assert len(rolecall.json("thread", "list")) == 2
    assert len(rolecall.json("thread", "list", "--before", "2020-01-01", "--all")) == 0


def test_imported_threads_are_shown_like_ours(rolecall: Rolecall, tmp_path: Path) -> None:
    folder = filled(tmp_path / "uwf")
    rolecall("thread", "import", str(folder.root), check=0)
    card = rolecall.json("thread", "show", DONE)
    assert (card["head"], card["workflow"], card["done"], card["steps"]) == (
        rolecall.json("thread", "steps", DONE)["steps"][-1]["hash"], folder.workflow, True, 3,
    )  # fmt: skip
    steps = rolecall.json("thread", "steps", DONE)["steps"][1:]
    assert [(step["number"], step["role"], step["status"], step["durationMs"]) for step in steps] == [
        (1, "planner", None, 700), (2, "coder", "again", 700), (3, "coder", "done", 700),
    ]  # fmt: skip
    text = rolecall("thread", "read", DONE, check=0).stdout
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "Step 1: planner",
        "Step 2: coder",
        "Step 3: coder",
    ]
    assert "<output>\nAnswer number 2.\n</output>" in text
    assert text.count("You are the coder.") == 1
    late = rolecall("thread", "read", DONE, "--quota", "450", check=0).stdout
    assert re.findall(r"^## Step (\d):", late, re.MULTILINE) == ["3"]
    assert "(2 earlier steps" in late
    details = rolecall.json("thread", "step-details", f"{DONE}#2")
    assert (details["number"], details["body"], details["prompt"]) == (
        2,
        "Answer number 2.",
        "Prompt number 2.",
    )
    assert details["turns"][0]["tool_calls"] == [
        {"name": "write_file", "arguments": {"path": "2.py"}, "result": ""}
    ]
    rolecall("thread", "export", DONE, str(tmp_path / "report.html"), check=0)
    assert "Answer number 3." in (tmp_path / "report.html").read_text()


def test_an_imported_thread_can_be_forked_and_goes_on_counting(rolecall: Rolecall, tmp_path: Path) -> None:
    rolecall("thread", "import", str(filled(tmp_path / "uwf").root), check=0)
    forked = rolecall.json("thread", "fork", DONE, "--at", "2", "-p", "Once more.")["thread"]
    card = rolecall.json("thread", "show", forked)
    assert (card["status"], card["currentRole"], card["steps"]) == ("idle", "coder", 3)
    numbers = [step["number"] for step in rolecall.json("thread", "steps", forked)["steps"][1:]]
    assert numbers == [1, 2, 3]


def test_importing_again_brings_only_what_went_on_there(rolecall: Rolecall, tmp_path: Path) -> None:
    folder = filled(tmp_path / "uwf")
    rolecall("thread", "import", str(folder.root), check=0)
    again = rolecall.json("thread", "import", str(folder.root))
    assert (again["threads"], again["workflows"], again["kept"]) == ([], [], [])
    folder.active(IDLE, folder.chain("Fix the crash.\nSoon.", None, "again", "again"))
    assert rolecall.json("thread", "import", str(folder.root))["threads"] == [IDLE]
    assert rolecall.json("thread", "show", IDLE)["steps"] == 3


def test_what_was_done_here_is_not_undone_by_another_import(rolecall: Rolecall, tmp_path: Path) -> None:
    folder = filled(tmp_path / "uwf")
    rolecall("thread", "import", str(folder.root), check=0)
    rolecall("thread", "kill", FRESH, check=0)
    again = rolecall.json("thread", "import", str(folder.root))
    assert (again["threads"], again["kept"]) == ([], [f"thread/{FRESH}"])
    assert rolecall.json("thread", "show", FRESH)["status"] == "killed"


def test_nodes_may_lie_in_a_folder_of_their_own(rolecall: Rolecall, tmp_path: Path) -> None:
    folder = filled(tmp_path / "uwf", cas=tmp_path / "json-cas")
    before = sorted(path.name for path in folder.root.iterdir())
    refused = rolecall("thread", "import", str(folder.root), check=2)
    assert "--cas DIR" in refused.stderr
    done = rolecall.json("thread", "import", str(folder.root), "--cas", str(folder.cas))
    assert len(done["threads"]) == 4
    assert sorted(path.name for path in folder.root.iterdir()) == before
    assert not (folder.cas / "_index").exists()


def test_a_thread_whose_nodes_are_missing_is_named_and_the_others_come(
    rolecall: Rolecall, tmp_path: Path
) -> None:
    folder = filled(tmp_path / "uwf")
    missing = folder.threads[IDLE]
    (folder.cas / f"{missing}.bin").unlink()
    done = rolecall("thread", "import", str(folder.root), "--json", check=4)
    output = json.loads(done.stdout)
    assert [unread["name"] for unread in output["unread"]] == [f"thread/{IDLE}"]
    assert missing in output["unread"][0]["reason"]
    assert sorted(output["threads"]) == sorted([DONE, CANCELLED, FRESH])


def test_a_folder_that_is_not_there_is_not_found(rolecall: Rolecall, tmp_path: Path) -> None:
    assert "there is no folder" in rolecall("thread", "import", str(tmp_path / "nowhere"), check=3).stderr


CONFIG = """
providers: {open: {baseUrl: 'https://open.example/v1', apiKey: secret-key-1}}
models: {big: {provider: open, name: big-1}}
agents: {hermes: {command: uwf-hermes, args: []}, fast: {command: mine, args: [-x]}}
defaultAgent: hermes
defaultModel: big
agentOverrides: {fix-issue: {coder: fast}}
modelOverrides: null
"""


def test_a_setting_that_cannot_be_imported_is_named_with_its_place(
    rolecall: Rolecall, tmp_path: Path
) -> None:
    folder = filled(tmp_path / "uwf")
    (folder.root / "config.yaml").write_text(CONFIG.replace("name: big-1", "nam: big-1"))
    done = rolecall("thread", "import", str(folder.root), "--config", "--format", "json", check=0)
    (refused,) = json.loads(done.stdout)["config"]["refused"]
    assert refused.startswith(f"{folder.root}/config.yaml:3:32: 'nam' is not a key of a model")


def test_the_configuration_is_offered_and_taken_when_asked_for(rolecall: Rolecall, tmp_path: Path) -> None:
    folder = filled(tmp_path / "uwf")
    (folder.root / "config.yaml").write_text(CONFIG)
    (folder.root / ".env").write_text("OPEN_KEY=of-uwf\nMINE=theirs\n")
    rolecall("config", "set", "defaultAgent", "claude", check=0)
    (rolecall.home / ".env").write_text("MINE=mine\n")
    first = rolecall("thread", "import", str(folder.root), check=0)
    assert f"thread import {folder.root} --config" in first.stderr
    assert rolecall.json("config", "list", "--format", "json") == {"defaultAgent": "claude"}
    again = rolecall("thread", "import", str(folder.root), "--config", "--format", "json", check=0)
    assert "not imported" not in again.stderr and "secret-key-1" not in again.stdout + again.stderr
    output = json.loads(again.stdout)["config"]
    assert output["taken"] == [
        "defaultModel", "providers.open", "models.big", "agents.hermes", "agents.fast", "agentOverrides.fix-issue",
        ".env OPEN_KEY",
    ]  # fmt: skip
    assert (output["kept"], output["refused"]) == (["defaultAgent", ".env MINE"], [])
    settings = rolecall.json("config", "list", "--format", "json")
    assert (settings["defaultAgent"], settings["agents"]["fast"]["args"]) == ("claude", ["-x"])
    assert (rolecall.home / ".env").read_text() == "MINE=mine\nOPEN_KEY=of-uwf\n"


def test_a_folder_without_configuration_is_imported_without_a_note(
    rolecall: Rolecall, tmp_path: Path
) -> None:
    assert rolecall("thread", "import", str(filled(tmp_path / "uwf").root), check=0).stderr == ""

"""What hooks know comes compiled, and never from files that have changed since."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hook_stage import side_by_side

from rolecall.hosts import hook_context
from rolecall.nexus import catalog
from rolecall.settings import config, yaml12


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("ROLECALL_HOME", str(folder))
    return folder


def cache(home: Path) -> Path:
    return home / "cache" / f"hooks-rolecall-{zlib.crc32(os.fsencode(hook_context.__file__)):08x}.json"


def content_of(home: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(cache(home).read_bytes())
    return content


def manifest(folder: Path) -> None:
    """Make a package of a catalogue: a manifest with what its files say."""
    found: dict[str, list[dict[str, Any]]] = {}
    for kind in ("agents", "skills"):
        found[kind] = []
        for meta in sorted((folder / kind).glob("*/meta.yml")):
            digest = hashlib.sha256((meta.parent / "body.md").read_bytes()).hexdigest()
            found[kind].append({**yaml12.load(meta.read_text()), "body_hash": f"sha256:{digest}"})
    about = {
        "nexus_core_version": "0.10.0",
        "nexus_core_commit": "abcdef0",
        "schema_contract_version": "0.10",
    }
    (folder / "manifest.json").write_text(json.dumps({**about, **found, "vocabulary": {}}))


def test_the_kit_is_the_catalogue_and_the_configuration(home: Path) -> None:
    found, own = hook_context.load("rolecall"), catalog.load()
    assert found.gate == "block"
    assert {name: rules.capabilities for name, rules in found.agents.items()} == {
        name: agent.capabilities for name, agent in own.agents.items()
    }
    assert {rules.category for rules in found.agents.values()} == {"how", "do", "check"}
    assert found.tags == own.vocabulary.tags
    assert found.skills.keys() == own.skills.keys()
    assert "{{" not in "".join(found.skills.values())


def test_the_second_time_it_is_read_and_is_the_same(home: Path) -> None:
    first = hook_context.load("rolecall")
    written = cache(home).stat()
    assert hook_context.load("rolecall") == first
    assert cache(home).stat().st_mtime_ns == written.st_mtime_ns
    assert list(cache(home).parent.iterdir()) == [cache(home)]


def test_without_tags_it_is_the_same_but_for_them(home: Path) -> None:
    for _ in range(2):
        found = hook_context.load("rolecall", with_tags=False)
        assert found.tags == {}
        assert found._replace(tags=hook_context.load("rolecall").tags) == hook_context.load("rolecall")


def test_a_configuration_that_comes_changes_or_goes_is_noticed(home: Path) -> None:
    assert hook_context.load("rolecall").gate == "block"
    home.mkdir(exist_ok=True)
    file = home / "config.yaml"
    for mode in ("warn", "off"):
        file.write_text(f"project: {{unplannedEdits: {mode}}}\n")
        assert hook_context.load("rolecall").gate == mode
    file.unlink()
    assert hook_context.load("rolecall").gate == "block"


def test_secrets_are_kept_as_places_and_masked_without_reading_yaml(home: Path) -> None:
    home.mkdir()
    file = home / "config.yaml"
    file.write_text("providers: {p: {baseUrl: 'http://x', apiKey: 'clé-0123456789'}}\n")
    hook_context.load("rolecall")
    assert "0123456789" not in cache(home).read_text()
    code = (
        "import sys; from rolecall.settings import config; from rolecall.hosts import hook_context as hooks; "
        "print(config.mask(hooks.load('rolecall').secrets).text('says cl\\xe9-0123456789'), 'yaml' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output == "says ***MASKED*** False\n"


def test_places_of_secrets_in_another_configuration_are_not_used(home: Path) -> None:
    home.mkdir()
    file = home / "config.yaml"
    file.write_text("providers: {p: {baseUrl: 'http://x', apiKey: 0123456789abc}}\n")
    found = hook_context.load("rolecall")
    file.write_text("# Another.\nproviders: {p: {baseUrl: 'http://x', apiKey: abcdefghijk}}\n")
    assert config.mask(found.secrets).text("says abcdefghijk") == "says ***MASKED***"


@pytest.mark.parametrize("key", ['"first-\\u0041line"', "|\n      first-Aline\n      second-line"])
def test_a_secret_that_is_written_otherwise_is_masked_too(home: Path, key: str) -> None:
    home.mkdir()
    (home / "config.yaml").write_text(f"providers:\n  p:\n    baseUrl: http://x\n    apiKey: {key}\n")
    assert config.mask(hook_context.load("rolecall").secrets).text("says first-Aline") == "says ***MASKED***"


def test_a_mode_that_does_not_exist_is_said_and_is_not_the_last_one(home: Path) -> None:
    hook_context.load("rolecall")
    (home / "config.yaml").write_text("project: {unplannedEdits: maybe}\n")
    for _ in range(2):
        found = hook_context.load("rolecall")
        assert found.gate == "block"
        assert "project.unplannedEdits must be one of block, warn, off, not 'maybe'" in found.problem
    (home / "config.yaml").write_text("project: {unplannedEdits: off}\n")
    assert (hook_context.load("rolecall").gate, hook_context.load("rolecall").problem) == ("off", "")


@pytest.mark.parametrize("mode", ["block", "warn"])
def test_without_a_catalogue_that_can_be_read_ours_holds_and_that_is_said(home: Path, mode: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(f"catalog: gone\nproject: {{unplannedEdits: {mode}}}\n")
    found = hook_context.load("rolecall")
    assert f"{home / 'gone/manifest.json'} does not exist" in found.problem
    assert "no_file_edit" in found.agents["tester"].capabilities and found.gate == mode
    shutil.copytree(catalog.OWN_FOLDER, home / "gone")
    manifest(home / "gone")
    assert hook_context.load("rolecall").problem == ""


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "null", '{"version": 1}', "[" * 50_000, "\udcff", '{"stamps": [[1]]}']
)
def test_a_cache_that_is_damaged_is_made_again(home: Path, damage: str) -> None:
    first = hook_context.load("rolecall")
    cache(home).write_bytes(damage.encode(errors="surrogateescape"))
    assert hook_context.load("rolecall") == first
    assert content_of(home)["gate"] == "block"


@pytest.mark.parametrize("count", [1, 10, 1000])
def test_a_cache_that_is_cut_off_is_made_again(home: Path, count: int) -> None:
    first = hook_context.load("rolecall")
    cache(home).write_bytes(cache(home).read_bytes()[:-count])
    assert hook_context.load("rolecall") == first


def test_a_cache_of_another_version_is_made_again(home: Path) -> None:
    hook_context.load("rolecall")
    content = {**content_of(home), "version": "0", "gate": "off"}
    cache(home).write_text(json.dumps(content))
    assert hook_context.load("rolecall").gate == "block"


def test_another_rolecall_of_the_same_version_has_its_own(home: Path, tmp_path: Path) -> None:
    hook_context.load("rolecall")
    package = Path(hook_context.__file__).parents[1]
    other = tmp_path / "elsewhere" / "rolecall"
    shutil.copytree(package, other, ignore=shutil.ignore_patterns("__pycache__"))
    body = other / Path(catalog.OWN_FOLDER).relative_to(package) / "skills/nx-plan/body.md"
    body.write_text("Plan as they do elsewhere.\n")
    code = "from rolecall.hosts import hook_context as hooks; print(hooks.load('rolecall').skills['nx-plan'])"
    env = {**os.environ, "ROLECALL_HOME": str(home), "PYTHONPATH": str(other.parent)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "Plan as they do elsewhere."


def test_a_catalogue_whose_agent_changes_is_noticed(home: Path) -> None:
    folder = home / "own"
    shutil.copytree(catalog.OWN_FOLDER, folder)
    manifest(folder)
    (home / "config.yaml").write_text("catalog: own\n")
    assert hook_context.load("rolecall").agents["engineer"].capabilities == ("no_task_create",)
    meta = folder / "agents/engineer/meta.yml"
    meta.write_text(meta.read_text().replace("- no_task_create", "- no_task_create\n  - no_shell_exec"))
    manifest(folder)
    assert hook_context.load("rolecall").agents["engineer"].capabilities == (
        "no_task_create",
        "no_shell_exec",
    )


def test_a_home_that_cannot_be_written_is_only_slower(home: Path) -> None:
    home.parent.joinpath("home").write_text("a file, not a folder")
    assert (hook_context.load("rolecall").gate, hook_context.load("rolecall").problem != "") == (
        "block",
        True,
    )
    home.unlink()
    home.mkdir()
    (home / "cache").write_text("a file, not a folder")
    assert hook_context.load("rolecall").gate == hook_context.load("rolecall").gate == "block"
    assert (home / "cache").read_text() == "a file, not a folder"


def test_two_that_make_it_at_once_leave_one(home: Path) -> None:
    def load() -> None:
        assert hook_context.load("rolecall").gate == "block"

    side_by_side(load, load, load, load)
    assert list(cache(home).parent.iterdir()) == [cache(home)]

"""Modules that are imported when they are first used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rolecall.store.lazy import Module, import_later


def test_a_module_is_imported_when_it_is_first_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "used_late.py").write_text("value = 1\n")
    module = Module("used_late")
    assert "used_late" not in sys.modules
    assert module.value == 1
    sys.modules["used_late"].__dict__["value"] = 2
    assert module.value == 2


def test_each_use_of_a_missing_module_or_name_is_an_error() -> None:
    missing, known = Module("not_installed_here"), Module("json")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="not_installed_here"):
            missing.dumps  # noqa: B018
        with pytest.raises(AttributeError, match="module 'json' has no attribute 'absent'"):
            known.absent  # noqa: B018


def test_a_table_has_the_names_of_modules_by_package() -> None:
    found = import_later({"": "json", "rolecall.store.": "ids canonical"})
    assert list(found) == ["json", "ids", "canonical"]
    assert found["ids"].is_node_id is sys.modules["rolecall.store.ids"].is_node_id

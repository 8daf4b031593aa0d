"""Changing configuration files in place: the value changes, everything around it stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.errors import StorageError, UsageError
from rolecall.settings import config, config_file, yaml12

FILE = """\
# my settings
defaultAgent: human  # for now
providers:
  # the cheap one
  openrouter:
    baseUrl: "https://openrouter.ai/api/v1"   # do not change
    apiKeyEnv: OPENROUTER_API_KEY

  local: {baseUrl: 'http://localhost/v1'}
agents:
  hermes:
    command: hermes
    args:
      - --one   # first
      - two
# the end
"""


def set_in(text: str, key: str, value: object) -> str:
    return config_file.with_value(text, key.split("."), value, source="c.yaml")


def test_a_scalar_changes_and_its_comment_stays() -> None:
    assert set_in(FILE, "defaultAgent", "a: b") == FILE.replace(": human  #", ': "a: b"  #')
    assert set_in(FILE, "providers.openrouter.baseUrl", "http://x/y") == FILE.replace(
        '"https://openrouter.ai/api/v1"', "http://x/y"
    )


def test_a_list_of_several_lines_becomes_one_line() -> None:
    changed = set_in(FILE, "agents.hermes.args", ["--yes", "a b"])
    assert changed == FILE.replace(
        "    args:\n      - --one   # first\n      - two\n", '    args: ["--yes", "a b"]\n'
    )


def test_new_keys_come_after_their_siblings() -> None:
    assert set_in(FILE, "providers.openrouter.apiKey", "k") == FILE.replace(
        "    apiKeyEnv: OPENROUTER_API_KEY\n", "    apiKeyEnv: OPENROUTER_API_KEY\n    apiKey: k\n"
    )
    assert "local: {baseUrl: 'http://localhost/v1', apiKey: k}" in set_in(FILE, "providers.local.apiKey", "k")
    assert set_in(FILE, "models.m.name", "x") == FILE.replace(
        "# the end\n", "models:\n  m:\n    name: x\n# the end\n"
    )


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "# no newline", "\n\n"])
def test_an_empty_file_gets_its_first_key(text: str) -> None:
    changed = set_in(text, "models.m.name", "x")
    assert changed.startswith(text)
    assert config.parse(changed, "c") == {"models": {"m": {"name": "x"}}}


@pytest.mark.parametrize(
    "text",
    [
        "extract:\nstore: x\n",
        "extract: # later\nstore: x\n",
        "extract: {}\nstore: x\n",
        "extract: ~\nstore: x\n",
        "store: x\nextract:",
        "{store: x}",
        "'extract': {model: m}\nstore: x",
        "extract:\n  model: |\n    m\n\n# c\nstore: x\n",
        "extract:\n    timeout: 5\n\n\nstore: x",
        "extract:\n  timeout:\nstore: x",
    ],
)
def test_odd_forms_are_changed_correctly_or_refused(text: str) -> None:
    before = config.parse(text, "c")
    try:
        changed = set_in(text, "extract.model", "new")
    except UsageError as error:
        assert "cannot change" in error.message and "~" in text
        return
    extract = {**(before.get("extract") or {}), "model": "new"}
    assert config.parse(changed, "c") == {**before, "extract": extract}
    assert ("# c" in text) == ("# c" in changed)


def test_a_value_shared_by_an_anchor_is_refused_rather_than_changed_twice() -> None:
    text = "providers:\n  a: &x {baseUrl: http://a}\n  b: *x\n"
    with pytest.raises(UsageError, match="cannot change without losing something"):
        set_in(text, "providers.a.apiKey", "k")


def test_removing_takes_the_line_and_what_would_be_empty() -> None:
    def without(key: str) -> str:
        return config_file.without_value(FILE, key.split("."), source="c.yaml")

    assert without("providers.openrouter.apiKeyEnv") == FILE.replace(
        "    apiKeyEnv: OPENROUTER_API_KEY\n", ""
    )
    assert "local" not in without("providers.local.baseUrl")
    assert without("agents").endswith("/v1'}\n# the end\n")
    assert config_file.without_value("a: {b: 1, c: 2}\n", ["a", "b"], source="c") == "a: {c: 2}\n"


names = st.sampled_from(["a", "b", "c d", "e.f", "1", "yes", "ünï"])
leaves = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=8
)


@given(steps=st.lists(st.tuples(st.tuples(names, names), leaves | st.lists(leaves, max_size=2)), max_size=6))
@settings(max_examples=150, deadline=None)
def test_any_sequence_of_changes_reads_back(steps: list[tuple[tuple[str, str], object]]) -> None:
    text, wanted = "# kept\n", dict[str, dict[str, object]]()
    for (section, key), value in steps:
        text = config_file.with_value(text, (section, key), value, source="c")
        wanted.setdefault(section, {})[key] = value
    assert text.startswith("# kept\n")
    assert (yaml12.load(text) or {}) == wanted


# -- .env --


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "KEY=new\n"),
        ("# c\nOTHER=1", "# c\nOTHER=1\nKEY=new\n"),
        ("export KEY='old' # c\nX=1\n", "KEY=new\nX=1\n"),
        ("KEY=1\nKEY=2\n", "KEY=new\nKEY=new\n"),
        ("MY_KEY=1\n", "MY_KEY=1\nKEY=new\n"),
    ],
)
def test_one_variable_changes_and_the_others_stay(text: str, expected: str) -> None:
    assert config_file.with_variable(text, "KEY", "new") == expected


@pytest.mark.parametrize("value", ["a b", "it's", 'say "x"', "a#b", "a #b", "sk-or-v1_=/+", "\\n"])
def test_values_of_variables_read_back(tmp_path: Path, value: str) -> None:
    (tmp_path / ".env").write_text(config_file.with_variable("", "KEY", value))
    assert config.env_file({"ROLECALL_HOME": str(tmp_path)}) == {"KEY": value}


def test_a_value_that_would_become_another_line_is_refused() -> None:
    for value in ("a\nEVIL=1", "a\0", "'\""):
        with pytest.raises(UsageError, match="cannot be written"):
            config_file.with_variable("", "KEY", value)


# -- files --


def test_files_are_private_and_links_stay_links(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles" / "config.yaml", tmp_path / "home" / "config.yaml"
    real.parent.mkdir()
    link.parent.mkdir()
    real.write_text("a: 1\n")
    real.chmod(0o644)
    link.symlink_to(real)
    config_file.change(str(link), lambda text: text + "b: 2\n")
    assert link.is_symlink()
    assert real.read_text() == "a: 1\nb: 2\n"
    assert real.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in real.parent.iterdir()] == ["config.yaml"]


def test_a_home_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        config_file.change(str(tmp_path / "file" / "config.yaml"), lambda text: text)


def test_changes_from_many_processes_all_arrive(tmp_path: Path) -> None:
    code = (
        "import sys; from rolecall.settings import config_file as configfile\n"
        "for number in range(10):\n"
        "    configfile.change(sys.argv[1], lambda text: text + f'k{sys.argv[2]}_{number}: 1\\n')\n"
    )
    file = str(tmp_path / "config.yaml")
    children = [
        subprocess.Popen([sys.executable, "-c", code, file, str(n)], env=os.environ) for n in range(4)
    ]
    assert [child.wait(timeout=60) for child in children] == [0] * 4
    assert len(Path(file).read_text().splitlines()) == 40

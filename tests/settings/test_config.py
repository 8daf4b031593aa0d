"""Configuration: where the store is, and what a wrong file is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolecall.errors import NotFound, UsageError
from rolecall.settings import config, stores
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store


def settings(home: Path, text: str | bytes | None = None, **environ: str) -> config.StoreSettings:
    home.mkdir(exist_ok=True)
    if text is not None:
        (home / "config.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return config.store_settings({"ROLECALL_HOME": str(home), **environ})


def test_home_is_a_folder_of_the_user_or_what_the_environment_names(tmp_path: Path) -> None:
    assert config.home({}).endswith("/.rolecall")
    assert config.home({"ROLECALL_HOME": ""}).endswith("/.rolecall")
    assert config.home({"ROLECALL_HOME": str(tmp_path)}) == str(tmp_path)
    assert config.home({"ROLECALL_HOME": "relative"}) == str(Path.cwd() / "relative")


def test_the_store_is_a_file_in_the_home_by_default(tmp_path: Path) -> None:
    assert settings(tmp_path) == (str(tmp_path / "store.db"), "heads")
    assert settings(tmp_path, "agent: claude\n") == (str(tmp_path / "store.db"), "heads")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("store: /srv/s.db\n", ("/srv/s.db", "heads")),
        ("other: 1\n\nstore:\n  url: files:/srv/x\n", ("files:/srv/x", "heads")),
        ("store:\n  url: /srv/s.db\n  durability: always\n", ("/srv/s.db", "always")),
        ("'store': /srv/s.db\n", ("/srv/s.db", "heads")),
        ("store: sub/s.db\n", ("{home}/sub/s.db", "heads")),
        ("store: {url: files:nodes}\n", ("files:{home}/nodes", "heads")),
        ("store: {url: sqlite:s.db}\n", ("{home}/s.db", "heads")),
        ("store: {url: ./a:b.db}\n", ("{home}/./a:b.db", "heads")),
        ("store: postgresql://u@h/d\n", ("postgresql://u@h/d", "heads")),
    ],
)
def test_the_configuration_file_names_the_store(tmp_path: Path, text: str, expected: tuple[str, str]) -> None:
    assert settings(tmp_path, text) == (expected[0].format(home=tmp_path), expected[1])


def test_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    found = settings(
        tmp_path, "store:\n  url: /srv/s.db\n  durability: never\n", ROLECALL_STORE="files:/elsewhere"
    )
    assert found == ("files:/elsewhere", "never")


@pytest.mark.parametrize(
    "text",
    [
        "store: [1, 2]\n",
        "store:\n",
        "store:/srv/s.db\n",
        "store: {url: 5}\n",
        "store: {path: /x}\n",
        "store: {durability: sometimes}\n",
        "store: {durability: [always]}\n",
        "store: {unclosed\n",
        "store: a\n---\nstore: b\n",
        b"store: \xff\n",
    ],
)
def test_a_wrong_configuration_is_refused_with_the_name_of_the_file(
    tmp_path: Path, text: str | bytes
) -> None:
    with pytest.raises(UsageError) as caught:
        settings(tmp_path, text)
    assert str(tmp_path / "config.yaml") in caught.value.message
    assert caught.value.hint


def test_a_file_that_cannot_be_used_is_refused_with_every_problem_in_it(tmp_path: Path) -> None:
    text = "store: {url: 5, durability: sometimes}\ndefautAgent: x\n"
    twice = "store: /x\n"
    for wrong, lines in (text, ["1:14", "1:29", "2:1"]), (text + twice, ["1:14", "1:29", "2:1", "3:1"]):
        with pytest.raises(UsageError) as caught:
            settings(tmp_path, wrong)
        listed = [line.strip() for line in caught.value.message.splitlines()[1:]]
        assert [line.split(": ")[0] for line in listed] == [f"{tmp_path}/config.yaml:{at}" for at in lines]


def test_a_configuration_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").mkdir()
    with pytest.raises(UsageError, match=r"config\.yaml cannot be read"):
        settings(tmp_path)


# -- what an address opens --


@pytest.mark.parametrize("address", ["{}", "sqlite:{}", "sqlite://{}"])
def test_a_path_opens_a_sqlite_file(tmp_path: Path, address: str) -> None:
    path = tmp_path / "a b" / "s.db"
    backend = stores.open_backend(address.format(path))
    assert isinstance(backend, SqliteBackend)
    assert not path.parent.exists()
    with Store(backend) as store:
        store.put_text("the first write makes the file")
    assert path.is_file()


@pytest.mark.parametrize(
    "address",
    [
        "mysql://user@host/db",
        "",
        "sqlite:",
        "sqlite://",
        ":memory:",
        "sqlite::memory:",
        "file:/tmp/x.db",
        "file:x.db?mode=memory",
        "files:",
        "sqlite3:/tmp/x.db",
        "store:x.db",
    ],
)
def test_an_address_that_keeps_nothing_or_means_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        stores.open_backend(address)
    assert repr(address) in caught.value.message
    assert "postgresql://" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["./a:b.db", "./file:x.db", "sqlite:file:y.db"])
def test_a_name_with_a_colon_is_a_file_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with Store(stores.open_backend(name)) as store:
        node = store.put_text("kept")
    assert (tmp_path / name.removeprefix("sqlite:")).is_file()
    with Store(stores.open_backend(name, create=False)) as store:
        assert store.has(node)


def test_opening_without_creating_leaves_no_trace(tmp_path: Path) -> None:
    for address in (str(tmp_path / "x" / "s.db"), f"files:{tmp_path / 'y'}"):
        with pytest.raises(NotFound, match="there is no store"):
            stores.open_backend(address, create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_store_opened_by_address_keeps_what_is_put(tmp_path: Path) -> None:
    with stores.open_store(str(tmp_path / "s.db")) as store:
        node = store.put_text("hello")
    with stores.open_store(str(tmp_path / "s.db"), create=False) as store:
        assert store.get(node).payload == "hello"

"""Memory notes and rules over real folders and real git repositories."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from rolecall.errors import Damaged, NotFound, RolecallError, StorageError, UsageError
from rolecall.nexus import (
    forget,
    memory,
    memory_access,
    memory_gc,
    note,
    note_name,
    rule,
    similarity,
    state_file,
)
from rolecall.nexus.reply import AddedNote
from rolecall.settings import keyscan
from rolecall.settings.mask import Mask

NOTHING = Mask([])
NOW = "2026-06-01T12:00:00.000Z"

RETRIES = (
    "The upstream API answers 429 after 60 requests a minute. Retries must back off exponentially, starting at one\n"
    "second, and honour the Retry-After header. More than five retries get the key blocked for an hour.\n"
)
RETRIES_AGAIN = (
    "When the upstream API answers 429 we have to back off exponentially and respect Retry-After; five retries\n"
    "at most, or the key is blocked.\n"
)
RELEASES = (
    "Releasing: bump the version, write the changelog entry, tag the commit, build the wheel, install it into an\n"
    "empty environment and run the smoke test before uploading.\n"
)


def git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (args, done.stderr)
    return done.stdout.strip()


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository with one commit, to be copied."""
    folder = tmp_path_factory.mktemp("repository") / "project"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main", "--template=")
    git(folder, "config", "user.name", "Ada")
    git(folder, "config", "user.email", "ada@example.org")
    (folder / "README.md").write_text("# Project\n")
    (folder / ".nexus").mkdir()
    (folder / ".nexus" / ".gitignore").write_text("state/\n")
    commit_all(folder)
    return folder


@pytest.fixture
def project(repository: Path, tmp_path: Path) -> Path:
    return shutil.copytree(repository, tmp_path / "project")


def commit_all(folder: Path) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "All")
    return git(folder, "rev-parse", "HEAD")


def put(project: Path, name: str, text: str, *, days: float = 0) -> Path:
    """A memory note that was written `days` before NOW, by whoever."""
    path = project / ".nexus" / "memory" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    moment = (datetime.fromisoformat(NOW) - timedelta(days=days)).timestamp()
    os.utime(path, (moment, moment))
    return path


def add(project: Path, name: str, text: str, **options: Any) -> AddedNote:
    return memory.add(project, name, text, mask=NOTHING, **options)


def before(days: float) -> str:
    moment = datetime.fromisoformat(NOW) - timedelta(days=days)
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def log_lines(project: Path) -> list[dict[str, Any]]:
    file = project / ".nexus" / "state" / "rolecall" / "memory-access.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


# -- names --


@pytest.mark.parametrize(
    ("name", "category", "file"),
    [
        ("retry-limits", None, "retry-limits.md"),
        ("retry-limits.md", None, "retry-limits.md"),
        ("sqlite-busy", "empirical", "empirical-sqlite-busy.md"),
        ("empirical-sqlite-busy", "empirical", "empirical-sqlite-busy.md"),
        ("external-one-two-three-four", None, "external-one-two-three-four.md"),
        ("http-429-retries", None, "http-429-retries.md"),
        ("port-8080-conflict", None, "port-8080-conflict.md"),
        ("utf-8-input", None, "utf-8-input.md"),
        ("march-of-time", None, "march-of-time.md"),
    ],
)
def test_a_name_within_the_policy_is_kept(name: str, category: str | None, file: str) -> None:
    assert note_name.new_memory(name, category) == file


@pytest.mark.parametrize(
    ("name", "reason", "suggestion"),
    [
        ("Retry Limits", "not lower-case", "retry-limits.md"),
        ("retryLimits", "not lower-case", "retry-limits.md"),
        ("retry_limits", "not lower-case", "retry-limits.md"),
        ("Größe-der-Datei", "not lower-case", "grosse-der-datei.md"),
        ("retry", "with 1 word", "such as retry-limits.md"),
        ("a-b-c-d-e", "with 5 words", "a-b-c-d.md"),
        ("pattern-review", "with 1 word", "such as retry-limits.md"),
        ("retry--limits", "joins nothing", "retry-limits.md"),
        ("retry-limits-", "joins nothing", "retry-limits.md"),
        ("retry-limits-v2", "version in it (v2)", "retry-limits.md"),
        ("python-3-11-typing-rules", "version in it (3, 11)", "python-typing-rules.md"),
        ("release-version-2-steps", "(version, 2)", "release-steps.md"),
        ("retry-limits-2026", "(2026)", "retry-limits.md"),
        ("retry-limits-20260131", "(20260131)", "retry-limits.md"),
        ("outage-notes-may-12", "(may, 12)", "outage-notes.md"),
        ("external-2026-01-31-api-limits", "(2026, 01, 31)", "external-api-limits.md"),
        ("x" * 60 + "-" + "y" * 60, "longer than 100", "such as retry-limits.md"),
        ("날짜-규칙", "not lower-case", "such as retry-limits.md"),
    ],
)
def test_a_name_against_the_policy_is_refused_with_the_reason_and_a_better_one(
    name: str, reason: str, suggestion: str
) -> None:
    with pytest.raises(UsageError) as caught:
        note_name.new_memory(name)
    assert reason in caught.value.message
    assert suggestion in caught.value.hint
    if suggestion.startswith(("such", "python")):
        return
    assert note_name.new_memory(suggestion) == suggestion, "what is suggested must itself be allowed"


def test_a_prefix_and_a_category_that_differ_are_refused() -> None:
    with pytest.raises(UsageError, match="named as external, but its category is to be pattern") as caught:
        note_name.new_memory("external-api-limits", "pattern")
    assert "pattern-api-limits.md" in caught.value.hint


@pytest.mark.parametrize(
    "name",
    ["", "..", "../etc", "a/b", "/etc/passwd", "a\\b", ".hidden-note", "a\0b", "a\nb", " a-b", "x" * 300],
)
def test_a_name_that_is_no_file_name_reads_and_writes_nothing(project: Path, name: str) -> None:
    for attempt in (
        lambda: add(project, name, RETRIES),
        lambda: memory.read(project, name),
        lambda: memory_gc.delete(project, [name]),
        lambda: rule.add(project, name, RETRIES, mask=NOTHING),
        lambda: rule.read(project, name),
    ):
        with pytest.raises(UsageError):
            attempt()
    assert note.list_notes(project, "memory") == []
    assert note.list_notes(project, "rules") == []


@pytest.mark.parametrize("half", ["\udce9", "\ud800", "\udfff"])
def test_a_name_with_half_a_surrogate_pair_is_refused_in_words(project: Path, half: str) -> None:
    name = f"caf{half}-notes"
    two_notes(project)
    for attempt in (
        lambda: add(project, name, RELEASES),
        lambda: add(project, "release-steps", RELEASES, into=name),
        lambda: memory.read(project, name),
        lambda: memory.merge(project, "retry-limits", name),
        lambda: memory.merge(project, "retry-limits", "release-steps", into=name),
        lambda: memory_gc.delete(project, [name]),
        lambda: rule.add(project, name, RETRIES, mask=NOTHING),
        lambda: rule.read(project, name),
    ):
        with pytest.raises(
            UsageError, match="is not the name of a note: it holds bytes that are not UTF-8"
        ) as caught:
            attempt()
        assert "such as caf-notes.md" in caught.value.hint
        assert f"{caught.value}{caught.value.hint}".isprintable()
    assert not memory_access.observe(project, f".nexus/memory/{name}.md", "lead", NOW)
    assert len(note.list_notes(project, "memory")) == 2


def test_a_file_whose_name_is_not_utf8_is_listed_and_stays(project: Path) -> None:
    folder = os.fsencode(project / ".nexus" / "memory")
    path = all_four(project, name=os.fsdecode(b"retries-caf\xe9.md"))
    assert os.listdir(folder).count(b"retries-caf\xe9.md") == 1
    assert path.name in [entry["name"] for entry in memory.list_notes(project)]
    done = memory_gc.delete_automatically(project, is_enabled=True, at=NOW)
    assert done["deleted"] == []
    (stayed,) = done["stayed"]
    assert "not UTF-8" in stayed["reason"]
    assert path.exists()


def test_a_read_that_utf8_cannot_say_is_not_counted_and_harms_no_count(project: Path) -> None:
    put(project, "retry-limits.md", RETRIES)
    memory.read(project, "retry-limits")
    reading = memory.read(project, "retry-limits", agent="caf\udce9")
    assert reading.text == RETRIES
    assert "the read was not counted" in reading.warning
    assert [line["access_count"] for line in log_lines(project)] == [1]
    odd = shutil.copytree(project, project.parent / os.fsdecode(b"caf\xe9"))
    (odd / ".nexus" / "state" / "rolecall" / "memory-access.jsonl").unlink()
    assert "the read was not counted" in memory.read(odd, "retry-limits").warning


def test_categories_and_pattern_are_those_of_the_vocabulary() -> None:
    file = Path(memory.__file__).parent / "data" / "vocabulary" / "memory_policy.yml"
    policy = yaml.safe_load(file.read_text())
    assert tuple(entry["id"] for entry in policy["categories"]) == note_name.CATEGORIES
    assert [entry["prefix"] for entry in policy["categories"]] == [f"{one}-" for one in note_name.CATEGORIES]
    assert policy["naming"]["pattern"] == f"^{note_name.PATTERN.pattern}$"


# -- links --


def test_links_are_neither_read_nor_written_nor_listed(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.md"
    outside.write_text("secret of another folder\n")
    put(project, "plain-note.md", RETRIES)
    (project / ".nexus" / "memory" / "linked-note.md").symlink_to(outside)
    with pytest.raises(UsageError, match="is a link or a folder"):
        memory.read(project, "linked-note")
    with pytest.raises(UsageError, match="exists already"):
        add(project, "linked-note", RELEASES)
    with pytest.raises(UsageError, match="is a link or a folder"):
        add(project, "other-note", RELEASES, into="linked-note")
    assert outside.read_text() == "secret of another folder\n"
    assert [each.name for each in note.list_notes(project, "memory")] == ["plain-note.md"]


def test_a_folder_of_notes_that_is_a_link_is_refused(project: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (project / ".nexus" / "memory").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a link"):
        add(project, "retry-limits", RETRIES)
    assert list((tmp_path / "elsewhere").iterdir()) == []


# -- adding --


def test_a_note_is_written_as_it_was_given_and_ends_with_a_line_break(project: Path) -> None:
    made = add(project, "retry-limits", f"\n{RETRIES}\n\n", category="external")
    assert made["name"] == "external-retry-limits.md"
    assert made["category"] == "external"
    assert Path(made["path"]).read_text() == RETRIES


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("  \n", "empty"),
        ("a\0b", "NUL"),
        ("ü" * 40_000, "80,001 bytes"),
        ("a \ud800 b", "which UTF-8 cannot say"),
    ],
)
def test_a_text_that_is_no_note_is_refused(project: Path, text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        add(project, "retry-limits", text)
    assert note.list_notes(project, "memory") == []


def test_a_note_that_exists_is_never_written_over(project: Path) -> None:
    path = put(project, "retry-limits.md", RELEASES)
    for is_new in (False, True):
        with pytest.raises(UsageError, match="exists already") as caught:
            add(project, "retry-limits", RETRIES, is_new=is_new)
        assert "`into` retry-limits.md" in caught.value.hint
    assert path.read_text() == RELEASES


def test_a_lesson_on_the_subject_of_a_note_is_not_made_another_note(project: Path) -> None:
    put(project, "retry-limits.md", RETRIES)
    put(project, "release-steps.md", RELEASES)
    with pytest.raises(memory.NoteOverlap) as caught:
        add(project, "api-rate-limit", RETRIES_AGAIN)
    (match,) = caught.value.matches
    assert match.name == "retry-limits.md"
    assert similarity.OVERLAP <= match.score <= 1
    assert {"429", "upstream", "exponentially", "blocked"} <= set(match.shared)
    assert "exponentially" in caught.value.message
    assert "into='retry-limits.md' or is_new=True" in caught.value.__notes__[0]
    assert len(note.list_notes(project, "memory")) == 2


def test_a_lesson_goes_into_the_note_that_is_named_with_a_heading(project: Path) -> None:
    path = put(project, "retry-limits.md", RETRIES)
    done = add(project, "api-rate-limit", RETRIES_AGAIN, into="retry-limits")
    assert done["name"] == "retry-limits.md"
    assert done["created"] is False
    text = path.read_text()
    assert text.startswith(RETRIES)
    assert "\n\n## Api rate limit\n\n*Added 20" in text
    assert text.endswith(RETRIES_AGAIN)
    assert len(note.list_notes(project, "memory")) == 1


def test_a_lesson_is_kept_apart_when_that_is_said(project: Path) -> None:
    put(project, "retry-limits.md", RETRIES)
    assert add(project, "api-rate-limit", RETRIES_AGAIN, is_new=True)["created"]


def test_notes_of_two_categories_are_apart_unless_they_say_the_same(project: Path) -> None:
    put(project, "external-retry-limits.md", RETRIES)
    other = "Our own client was blocked for an hour after five retries; back off exponentially, measured in May.\n"
    assert memory.find_overlaps(project, "client-blocked.md", other)[0].score >= similarity.OVERLAP
    assert add(project, "client-blocked", other, category="empirical")["created"]
    with pytest.raises(memory.NoteOverlap):
        add(project, "rate-limits", RETRIES, category="pattern")


def test_growing_by_parts_ends_at_the_size_of_a_note(project: Path) -> None:
    put(project, "retry-limits.md", "word " * 13_000)
    with pytest.raises(UsageError, match="65,536 at most"):
        add(project, "more-words", "word " * 200, into="retry-limits")


# -- likeness --

LOCKING = (
    "SQLite in WAL mode lets one writer and many readers work at once. With busy_timeout at 5 s eight writers never\n"
    "saw SQLITE_BUSY in a run of 10,000 transactions. Without it one in forty failed.\n"
)
STARTING = "Starting the CLI costs 90 ms. The version command takes 25 ms because it imports nothing."
KOREAN = "업스트림 서버는 분당 60개 요청 이후 429 응답을 보낸다. 재시도는 지수 백오프를 사용한다."
CHINESE = "上游服务器每分钟接受六十个请求，之后返回429。重试必须使用指数退避。"

SAME_SUBJECT = {
    ("retry limits", RETRIES): (
        "api throttling",
        "The API blocks our key for an hour after too many retries. Honour the Retry-After header on 429.",
    ),
    ("release steps", RELEASES): (
        "release checklist",
        "Before a release: changelog entry, version bump, tag, build the wheel and run the smoke test.",
    ),
    ("sqlite locking", LOCKING): (
        "sqlite busy errors",
        "SQLITE_BUSY appears with several writers unless busy_timeout is set; WAL mode with 5 s had no failures.",
    ),
    ("재시도 제한", KOREAN): ("서버 제한", "업스트림 서버는 429 응답을 보낸다. 지수 백오프를 사용한다."),
    ("重试限制", CHINESE): ("服务器限制", "请求过多时上游服务器会返回429，所以必须使用指数退避再重试。"),
}
OTHER_SUBJECT = {
    ("retry limits", RETRIES): (
        "api pagination",
        "The upstream API returns at most 100 entries a page; the cursor is in the Link header for an hour.",
    ),
    ("startup cost", STARTING): (
        "version output",
        "The version command prints the name and the version, and nothing else, so scripts can cut it.",
    ),
    ("sqlite locking", LOCKING): (
        "sqlite format",
        "The SQLite file has a page size of 4096 bytes; vacuum rewrites it and needs twice the space.",
    ),
    ("release steps", RELEASES): ("retry limits", RETRIES),
    ("重试限制", CHINESE): ("发布步骤", "发布之前更新版本号，写变更日志，构建安装包。"),
}


@pytest.mark.parametrize(("first", "second"), SAME_SUBJECT.items())
def test_notes_on_one_subject_are_above_the_threshold(
    first: tuple[str, str], second: tuple[str, str]
) -> None:
    one, other = similarity.profile(*first), similarity.profile(*second)
    found = similarity.measure_likeness(one, other)
    assert found.score >= similarity.OVERLAP
    assert found.score == similarity.measure_likeness(other, one).score
    assert found.shared


@pytest.mark.parametrize(("first", "second"), OTHER_SUBJECT.items())
def test_notes_on_two_subjects_are_below_the_threshold(
    first: tuple[str, str], second: tuple[str, str]
) -> None:
    one, other = similarity.profile(*first), similarity.profile(*second)
    assert similarity.measure_likeness(one, other).score < similarity.OVERLAP


def test_a_score_is_the_share_of_the_shorter_note_that_both_have() -> None:
    short, long = similarity.profile("", "queue cached"), similarity.profile("", "queues drop caching timers")
    # two words and their pair make three; the longer note has both words, not the pair
    assert similarity.measure_likeness(short, long) == similarity.Likeness(0.67, ("queue", "cached"))
    assert similarity.measure_containment(long, short).score == 0.29
    assert similarity.measure_likeness(similarity.profile("", ""), long).score == 0


def test_a_word_of_the_name_counts_twice() -> None:
    one, other = similarity.profile("queue", "timers"), similarity.profile("queue", "locks")
    assert similarity.measure_likeness(one, other).score == 0.67
    assert similarity.measure_likeness(one, similarity.profile("timers", "queue")).score == 0.67


def test_no_note_that_contains_another_is_overlooked() -> None:
    chance, words = random.Random(7), ["queue", "retry", "timer", "lock", "page"]
    texts = [" ".join(chance.choices(words, k=chance.randint(3, 12))) for _ in range(60)]
    profiles = {str(at): similarity.profile("", text) for at, text in enumerate(texts)}
    near = similarity.find_similar({**profiles, "": similarity.profile("", "")})
    containing = {
        (one, other)
        for one in profiles
        for other in profiles
        if one != other
        and similarity.measure_containment(profiles[one], profiles[other]).score > similarity.CONTAINED
    }
    assert containing
    assert containing <= {(one, other) for one, others in near.items() for other in others}


# -- secrets --


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "a private key"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----", "a private key"),
        ("key AKIA" + "ABCDEFGHIJKLMNOP", "an AWS access key"),
        ("token ghp_" + "a1" * 18, "a GitHub token"),
        ("use sk-" + "ant-api03-abcdefghijkl", "an API key"),
        ("my-sk-" + "ant-api03-abcdefghijkl", "an API key"),
        ("xoxb-" + "12345678901-abc", "a Slack token"),
        ("AIza" + "b" * 35, "a Google API key"),
        ("eyJ" + "hbGciOiJIUzI1" + ".eyJ" + "zdWIiOiIxMjM0" + "." + "x" * 20, "a JSON Web Token"),
        ("id-eyJ" + "hbGciOiJIUzI1" + ".eyJ" + "zdWIiOiIxMjM0" + "." + "x" * 20, "a JSON Web Token"),
        ("Authorization: Bearer " + "abc123" * 5, "a bearer token"),
        ("postgresql://app:hunter22@db/main", "a password in an address"),
    ],
)
def test_a_text_with_a_key_in_it_is_refused_without_showing_the_key(text: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        keyscan.refuse_secrets(f"first line\n{text}\n", NOTHING)
    assert f"line 2 holds {what}" in caught.value.message
    assert text.split()[-1] not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://USER:PASSWORD@HOST/DATABASE",
        "https://user:<password>@host/ and https://user:$PASSWORD@host/",
        "The prefix sk- means a secret key; ghp_ a GitHub token.",
        "sk-is-a-prefix-that-many-providers-use",
        "Authorization: Bearer is the header's form.",
        "-----BEGIN CERTIFICATE-----",
    ],
)
def test_a_text_about_keys_is_kept(text: str) -> None:
    keyscan.refuse_secrets(text, NOTHING)


def test_what_has_the_form_of_a_secret_is_taken_whole() -> None:
    token = "eyJ" + "hbGciOiJIUzI1" + ".eyJ" + "zdWIiOiIxMjM0" + "." + "x" * 20
    assert keyscan.PATTERNS["a JSON Web Token"].sub("", f"a {token} b") == "a  b"
    assert keyscan.PATTERNS["an API key"].sub("", "a sk-" + "a1" * 300 + " b") == "a  b"


@pytest.mark.parametrize(
    "part",
    [
        "sk-",
        "eyJ-",
        "eyJaaaaaaaaaaa.",
        "github_pat_",
        "glpat-",
        "xoxb-",
        "://a:",
        "Authorization: Bearer ",
        "AIza-",
    ],
)
def test_no_text_takes_long_to_be_looked_through_for_secrets(part: str) -> None:
    began = time.process_time()
    with suppress(UsageError):
        keyscan.refuse_secrets(part * (note.LARGEST // len(part)), NOTHING)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "part", ["+", "a+", "a", "-", ".", "@", "a/", "a+/", "`a.", "./", "é", "superseded by "]
)
def test_no_note_takes_long_to_be_judged(project: Path, part: str) -> None:
    put(project, "long-note.md", part * (300_000 // len(part)), days=20)
    began = time.process_time()
    memory_gc.candidates(project, at=NOW)
    assert time.process_time() - began < 4


def test_a_known_secret_is_refused_by_its_value(project: Path) -> None:
    mask = Mask(["hunter2hunter2"])
    with pytest.raises(UsageError, match="line 3 holds the value of a secret") as caught:
        memory.add(project, "login-steps", "one\ntwo\nuse hunter2hunter2\n", mask=mask)
    assert "hunter2" not in caught.value.message
    with pytest.raises(UsageError, match="secret"):
        rule.add(project, "login", "use hunter2hunter2", mask=mask)
    assert note.list_notes(project, "memory") == note.list_notes(project, "rules") == []


# -- reading, and the log of reads --


def test_reading_counts_and_the_log_keeps_to_its_schema(project: Path, shared_data: Path) -> None:
    path = put(project, "retry-limits.md", RETRIES)
    assert memory.read(project, "retry-limits", at=before(2)) == memory.NoteReading(RETRIES, "")
    memory.read(project, "retry-limits.md", agent="engineer", at=before(1))
    (line,) = log_lines(project)
    assert line == {
        "path": str(path),
        "last_accessed_ts": before(1),
        "access_count": 2,
        "last_agent": "engineer",
    }
    schemas = shared_data / "nexus-0.10.0" / "conformance" / "state-schemas"
    schema = json.loads((schemas / "memory-access.schema.json").read_text())
    jsonschema_rs.validate(schema, line)


def test_a_read_that_is_reported_late_counts_but_is_not_the_last(project: Path) -> None:
    path = put(project, "retry-limits.md", RETRIES)
    assert memory_access.observe(project, str(path), "engineer", before(1))
    assert memory_access.observe(project, str(path), "tester", before(5))
    assert memory_access.observe(
        project, ".nexus/memory/retry-limits.md", "writer", "2026-05-20T01:00:00+02:00"
    )
    (line,) = log_lines(project)
    assert (line["access_count"], line["last_agent"], line["last_accessed_ts"]) == (3, "engineer", before(1))


def test_a_project_reached_through_a_link_has_one_line_for_a_note(project: Path, tmp_path: Path) -> None:
    put(project, "retry-limits.md", RETRIES)
    (tmp_path / "alias").symlink_to(project)
    memory.read(project, "retry-limits")
    memory.read(tmp_path / "alias", "retry-limits")
    assert memory_access.observe(project, str(tmp_path / "alias/.nexus/memory/retry-limits.md"), "lead", NOW)
    assert [line["access_count"] for line in log_lines(project)] == [3]


@pytest.mark.parametrize(
    "path",
    [
        *("README.md", ".nexus/memory", ".nexus/memory/none.md", ".nexus/rules/some-rule.md", "/etc/passwd"),
        *("no\ud800path/retry-limits.md", "no\0path/retry-limits.md"),
    ],
)
def test_only_memory_notes_are_observed(project: Path, path: str) -> None:
    put(project, "retry-limits.md", RETRIES)
    rule.add(project, "some-rule", "Keep it short.", mask=NOTHING)
    assert not memory_access.observe(project, path, "lead", NOW)
    assert memory_access.read(project) == {}


@pytest.mark.parametrize(
    ("agent", "at"), [("", NOW), ("lead", "yesterday"), ("lead", "2026-02-31T00:00:00Z")]
)
def test_a_read_without_reader_or_time_is_refused(project: Path, agent: str, at: str) -> None:
    path = put(project, "retry-limits.md", RETRIES)
    with pytest.raises(UsageError, match="cannot be recorded"):
        memory_access.observe(project, str(path), agent, at)


def test_two_logs_are_joined_by_adding_the_counts() -> None:
    ours = memory_access.Access("/p/a.md", before(3), 2, "lead")
    theirs = memory_access.Access("/p/a.md", before(1), 5, "tester")
    other = memory_access.Access("/p/b.md", before(1), 1, "lead")
    assert memory_access.merge([ours, theirs, other]) == {
        "/p/a.md": memory_access.Access("/p/a.md", before(1), 7, "tester"),
        "/p/b.md": other,
    }


@pytest.mark.parametrize("line", ["{", "[]", '{"path": "/x"}', '{"path": "/x", "odd": 1}'])
def test_a_damaged_log_is_kept_and_named_and_the_note_is_read_all_the_same(project: Path, line: str) -> None:
    put(project, "retry-limits.md", RETRIES)
    put(project, "release-steps.md", RELEASES)
    memory.read(project, "retry-limits")
    file = project / ".nexus" / "state" / "rolecall" / "memory-access.jsonl"
    damaged = file.read_text() + line + "\n"
    file.write_text(damaged)
    reading = memory.read(project, "retry-limits")
    assert reading.text == RETRIES
    assert str(file) in reading.warning
    assert "line 2" in reading.warning
    with pytest.raises(Damaged, match="line 2"):
        memory.list_notes(project)
    commit_all(project)
    with pytest.raises(Damaged, match="line 2"):
        memory_gc.delete(project, ["retry-limits"])
    with pytest.raises(Damaged, match="line 2"):
        memory.merge(project, "release-steps", "retry-limits")
    assert file.read_text() == damaged
    assert (project / ".nexus" / "memory" / "retry-limits.md").exists()
    (copy,) = (file.parent / "damaged").iterdir()
    assert copy.read_text() == damaged


def test_looking_writes_nothing(project: Path) -> None:
    put(project, "retry-limits.md", RETRIES, days=400)
    before_looking = sorted(project.rglob("*"))
    memory.list_notes(project)
    rule.list_rules(project)
    note.list_notes(project, "context")
    memory_gc.candidates(project)
    assert sorted(project.rglob("*")) == before_looking


def test_the_list_says_how_often_and_when_each_note_was_read(project: Path) -> None:
    path = put(project, "empirical-sqlite-busy.md", RETRIES, days=3.5)
    put(project, "release-steps.md", RELEASES)
    (project / ".nexus" / "memory" / "notes.txt").write_text("no note\n")
    memory.read(project, "empirical-sqlite-busy", agent="tester", at=before(1))
    first, second = memory.list_notes(project, at=NOW)
    assert first == {
        "name": "empirical-sqlite-busy.md",
        "category": "empirical",
        "size": len(RETRIES),
        "lastAccess": before(1),
        "lastAgent": "tester",
        "accessCount": 1,
        "ageDays": 3,
        "path": str(path),
    }
    assert (second["category"], second["lastAccess"], second["accessCount"]) == ("", None, 0)


def test_a_note_that_is_not_there_is_said_with_those_that_are(project: Path) -> None:
    put(project, "retry-limits.md", RETRIES)
    with pytest.raises(NotFound) as caught:
        memory.read(project, "retry-limit")
    assert "Did you mean retry-limits.md?" in caught.value.hint


# -- several at once --

_READER = """
import sys
from rolecall.nexus import memory
for _ in range(int(sys.argv[2])):
    assert memory.read(sys.argv[1], "retry-limits", agent=sys.argv[3]).warning == ""
"""
_ADDER = """
import sys
from rolecall.errors import UsageError
from rolecall.settings.mask import Mask
from rolecall.nexus import memory
try:
    memory.add(sys.argv[1], "retry-limits", sys.argv[2], mask=Mask([]))
    print("made")
except UsageError as error:
    print(error.message)
"""


def together(script: str, arguments: list[list[str]]) -> list[str]:
    """What several processes print that run the same script at once."""
    children = [
        subprocess.Popen([sys.executable, "-c", script, *each], stdout=subprocess.PIPE, text=True)
        for each in arguments
    ]
    printed = [child.communicate(timeout=60)[0].strip() for child in children]
    assert [child.returncode for child in children] == [0] * len(children)
    return printed


def test_the_counts_of_eight_readers_at_once_add_up_exactly(project: Path) -> None:
    put(project, "retry-limits.md", RETRIES)
    together(_READER, [[str(project), "25", f"agent-{number}"] for number in range(8)])
    assert [line["access_count"] for line in log_lines(project)] == [200]


def test_of_several_who_add_one_name_one_wins_and_the_others_are_told(project: Path) -> None:
    texts = [
        f"Lesson {number} of the queue: {'abcdef'[number] * 5} {'ghijkl'[number] * 5}." for number in range(6)
    ]
    printed = together(_ADDER, [[str(project), text] for text in texts])
    assert sorted(word == "made" for word in printed) == [False] * 5 + [True]
    assert all("exists already" in word for word in printed if word != "made")
    winner = texts[printed.index("made")]
    assert (project / ".nexus" / "memory" / "retry-limits.md").read_text() == winner + "\n"


# -- deleting --


def restore(project: Path, message: str, *, folder: Path | None = None) -> str:
    """Run the command that a commit's message holds, as a user would, in a shell."""
    commands = [line.strip() for line in message.splitlines() if line.startswith("    git checkout ")]
    assert commands
    for command in commands:
        subprocess.run(command, shell=True, cwd=folder or project, check=True, capture_output=True)
    return commands[0]


def test_deletion_is_a_commit_of_that_file_and_its_message_restores_it(project: Path) -> None:
    path = put(project, "retry-limits.md", RETRIES)
    put(project, "release-steps.md", RELEASES)
    memory.read(project, "retry-limits")
    memory.read(project, "release-steps")
    parent = commit_all(project)
    (done,) = memory_gc.delete(project, ["retry-limits"])
    assert not path.exists()
    assert git(project, "rev-parse", "HEAD") == done["commit"]
    assert git(project, "show", "--name-status", "--format=", "HEAD") == "D\t.nexus/memory/retry-limits.md"
    assert git(project, "rev-parse", "HEAD^") == parent
    assert git(project, "log", "-1", "--format=%an <%ae>") == "Ada <ada@example.org>"
    assert git(project, "status", "--porcelain") == ""
    assert [Path(line["path"]).name for line in log_lines(project)] == ["release-steps.md"]
    message = git(project, "log", "-1", "--format=%B")
    (project / "deep" / "er").mkdir(parents=True)
    assert restore(project, message, folder=project / "deep" / "er") == done["restore"]
    assert path.read_text() == RETRIES


def test_the_text_can_be_read_after_history_was_rewritten(project: Path) -> None:
    put(project, "retry-limits.md", RETRIES)
    commit_all(project)
    memory_gc.delete(project, ["retry-limits"])
    message = git(project, "log", "-1", "--format=%B")
    (command,) = [line.strip() for line in message.splitlines() if "git cat-file" in line]
    git(project, "commit", "--amend", "--quiet", "--allow-empty", "-m", "Another word for it")
    done = subprocess.run(shlex.split(command), cwd=project, capture_output=True, text=True, check=True)
    assert done.stdout == RETRIES


def test_what_the_user_has_staged_and_changed_stays_out_of_the_commit(project: Path) -> None:
    put(project, "retry-limits.md", RETRIES)
    (project / "other.txt").write_text("one\n")
    commit_all(project)
    (project / "README.md").write_text("# Staged\n")
    (project / "new.txt").write_text("new\n")
    git(project, "add", "README.md", "new.txt")
    (project / "other.txt").write_text("two\n")
    status = git(project, "status", "--porcelain")
    memory_gc.delete(project, ["retry-limits"])
    assert git(project, "show", "--name-only", "--format=", "HEAD") == ".nexus/memory/retry-limits.md"
    assert git(project, "status", "--porcelain") == status


def test_the_users_hooks_do_not_run_for_a_deletion(project: Path) -> None:
    put(project, "retry-limits.md", RETRIES)
    commit_all(project)
    (project / ".git" / "hooks").mkdir()
    for name in ("pre-commit", "commit-msg", "post-commit"):
        hook = project / ".git" / "hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {shlex.quote(str(project / 'ran'))}\nexit 1\n")
        hook.chmod(0o755)
    memory_gc.delete(project, ["retry-limits"])
    assert not (project / "ran").exists()


def test_a_project_in_a_folder_of_a_repository_with_odd_names(tmp_path: Path) -> None:
    top = tmp_path / "top"
    inner = top / "it's [a] project*"
    inner.mkdir(parents=True)
    git(top, "init", "--quiet")
    (top / "it's a project").mkdir()
    put(top / "it's a project", "retry-limits.md", RELEASES)
    path = put(inner, "retry-limits.md", RETRIES)
    git(top, "-c", "user.name=A", "-c", "user.email=a@b", "add", "--all")
    git(top, "-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "-m", "All")
    put(top / "it's a project", "retry-limits.md", "changed, and the pattern of the other's name fits it\n")
    memory_gc.delete(inner, ["retry-limits"])
    assert git(top, "log", "-1", "--format=%an") == "Rolecall", "git knows no user here"
    assert len(git(top, "show", "--name-only", "--format=", "HEAD").splitlines()) == 1
    restore(inner, git(top, "log", "-1", "--format=%B"))
    assert path.read_text() == RETRIES


def assert_stays(project: Path, why: str, todo: str) -> None:
    path = project / ".nexus" / "memory" / "retry-limits.md"
    text = path.read_text()
    with pytest.raises(RolecallError, match=why) as caught:
        memory_gc.delete(project, ["release-steps", "retry-limits"])
    assert todo in caught.value.hint
    assert path.read_text() == text
    assert (project / ".nexus" / "memory" / "release-steps.md").exists(), "all or none"


def test_outside_git_deletion_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "retry-limits.md", RETRIES)
    put(tmp_path, "release-steps.md", RELEASES)
    assert_stays(tmp_path, "is not in a git repository", "Put the project under git")


def test_a_note_that_git_does_not_have_is_not_deleted_and_the_hint_makes_it_possible(project: Path) -> None:
    put(project, "release-steps.md", RELEASES)
    commit_all(project)
    (project / ".gitignore").write_text("retry-limits.md\n")
    put(project, "retry-limits.md", RETRIES)
    assert_stays(project, "is not committed", "Commit it first: `git -C ")
    with pytest.raises(UsageError) as caught:
        memory_gc.delete(project, ["retry-limits"])
    for command in caught.value.hint.split("`")[1::2]:
        subprocess.run(command, shell=True, cwd="/", check=True, capture_output=True)
    assert len(memory_gc.delete(project, ["retry-limits"])) == 1


@pytest.mark.parametrize("hidden_by", ["nothing", "staged", "staged and undone", "assume-unchanged"])
def test_a_note_with_changes_that_are_not_committed_is_not_deleted(project: Path, hidden_by: str) -> None:
    path = put(project, "retry-limits.md", RETRIES)
    put(project, "release-steps.md", RELEASES)
    commit_all(project)
    if hidden_by == "assume-unchanged":
        git(project, "update-index", "--assume-unchanged", str(path))
    path.write_text(RETRIES + "More.\n")
    if hidden_by.startswith("staged"):
        git(project, "add", str(path))
    if hidden_by == "staged and undone":
        path.write_text(RETRIES)
    assert_stays(project, "changes that are not committed", "Commit it first")


def test_a_commit_that_git_refuses_leaves_the_note_where_it_was(project: Path) -> None:
    put(project, "retry-limits.md", RETRIES)
    put(project, "release-steps.md", RELEASES)
    commit_all(project)
    git(project, "checkout", "--quiet", "-b", "side")
    (project / "README.md").write_text("side\n")
    commit_all(project)
    git(project, "checkout", "--quiet", "main")
    (project / "README.md").write_text("main\n")
    head = commit_all(project)
    subprocess.run(["git", "-C", str(project), "merge", "side"], capture_output=True, check=False)
    assert_stays(project, "git made no commit in .*: a merge is under way", "finish a merge")
    assert git(project, "rev-parse", "HEAD") == head


# -- repositories of every kind --


def two_notes(project: Path) -> Path:
    put(project, "release-steps.md", RELEASES)
    path = put(project, "retry-limits.md", RETRIES)
    commit_all(project)
    return path


def assert_deleted(project: Path, path: Path) -> str:
    """A note goes by a commit of that note alone, and comes back by its message; the commit."""
    before = git(project, "status", "--porcelain")
    (done,) = memory_gc.delete(project, ["retry-limits"])
    assert not path.exists()
    assert git(project, "rev-parse", "HEAD") == done["commit"]
    assert git(project, "show", "--name-status", "--format=", "HEAD").split("\t")[0] == "D"
    assert git(project, "ls-files", "--", str(path)) == ""
    assert git(project, "status", "--porcelain") == before
    git(project, "fsck", "--strict")
    restore(project, git(project, "log", "-1", "--format=%B"))
    assert path.read_text() == RETRIES
    return str(done["commit"])


def test_on_a_detached_head_the_commit_is_made_there_and_no_branch_moves(project: Path) -> None:
    path = two_notes(project)
    git(project, "checkout", "--quiet", "--detach")
    main = git(project, "rev-parse", "main")
    commit = assert_deleted(project, path)
    assert git(project, "rev-parse", "main") == main
    assert git(project, "rev-parse", "HEAD^") == main
    assert commit in git(project, "reflog", "show", "--format=%H", "HEAD")


def test_on_a_branch_without_commits_deletion_is_refused(project: Path) -> None:
    two_notes(project)
    git(project, "checkout", "--quiet", "--orphan", "empty")
    assert_stays(project, "is not committed", "Commit it first")


def test_in_a_second_work_tree_its_own_branch_and_index_change(project: Path, tmp_path: Path) -> None:
    two_notes(project)
    second = tmp_path / "second"
    git(project, "worktree", "add", "--quiet", "-b", "side", str(second))
    (second / "README.md").write_text("# Staged\n")
    git(second, "add", "README.md")
    assert_deleted(second, second / ".nexus" / "memory" / "retry-limits.md")
    assert git(project, "status", "--porcelain") == ""
    assert git(project, "rev-parse", "main") == git(second, "rev-parse", "side^")


def test_in_a_submodule_the_commit_is_the_submodules(repository: Path, project: Path, tmp_path: Path) -> None:
    two_notes(project)
    outer = shutil.copytree(repository, tmp_path / "outer")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "--quiet", str(project), "part")
    head = commit_all(outer)
    part = outer / "part"
    git(part, "config", "user.name", "Ada")
    git(part, "config", "user.email", "ada@example.org")
    assert_deleted(part, part / ".nexus" / "memory" / "retry-limits.md")
    assert git(outer, "rev-parse", "HEAD") == head
    assert git(outer, "status", "--porcelain").split() == ["M", "part"]


@pytest.mark.parametrize(
    "options",
    [
        ["core.splitIndex=true"],
        ["index.version=4", "core.untrackedCache=true"],
        ["core.autocrlf=true"],
        ["core.sharedRepository=group"],
        ["i18n.commitEncoding=ISO-8859-1"],
        ["commit.gpgSign=true", "gpg.program=/bin/false", "user.signingKey=none"],
        ["core.hooksPath=hooks", "commit.template=none", "commit.cleanup=scissors"],
        ["core.logAllRefUpdates=false", "receive.denyDeletes=true"],
    ],
    ids=lambda options: options[0],
)
def test_with_any_configuration_a_deletion_is_the_same_commit(project: Path, options: list[str]) -> None:
    path = two_notes(project)
    (project / "hooks").mkdir()
    hook = project / "hooks" / "reference-transaction"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    commit_all(project)
    for option in options:
        git(project, "config", *option.split("="))
    if "core.splitIndex=true" in options:
        git(project, "update-index", "--split-index")
    (project / "README.md").write_text("# Grüße\n")
    git(project, "add", "README.md")
    files = sorted(path.name for path in (project / ".git").iterdir() if "sharedindex" not in path.name)
    assert memory_gc.delete(project, ["retry-limits"])
    assert not path.exists()
    assert git(project, "status", "--porcelain") == "M  README.md"
    assert {*(path.name for path in (project / ".git").iterdir() if "sharedindex" not in path.name)} <= {
        *files
    }
    assert "encoding" not in git(project, "cat-file", "commit", "HEAD").split("\n\n")[0]
    assert "gpgsig" not in git(project, "cat-file", "commit", "HEAD")


def test_a_repository_with_sha256_names_is_like_any_other(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    git(project, "init", "--quiet", "--object-format=sha256", "--template=")
    git(project, "config", "user.name", "Ada")
    git(project, "config", "user.email", "ada@example.org")
    add(project, "queue-timers", "Timers of the queue are dropped.")
    assert len(assert_deleted(project, two_notes(project))) == 64


def test_a_separate_folder_of_git_is_found(project: Path, tmp_path: Path) -> None:
    path = two_notes(project)
    git(project, "init", "--quiet", "--separate-git-dir", str(tmp_path / "elsewhere"))
    assert_deleted(project, path)


def test_a_sparse_checkout_keeps_what_it_leaves_out(project: Path) -> None:
    (project / "far").mkdir()
    (project / "far" / "file.txt").write_text("far\n")
    path = two_notes(project)
    git(project, "sparse-checkout", "set", "--cone", "--sparse-index", ".nexus/memory")
    assert not (project / "far").exists()
    memory_gc.delete(project, ["retry-limits"])
    assert not path.exists()
    assert git(project, "status", "--porcelain") == ""
    assert git(project, "show", "HEAD:far/file.txt") == "far"


@pytest.mark.parametrize("what", ["cherry-pick", "revert", "rebase", "bisection"])
def test_while_git_has_something_under_way_deletion_is_refused(project: Path, what: str) -> None:
    two_notes(project)
    git(project, "checkout", "--quiet", "-b", "side")
    (project / "README.md").write_text("side\n")
    commit_all(project)
    git(project, "checkout", "--quiet", "main")
    for text in ("main\n", "main again\n"):
        (project / "README.md").write_text(text)
        commit_all(project)
    command = {
        "cherry-pick": ["cherry-pick", "side"],
        "revert": ["revert", "HEAD^"],
        "rebase": ["rebase", "side"],
        "bisection": ["bisect", "start"],
    }[what]
    subprocess.run(["git", "-C", str(project), *command], capture_output=True, check=False)
    assert_stays(project, f"git made no commit in .*: .*{what}.* is under way", "Nothing was removed")


def test_during_a_conflict_in_another_file_deletion_is_refused(project: Path) -> None:
    path = two_notes(project)
    (project / "README.md").write_text("stashed\n")
    git(project, "stash", "--quiet")
    (project / "README.md").write_text("committed\n")
    commit_all(project)
    subprocess.run(["git", "-C", str(project), "stash", "pop"], capture_output=True, check=False)
    conflict = git(project, "ls-files", "--unmerged")
    assert conflict
    with pytest.raises(StorageError, match="a conflict is not resolved yet"):
        memory_gc.delete(project, ["retry-limits"])
    assert path.exists()
    assert git(project, "ls-files", "--unmerged") == conflict


def test_a_note_with_a_conflict_is_not_deleted(project: Path) -> None:
    path = two_notes(project)
    path.write_text("stashed\n")
    git(project, "stash", "--quiet")
    path.write_text("committed\n")
    commit_all(project)
    subprocess.run(["git", "-C", str(project), "stash", "pop"], capture_output=True, check=False)
    path.write_text("committed\n")
    assert_stays(project, "changes that are not committed", "Commit it first")


def test_a_lock_of_git_is_named_and_left(project: Path) -> None:
    two_notes(project)
    lock = project / ".git" / "index.lock"
    lock.write_text("of an editor that is open")
    assert_stays(project, r"index\.lock'.*exists", "Nothing was removed")
    assert lock.read_text() == "of an editor that is open"
    assert sorted(path.name for path in lock.parent.glob("index*")) == ["index", "index.lock"]


def test_a_change_that_looks_like_none_by_time_and_size_is_still_seen_by_git(project: Path) -> None:
    two_notes(project)
    readme, index = project / "README.md", project / ".git" / "index"
    git(project, "config", "core.trustctime", "false")
    readme.write_text("one\n")
    commit_all(project)
    moment = index.stat().st_mtime_ns - 10**12
    os.utime(readme, ns=(moment, moment))
    git(project, "update-index", "--refresh")
    os.utime(index, ns=(moment, moment))
    readme.write_text("two\n")
    os.utime(readme, ns=(moment, moment))
    assert git(project, "--no-optional-locks", "status", "--porcelain") == "M README.md"
    memory_gc.delete(project, ["retry-limits"])
    assert git(project, "status", "--porcelain") == "M README.md"


# -- who commits --

_DELETER = """
import sys
from rolecall.nexus import memory_gc
memory_gc.delete(sys.argv[1], ["retry-limits"])
"""


@pytest.mark.parametrize(
    ("configured", "variables", "author", "committer"),
    [
        ("Ada", {}, "Ada <ada@example.org>", "Ada <ada@example.org>"),
        ("", {}, "Rolecall <rolecall@localhost>", "Rolecall <rolecall@localhost>"),
        (
            "Ada",
            {"GIT_AUTHOR_NAME": "Bob", "GIT_AUTHOR_EMAIL": "bob@example.org"},
            "Bob <bob@example.org>",
            "Ada <ada@example.org>",
        ),
        (
            "",
            {"GIT_COMMITTER_NAME": "Bot", "GIT_COMMITTER_EMAIL": "bot@example.org"},
            "Rolecall <rolecall@localhost>",
            "Bot <bot@example.org>",
        ),
        (
            "",
            {
                "GIT_AUTHOR_NAME": "Bob",
                "GIT_AUTHOR_EMAIL": "bob@example.org",
                "GIT_COMMITTER_NAME": "Bot",
                "GIT_COMMITTER_EMAIL": "bot@example.org",
            },
            "Bob <bob@example.org>",
            "Bot <bot@example.org>",
        ),
        ("", {"GIT_AUTHOR_NAME": "Bob"}, "Bob <rolecall@localhost>", "Rolecall <rolecall@localhost>"),
    ],
)
def test_the_commit_is_by_whom_the_environment_names_else_git_else_ourselves(
    project: Path, configured: str, variables: dict[str, str], author: str, committer: str
) -> None:
    two_notes(project)
    if not configured:
        git(project, "config", "--unset", "user.name")
        git(project, "config", "--unset", "user.email")
    environment = {**os.environ, "GIT_AUTHOR_DATE": "2001-02-03T04:05:06Z", **variables}
    subprocess.run([sys.executable, "-c", _DELETER, str(project)], env=environment, check=True)
    assert git(project, "log", "-1", "--format=%an <%ae>") == author
    assert git(project, "log", "-1", "--format=%cn <%ce>") == committer
    assert git(project, "log", "-1", "--format=%aI")[:19] == "2001-02-03T04:05:06"


def test_an_identity_that_git_refuses_is_told_and_nothing_is_removed(project: Path) -> None:
    path = two_notes(project)
    environment = {**os.environ, "GIT_AUTHOR_NAME": ""}
    done = subprocess.run(
        [sys.executable, "-c", _DELETER, str(project)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "git made no commit" in done.stderr
    assert "empty ident name" in done.stderr
    assert path.exists()
    assert git(project, "status", "--porcelain") == ""


# -- merging --


def test_merging_joins_the_texts_and_removes_the_second_by_a_commit(project: Path) -> None:
    first = put(project, "retry-limits.md", RETRIES)
    second = put(project, "external-api-limits.md", "# Limits\n\nSixty requests a minute.\n")
    memory.read(project, "retry-limits", at=before(3))
    memory.read(project, "external-api-limits", agent="tester", at=before(1))
    parent = commit_all(project)
    done = memory.merge(project, "retry-limits", "external-api-limits")
    assert (done["name"], done["removed"]) == ("retry-limits.md", ["external-api-limits.md"])
    assert not second.exists()
    text = first.read_text()
    assert text.startswith(RETRIES)
    assert f"## Api limits\n\n*From external-api-limits.md ({parent[:12]}), merged 20" in text
    assert text.endswith("# Limits\n\nSixty requests a minute.\n")
    assert git(project, "status", "--porcelain") == ""
    changed = git(project, "show", "--name-status", "--format=", "HEAD").splitlines()
    assert sorted(changed) == ["D\t.nexus/memory/external-api-limits.md", "M\t.nexus/memory/retry-limits.md"]
    (line,) = log_lines(project)
    assert (Path(line["path"]).name, line["access_count"], line["last_agent"]) == (
        "retry-limits.md",
        2,
        "tester",
    )
    restore(project, git(project, "log", "-1", "--format=%B"))
    assert second.read_text() == "# Limits\n\nSixty requests a minute.\n"


def test_merging_into_a_new_note_removes_both(project: Path) -> None:
    first = put(project, "retry-limits.md", RETRIES)
    second = put(project, "release-steps.md", RELEASES)
    commit_all(project)
    (project / "README.md").write_text("# Staged\n")
    git(project, "add", "README.md")
    done = memory.merge(project, "retry-limits", "release-steps", into="pattern-all-steps")
    text = Path(done["path"]).read_text()
    assert text.startswith("# All steps\n\n## Retry limits\n\n*From retry-limits.md (")
    assert text.index(RETRIES) < text.index(RELEASES)
    assert not first.exists()
    assert not second.exists()
    assert git(project, "status", "--porcelain") == "M  README.md"
    restore(project, git(project, "log", "-1", "--format=%B"))
    assert (first.read_text(), second.read_text()) == (RETRIES, RELEASES)


@pytest.mark.parametrize("into", [None, "all-the-steps"])
@pytest.mark.parametrize("file", ["index.lock", "MERGE_HEAD"])
def test_a_merge_that_git_refuses_leaves_everything_as_it_was(
    project: Path, file: str, into: str | None
) -> None:
    first, second = put(project, "retry-limits.md", RETRIES), put(project, "release-steps.md", RELEASES)
    head = commit_all(project)
    obstacle = project / ".git" / file
    obstacle.write_text(f"{head}\n" if file == "MERGE_HEAD" else "")
    with pytest.raises(StorageError, match=r"index\.lock'.*exists|a merge is under way"):
        memory.merge(project, "retry-limits", "release-steps", into=into)
    obstacle.unlink()
    assert (first.read_text(), second.read_text()) == (RETRIES, RELEASES)
    assert git(project, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("names", "into", "why"),
    [
        (("retry-limits", "retry-limits.md"), None, "with itself"),
        (("retry-limits", "release-steps"), "one", "with 1 word"),
        (("retry-limits", "release-steps"), "third-note", "exists already"),
        (("retry-limits", "none-such"), None, "none-such.md does not exist"),
        (("retry-limits", "fresh-note"), None, "is not committed"),
    ],
)
def test_a_merge_that_cannot_be_is_refused_before_anything_is_changed(
    project: Path, names: tuple[str, str], into: str | None, why: str
) -> None:
    for name in ("retry-limits.md", "release-steps.md", "third-note.md"):
        put(project, name, RETRIES)
    head = commit_all(project)
    put(project, "fresh-note.md", RELEASES)
    with pytest.raises(RolecallError, match=why):
        memory.merge(project, *names, into=into)
    assert git(project, "rev-parse", "HEAD") == head
    assert git(project, "status", "--porcelain") == "?? .nexus/memory/fresh-note.md"


def test_a_merge_into_a_name_that_the_index_still_has_is_refused(project: Path) -> None:
    two_notes(project)
    put(project, "all-steps.md", "staged, and nowhere else\n")
    git(project, "add", "--all")
    (project / ".nexus" / "memory" / "all-steps.md").unlink()
    with pytest.raises(UsageError, match=r"git's index has \.nexus/memory/all-steps\.md"):
        memory.merge(project, "retry-limits", "release-steps", into="all-steps")
    assert git(project, "show", ":.nexus/memory/all-steps.md") == "staged, and nowhere else"


def test_a_merged_note_keeps_its_mode_and_the_line_ends_of_the_repository(project: Path) -> None:
    (project / ".gitattributes").write_text("*.md text eol=crlf\n")
    first = put(project, "retry-limits.md", RETRIES)
    first.chmod(0o755)
    put(project, "release-steps.md", RELEASES)
    commit_all(project)
    memory.merge(project, "retry-limits", "release-steps")
    assert git(project, "ls-files", "--stage", str(first)).startswith("100755 ")
    assert first.stat().st_mode & 0o777 == 0o755
    assert "\r" not in git(project, "cat-file", "blob", "HEAD:.nexus/memory/retry-limits.md")
    assert git(project, "status", "--porcelain") == ""


# -- what may be forgotten --


def signals(project: Path) -> Mapping[str, list[str]]:
    found = memory_gc.candidates(project, at=NOW)
    return {candidate.note.name: [signal.id for signal in candidate.signals] for candidate in found}


def read_often(project: Path, name: str, *, times: int, at: str) -> None:
    with state_file.hold_lock(project):
        access = memory_access.Access(memory_access.key(project, name), at, times, "lead")
        memory_access.rewrite(project, lambda log: memory_access.merge([*log.values(), access]))


def test_unread_is_a_read_long_ago_or_none_while_others_were_read(project: Path) -> None:
    for name, text in {
        "long-ago": RETRIES,
        "read-lately": RELEASES,
        "never-read": "Queues drop timers.",
    }.items():
        put(project, f"{name}.md", text, days=30)
    read_often(project, "long-ago.md", times=1, at=before(memory.THRESHOLDS.unread_days))
    read_often(project, "read-lately.md", times=18, at=before(memory.THRESHOLDS.unread_days - 1))
    assert signals(project) == {"long-ago.md": ["unread"]}, "too few reads to tell of the note that has none"
    read_often(project, "read-lately.md", times=1, at=before(1))
    assert signals(project) == {"long-ago.md": ["unread"], "never-read.md": ["unread"]}


def test_unchanged_is_a_file_not_written_for_long(project: Path) -> None:
    put(project, "old-note.md", RETRIES, days=memory.THRESHOLDS.unchanged_days)
    put(project, "newer-note.md", RELEASES, days=memory.THRESHOLDS.unchanged_days - 1)
    assert signals(project) == {"old-note.md": ["unchanged"]}


def test_superseded_is_the_older_of_two_that_say_the_same_and_never_both(project: Path) -> None:
    put(project, "retry-limits.md", RETRIES, days=20)
    put(project, "retries-limit.md", RETRIES, days=30)
    put(project, "release-steps.md", RELEASES, days=30)
    (candidate,) = memory_gc.candidates(project, at=NOW)
    assert candidate.note.name == "retries-limit.md"
    assert candidate.signals[0].id == "superseded"
    assert "also in retry-limits.md: " in candidate.signals[0].reason


def test_superseded_is_the_shorter_one_that_a_longer_one_holds(project: Path) -> None:
    put(project, "retry-limits.md", RETRIES + RELEASES, days=40)
    put(project, "retry-limits-short.md", RETRIES, days=20)
    assert signals(project) == {"retry-limits-short.md": ["superseded"]}


def test_superseded_is_a_note_that_names_its_successor(project: Path) -> None:
    put(project, "retry-limits.md", "Superseded by `release-steps.md`.\n", days=20)
    put(project, "other-limits.md", "Replaced by no-such-note.md.\n", days=20)
    put(project, "release-steps.md", RELEASES, days=20)
    assert signals(project) == {"retry-limits.md": ["superseded"]}


def test_gone_is_a_note_whose_paths_the_repository_had_and_has_no_more(project: Path) -> None:
    for path in ("src/queue.py", "src/old/deep.py", "src/kept.py", "top.toml"):
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text("x\n")
    commit_all(project)
    for path in ("src/queue.py", "src/old/deep.py", "top.toml"):
        (project / path).unlink()
    (project / "src" / "old").rmdir()
    commit_all(project)
    put(
        project,
        "names-gone.md",
        "See `src/queue.py:12` and src/old/ and `top.toml`; src/kept.py stays.\n",
        days=20,
    )
    put(project, "names-both.md", "See src/queue.py, src/kept.py and `README.md`.\n", days=20)
    put(
        project,
        "names-never.md",
        "Read and/or write; https://example.org/src/queue.py; GET /src/queue.py\n",
        days=20,
    )
    never = " ".join(f"made/up{number}.py" for number in range(6))
    put(project, "names-more.md", f"See src/queue.py and {never}.\n", days=20)
    (candidate,) = memory_gc.candidates(project, at=NOW)
    assert candidate.note.name == "names-gone.md"
    assert candidate.signals == (
        memory_gc.ForgetSignal(
            "gone",
            "names paths that the repository has no more: src/queue.py, src/old, top.toml; it names 4",
        ),
    )


def test_half_of_the_paths_that_a_note_names_are_enough(project: Path) -> None:
    (project / "gone.py").write_text("x\n")
    commit_all(project)
    (project / "gone.py").unlink()
    commit_all(project)
    put(project, "names-half.md", "See `gone.py` and made/up.py.\n", days=20)
    assert signals(project) == {"names-half.md": ["gone"]}


def all_four(project: Path, name: str = "retries-limit.md") -> Path:
    """A note that everything speaks against; `retry-limits.md` is its newer double."""
    (project / "gone.py").write_text("x\n")
    commit_all(project)
    (project / "gone.py").unlink()
    put(project, "retry-limits.md", RETRIES, days=20)
    path = put(project, name, f"{RETRIES}In `gone.py`.\n", days=400)
    read_often(project, "retry-limits.md", times=30, at=before(1))
    commit_all(project)
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime))
    return path


def test_a_note_written_lately_is_no_candidate(project: Path) -> None:
    path = all_four(project)
    assert signals(project) == {path.name: ["unread", "unchanged", "superseded", "gone"]}
    lately = (datetime.fromisoformat(NOW) - timedelta(days=memory.THRESHOLDS.grace_days - 1)).timestamp()
    os.utime(path, (lately, lately))
    assert signals(project).get(path.name) is None


def test_nothing_is_deleted_without_asking_unless_it_was_switched_on(project: Path) -> None:
    path = all_four(project)
    with pytest.raises(UsageError, match="not switched on") as caught:
        memory_gc.delete_automatically(project, is_enabled=False, at=NOW)
    assert "Switch it on" in caught.value.hint
    assert path.exists()


def test_automatic_deletion_takes_what_three_signals_speak_against_and_says_why(project: Path) -> None:
    path = all_four(project)
    done = memory_gc.delete_automatically(project, is_enabled=True, at=NOW)
    (deleted,) = done["deleted"]
    assert deleted["name"] == path.name
    assert deleted["signals"] == ["unread", "unchanged", "superseded", "gone"]
    assert done["stayed"] == []
    assert not path.exists()
    assert [each.name for each in note.list_notes(project, "memory")] == ["retry-limits.md"]
    message = git(project, "log", "-1", "--format=%B")
    assert "unread: never read, while 30 reads of other notes were counted" in message
    restore(project, message)
    assert path.read_text().startswith(RETRIES)


@pytest.mark.parametrize("missing", ["unread", "unchanged", "superseded"])
def test_two_signals_delete_nothing(project: Path, missing: str) -> None:
    put(project, "retry-limits.md", RELEASES if missing == "superseded" else RETRIES, days=20)
    put(project, "retries-limit.md", RETRIES, days=100 if missing == "unchanged" else 400)
    read_often(project, "retry-limits.md", times=1 if missing == "unread" else 30, at=before(1))
    head = commit_all(project)
    assert len(signals(project)["retries-limit.md"]) == 2
    assert memory_gc.delete_automatically(project, is_enabled=True, at=NOW) == {"deleted": [], "stayed": []}
    assert git(project, "rev-parse", "HEAD") == head


def test_two_notes_that_name_each_other_as_successor_are_not_both_deleted(project: Path) -> None:
    put(project, "first-note.md", "Queues drop timers. Superseded by second-note.md.\n", days=400)
    put(project, "second-note.md", "Locks wait for ever. Superseded by first-note.md.\n", days=400)
    put(project, "third-note.md", RELEASES, days=1)
    read_often(project, "third-note.md", times=30, at=before(1))
    commit_all(project)
    done = memory_gc.delete_automatically(project, is_enabled=True, at=NOW)
    assert [entry["name"] for entry in done["deleted"]] == ["first-note.md"]


def test_what_cannot_be_restored_stays_and_the_rest_goes(project: Path) -> None:
    path = all_four(project)
    put(project, "another-limit.md", f"{RETRIES}In `gone.py`!\n", days=500)
    done = memory_gc.delete_automatically(project, is_enabled=True, at=NOW)
    assert [entry["name"] for entry in done["deleted"]] == [path.name]
    (stayed,) = done["stayed"]
    assert stayed["name"] == "another-limit.md"
    assert "is not committed" in stayed["reason"]
    assert (project / ".nexus" / "memory" / "another-limit.md").exists()


def test_a_new_note_under_the_name_of_one_removed_by_hand_begins_at_nothing(project: Path) -> None:
    put(project, "retry-limits.md", RETRIES)
    put(project, "release-steps.md", RELEASES)
    memory.read(project, "retry-limits")
    commit_all(project)
    (project / ".nexus" / "memory" / "retry-limits.md").unlink()
    memory_gc.delete(project, ["release-steps"])
    assert log_lines(project) == []


def test_forgetting_needs_a_note_as_git_has_it_up_to_the_last_moment(project: Path) -> None:
    path = put(project, "retry-limits.md", RETRIES)
    head = commit_all(project)
    kept = forget.find_kept(project, "retry-limits")
    path.write_text("changed by an agent meanwhile\n")
    with state_file.hold_lock(project) as lock, pytest.raises(StorageError, match="local modifications"):
        forget.remove(project, lock, [kept], subject="x", why="y")
    assert path.read_text() == "changed by an agent meanwhile\n"
    assert git(project, "rev-parse", "HEAD") == head


# -- rules --


def test_a_rule_keeps_its_tags_and_is_listed_by_them(project: Path) -> None:
    made = rule.add(project, "css", "Use tokens.", mask=NOTHING, tags=["frontend", "style", "frontend"])
    rule.add(project, "commit-messages", "One line says what changed.", mask=NOTHING)
    assert Path(made["path"]).read_text() == "<!-- tags: frontend, style -->\n\nUse tokens.\n"
    assert [(entry["name"], entry["tags"]) for entry in rule.list_rules(project)] == [
        ("commit-messages.md", []),
        ("css.md", ["frontend", "style"]),
    ]
    assert [entry["name"] for entry in rule.list_rules(project, tag="style")] == ["css.md"]
    assert rule.read(project, "commit-messages") == "One line says what changed.\n"
    with pytest.raises(UsageError, match="exists already"):
        rule.add(project, "css", "Other.", mask=NOTHING)


@pytest.mark.parametrize(
    ("name", "tag"), [("Front End", "a"), ("front--end", "a"), ("style", "Front end"), ("style", "")]
)
def test_a_rule_with_a_wrong_name_or_tag_is_refused(project: Path, name: str, tag: str) -> None:
    with pytest.raises(UsageError):
        rule.add(project, name, "Text.", mask=NOTHING, tags=[tag])
    assert rule.list_rules(project) == []


def test_context_is_listed(project: Path) -> None:
    folder = project / ".nexus" / "context"
    folder.mkdir(parents=True)
    (folder / "Architecture.md").write_text("# How it is built\n")
    assert [each.name for each in note.list_notes(project, "context")] == ["Architecture.md"]


# -- no trace of a call that reads or is refused --


REFUSED: dict[str, Callable[[Path], object]] = {
    "merge": lambda project: memory.merge(project, "some-note", "other-note"),
    "delete": lambda project: memory_gc.delete(project, ["some-note"]),
    "add into": lambda project: memory.add(project, "new-note", "text", mask=NOTHING, into="some-note"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_call_about_a_note_that_is_not_there_makes_no_folders(tmp_path: Path, what: str) -> None:
    with pytest.raises(NotFound, match=r"some-note\.md"):
        REFUSED[what](tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_reading_a_note_makes_nothing_that_git_would_see(project: Path) -> None:
    (project / ".nexus" / ".gitignore").unlink()
    put(project, "some-note.md", "text\n")
    commit_all(project)
    assert memory.read(project, "some-note") == memory.NoteReading("text\n", "")
    assert git(project, "status", "--porcelain", "--ignored") == ""
    memory.add(project, "queue-timers", "Quite another subject.", mask=NOTHING)
    memory.read(project, "some-note")
    assert [entry["accessCount"] for entry in memory.list_notes(project)] == [0, 1]

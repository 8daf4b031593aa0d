"""Comments, rights and requests for a merge on both forges, and what happens when a forge fails."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from forge_jobs import forge
from forgestage import TOKEN, Failure
from forgestage import Forge as Stand

from rolecall.errors import NotFound, StorageError, UsageError
from rolecall.forge.client import ChangeRequest, Forge, GitHub, GitLab
from rolecall.forge.event import Person, Subject

__all__ = ["forge"]
ISSUE, CHANGE = Subject("issue", 12), Subject("change", 3)
MARK = "<!-- rolecall 01 -->"
Connect = Callable[..., Forge]


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture(params=["github", "gitlab"])
def connect(request: pytest.FixtureRequest, forge: Stand, waits: list[float]) -> Connect:
    def connect(token: str = TOKEN, project: str = "") -> Forge:
        if request.param == "github":
            return GitHub(forge.address, project or "o/r", token, wait=waits.append)
        return GitLab(forge.address, project or "5", token, wait=waits.append)

    return connect


def test_only_who_may_push_may_answer(connect: Connect, forge: Stand) -> None:
    people = {"alice": True, "reader": False, "mallory": False, "../../alice": False}
    ids = {**forge.writers, **forge.readers}
    assert {name: connect().may_write(Person(name, ids.get(name, "../x"))) for name in people} == people


def test_our_comment_is_changed_instead_of_added(connect: Connect, forge: Stand) -> None:
    for number in range(5):
        forge.comments.append({"id": number, "on": 12, "body": f"Comment {number}"})
    ident = connect().comment(ISSUE, f"{MARK}\nFirst", mark=MARK, known="")
    assert connect().comment(ISSUE, f"{MARK}\nSecond", mark=MARK, known=ident) == ident
    # Its id was lost: it is found on the third page.
    assert connect().comment(ISSUE, f"{MARK}\nThird", mark=MARK, known="") == ident
    assert [one["body"] for one in forge.comments][5:] == [f"{MARK}\nThird"]
    # Somebody has deleted it.
    forge.comments.pop()
    connect().comment(ISSUE, f"{MARK}\nFourth", mark=MARK, known=ident)
    connect().comment(CHANGE, f"{MARK}\nElsewhere", mark=MARK, known="")
    assert [one["body"] for one in forge.comments][5:] == [f"{MARK}\nFourth", f"{MARK}\nElsewhere"]


def test_a_request_for_a_merge_is_opened_once_and_then_changed(connect: Connect, forge: Stand) -> None:
    asked = ChangeRequest("rolecall/issue-12", "main", "Fix it", "First")
    address = connect().open_request(asked)
    assert connect().open_request(asked._replace(text="Second")) == address
    [opened] = forge.requests
    assert "Second" in (opened.get("body"), opened.get("description"))
    number = connect().open_issue("Waits", f"{MARK}\nText", mark=MARK)
    assert connect().open_issue("Waits", f"{MARK}\nText", mark=MARK) == number


@pytest.mark.parametrize(
    ("failure", "pause"),
    [
        (Failure(500), 2.0),
        (Failure(502, is_late=True), 2.0),
        (Failure(429, {"Retry-After": "7"}), 7.0),
        (Failure(403, {"Retry-After": "3"}), 3.0),
        (Failure(403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}), 0.0),
    ],
)
def test_a_failure_that_may_pass_is_tried_again_and_creates_nothing_twice(
    connect: Connect, forge: Stand, waits: list[float], failure: Failure, pause: float
) -> None:
    forge.failures = [failure._replace(on="POST ")]
    connect().comment(ISSUE, f"{MARK}\nText", mark=MARK, known="")
    assert len(forge.comments) == 1 and waits == [pause]


def test_a_forge_that_keeps_failing_is_an_error(connect: Connect, forge: Stand, waits: list[float]) -> None:
    forge.failures = [Failure(503)] * 4
    with pytest.raises(StorageError, match="503"):
        connect().may_write(Person("alice", "7"))
    assert waits == [2.0, 4.0, 8.0]
    later = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(time.time()) + 3000)}
    forge.failures = [Failure(403, later)]
    with pytest.raises(StorageError, match="403"):  # a job does not wait that long
        connect().may_write(Person("alice", "7"))
    assert len(waits) == 3


def test_a_refusal_says_what_to_do_and_never_shows_the_token(connect: Connect, forge: Stand) -> None:
    with pytest.raises(UsageError, match="401") as caught:
        connect(token="wrong-token").comment(ISSUE, MARK, mark=MARK, known="")
    assert "ROLECALL_FORGE_TOKEN" in caught.value.hint and "wrong-token" not in str(caught.value)
    forge.failures = [Failure(403)]
    with pytest.raises(UsageError, match="403"):
        connect().comment(ISSUE, MARK, mark=MARK, known="")
    with pytest.raises(NotFound, match="404"):
        connect(project="9/9").comment(ISSUE, MARK, mark=MARK, known="")
    forge.failures = [Failure(301, {"Location": f"{forge.address}/elsewhere"})]
    with pytest.raises(UsageError, match="301"):
        connect().comment(ISSUE, MARK, mark=MARK, known="")
    assert not any("elsewhere" in one for one in forge.seen)


def test_a_connection_that_breaks_is_tried_again(waits: list[float]) -> None:
    with pytest.raises(StorageError, match="failed"):
        GitHub("http://127.0.0.1:1", "o/r", TOKEN, wait=waits.append).may_write(Person("alice"))
    assert len(waits) == 3

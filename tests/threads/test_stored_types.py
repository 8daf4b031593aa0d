"""The types of a thread's nodes. A changed id would make the threads in every existing store unreadable."""

from __future__ import annotations

import pytest

from rolecall.store import canonical
from rolecall.store.ids import node_id
from rolecall.store.store import META
from rolecall.threads import thread

IDS = {
    "ANSWER_SCHEMA": "8HRAMWD36MWDJ",
    "BY_PERSON_SCHEMA": "DYNC6PWZQAFZ8",
    "DETAIL_SCHEMA": "D8S9SH6ZKASY3",
    "ERROR_SCHEMA": "55032JT6WP0HV",
    "FILES_SCHEMA": "CA8BPX2R5H6J1",
    "FORK_SCHEMA": "4PB2ZCJBWSWY7",
    "ITEMS_SCHEMA": "BE91MJ5RNEKD8",
    "MEMBER_SCHEMA": "A16KEB4BFS34J",
    "OLDER_START_SCHEMA": "EYME5QC7NYFB0",
    "PERSON_SCHEMA": "DPW0CMTXVKJMN",
    "PROMPT_SCHEMA": "65TXDY4A0452T",
    "ROSTER_SCHEMA": "CSV1SX2WCNYM7",
    "SESSION_SCHEMA": "AJVPD7BAB023X",
    "START_SCHEMA": "44P8EP6N3NXZ5",
    "STEP_SCHEMA": "108DB063KRQWW",
    "SUSPENSION_SCHEMA": "9A890BGJC7T19",
    "TREE_SCHEMA": "DW3XAKFP0X9H2",
}
VERSIONS = {
    "ATTEMPT_SCHEMAS": ["1R4P8WF98S78A", "8QMWSB8RARXP2", "7R29PXH02Z7MM"],
    "RECORD_SCHEMAS": [
        *("9V30BF9R9B8KM", "7WCZD9BZFH6SD", "2YKBEBDG8KYST", "68S3K5KKD5ZN1"),
        *("EZEF6ZDGM0484", "A804PNZ2ZNQZW", "B8AP2QV2400G1"),
    ],
}


@pytest.mark.parametrize("name", IDS)
def test_a_type_keeps_its_id(name: str) -> None:
    assert node_id(META, canonical.encode(getattr(thread, name))) == IDS[name]


@pytest.mark.parametrize("name", VERSIONS)
def test_every_version_of_a_type_keeps_its_id(name: str) -> None:
    assert [node_id(META, canonical.encode(one)) for one in getattr(thread, name)] == VERSIONS[name]


def test_every_type_is_known_here() -> None:
    oldest = {"ATTEMPT_SCHEMA", "RECORD_SCHEMA"}
    assert {name for name in vars(thread) if name.endswith("_SCHEMA")} == set(IDS) | oldest
    assert {name for name in vars(thread) if name.endswith("_SCHEMAS")} == set(VERSIONS)

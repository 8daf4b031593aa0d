"""The types of a thread's nodes. A changed id would make the threads in every existing store unreadable."""

from __future__ import annotations

import pytest

from rolecall.store import canonical
from rolecall.store.ids import node_id
from rolecall.store.store import META
from rolecall.threads import thread

IDS = {
    "ANSWER_SCHEMA": "8HRAMWD36MWDJ",
    "ATTEMPT_SCHEMA": "1R4P8WF98S78A",
    "BY_PERSON_SCHEMA": "DYNC6PWZQAFZ8",
    "BY_RECORD_SCHEMA": "A804PNZ2ZNQZW",
    "DETAIL_SCHEMA": "D8S9SH6ZKASY3",
    "ERROR_SCHEMA": "55032JT6WP0HV",
    "FILES_SCHEMA": "CA8BPX2R5H6J1",
    "FORK_SCHEMA": "4PB2ZCJBWSWY7",
    "GROUP_RECORD_SCHEMA": "7WCZD9BZFH6SD",
    "ITEMS_SCHEMA": "BE91MJ5RNEKD8",
    "KEY_RECORD_SCHEMA": "68S3K5KKD5ZN1",
    "MEMBER_SCHEMA": "A16KEB4BFS34J",
    "OLDER_START_SCHEMA": "EYME5QC7NYFB0",
    "PERSON_SCHEMA": "DPW0CMTXVKJMN",
    "PROMPT_SCHEMA": "65TXDY4A0452T",
    "RECORD_SCHEMA": "9V30BF9R9B8KM",
    "REUSED_RECORD_SCHEMA": "EZEF6ZDGM0484",
    "ROSTER_SCHEMA": "CSV1SX2WCNYM7",
    "SANDBOX_ATTEMPT_SCHEMA": "7R29PXH02Z7MM",
    "SANDBOX_RECORD_SCHEMA": "B8AP2QV2400G1",
    "SESSION_SCHEMA": "AJVPD7BAB023X",
    "START_SCHEMA": "44P8EP6N3NXZ5",
    "STEP_SCHEMA": "108DB063KRQWW",
    "SUSPENSION_SCHEMA": "9A890BGJC7T19",
    "TREE_ATTEMPT_SCHEMA": "8QMWSB8RARXP2",
    "TREE_RECORD_SCHEMA": "2YKBEBDG8KYST",
    "TREE_SCHEMA": "DW3XAKFP0X9H2",
}


@pytest.mark.parametrize("name", IDS)
def test_a_type_keeps_its_id(name: str) -> None:
    assert node_id(META, canonical.encode(getattr(thread, name))) == IDS[name]


def test_every_type_is_known_here() -> None:
    assert {name for name in vars(thread) if name.endswith("_SCHEMA")} == set(IDS)

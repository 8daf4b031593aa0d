"""Service, zygote, workers and agents are killed at random while a group runs: every member gives one result, and none
that has finished is asked again.

What is killed, and when, is as in `test_chaos.py`. A thread that waits for its group has no step that could be hit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from servicestage import done
from test_chaos import IS_SOAK, OVER, Chaos

from rolecall.threads.state import group_name, read_threads

KILLS = 80 if IS_SOAK else 20
SIZE = 100
FLOW = f"""
name: {{name}}
description: A hundred members
roles:
  member:
    times: {SIZE}
    at_once: 8
    workdir: shared
    goal: Work.
    schema: {{{{type: object, properties: {{{{$status: {{{{enum: [done]}}}}}}}}, required: [$status]}}}}
graph: {{{{$START: member, member: {{{{done: $END, partly: $FAIL, failed: $FAIL}}}}}}}}
"""


class GroupChaos(Chaos):
    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self.parents: list[str] = []
        work = [["sh", "-c", f"echo ${{ROLECALL_RUN%%/*}} >> {self.log}; sleep 0.0$(( $$ % 9 + 1 ))"]]
        self.agent = self.service.script(member=done(run=work))
        self.flow = self.service.workflow("hundred", FLOW)

    def run(self) -> None:
        self.start()
        while self.done.total() < KILLS:
            self.refill()
            self.wait(self.chance.randint(1, 60))
            self.strike()
        self.service.ended(*self.parents)
        self.refill()

    def refill(self) -> None:
        if not self.parents or (
            self.done.total() < KILLS and self.service.thread_status(self.parents[-1]) in OVER
        ):
            self.parents.append(self.service.enter(self.flow, self.agent))
        self.names = [ref.id for ref in read_threads(self.service.store)]

    def hit(self, kind: str, service: int) -> bool:
        self.refill()  # while the service stands still, nothing more is admitted
        return super().hit(kind, service)

    def head(self, name: str) -> str:
        """A turn of a thread that plays a group does not move its head."""
        group = self.service.store.ref(group_name(name))
        return f"{super().head(name)}/{group.version if group else 0}"

    def judge(self) -> None:
        service, worked = self.service, Counter(self.log.read_text().split())
        assert [service.thread_status(name) for name in self.parents] == ["completed"] * len(self.parents)
        for parent in self.parents:
            [step] = service.steps(parent)
            members = step.output["members"]
            assert [one["number"] for one in members] == list(range(1, SIZE + 1))
            assert {one["status"] for one in members} == {"done"}
            for one in members:
                name = one["id"]
                hits = self.hits[name]
                assert 1 <= worked.pop(name) <= 1 + hits, (name, hits)
                assert [event.kind for event in service.events(name)].count("step") == 1
        assert not worked and len(self.names) == len(self.parents) * (SIZE + 1)
        service.assert_clean()


@pytest.fixture
def chaos(tmp_path: Path) -> Iterator[GroupChaos]:
    chaos = GroupChaos(tmp_path, 7)
    yield chaos
    chaos.service.close()


def test_random_kills_of_everything_ask_no_finished_member_again(chaos: GroupChaos) -> None:
    chaos.run()
    chaos.bell.__exit__()
    chaos.service.stop()
    chaos.judge()
    assert chaos.done.total() >= KILLS

"""A process that lets one hostile command play a role; tells how the step ended and how much memory it took."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import stage

from rolecall.agents.adapters.command import command
from rolecall.settings.mask import Mask

WARM_UP = "cat > /dev/null; printf -- '---\\n$status: done\\n---\\nA report.\\n'"


def main(store_path: str, work: str, script: str, timeout: str) -> None:
    store = stage.open_store(Path(store_path))
    folder = Path(work)
    mask = Mask(["a-secret-value"])
    # An ordinary step first, so that what is measured is the hostile one and not the imports.
    warm = stage.start(store, stage.book(stage.LOOP), folder)
    stage.run(stage.engine(store, command(["/bin/sh", "-c", WARM_UP]), mask=mask), warm, steps=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    name = stage.start(store, stage.book(stage.LOOP), folder)
    agent = command([sys.executable, "-I", "-S", script], timeout=float(timeout))
    (outcome,) = stage.run(stage.engine(store, agent, mask=mask), name, steps=1)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"thread": name, "status": outcome.status, "reason": outcome.reason, "grown": grown}))


if __name__ == "__main__":
    main(*sys.argv[1:])

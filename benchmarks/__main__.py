"""`python -m benchmarks [--quick]`: every benchmark in turn, each with its table."""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3

from benchmarks import (
    agents,
    engine,
    files,
    fleet,
    groups,
    hooks,
    knowledge,
    mcp,
    project,
    reuse,
    sandbox,
    service,
    startup,
    store,
    threads,
    tryout,
    web,
)

_ALL = {
    "startup": startup.main,
    "store": store.main,
    "engine": engine.main,
    "files": files.main,
    "groups": groups.main,
    "reuse": reuse.main,
    "threads": threads.main,
    "try": tryout.main,
    "agents": agents.main,
    "sandbox": sandbox.main,
    "mcp": mcp.main,
    "project": project.main,
    "service": service.main,
    "fleet": fleet.main,
    "hooks": hooks.main,
    "knowledge": knowledge.main,
    "web": web.main,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(_ALL)}")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, a fraction of the time")
    options = parser.parse_args()
    unknown = set(options.names) - set(_ALL)
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(_ALL)}")
    print(
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {platform.system()} "
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    for name in options.names or _ALL:
        print(f"\n== {name} ==", flush=True)
        _ALL[name](quick=options.quick)


if __name__ == "__main__":
    main()

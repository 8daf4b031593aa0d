"""Programs to compare with, each installed from its registry into a folder of its own, run beside us in one run.

Without the registry a peer is missing: its function says so and returns None, and the tables stand without it.
"""

from __future__ import annotations

import os
import subprocess
import sys

_NEXUS_CORE = "@moreih29/nexus-core@0.21"


def nexus_core(folder: str) -> list[str] | None:
    """The command that starts the reference server of the project contract, under bun, the runtime it is made for."""
    target = os.path.join(folder, "nexus-core")
    os.makedirs(target, exist_ok=True)
    words = ["npm", "install", "--prefix", target, "--no-audit", "--no-fund", "--silent", _NEXUS_CORE, "bun"]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        print("\nnexus-core could not be installed (npm is needed), so there is no peer to compare with")
        return None
    modules = os.path.join(target, "node_modules")
    return [
        os.path.join(modules, ".bin", "bun"),
        os.path.join(modules, "@moreih29/nexus-core/dist/mcp/server.js"),
    ]


def python_with(target: str, *packages: str) -> str | None:
    """The Python of a new environment with these packages."""
    python = os.path.join(target, "bin", "python")
    subprocess.run([sys.executable, "-m", "venv", target], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    if subprocess.run(pip, stderr=subprocess.DEVNULL).returncode:
        print(f"\n{packages[0]} could not be installed, so there is no peer to compare with")
        return None
    return python

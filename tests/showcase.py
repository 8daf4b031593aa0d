"""A project as people have it, for screenshots: long tasks, failed attempts, a large diff, a group, many threads."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from webstage import PROGRAM, Project

_TEXT = {"type": "string"}
_WORKFLOW = {
    "name": "fix-issue",
    "description": "Plan a change, make it, review it until it is right, and ask a person before it is merged.",
    "limits": {"steps": 12, "cost": 5},
    "roles": {
        "planner": {
            "description": "Reads the issue and the code, and says what to change.",
            "prompt": "Find out what is wrong and plan the smallest change that mends it.",
            "schema": {
                "type": "object",
                "properties": {
                    "status": {"const": "planned"},
                    "files": {"type": "array", "items": _TEXT},
                    "risk": {"enum": ["low", "medium", "high"]},
                },
                "required": ["status", "files", "risk"],
            },
        },
        "developer": {
            "description": "Makes the change and runs the tests.",
            "prompt": "Make the change of the plan. Run the tests.",
            "schema": {
                "type": "object",
                "properties": {"status": {"const": "done"}, "summary": _TEXT},
                "required": ["status", "summary"],
            },
        },
        "reviewer": {
            "description": "Looks at the change and decides.",
            "prompt": "Let nothing pass that is not tested.",
            "schema": {
                "type": "object",
                "properties": {"status": {"enum": ["approved", "rejected"]}, "comments": _TEXT},
                "required": ["status"],
            },
        },
        "maintainer": {
            "description": "Decides whether the change is merged.",
            "agent": "human",
            "prompt": "Look at the change as a whole, and at what the reviewer says.",
            "procedure": "1. Read the diff.\n2. Try it.\n3. Decide.",
            "schema": {
                "oneOf": [
                    {
                        "type": "object",
                        "properties": {
                            "status": {"const": "merge"},
                            "confidence": {
                                "type": "integer",
                                "minimum": 1,
                                "maximum": 5,
                                "description": "How sure you are, 1 to 5.",
                            },
                            "backport": {"type": "boolean", "description": "Also into the last release."},
                        },
                        "required": ["status", "confidence"],
                    },
                    {
                        "type": "object",
                        "properties": {"status": {"const": "change"}, "why": _TEXT},
                        "required": ["status", "why"],
                    },
                ]
            },
        },
    },
    "graph": {
        "$START": "planner",
        "planner": {"planned": "developer"},
        "developer": {"done": {"role": "reviewer", "prompt": "Check this: {{summary}}"}},
        "reviewer": {
            "rejected": {"role": "developer", "prompt": "Rejected: {{comments}}"},
            "approved": {"role": "maintainer", "prompt": "The reviewer **approves**. May it be merged?"},
        },
        "maintainer": {
            "merge": "$END",
            "change": {"role": "developer", "prompt": "The maintainer says: {{why}}"},
        },
    },
}
_GROUP = {
    "name": "translate-docs",
    "description": "Translate the guide into several languages at once.",
    "roles": {
        "translator": {
            "times": 4,
            "at_once": 2,
            "workdir": "shared",
            "prompt": "Translate the guide. You are number {{number}}.",
            "schema": {"type": "object", "properties": {"language": _TEXT}, "required": ["language"]},
        }
    },
    "graph": {"$START": "translator", "translator": {"done": "$END", "partly": "$END", "failed": "$FAIL"}},
}
_TASK = """\
The command line must say which configuration file has a key that it does not know

At present `shop check` prints *unknown key* and nothing else. People have a file in their home, one in the project and
one from the environment, so they look in the wrong one first.

- name the file and the line
- suggest the nearest known key
- keep the exit code (2), because scripts depend on it

```
$ shop check
error: unknown key `colour` in /home/ann/.config/shop/settings.toml, line 12; did you mean `color`?
```
"""
_CODE = "".join(
    f'def option_{number}(value: str) -> str:\n    """Return the option {number} as it is stored."""\n'
    f"    return value.strip().lower() or DEFAULTS[{number}]\n\n\n"
    for number in range(40)
)
_ANSWER = """\
`find_key` returned only the name. It now returns the **file and the line** as well, and `check` prints them.

| case | before | after |
|---|---|---|
| key in the project's file | `unknown key` | names `shop.toml`, line 3 |
| key from the environment | `unknown key` | names `SHOP_COLOUR` |

```python
raise UnknownKey(key, origin=place.file, line=place.line, hint=nearest(key, KNOWN))
```

The exit code is still 2.
"""
_LONG_LINE = (
    'MESSAGE = "' + "a line that is much wider than the window, as generated files have it, " * 4 + '"\n'
)


def _usage(tokens: int, cost: float) -> dict[str, Any]:
    return {"input_tokens": tokens, "output_tokens": tokens // 12, "turns": 3, "cost": cost}


def _say(*words: str) -> dict[str, Any]:
    return {"argv": ["echo", *words]}


_SCRIPT = {
    "roles": {
        "planner": [
            {
                "run": [_say("src/shop/settings.py:41: raise UnknownKey(key)"), _say("3 callers")],
                "output": {
                    "status": "planned",
                    "files": ["src/shop/settings.py", "src/shop/messages.py"],
                    "risk": "low",
                },
                "body": "The key is looked up in `find_key`, which forgets where it came from. Two files change.",
                "usage": _usage(18_450, 0.21),
            }
        ],
        "developer": [
            {
                "fail": {"ending": "failed", "reason": "the connection to the model was closed (status 529)"},
                "again": [
                    {
                        "edit": {"src/shop/settings.py": _CODE, "src/shop/messages.py": _LONG_LINE},
                        "run": [_say("211 passed in 4.02s")],
                        "output": {
                            "status": "done",
                            "summary": "unknown keys are reported with their file and line",
                        },
                        "body": _ANSWER,
                        "usage": _usage(64_200, 0.83),
                    }
                ],
            },
            {
                "edit": {
                    "src/shop/settings.py": _CODE.replace("DEFAULTS[7]", "DEFAULTS.get(7, '')"),
                    "tests/test_settings.py": "def test_unknown_key():\n    assert check('colour') == 2\n",
                },
                "run": [_say("212 passed in 4.10s")],
                "output": {
                    "status": "done",
                    "summary": "there is a test for the exit code; a missing default is empty",
                },
                "body": "Added the test that was missing.",
                "usage": _usage(31_000, 0.37),
            },
        ],
        "reviewer": [
            {
                "output": {"status": "rejected", "comments": "No test covers the exit code."},
                "body": "It does what the issue asks for, but nothing holds the exit code.",
                "usage": _usage(12_300, 0.12),
            },
            {
                "output": {"status": "approved"},
                "body": "The exit code is tested. Good.",
                "usage": _usage(9_800, 0.09),
            },
        ],
        "worker": [
            {"output": {"status": "again"}, "body": "More.", "usage": _usage(900, 0.01)},
            {"hang": True, "emit": [{"kind": "text", "text": "I read the tests first.\n"}]},
        ],
    },
}
_TRANSLATOR = """\
number=$(grep -o 'number [0-9]*' | head -n 1 | grep -o '[0-9]*$')
[ "$number" != 3 ] || { echo "the dictionary for this language is missing" >&2; exit 1; }
printf -- '---\nlanguage: number %s\n---\nTranslated **14 pages**.\n' "$number"
"""
_BROKEN = {
    "roles": {"planner": [{"fail": {"reason": "claude: your credit balance is too low to use the API"}}]}
}
_TITLES = (
    "Sort the results by date when no other order is given",
    "The report is empty if the folder has a space in its name",
    "Raise the time limit of uploads to ten minutes, and say how long one has taken so far when it ends early",
    "Remove the option --legacy-output",
    "Tests of the importer fail on Windows",
)


class Showcase(NamedTuple):
    """Threads by what they show."""

    completed: str
    asks: str
    group: str
    limited: str
    broken: str
    damaged: str
    running: str


@contextmanager
def show(project: Project, *, crowd: int = 300) -> Iterator[Showcase]:
    """Fill a project; one thread runs until the end."""
    for workflow in (_WORKFLOW, _GROUP):
        (project.folder / ".workflows" / f"{workflow['name']}.yaml").write_text(json.dumps(workflow))
    (project.folder / "agent.yaml").write_text(json.dumps(_SCRIPT))
    (project.folder / "broken.yaml").write_text(json.dumps(_BROKEN))
    (project.folder / "translator.sh").write_text(_TRANSLATOR)
    (project.folder / "README.md").write_text("# Shop\n\nIt sells things.\n")
    project.commit()
    tasks = project.home.parent / "tasks"
    tasks.write_text(
        "".join(f"{_TITLES[number % len(_TITLES)]} (#{number + 100})\n" for number in range(crowd))
    )
    project.rolecall("run", "fix-issue", "--each", str(tasks), "--detach", "--agent", "scripted:agent.yaml")

    def start(workflow: str, task: str, script: str = "agent.yaml", *limits: str) -> str:
        more = [word for limit in limits for word in ("--limit", limit)]
        return project.rolecall(
            "thread", "start", workflow, "-p", task, "--agent", f"scripted:{script}", *more
        )

    damaged = start("loop", "Count the stock")
    with sqlite3.connect(project.home / "store.db") as db:
        db.execute("UPDATE refs SET target = '0000000000000' WHERE name = ?", (f"thread/{damaged}",))
    translator = f"command:sh {project.folder}/translator.sh"
    words = ("-p", "Translate the guide for the release", "--agent", translator)
    group = project.rolecall("thread", "start", "translate-docs", *words)
    project.rolecall("thread", "run", group)
    limited = start("loop", _TITLES[2], "again.yaml", "steps=2")
    project.run(limited, code=7)
    broken = start("fix-issue", _TITLES[1], "broken.yaml")
    project.run(broken, code=7)
    done, asks = start("fix-issue", _TASK), start("fix-issue", _TASK.replace("key", "value"))
    for ident in (done, asks):
        project.run(ident, code=7)  # the first attempt of the developer fails
        project.rolecall("thread", "resume", ident, "--run", code=7)
    project.rolecall(
        "thread", "answer", done, "--output", '{"status": "merge", "confidence": 4}', "-p", "Good.", "--run"
    )
    running = start("loop", "Keep the list of dependencies in order")
    child = subprocess.Popen(
        [PROGRAM, "thread", "run", running],
        cwd=project.folder,
        env=project.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Showcase(done, asks, group, limited, broken, damaged, running)
    finally:
        child.kill()
        child.wait()

"""Breaks the project's tools in single ways and looks whether the fixtures notice: `make mutants`.

Each mutation replaces one text of one file in a copy of the sources; the copy stands first on the path of
a child that runs the fixtures in process, or tests where no fixture can say it: who calls. A mutation whose
text is no longer there, or that keeps the program from running at all, proves nothing and is an error like
one that nobody noticed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "rolecall"
FIXTURES = Path(__file__).parent / "fixtures"
_COMMAND = "from rolecall.cli import command; raise SystemExit(command())"
_PATIENCE = 120


CALLERS = "tests/nexus/test_tools_calls.py"


class Mutant(NamedTuple):
    file: str
    """Its name, seen from the folder of the tools."""
    old: str
    new: str
    breaks: str
    tests: str = ""
    """The tests that have to notice it; empty: the fixtures."""


MUTANTS = (
    # -- plan_start --
    Mutant("tools.py", 'plan["id"] = highest + 1', 'plan["id"] = history.count + 1', "plan ids count cycles"),
    Mutant(
        "tools.py",
        "highest = archive.add(project, history, old, [], sources={place.PLAN: data})[1].highest",
        "archive.add(project, history, old, [], sources={place.PLAN: data})",
        "a plan's id does not count the plan just archived",
    ),
    Mutant(
        "tools.py",
        "archive.add(project, history, old, [], sources=",
        "archive.add(project, history, old, task_list(project).get('tasks', []), sources=",
        "a replaced plan takes the tasks into its cycle",
    ),
    Mutant(
        "tools.py",
        '"previousArchived": previous is not None',
        '"previousArchived": False',
        "no word of the plan replaced",
    ),
    Mutant(
        "tools.py",
        '"issueCount": len(issues)',
        '"issueCount": len(set(issues))',
        "equal issues are counted once",
    ),
    Mutant(
        "tools.py",
        '"created": True,\n        "plan_id"',
        '"created": True,\n        "id": plan["id"],\n        "plan_id"',
        "plan_start replies with a field more",
    ),
    Mutant(
        "tools.py",
        "    with archive.writing(project):\n        previous = _read_plan(project)",
        "    if not research_summary:\n        raise WrongCall('research_summary is required')\n"
        "    with archive.writing(project):\n        previous = _read_plan(project)",
        "an empty research_summary is refused",
    ),
    Mutant(
        "tools.py",
        "        if previous:\n            old, data = previous",
        "        if previous and False:\n            old, data = previous",
        "a replaced plan is not archived",
    ),
    # -- plan_status --
    Mutant(
        "tools.py",
        '    if "research_summary" in plan:\n        reply["research_summary"] = plan["research_summary"]',
        '    reply["research_summary"] = plan.get("research_summary", "")',
        "plan_status makes up an empty research_summary",
    ),
    Mutant("tools.py", '"pending": total - decided', '"pending": total', "pending issues count decided ones"),
    Mutant(
        "tools.py",
        '"topic": plan["topic"], "issues": plan["issues"]}',
        '"topic": plan["topic"], "issues": plan["issues"], "created_at": plan["created_at"]}',
        "plan_status replies with a field more",
    ),
    Mutant(
        "tools.py",
        '"issues": plan["issues"]}\n    if',
        '"issues": [{k: i[k] for k in ("id", "title", "status")} for i in plan["issues"]]}\n    if',
        "plan_status gives issues in short",
    ),
    # -- plan_update --
    Mutant(
        "tools.py",
        '_new_issue(_next_id(plan["issues"]), title)',
        '_new_issue(len(plan["issues"]) + 1, title)',
        "the id of an added issue is the count plus one",
    ),
    Mutant(
        "tools.py",
        'plan["issues"].append(issue)',
        'plan["issues"].insert(0, issue)',
        "an added issue comes first",
    ),
    Mutant("tools.py", 'issue.pop("decision", None)', "pass", "reopen keeps the decision"),
    Mutant(
        "tools.py",
        'issue.pop("decision", None)',
        'issue.pop("decision", None)\n            issue.pop("how_agents", None)',
        "reopen forgets who was asked",
    ),
    Mutant("tools.py", 'issue["status"] = "pending"', "pass", "reopen leaves an issue decided"),
    Mutant(
        "tools.py",
        'issue["title"] = title',
        'issue |= {"title": title, "status": "pending"}',
        "edit reopens an issue",
    ),
    Mutant(
        "tools.py",
        "        plan = _active_plan(project)\n        _check_action(action, issue_id, title)\n",
        "        plan = _active_plan(project)\n        if issue_id is not None:\n            _issue(plan, issue_id)\n"
        "        _check_action(action, issue_id, title)\n",
        "plan_update looks for the issue before the action",
    ),
    Mutant(
        "dispatch.py",
        '        needs=place.PLAN,\n    ),\n    "plan_decide"',
        '    ),\n    "plan_decide"',
        "plan_update looks at its arguments before the plan",
    ),
    Mutant(
        "dispatch.py",
        '        needs=place.PLAN,\n    ),\n    "task_add"',
        '    ),\n    "task_add"',
        "plan_decide looks at its arguments before the plan",
    ),
    Mutant(
        "tools.py",
        "(issue_id is None or not title)",
        "(issue_id is None and not title)",
        "edit without a title or an id",
    ),
    Mutant(
        "tools.py",
        'action == "add" and not title',
        'action == "add" and title is None',
        "add with an empty title",
    ),
    Mutant(
        "tools.py",
        "issue_id is required for {action}",
        "issue_id is required",
        "another text for a missing id",
    ),
    Mutant(
        "tools.py", "title is required for add", "A title is required", "another text for a missing title"
    ),
    Mutant("tools.py", '"Unknown action"', '"No such action"', "another text for an unknown action"),
    Mutant(
        "tools.py", '("removed", ("id",))', '("removed", ("id", "title"))', "remove replies with a field more"
    ),
    Mutant(
        "tools.py",
        '("edited", ("id", "title"))',
        '("edited", ("id", "title", "status"))',
        "edit replies with a field more",
    ),
    Mutant(
        "tools.py",
        '("reopened", ("id", "title", "status"))',
        '("reopened", ("id",))',
        "reopen replies with the id alone",
    ),
    # -- plan_decide --
    Mutant(
        "tools.py",
        '"issue": issue["title"], "allComplete"',
        '"issue": issue_id, "allComplete"',
        "plan_decide replies with the id for the title",
    ),
    Mutant(
        "tools.py",
        '[{key: left[key] for key in ("id", "title", "status")} for left in remaining]',
        '[left["id"] for left in remaining]',
        "remaining is a list of ids",
    ),
    Mutant(
        "tools.py",
        '[{key: left[key] for key in ("id", "title", "status")} for left in remaining]',
        "remaining",
        "remaining has whole issues",
    ),
    Mutant(
        "tools.py",
        '{**reply, "message": "Every issue is decided."}',
        '{**reply, "message": "Every issue is decided.", "remaining": []}',
        "remaining is there when nothing remains",
    ),
    Mutant(
        "tools.py",
        '{**reply, "message": "Every issue is decided."}',
        "reply",
        "no message when all is decided",
    ),
    Mutant(
        "tools.py",
        'issue |= {"status": "decided", "decision": decision}',
        'issue.pop("how_agents", None)\n        issue |= {"status": "decided", "decision": decision}',
        "deciding again forgets who was asked",
    ),
    Mutant(
        "tools.py",
        'issue |= {"status": "decided", "decision": decision}',
        'if issue["status"] == "decided":\n            raise WrongCall("already decided")\n'
        '        issue |= {"status": "decided", "decision": decision}',
        "an issue cannot be decided again",
    ),
    Mutant(
        "tools.py",
        '"how_summary": how_summary, "how_agent_ids": how_agent_ids}',
        '"how_summary": how_summary}',
        "the ids of agents asked are lost",
    ),
    Mutant("tools.py", '"No active plan session"', '"No active plan"', "another text for a missing plan"),
    Mutant(
        "tools.py",
        "Issue {_whole(issue_id)} not found",
        "issue not found: {issue_id}",
        "another text for a missing issue",
    ),
    # -- task_add --
    Mutant(
        "tools.py",
        'task["id"] = file.layout.highest + 1',
        'task["id"] = file.count + 1',
        "task ids count tasks",
    ),
    Mutant(
        "tools.py",
        "_topic(project) or title",
        "title",
        "a title becomes the goal where there is a plan",
    ),
    Mutant(
        "tools.py",
        "_topic(project) or title",
        "_topic(project)",
        "without a plan the goal is empty",
    ),
    Mutant(
        "tools.py",
        '[*head["decisions"], *decisions]',
        "list(decisions)",
        "decisions take the place of earlier ones",
    ),
    Mutant(
        "tools.py",
        '[*head["decisions"], *decisions]',
        '[*decisions, *head["decisions"]]',
        "decisions are put in front",
    ),
    Mutant(
        "tools.py",
        'goal or file.layout.head["goal"]',
        'file.layout.head["goal"] or goal',
        "a goal stays what it was first",
    ),
    Mutant(
        "tools.py",
        'goal or file.layout.head["goal"] or _topic',
        "goal or _topic",
        "decisions without a goal clear the goal",
    ),
    Mutant(
        "tools.py",
        '_listed("deps", deps)],\n        "plan_issue"',
        '_listed("deps", deps)] or None,\n        "plan_issue"',
        "a task without dependencies has no deps",
    ),
    Mutant(
        "tools.py",
        '"owner_agent_id": owner_agent_id,\n        "owner_reuse_policy"',
        '"owner_reuse_policy"',
        "the id of a task's owner is lost",
    ),
    Mutant(
        "tools.py",
        '"owner_reuse_policy": owner_reuse_policy,\n        "created_at": place.now(),',
        '"owner_reuse_policy": owner_reuse_policy,',
        "a task has no created_at",
    ),
    # -- task_list --
    Mutant(
        "tools.py",
        '"blocked": statuses.count("in_progress")',
        '"blocked": statuses.count("pending") - len(ready(tasks))',
        "blocked counts what waits",
    ),
    Mutant(
        "tools.py",
        '"pending": statuses.count("pending")',
        '"pending": len(statuses) - statuses.count("completed")',
        "pending counts what is in progress",
    ),
    Mutant(
        "tools.py",
        'done = {task.id for task in tasks if task.status == "completed"}',
        "done = {dep for task in tasks for dep in task.deps} - "
        '{task.id for task in tasks if task.status != "completed"}',
        "a task that does not exist counts as completed",
    ),
    Mutant(
        "tools.py",
        "done.issuperset(task.deps)",
        "(not task.deps or done.intersection(task.deps))",
        "one dependency of several is enough",
    ),
    Mutant(
        "tools.py",
        'if task.status == "pending" and done',
        'if task.status != "completed" and done',
        "ready has tasks in progress",
    ),
    Mutant(
        "tools.py",
        '"ready": ready(tasks),',
        '"ready": sorted(ready(tasks)),',
        "ready is in the order of ids",
    ),
    Mutant(
        "tools.py",
        'return {"goal": file.layout.head["goal"], "tasks"',
        'return {"exists": True, "goal": file.layout.head["goal"], "tasks"',
        "task_list replies with a field more",
    ),
    Mutant(
        "tools.py",
        'return {"exists": False}',
        'return {"exists": False, "tasks": []}',
        "no tasks are an empty list",
    ),
    # -- task_update --
    Mutant(
        "tools.py",
        '    task["status"] = status\n',
        '    if task["status"] == "completed":\n        raise WrongCall("it is completed")\n'
        '    task["status"] = status\n',
        "a completed task cannot be reopened",
    ),
    Mutant(
        "tools.py",
        "Task id {_whole(number)} not found",
        "Task {number} not found",
        "another text for a missing task",
    ),
    Mutant("tools.py", '"tasks.json not found"', '"there are no tasks"', "another text for missing tasks"),
    Mutant(
        "tools.py",
        "    if file.layout.is_in_order:",
        "    if file.count:",
        "a task is looked for by its place",
    ),
    Mutant(
        "tools.py",
        "longlist.replaced(file, TASKS, number, task)",
        "longlist.replaced(file, TASKS, 0, task)",
        "task_update writes over the first task",
    ),
    # -- task_close --
    Mutant(
        "tools.py",
        "        sources = {place.PLAN: data} if plan else {}\n",
        "        if any(task['status'] != 'completed' for task in tasks):\n            raise WrongCall('unfinished')\n"
        "        sources = {place.PLAN: data} if plan else {}\n",
        "a cycle with unfinished tasks cannot be closed",
    ),
    Mutant(
        "tools.py",
        "        sources = {place.PLAN: data} if plan else {}\n",
        "        if plan is None and file is None:\n            raise NotThere('nothing to close')\n"
        "        sources = {place.PLAN: data} if plan else {}\n",
        "nothing active cannot be closed",
    ),
    Mutant(
        "tools.py",
        "        sources = {place.PLAN: data} if plan else {}\n",
        "        tasks = [task for task in tasks if task['status'] == 'completed']\n"
        "        sources = {place.PLAN: data} if plan else {}\n",
        "only completed tasks are archived",
    ),
    Mutant(
        "tools.py",
        '"deleted": list(sources)',
        '"deleted": ["plan.json", "tasks.json"]',
        "deleted names files that never were",
    ),
    Mutant(
        "tools.py",
        '"deleted": list(sources)',
        '"deleted": [f".nexus/state/{name}" for name in sources]',
        "deleted has paths for names",
    ),
    Mutant(
        "tools.py",
        "archive.remove_sources(project, list(sources))",
        "archive.remove_sources(project, [place.TASKS])",
        "the plan outlives its cycle",
    ),
    Mutant("tools.py", "[topic for topic in topics if topic]", "topics", "empty topics are named"),
    Mutant(
        "tools.py",
        "[topic for topic in topics if topic]",
        "[topic for topic in topics[::-1] if topic]",
        "goal before topic",
    ),
    Mutant(
        "tools.py",
        "decisions = len(_decided(plan)) if plan else 0",
        'decisions = len(plan["issues"]) if plan else 0',
        "every issue is counted as a decision",
    ),
    Mutant(
        "tools.py",
        '"total_cycles": len(layout.starts)',
        '"total_cycles": len(layout.starts) - 1',
        "the new cycle is not counted",
    ),
    Mutant(
        "tools.py",
        '"archived": {"plan": plan is not None',
        '"archived": {"plan": True',
        "a plan is archived that was not",
    ),
    Mutant(
        "tools.py",
        '"memoryHint": {\n',
        '"memoryHint": {\n            "hadLoopDetection": False,\n',
        "memoryHint has what was taken out of it",
    ),
    Mutant(
        "tools.py",
        '"cycle": cycle["completed_at"],',
        '"cycle": cycle,',
        "task_close replies with the whole cycle",
    ),
    # -- history_search --
    Mutant("tools.py", "DEFAULT_LAST = 10", "DEFAULT_LAST = 20", "more than ten cycles by default"),
    Mutant(
        "tools.py",
        "found[max(0, len(found) - int(last_n)) :]",
        "found[: int(last_n)]",
        "the oldest cycles are shown",
    ),
    Mutant(
        "tools.py",
        "found[max(0, len(found) - int(last_n)) :]",
        "found[-int(last_n) :]",
        "the last 0 cycles are all of them",
    ),
    Mutant("tools.py", '"total": len(found)', '"total": len(cycles)', "the total is what is shown"),
    Mutant("tools.py", "for number in shown]", "for number in reversed(shown)]", "newest first"),
    Mutant(
        "tools.py",
        "for issue in _decided(plan)\n        ]",
        'for issue in plan["issues"]\n        ]',
        "undecided issues are among the decisions",
    ),
    Mutant(
        "tools.py", '"task_count": len(cycle["tasks"])}', '"tasks": cycle["tasks"]}', "tasks for their number"
    ),
    Mutant(
        "tools.py",
        'if plan := cycle["plan"]:',
        'if plan := cycle["plan"] or {"topic": "-", "issues": []}:',
        "a topic without a plan",
    ),
    Mutant("archive.py", "    wanted = query.lower()", "    wanted = query", "the case of a query counts"),
    Mutant(
        "archive.py",
        "    if not wanted:\n        return range(history.count)",
        "    if not wanted:\n        return range(0)",
        "the empty query finds nothing",
    ),
    Mutant(
        "archive.py",
        "likely = _holding(history, max(words, key=len)) if words else range(history.count)",
        "return _holding(history, max(words, key=len))",
        "of a query with JSON in it the longest word is enough",
    ),
    Mutant(
        "archive.py",
        "    if not _is_bytewise(data, words):\n"
        "        return [n for n in range(history.count) if words in history.slice(n).decode().lower()]\n",
        "",
        "letters beyond ASCII have no other case",
    ),
    # -- the cycle --
    Mutant("archive.py", '        "schema_version": SCHEMA_VERSION,\n', "", "a cycle has no schema_version"),
    Mutant(
        "archive.py", 'SCHEMA_VERSION = "0.10"', 'SCHEMA_VERSION = "0.10.0"', "a version of three numbers"
    ),
    Mutant(
        "archive.py",
        'plan and {key: value for key, value in plan.items() if key != "schema_version"}',
        "plan",
        "an archived plan keeps its schema_version",
    ),
    Mutant(
        "archive.py",
        '        "tasks": list(tasks),\n    }\n    note',
        '        "tasks": list(tasks),\n        "memoryHint": {},\n    }\n    note',
        "a cycle has a field more",
    ),
    Mutant(
        "archive.py",
        'return cycle["plan"]["id"] if cycle["plan"] else 0',
        'return cycle["plan"]["id"]',
        "null plans are not skipped",
    ),
    # -- context --
    Mutant(
        "tools.py",
        '"activeMode": None, "decisions": []}',
        '"activeMode": "plan" if _read_plan(project) else None, "decisions": []}',
        "a plan is a mode",
    ),
    Mutant(
        "tools.py",
        'for key in ("total", "completed", "pending")}',
        'for key in ("total", "completed", "pending", "blocked")}',
        "tasksSummary has a field more",
    ),
    Mutant(
        "tools.py",
        '"decisions": file.layout.head["decisions"],\n    }',
        '"decisions": [],\n    }',
        "context has no decisions",
    ),
    Mutant(
        "tools.py",
        "    except (Damaged, StorageError, UsageError):\n        return {**reply",
        "    except KeyError:\n        return {**reply",
        "context fails over damaged tasks",
    ),
    # -- branch and time --
    Mutant(
        "place.py",
        'ref.strip().removeprefix("refs/heads/")',
        'ref.strip().rpartition("/")[2]',
        "the last part of a branch",
    ),
    Mutant(
        "place.py",
        'NO_BRANCH, NO_GIT = "detached", "unknown"',
        'NO_BRANCH, NO_GIT = "detached", ""',
        "no branch outside git",
    ),
    Mutant(
        "place.py", 'NO_BRANCH, NO_GIT = "detached"', 'NO_BRANCH, NO_GIT = ""', "no branch on a detached head"
    ),
    Mutant(
        "place.py",
        'if pointer.startswith("gitdir:") else ".git"',
        'if False else ".git"',
        "no branch in a worktree",
    ),
    Mutant("place.py", '"%Y-%m-%dT%H:%M:%S"', '"%Y-%m-%d %H:%M:%S"', "times of another form"),
    Mutant("place.py", ':03d}Z"', ':03d}"', "times without a zone"),
    # -- artifact_write --
    Mutant(
        "tools.py",
        "write_artifact(project, filename, content)}",
        "os.path.relpath(write_artifact(project, filename, content), project)}",
        "a relative path",
    ),
    Mutant(
        "artifact.py",
        'if part not in ("", ".", "..")]',
        "if part]",
        "dot segments are not taken out of a name",
    ),
    Mutant(
        "artifact.py",
        'if not part.strip(". ") or ',
        "if ",
        "three dots are a folder",
        "tests/nexus/test_artifacts.py",
    ),
    Mutant("artifact.py", 'r"[/\\\\]", filename)', 'r"/", filename)', "backslashes are part of a name"),
    Mutant(
        "artifact.py",
        "    if not stat.S_ISREG(status.st_mode):\n",
        "    if status:\n",
        "an artifact is not written over",
    ),
    Mutant("artifact.py", r"[\x00-\x1f\x7f\ud800-\udfff]", r"[\x00\ud800-\udfff]", "a name of two lines"),
    Mutant("artifact.py", "_LONGEST = 255", "_LONGEST = 254", "a name of 255 bytes is refused"),
    # -- what files may hold --
    Mutant(
        "shape.py",
        """return f" has a field {key!r}, which is not known\"""",
        "continue",
        "unknown fields are accepted",
    ),
    Mutant(
        "shape.py", 'TASK_STATUSES = ("pending", ', 'TASK_STATUSES = ("done", "pending", ', "a status more"
    ),
    Mutant("shape.py", '"resume_if_same_artifact", "resume")', '"resume_if_same_artifact")', "a policy less"),
    Mutant(
        "shape.py",
        'if type(value) is str and value else " is not a text of',
        'if type(value) is str else " is not a text of',
        "empty titles",
    ),
    Mutant("shape.py", "is_number(value) and value >= 1 else", "is_number(value) else", "ids below 1"),
    Mutant(
        "shape.py",
        "type(value) is str and _TIME.fullmatch(value)",
        "type(value) is str",
        "any text is a time",
    ),
    Mutant(
        "shape.py", "_VERSION.fullmatch(value)", "_VERSION.match(value)", "a version of three numbers is read"
    ),
    Mutant(
        "shape.py",
        '"plan": _or_null(PLAN), "tasks": _list_of(TASK)},\n    {"schema_version": _version},',
        '"plan": _or_null(PLAN), "tasks": _list_of(TASK), "schema_version": _version},\n    {},',
        "cycles of older harnesses are refused",
    ),
    Mutant(
        "shape.py",
        '{"research_summary": _text, "schema_version": _version}',
        '{"research_summary": _text}',
        "plans with a version are refused",
    ),
    Mutant(
        "shape.py",
        "        for key in required:\n            if key not in value:",
        "        for key in ():\n            if key not in value:",
        "fields may be missing",
    ),
    # -- damaged files --
    Mutant(
        "tools.py",
        "    return longlist.load(project, place.state(project, place.TASKS), TASKS)",
        "    try:\n        return longlist.load(project, place.state(project, place.TASKS), TASKS)\n"
        "    except Damaged:\n        return None",
        "damaged tasks are replaced",
    ),
    Mutant(
        "tools.py",
        '        raise statefile.DamagedFile(path, data, f"the plan{problem}")',
        "        return None",
        "a damaged plan is replaced",
    ),
    Mutant(
        "archive.py",
        "    return longlist.load(project, place.history(project), HISTORY) or longlist.empty(HISTORY, {})",
        "    try:\n        found = longlist.load(project, place.history(project), HISTORY)\n"
        "    except statefile.DamagedFile:\n        found = None\n    return found or longlist.empty(HISTORY, {})",
        "a damaged history is replaced",
    ),
    Mutant(
        "statefile.py",
        "            return file.readall()",
        "            return file.readall() or None",
        "an empty file is no file",
    ),
    # -- fields that nobody documented --
    Mutant(
        "tools.py",
        '"success": True, "path"',
        '"success": True, "bytes": len(content), "path"',
        "artifact_write replies with a field nobody has heard of",
    ),
    Mutant(
        "tools.py",
        '        "created_at": place.now(),\n    }\n    _fit(shape.PLAN(plan))',
        '        "created_at": place.now(),\n        "schema_version": "1",\n    }\n    shape.PLAN(plan)',
        "a plan has a version that is none",
    ),
    # -- calls --
    Mutant("dispatch.py", '"context": Tool(', '"nx_context": Tool(', "a tool has another name"),
    Mutant(
        "dispatch.py",
        """"action": _needed(_TEXT, f"One of {', '.join(tools.ACTIONS)}.")""",
        """"action": _needed(_TEXT, "", *tools.ACTIONS)""",
        "an unknown action never comes to the tool",
    ),
    Mutant(
        "dispatch.py",
        "        if not parameter.kind.fits(value) and not is_unknown_action:\n            raise",
        "        if False:\n            raise",
        "kinds of arguments are not checked",
    ),
    Mutant(
        "dispatch.py",
        "        if parameter is None:\n            takes",
        "        if parameter is None:\n            continue\n            takes",
        "unknown parameters are passed on",
    ),
    Mutant(
        "dispatch.py",
        "for key, value in given.items() if value is not None}",
        "for key, value in given.items()}",
        "null is an argument",
    ),
    # -- callers --
    Mutant(
        "tools.py",
        "return int(number) if is_whole else number",
        "return number",
        "ids are written as they were sent",
        "tests/nexus/test_tools_task.py",
    ),
    Mutant(
        "dispatch.py",
        "    _check_allowed(name, tool, tuple(restrictions))",
        "    _check_allowed(name, tool, ())",
        "nobody is restricted",
        CALLERS,
    ),
    Mutant(
        "dispatch.py",
        "        if tool.is_for_lead:\n            check_lead",
        "        if False:\n            check_lead",
        "every role leads",
        CALLERS,
    ),
    Mutant(
        "dispatch.py",
        'before planning."),\n        },\n        is_for_lead=True,',
        'before planning."),\n        },',
        "every role begins plans",
        CALLERS,
    ),
    Mutant(
        "dispatch.py",
        'for add and edit."),\n        },\n        is_for_lead=True,',
        'for add and edit."),\n        },',
        "every role changes plans",
        CALLERS,
    ),
    Mutant(
        "dispatch.py",
        'to ask it again."),\n        },\n        is_for_lead=True,',
        'to ask it again."),\n        },',
        "every role decides",
        CALLERS,
    ),
    Mutant(
        "../capabilities.py",
        'next((word for word in restrictions if word in RESTRICTIONS), "")',
        'next((word for word in restrictions if word.startswith("no_task")), "")',
        "a role that may not edit files leads",
        CALLERS,
    ),
    Mutant(
        "../capabilities.py",
        'next((word for word in restrictions if word in RESTRICTIONS), "")',
        'next(iter(restrictions), "")',
        "a capability that restricts nothing makes a role",
        CALLERS,
    ),
    # -- files --
    Mutant(
        "statefile.py",
        "        _ignore_state(project)\n        yield",
        "        yield",
        "the state is not ignored by git",
    ),
    Mutant(
        "statefile.py",
        "    if not os.path.exists(ignored):",
        "    if ignored:",
        "a .gitignore is written over",
    ),
    Mutant(
        "tools.py",
        '    """The active plan with all its issues."""\n',
        "    with statefile.locked(project):\n        pass\n",
        "a reader takes the lock and leaves folders",
    ),
    Mutant(
        "longlist.py",
        "highest=max(layout.highest, int(number))",
        "highest=int(number)",
        "the last id counts as the highest after adding",
    ),
    Mutant(
        "longlist.py",
        "highest=int(max(ranks, default=0))",
        "highest=int(ranks[-1] if ranks else 0)",
        "the last id counts as the highest",
    ),
    Mutant(
        "longlist.py",
        "is_in_order=ranks == list(range(1, len(ranks) + 1))",
        "is_in_order=True",
        "every file counts as numbered in order",
    ),
    Mutant(
        "longlist.py",
        "fields = json_bytes(head)[:-1]",
        "fields = json_bytes({k: v for k, v in head.items() if k != 'schema_version'})[:-1]",
        "a file loses its schema_version",
    ),
)


class Outcome(NamedTuple):
    mutant: Mutant
    noticed_by: Sequence[str] = ()
    """Our cases that fail by what they expect."""
    held_by: Sequence[str] = ()
    """Those that fail only by what the runner expects of every case."""
    given: Sequence[str] = ()
    """The given cases that fail by what they expect."""
    problem: str = ""
    """Why the mutation could not be tried."""

    @property
    def is_noticed(self) -> bool:
        return bool(self.noticed_by or self.held_by)


def tried(mutant: Mutant, *, given: Path | None = None) -> Outcome:
    """Whether our fixtures notice this mutation, and others that are given."""
    text = (SOURCE / "project" / mutant.file).read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        return Outcome(mutant, problem=f"its text is there {text.count(mutant.old)} times")
    with sources_with({mutant.file: text.replace(mutant.old, mutant.new)}) as path:
        try:
            if mutant.tests:
                return Outcome(mutant, failing_tests(path, mutant.tests))
            noticed_by, held_by = failing(path, FIXTURES)
            others = failing(path, given)[0] if given else []
        except NotRun as exc:
            return Outcome(mutant, problem=str(exc))
        return Outcome(mutant, noticed_by, held_by, others)


@contextmanager
def sources_with(changed: dict[str, str]) -> Iterator[Path]:
    """A folder for the path of a child: the package with these files changed, named as seen from `project`."""
    with tempfile.TemporaryDirectory(prefix="rolecall-mutant-", dir=scratch()) as folder:
        package = Path(folder) / "rolecall"
        package.mkdir()
        for entry in SOURCE.iterdir():
            if entry.name not in ("project", "__pycache__"):
                (package / entry.name).symlink_to(entry)
        shutil.copytree(SOURCE / "project", package / "project")
        for name, text in changed.items():
            copy = package / "project" / name
            copy.unlink()  # outside of `project` it is a link to the source itself
            copy.write_text(text, encoding="utf-8")
        yield Path(folder)


def scratch() -> str | None:
    """In memory where that can be had: the tools wait for the disk, and here nothing has to last."""
    memory = "/dev/shm"
    return memory if os.path.isdir(memory) and os.access(memory, os.W_OK) else None


class NotRun(Exception):
    """A child that told nothing."""


def failing_tests(path: Path, tests: str) -> list[str]:
    """The tests that fail with the sources at this path."""
    words = ["-q", "--tb=no", "-p", "no:cacheprovider", "--rootdir", str(ROOT), str(ROOT / tests)]
    lines = _child(path, "-m", "pytest", *words).stdout.decode().splitlines()
    return [line.partition("::")[2] for line in lines if line.startswith("FAILED ")]


def failing(path: Path, fixtures: Path) -> tuple[list[str], list[str]]:
    """The cases that fail with the sources at this path: by what they expect, and only by what is always."""
    words = ["conformance", "run", str(fixtures), "--over", "tools", "--format", "json"]
    done = _child(path, "-P", "-c", _COMMAND, *words)
    report = json.loads(done.stdout)
    if report["mistakes"]:
        raise NotRun(f"the fixtures were not understood: {report['mistakes'][0]}")
    ours: tuple[list[str], list[str]] = ([], [])
    for case in report["cases"]:
        if case["status"] == "failed":
            is_always = all(failure["at"] == "always" for failure in case["failures"])
            ours[is_always].append(case["test_id"])
    return ours


def _child(path: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    homes = {"HOME": str(path), "ROLECALL_HOME": str(path / "home"), "TMPDIR": str(path)}
    try:
        done = subprocess.run(
            [sys.executable, *words],
            env={**os.environ, **homes, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise NotRun(f"it did not end within {_PATIENCE} s") from exc
    if done.returncode not in (0, 1):
        raise NotRun(f"it ended with {done.returncode}: {done.stderr.decode()[-300:]}")
    return done


def main() -> int:
    """A folder on the command line has fixtures of others, against which ours are held."""
    given = Path(sys.argv[1]) if sys.argv[1:] else None
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(lambda mutant: tried(mutant, given=given), MUTANTS))
    width = max(len(mutant.breaks) for mutant in MUTANTS)
    for outcome in outcomes:
        print(f"{outcome.mutant.file:<14}{outcome.mutant.breaks:<{width + 2}}{_words(outcome)}")
    noticed = sum(outcome.is_noticed for outcome in outcomes)
    expected = sum(bool(outcome.noticed_by) for outcome in outcomes)
    print(
        f"\n{noticed} of {len(MUTANTS)} mutants are noticed; {expected} by what our fixtures and tests expect"
    )
    if given:
        print(f"{sum(bool(outcome.given) for outcome in outcomes)} by what the given fixtures expect")
    return 0 if noticed == len(MUTANTS) else 1


def _words(outcome: Outcome) -> str:
    if outcome.problem:
        return f"NOT TRIED: {outcome.problem}"
    if not outcome.is_noticed:
        return "SURVIVES"
    if not outcome.noticed_by:
        return f"noticed in {len(outcome.held_by)} cases, by what is expected of all: {outcome.held_by[0]}"
    given = f", {len(outcome.given)} given" if outcome.given else ""
    return f"noticed by {len(outcome.noticed_by)} cases{given}: {outcome.noticed_by[0]}"


if __name__ == "__main__":
    raise SystemExit(main())

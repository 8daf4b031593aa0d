"""The wording of hints on the command line: each hint names the command or option that carries it out."""

from __future__ import annotations

from shlex import quote

from rolecall.errors import Hint
from rolecall.store.lazy import Module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rolecall.agents import presence
    from rolecall.settings.yaml12 import Problem
    from rolecall.store.canonical import JsonObject
else:
    presence = Module("rolecall.agents.presence")  # only one hint needs it

_PHRASES = {
    # threads
    "answer_thread": "rolecall thread answer {thread} --run",
    "diff_folder": "rolecall thread folder diff {thread}",
    "fork_thread": "rolecall thread fork {thread}",
    "fork_to_workflow": "rolecall thread fork THREAD --workflow {workflow}",
    "keep_files": "add --keep-files",
    "list_steps": "rolecall thread steps {thread}",
    "list_threads": "rolecall thread list --all",
    "merge_folder": "rolecall thread folder merge {thread}",
    "merge_or_force": "`rolecall thread folder merge {thread}`, or add --force",
    "name_cas": "add --cas DIR",
    "raise_limit": "rolecall thread resume {thread} --limit {limit} --run",
    "read_earlier": "rolecall thread read {thread} --before {step}",
    "resume_thread": "rolecall thread resume {thread} --run",
    "run_thread": "rolecall thread run {thread}",
    "show_question": "rolecall thread answer {thread}",
    "show_step": "rolecall thread step-details {step}",
    "show_thread": "rolecall thread show {thread}",
    "watch_thread": "rolecall thread watch {thread}",
    # workflows, the project, its plan and its notes
    "add_task": "rolecall task add",
    "choose_note": "add --into {note}, or --new",
    "enable_deletion": "`rolecall config set {key} true`, or `rolecall memory gc`",
    "init_project": "rolecall init",
    "list_gallery": "rolecall new",
    "list_tasks": "rolecall task list",
    "list_workflows": "rolecall workflow list",
    "put_workflow": "rolecall workflow put {file}",
    "name_task": "add --prompt TEXT",
    "run_code": "add --code",
    "name_project": "add --project DIR",
    "run_tasks": "rolecall plan run",
    "run_workflow": "rolecall run",
    "start_plan": "rolecall plan start",
    "trust_workflow": "rolecall workflow trust {workflow}",
    "update_workflow": "rolecall workflow update {workflow}",
    "validate_workflow": "rolecall workflow validate {workflow}",
    "list_evals": "rolecall eval list",
    "save_base": "rolecall eval gate SUITE --save {name}",
    "workflow_history": "rolecall workflow history {workflow}",
    # knowledge
    "forget_repository": "rolecall knowledge forget --repo {repo}",
    "index_again": "`rolecall knowledge forget`, then `rolecall knowledge sync`",
    "index_repository": "`rolecall knowledge init`, then `rolecall knowledge sync`",
    "init_knowledge": "rolecall knowledge init",
    "query_words": "rolecall knowledge query --words",
    "rebuild_index": "rolecall knowledge sync --rebuild",
    "sync_knowledge": "rolecall knowledge sync",
    # agents and the configuration
    "list_restrictions": "rolecall agents list --restrictions",
    "check_machine": "rolecall doctor",
    "change_setting": "`rolecall config set` or `rolecall config unset`",
    "list_settings": "rolecall config list",
    "choose_agent": "`rolecall config set defaultAgent {agent}`, or use --agent {agent}",
    "set_default_agent": "`rolecall config set defaultAgent {agent}`, or add --agent {agent}",
    "set_setting": "rolecall config set {key} {value}",
    "set_up": "rolecall setup",
    "unset_setting": "rolecall config unset {key}",
    # hosts
    "force": "add --force",
    "install_for_user": "add --user",
    "install_host": "rolecall install {host}",
    "uninstall_host": "rolecall uninstall {host}",
    "uninstall_scope": "`rolecall uninstall {host}` with --user or --project",
    # the service
    "free_port": "add --port 0",
    "manage_service": "`rolecall serve status`, `rolecall serve stop`",
    "name_database": "rolecall serve --database postgresql://user@host/database",
    "name_machine": "add --machine NAME",
    "name_token": "add --token-env NAME",
    "read_service_log": "rolecall serve logs",
    "start_service": "rolecall serve --detach",
    "stop_service": "rolecall serve stop",
    # the store
    "import_nodes": "rolecall cas import {source}",
    "import_or_force": "`rolecall cas import BUNDLE`, or add --force",
    "keep_going": "add --keep-going",
    "list_nodes": "`rolecall cas schema list`, `rolecall cas stats`",
    "list_schemas": "rolecall cas schema list",
    "put_schema": "`rolecall cas schema put FILE`; `rolecall cas schema list` shows them",
    "reindex_store": "rolecall cas reindex",
    "repair_store": "rolecall cas import BUNDLE --repair",
    "rescue_store": "`rolecall cas verify`, then `rolecall cas export --keep-going`",
    "show_schema": "rolecall cas schema get {type}",
    "verify_node": "rolecall cas verify {node}",
    "verify_store": "rolecall cas verify",
}
"""For each hint code, either a command or a phrase with commands in backticks. Hint arguments that a command does not
mention are appended as options."""


def word(hint: str) -> str:
    """Return a hint worded for the command line. Plain advice is returned unchanged."""
    if not isinstance(hint, Hint):
        return hint
    if hint.code == "set_default_agent":
        agent = presence.first_installed()
        hint = Hint(hint.advice, hint.code, before=hint.before, agent=agent or hint.arguments["agent"])
        more = "None is installed here: see `rolecall agents list`."
        if agent:
            more = f"{agent} is installed here; `rolecall try` picks it by itself."
        return f"{hint.before} {hint.advice}: {phrase(hint)}. {more}".lstrip()
    return f"{hint.before} {hint.advice}: {phrase(hint)}.".lstrip()


def word_problem(problem: Problem) -> Problem:
    """Return a problem whose hint is worded for the command line."""
    return problem._replace(hint=word(problem.hint))


def view_problem(problem: Problem) -> JsonObject:
    """Return a problem in the form used in replies."""
    return {**problem._asdict(), "line": problem.line or None, "column": problem.column or None}


def phrase(hint: Hint) -> str:
    """Return the hint's command in backticks, or its phrase unchanged."""
    return f"`{command(hint)}`" if _PHRASES[hint.code].startswith("rolecall ") else command(hint)


def command(hint: str) -> str:
    """Return the command to type. A text that is already a command is returned unchanged."""
    if not isinstance(hint, Hint):
        return hint
    template = _PHRASES[hint.code]
    words = [template.format_map({name: _quote(value) for name, value in hint.arguments.items()})]
    for name, value in hint.arguments.items():
        if "{" + name + "}" in template or not value:
            continue
        if value is True:
            words.append(f"--{name}")
        else:
            words += [
                f"--{name} {_quote(each)}" for each in (value if isinstance(value, tuple) else (value,))
            ]
    return " ".join(words)


def _quote(value: object) -> str:
    return str(value) if "…" in str(value) else quote(str(value))

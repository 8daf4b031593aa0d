"""The wording of skill bodies for OpenCode, with the names of its own tools.

The question tool exists only in interactive sessions, so the wording also works without this tool.
"""

from rolecall.hosts.wording import Wording

WORDING = Wording(
    skill="Call the tool skill with name `{skill}`{mode}.",
    mode=", and follow it in its mode `{mode}`",
    spawn="Call the tool task with subagent_type `{role}`{name} and this prompt.",
    name=", description `{name}`",
    resume="To resume one, also give the id of its task as task_id.",
    register="(On the list of the tool todowrite: `{label}`, {state}.)",
    question="Use the tool question where you have it. ",
    docs={
        "resume_invocation": "To resume an ended agent, call the tool task with the id of its session as task_id;"
        " without task_id, task starts a new one.",
        "instruction_file": "OpenCode reads AGENTS.md in the project's folder at every start.",
        "slash_command_display": "A skill is typed as its id behind a slash: `/nx-plan`.",
    },
)

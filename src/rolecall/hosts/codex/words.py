"""The wording of skill bodies for Codex, with the names of its own tools.

Codex starts agents only if it is explicitly asked to, so the wording asks explicitly. Codex has no tool for skills; it
lists their files for the model to read. Questions are asked in prose, because only one of Codex's modes has a question
tool.
"""

from rolecall.hosts.wording import Wording

WORDING = Wording(
    skill="Continue with the skill `{skill}`{mode}: read its SKILL.md, and follow it in place of this one.",
    mode=", in its mode `{mode}`",
    spawn="Start a sub-agent: call the tool spawn_agent with agent_type `{role}`{name},"
    " and with this message. Wait for its answer with wait_agent.",
    name=" and task_name `{name}`, if it takes one",
    resume="To resume one, give its id to the tool send_input or followup_task instead.",
    agents={"explore": "explorer"},
    has_hyphens=False,
    docs={
        "resume_invocation": "To resume an ended agent in its session, give its id to send_input or followup_task;"
        " spawn_agent always starts a new one.",
        "instruction_file": "Codex reads AGENTS.md in the project's folder at every start.",
        "slash_command_display": "Users type a skill as a dollar sign and its id: `$nx-plan`.",
    },
)

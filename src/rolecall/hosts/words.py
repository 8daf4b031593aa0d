"""The wording of skill bodies for each host, with the names of the host's own tools."""

from rolecall.hosts.names import LEAD
from rolecall.hosts.wording import Wording

WORDINGS = {
    # The question tool exists only in interactive sessions, and the progress list only in some releases, so the wording
    # also works without these tools.
    "claude": Wording(
        skill="Call the tool Skill with skill `{skill}`{mode}.",
        mode=" and args `{mode}`",
        spawn="Call the tool Agent with subagent_type `{role}`{name} and this prompt.",
        name=", description `{name}`",
        resume="To resume one, SendMessage to its agent id instead.",
        register="(On a progress list, if you have a tool for one: `{label}`, {state}.)",
        question="Use the tool AskUserQuestion where you have it. ",
        agents={"explore": "Explore"},
        docs={
            "resume_invocation": "To resume an ended agent in its session, use SendMessage with its agent id;"
            " the tool Agent always starts a new one.",
            "instruction_file": "Claude Code reads CLAUDE.md in the project's folder at every start.",
            "slash_command_display": "A skill is typed as its id behind a slash: `/nx-plan`.",
        },
    ),
    # Codex starts agents only if it is explicitly asked to, so the wording asks explicitly. Codex has no tool for
    # skills; it lists their files for the model to read. Questions are asked in prose, because only one of Codex's
    # modes has a question tool.
    "codex": Wording(
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
    ),
    # The question tool exists only in interactive sessions, so the wording also works without this tool.
    "opencode": Wording(
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
    ),
    # Any agent can play our own Lead, so its wording refers to commands and to our tools.
    LEAD: Wording(
        skill="The skill `{skill}`{mode} comes next. Ask the user to activate it with its tag, and end your turn.",
        mode=" in its mode `{mode}`",
        spawn="Give this to a subagent in the role `{role}`{name}, if you have a tool to start one; otherwise do it"
        " yourself before you go on.",
        name=", called `{name}`",
        resume="To resume one, use that tool's own means.",
        docs={
            "resume_invocation": "The tasks of the cycle go to their owners by `rolecall plan run`, not by subagents:"
            " it hands out what is ready, has it checked, asks for a diagnosis, tries again and asks the user, as"
            " sections 2 to 5 of nx-run say. Run it, read its report, verify what it says, and go on with section 6.",
            "instruction_file": "You read the instruction file of the program that you run in, such as CLAUDE.md or"
            " AGENTS.md in the project's folder.",
            "slash_command_display": "A skill is typed as its id behind a slash: `/nx-plan`.",
        },
    ),
}

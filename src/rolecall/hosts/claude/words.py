"""The wording of skill bodies for Claude Code, with the names of its own tools.

The question tool exists only in interactive sessions, and the progress list only in some releases, so the wording also
works without these tools.
"""

from rolecall.hosts.wording import Wording

WORDING = Wording(
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
)

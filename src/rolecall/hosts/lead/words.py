"""The wording of skill bodies for our own Lead, which any agent can play: it names only commands and our own tools."""

from rolecall.hosts.wording import Wording

WORDING = Wording(
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
)

"""A host's wording of skill bodies: how it activates a skill, starts an agent, shows progress and asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from rolecall.nexus import macros
from rolecall.nexus.macros import Arguments, Render

if TYPE_CHECKING:
    from rolecall.nexus.catalog import Skill
    from rolecall.nexus.tags import Tag


class Wording(NamedTuple):
    """Sentences that contain the names of a macro's arguments in braces."""

    skill: str
    mode: str
    """The text that replaces `{mode}` if the macro has a mode."""
    spawn: str
    name: str
    """The text that replaces `{name}` if the macro names the agent."""
    resume: str
    """The sentence after `spawn`, left out for an agent that is never resumed."""
    docs: Mapping[str, str]
    """The host's instructions on each subject that skills refer to by name."""
    register: str = ""
    """The sentence that shows progress; empty if the host cannot show progress."""
    question: str = ""
    """The sentence before a question; the question itself is written out as for a host without a question tool."""
    agents: Mapping[str, str] = {}
    """The host's own agents that play certain roles, by role."""
    has_hyphens: bool = True
    """Whether an agent's name can contain hyphens; otherwise, underscores replace the hyphens."""

    def render(self, tags: Mapping[str, Tag]) -> Render:
        prose = macros.prose(tags)

        def skill(arguments: Arguments) -> str:
            mode = self.mode.format(mode=arguments["mode"]) if arguments.get("mode") else ""
            return self.skill.format(skill=arguments["skill"], mode=mode)

        def spawn(arguments: Arguments) -> str:
            role = str(arguments["target_role"])
            name = self.name.format(name=arguments["name"]) if "name" in arguments else ""
            name = name if self.has_hyphens else name.replace("-", "_")
            call = self.spawn.format(role=self.agents.get(role, role), name=name)
            resume = "" if arguments.get("resume_tier_hint") == "ephemeral" else f" {self.resume}"
            return f"{call}{resume}\n\n{macros.fence(str(arguments['prompt']))}"

        return {
            **prose,
            "skill_activation": skill,
            "subagent_spawn": spawn,
            "task_register": lambda arguments: self.register.format(**arguments),
            "user_question": lambda arguments: f"{self.question}{prose['user_question'](arguments)}",
        }

    def skill_docs(self, skill: Skill) -> str:
        """Return the instructions on a skill's subjects as a section after its body; empty if it has none."""
        lines = [f"- {self.docs[ref]}" for ref in skill.harness_docs_refs if ref in self.docs]
        return "\n".join(["## In this host", "", *lines]) if lines else ""

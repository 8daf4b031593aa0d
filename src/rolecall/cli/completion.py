"""`rolecall completion`: print a script with which a shell completes Rolecall's commands.

To complete workflows, agents and threads, the scripts call this command with the words typed so far. It then prints
candidates for the last word.
"""

from __future__ import annotations

import re
from argparse import Action, Namespace
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from rolecall.cli import NOUNS, argument, verb
from rolecall.cli.parser import build_parser, verb_parser, verbs_of
from rolecall.errors import RolecallError
from rolecall.settings import config
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import shtab

    from rolecall import agents, api
    from rolecall.agents import acp_presets
else:  # most words are completed from the parser alone
    acp_presets = Module("rolecall.agents.acp_presets")
    agents = Module("rolecall.agents")
    api = Module("rolecall.api")
    shtab = Module("shtab")

_BASH = """\
_rolecall() {
    local IFS=$'\\n'
    COMPREPLY=($("${COMP_WORDS[0]}" completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _rolecall rolecall uwf
"""

_ZSH = """\
#compdef rolecall uwf
_rolecall() {
    local -a found
    found=("${(@f)$("${words[1]}" completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[*]}" ]]; then _describe -V rolecall found; else _files; fi
}
if [[ "${funcstack[1]}" == _rolecall ]]; then _rolecall "$@"; else compdef _rolecall rolecall uwf; fi
"""

_FISH = """\
function __rolecall_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found ($words[1] completion fish -- $words[2..-1] 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c rolecall -f -k -a '(__rolecall_complete)'
complete -c uwf -f -k -a '(__rolecall_complete)'
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_MOST_THREADS = 200

Candidate = tuple[str, str]
"""A candidate for a word, with its description."""


@verb(
    "completion",
    "print a shell completion script",
    'eval "$(rolecall completion bash)"\nrolecall completion fish | source',
    argument("shell", None, "the shell that reads the script", choices=(*_SCRIPTS, "tcsh")),
    argument("words", "WORD", "print candidates for the last of these words", nargs="*"),
    has_reply=False,
)
def complete(options: Namespace) -> None:
    shell, words, before = options.shell, options.words, ""
    if not words and shell in _SCRIPTS:
        print(_SCRIPTS[shell], end="")
        return
    if not words:
        script = shtab.complete(build_parser(), shell)
        print(script + re.sub(r"\ncomplete rolecall ", "\ncomplete uwf ", script))
        return
    if shell == "bash":
        # Bash splits `--agent=acp:x` into five words and replaces only the part after the colon.
        line = re.sub("\n:\n?", ":", "\n".join(words)).replace("\n=\n", "\n").removesuffix("=")
        words = line.split("\n")
        before = words[-1][: words[-1].rfind(":") + 1]
    try:
        found = [one for one in _candidates(words) if one[0].startswith(words[-1])]
    except (RolecallError, OSError):  # an error message must not appear while a line is being typed
        return
    for text, about in found:
        about = " ".join(about.split())
        if shell == "zsh":
            print(text.replace(":", "\\:") + (f":{about}" if about else ""))
        elif shell == "fish":
            print(f"{text}\t{about}" if about else text)
        else:
            print(text.removeprefix(before))


def _candidates(words: list[str]) -> Iterator[Candidate]:
    *typed, last = words
    if not typed:
        yield from ((noun, line) for noun, (_, line) in NOUNS.items())
        yield from (("--help", ""), ("--version", ""))
        return
    if typed[0] not in NOUNS:
        return
    verbs = verbs_of(typed[0], "".join(typed[1:2]))
    name = next((" ".join(typed[1:end]) for end in (3, 2, 1) if " ".join(typed[1:end]) in verbs), None)
    if not name:
        place = len(typed) - 1
        below = {}
        for one in verbs:
            parts = one.split()
            if parts[:place] == typed[1:] and len(parts) > place:
                below[parts[place]] = verbs[one].help if len(parts) == place + 1 else ""
        yield from below.items()
    if name is None:
        return

    actions = verb_parser(verbs[name])._actions
    options = {option: action for action in actions for option in action.option_strings}
    positionals = [action for action in actions if not action.option_strings]
    place, awaited = 0, None
    given = typed[1 + len(name.split()) :]
    for word in given:
        if awaited is not None:
            awaited = None
        elif word.startswith("-"):
            action = options.get(word)
            awaited = action if action is not None and action.nargs != 0 else None
        else:
            place += 1
    if awaited is not None:
        yield from _values(awaited, last)
    elif last.startswith("-"):
        for option, action in options.items():
            if option.startswith("--") and option not in given:
                yield option, action.help or ""
    elif positionals and (place < len(positionals) or positionals[-1].nargs in ("*", "+")):
        yield from _values(positionals[min(place, len(positionals) - 1)], last)


def _values(action: Action, typed: str) -> Iterator[Candidate]:
    if action.choices is not None:
        yield from ((str(choice), "") for choice in action.choices)
    elif action.metavar in ("WORKFLOW", "THREAD") or action.dest == "workflow":
        with api.reader() as rolecall:
            if action.metavar != "THREAD":
                yield from ((entry.name, entry.path or "") for entry in rolecall.workflow_entries())
                yield from ((entry.name, "gallery") for entry in rolecall.gallery())
                return
            entries = list(islice(rolecall.entries(), _MOST_THREADS))
            length = rolecall.short_id_length()
            for entry in entries:
                ident = entry["thread"]
                is_begun = typed and ident.startswith(typed)  # if so, complete the whole id
                yield ident if is_begun else ident[-length:], f"{entry['status']} · {entry['title'] or ''}"
    elif action.dest == "agent":
        presets = (f"acp:{name}" for name in acp_presets.PRESETS)
        names = [*config.load().get("agents", {}), *agents.PROGRAMS, "builtin", "human", *presets]
        yield from ((name, "") for name in dict.fromkeys(names))

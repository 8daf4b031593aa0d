"""`rolecall completion`: a script that teaches a shell to complete our commands.

The scripts call the program, so they complete the current workflows, agents and threads: given the words
typed so far, this command prints candidates for the last one.
"""

from __future__ import annotations

import re
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterable, Iterator

from rolecall.cli import NOUNS, Verb, _verb_parser, _verbs, build_parser
from rolecall.errors import RolecallError

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


class Candidate(str):
    """A candidate for a word, and its description."""

    about: str = ""


def _print(options: Namespace) -> None:
    if options.words:
        for line in _lines(options.shell, options.words):
            print(line)
    elif options.shell in _SCRIPTS:
        print(_SCRIPTS[options.shell], end="")
    else:
        import shtab

        script = shtab.complete(build_parser(), options.shell)
        print(script + re.sub(r"\ncomplete rolecall ", "\ncomplete uwf ", script))


def _lines(shell: str, words: list[str]) -> Iterator[str]:
    """The candidates as the shell's script reads them."""
    before = ""
    if shell == "bash":
        # Bash splits `--agent=acp:x` into five words, and replaces only what follows the colon.
        line = re.sub("\n:\n?", ":", "\n".join(words)).replace("\n=\n", "\n").removesuffix("=")
        words = line.split("\n")
        before = words[-1][: words[-1].rfind(":") + 1]
    try:
        found = [one for one in _candidates(words) if one.startswith(words[-1])]
    except (RolecallError, OSError):  # an error must not appear in the middle of a line that is being typed
        return
    for one in found:
        about = " ".join(getattr(one, "about", "").split())
        if shell == "zsh":
            yield one.replace(":", "\\:") + (f":{about}" if about else "")
        elif shell == "fish":
            yield f"{one}\t{about}" if about else one
        else:
            yield one.removeprefix(before)


def _candidates(words: list[str]) -> Iterator[str]:
    *typed, last = words
    if not typed:
        yield from (_candidate(noun, line) for noun, (_, line) in NOUNS.items())
        yield from ("--help", "--version")
        return
    if typed[0] not in NOUNS:
        return
    verbs = _verbs(typed[0])
    name = next((" ".join(typed[1:end]) for end in (3, 2, 1) if " ".join(typed[1:end]) in verbs), None)
    used = len(name.split()) if name else 0
    if not name:
        place = len(typed) - 1
        below = [verb for verb in verbs if verb.split()[:place] == typed[1:] and len(verb.split()) > place]
        lines = {
            verb.split()[place]: verbs[verb].help if len(verb.split()) == place + 1 else "" for verb in below
        }
        yield from (_candidate(word, line) for word, line in lines.items())
    if name is not None:
        yield from _arguments_of(_verb_parser(typed[0], name, verbs[name]), typed[1 + used :], last)


def _arguments_of(parser: ArgumentParser, typed: list[str], last: str) -> Iterator[str]:
    options = {name: action for action in parser._actions for name in action.option_strings}
    positionals = [action for action in parser._actions if not action.option_strings]
    place, valued = 0, None
    for word in typed:
        if valued is not None:
            valued = None
        elif word.startswith("-"):
            action = options.get(word)
            valued = action if action is not None and action.nargs != 0 else None
        else:
            place += 1
    if valued is not None:
        yield from _values(valued)
    elif last.startswith("-"):
        named = (
            _candidate(name, action.help or "") for name, action in options.items() if name.startswith("--")
        )
        yield from (one for one in named if one not in typed)
    elif positionals and (place < len(positionals) or positionals[-1].nargs in ("*", "+")):
        yield from _values(positionals[min(place, len(positionals) - 1)])


def _values(action: Action) -> Iterable[str]:
    if action.choices is not None:
        return map(str, action.choices)
    if action.metavar == "WORKFLOW" or action.dest == "workflow":
        return _workflows()
    if action.metavar == "THREAD":
        return _threads()
    return _agents() if action.dest == "agent" else ()


def _workflows() -> list[str]:
    import os

    from rolecall.threads.workspace import store_if_any
    from rolecall.workflow import registry

    store = store_if_any()
    return [_candidate(entry.name, entry.path or "") for entry in registry.listed(store, folder=os.getcwd())]


def _threads() -> Iterator[str]:
    from itertools import islice

    from rolecall.threads import thread
    from rolecall.threads.listing import Filter, listed
    from rolecall.threads.workspace import store_if_any

    if (store := store_if_any()) is None:
        return
    length = thread.short_id_length(store)
    everything = Filter(frozenset({*thread.STATUSES, "crashed", "damaged"}), None, 0, None, ())
    entries = list(islice(listed(store, everything), _MOST_THREADS))
    for shown in (length, 26):  # the whole id too, in case its beginning is already typed
        for entry in entries:
            yield _candidate(entry["thread"][-shown:], f"{entry['status']} · {entry['title'] or ''}")


def _agents() -> Iterator[str]:
    from rolecall import agents
    from rolecall.agents.acp_presets import PRESETS
    from rolecall.settings import config

    presets = (f"acp:{name}" for name in PRESETS)
    yield from dict.fromkeys(
        [*config.load().get("agents", {}), *agents.PROGRAMS, "builtin", "human", *presets]
    )


def _candidate(text: str, about: str) -> Candidate:
    found = Candidate(text)
    found.about = about
    return found


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=(*_SCRIPTS, "tcsh"))
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="print candidates for the last of these words"
    )


VERBS = {
    "": Verb(
        _print,
        "print a shell completion script",
        'eval "$(rolecall completion bash)"\nrolecall completion fish | source',
        _arguments,
    )
}

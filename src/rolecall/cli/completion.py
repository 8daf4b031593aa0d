"""`rolecall completion`: a script that teaches a shell the commands and their options."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace

from rolecall.cli import Verb, build_parser


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def _print(options: Namespace) -> None:
    import shtab

    script = shtab.complete(build_parser(), options.shell)
    print(_for_both_names(script, options.shell))


def _for_both_names(script: str, shell: str) -> str:
    """The script with `uwf` wherever it registers `rolecall`."""
    if shell == "tcsh":
        return script + script.replace("\ncomplete rolecall ", "\ncomplete uwf ")
    return re.sub(r"^(#compdef|.*compdef .*|complete .*) rolecall$", r"\g<0> uwf", script, flags=re.MULTILINE)


VERBS = {
    "": Verb(_print, "print a shell completion script", 'eval "$(rolecall completion bash)"', _arguments)
}

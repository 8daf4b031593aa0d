"""`rolecall completion`: a script that teaches a shell the commands and their options."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from rolecall.cli import Verb, build_parser


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def _print(options: Namespace) -> None:
    import shtab

    print(shtab.complete(build_parser(), options.shell))


VERBS = {
    "": Verb(_print, "print a shell completion script", 'eval "$(rolecall completion bash)"', _arguments)
}

"""The command line: finds the command, imports its module, turns errors into exit codes.

Each noun is one module with a table of verbs, imported only when it is the one named, because a
command that reads one node should cost little more than starting Python. Exit codes: 0 done, 1 "no"
as an answer, 2 wrong use, 3 not found, 4 damaged, 5 the disk, the server or another process refused.
"""

from __future__ import annotations

import sys

from rolecall import __version__

TYPE_CHECKING = False  # what typing.TYPE_CHECKING is, without importing typing for `--version`
if TYPE_CHECKING:
    from argparse import ArgumentParser, HelpFormatter, Namespace
    from collections.abc import Callable
    from typing import NoReturn

    from rolecall.errors import RolecallError

NOUNS = {
    "workflow": ("rolecall.cli.workflow", "put, show, check and draw workflows"),
    "thread": ("rolecall.cli.thread", "start, step, read and steer threads"),
    "run": ("rolecall.cli.run", "start threads of a workflow and follow them"),
    "serve": ("rolecall.cli.serve", "run queued threads: the service, its status, its log"),
    "fleet": ("rolecall.cli.fleet", "the machines that share a database, and what they do"),
    "init": ("rolecall.cli.init", "make a project with a workflow that runs at once"),
    "validate": ("rolecall.cli.validate", "check a project: its file, workflows, agents and triggers"),
    "trigger": ("rolecall.cli.trigger", "list, fire and pause what starts threads by itself"),
    "plan": ("rolecall.cli.plan", "what a project has to decide, and what it decided"),
    "task": ("rolecall.cli.task", "the tasks of a project's running cycle, and its end"),
    "history": ("rolecall.cli.history", "search the cycles a project has closed"),
    "artifact": ("rolecall.cli.artifact", "files that one step of the work leaves for the next"),
    "memory": ("rolecall.cli.memory", "what a project has learnt: keep, read, merge and forget it"),
    "knowledge": ("rolecall.cli.knowledge", "what a repository says about itself: index it, ask it"),
    "rule": ("rolecall.cli.rule", "what the agents of a project keep to"),
    "config": ("rolecall.cli.config", "read and change the configuration"),
    "agents": ("rolecall.cli.agents", "list the agents there are adapters for, try one"),
    "doctor": ("rolecall.cli.doctor", "check that what workflows need is here, and say what to fix"),
    "setup": ("rolecall.cli.setup", "configure a provider, a model and an agent"),
    "mcp": ("rolecall.mcp.command", "serve the project's tools to an MCP host"),
    "hook": ("rolecall.cli.hook", "tell what happens in a host, and what is to be done about it"),
    "install": ("rolecall.cli.install", "let Claude Code, Codex or OpenCode use Rolecall"),
    "uninstall": ("rolecall.cli.uninstall", "take out of a host what install wrote"),
    "conformance": ("rolecall.cli.conformance", "hold the project's tools against fixtures of the contract"),
    "cas": ("rolecall.cli.cas", "look at and write the content-addressed store"),
    "completion": ("rolecall.cli.completion", "print a shell completion script"),
    "status": ("rolecall.cli.status", "show project, threads, service and the next command"),
    "help": ("rolecall.cli.help", "explain a command"),
    "version": ("rolecall.cli.version", "print the version"),
}
"""Every noun: its module, loaded on demand, and its line in the help."""

DESCRIPTION = "Runs teams of coding agents through workflows that cannot lose work."
EXAMPLES = (
    "rolecall doctor\nrolecall workflow validate .workflows/fix-bug.yaml\n"
    "rolecall thread start fix-bug -p 'The login page is blank' --agent claude\nrolecall thread list --all"
)


TYPED = r"(?<![\w/.-])rolecall (?=[a-z]|--)"
"""The name of the program in a suggested command."""


class Verb:
    """One command of a noun; a noun's module has them as `VERBS`, by name. "" is the noun itself."""

    def __init__(
        self,
        run: Callable[[Namespace], int | None],
        help: str,
        example: str,
        arguments: Callable[[ArgumentParser], object] = lambda _: None,
    ) -> None:
        self.run = run
        self.help = help
        self.example = example
        self.arguments = arguments


def program() -> str:
    """The name that started the command: `rolecall`, or `uwf` like the predecessor."""
    return "uwf" if sys.argv[0].rpartition("/")[2] == "uwf" else "rolecall"


def under_this_name(text: str) -> str:
    """`text` with the commands in it under the program's current name."""
    if program() == "rolecall":
        return text
    import re

    return re.sub(TYPED, f"{program()} ", text)


def command() -> int:
    """The program itself. Most commands end before there is garbage, and looking for it among all that was
    imported takes a tenth of the time of a step."""
    import gc

    gc.set_threshold(20_000)
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _fill_closed_streams()
    if sys.stdout is None:
        told = "standard output is closed\n  Give it somewhere to go, /dev/null perhaps."
        print(f"rolecall: {told}", file=sys.stderr)
        return 1 if sys.argv[1:2] == ["hook"] else 2  # which hosts take for a refusal
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    try:
        return main()
    finally:
        gc.freeze()  # or the interpreter's own end looks through everything once more


def _fill_closed_streams() -> None:
    """Take the numbers of streams that whoever started us has closed, or a file that is opened next gets one of
    them, the store perhaps, and with it what is printed. What was closed for reading cannot be read."""
    import os

    while (number := os.open(os.devnull, os.O_WRONLY)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 -- open as long as we run
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def main(argv: list[str] | None = None) -> int:
    args = sys.argv[1:] if argv is None else argv
    try:
        if args in (["--version"], ["-V"]):
            print(f"rolecall {__version__}", flush=True)
            return 0
        try:
            return _run(args)
        finally:
            sys.stdout.flush()  # here, where we still notice a closed pipe or a full disk
    except KeyboardInterrupt:
        print(f"{program()}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output is gone (`| head`); there is nobody left to tell.
        sys.stdout = None  # otherwise Python flushes its buffer again at exit, fails, and ends with 120
        sys.stderr.close()
        return 141
    except OSError as error:
        print(f"{program()}: {error}", file=sys.stderr)
        sys.stdout = None  # a full disk would fail again at exit
        _explain_too_many_files(error)
        return 5


def _explain_too_many_files(error: OSError) -> None:
    import errno
    import warnings

    if error.errno in (errno.EMFILE, errno.ENFILE):
        print("  Allow more open files: `ulimit -n 1024`, for example.", file=sys.stderr)
        # An event loop that could not open its files complains again when it is collected.
        sys.unraisablehook = lambda _: None
        warnings.simplefilter("ignore")


def _run(args: list[str]) -> int:
    if args[:1] == ["hook"] and not {"-h", "--help"}.intersection(args):
        from rolecall.cli.hook import run_directly  # a host runs it at every call of a tool

        return run_directly(args[1:])
    from rolecall.cli import output
    from rolecall.errors import RolecallError

    try:
        options = _parse(args)
        output.color_mode = options.color
        _check_allowed(options)
        status = options.run(options)
    except RolecallError as error:
        return report(error)
    return int(status or 0)


def _check_allowed(options: Namespace) -> None:
    """Refuse what the role of this process may not do. `verbs.VERBS` classifies every verb."""
    from rolecall.settings import config

    if not config.plays_role():
        return
    from rolecall.settings import verbs

    verbs.check_verb(
        options.verb,
        lambda option: getattr(options, option),
        restrictions=config.restrictions(),
        is_in_step=bool(config.run()),
        may_start_threads=config.may_start_threads(),
    )


def report(error: RolecallError) -> int:
    """Print an error and what to do about it; the exit code it means."""
    from rolecall.cli import hints
    from rolecall.cli.output import colored, say

    say(f"{colored(f'{program()}:', 'red')} {error.message}", sys.stderr)
    if error.hint:
        say("  " + hints.word(error.hint).replace("\n", "\n  "), sys.stderr)
    return exit_code(error)


def exit_code(error: RolecallError) -> int:
    from rolecall.errors import Damaged, NotFound, UsageError

    for kind, code in ((UsageError, 2), (NotFound, 3), (Damaged, 4)):
        if isinstance(error, kind):
            return code
    return 5


# -- parsing --


def _parse(args: list[str]) -> Namespace:
    """Options of the command named; only that command's parser is built when it can be told at once."""
    if args and args[0] in NOUNS:
        verbs = _verbs(args[0])
        for words in (2, 1, 0):
            name = " ".join(args[1 : 1 + words])
            is_misspelt = not words and len(verbs) > 1 and len(args) > 1 and not args[1].startswith("-")
            if name in verbs and len(args) > words and not is_misspelt:
                return _parse_verb(_verb_parser(args[0], name, verbs[name]), args[1 + words :])
    commands = set(NOUNS)
    for count, word in enumerate(args):
        if word.startswith("-"):
            break
        if word not in commands:
            raise _unknown_command(args, count, commands)
        below = [name.split() for name in _verbs(args[0]) if name.split()[:count] == args[1 : count + 1]]
        commands = {words[count] for words in below if len(words) > count}
    else:  # a command is missing: the help lists those that may follow
        args = [*args, "--help"]
    return build_parser().parse_args(args)


def _parse_verb(parser: ArgumentParser, args: list[str]) -> Namespace:
    from rolecall.errors import UsageError

    options = [option for action in parser._actions for option in action.option_strings]
    for arg in args[: args.index("--")] if "--" in args else args:
        name = arg.partition("=")[0]
        # A word with blanks is a value, and argparse accepts abbreviated options.
        if name.startswith("--") and " " not in arg and not any(one.startswith(name) for one in options):
            wanted = nearest(name, options)
            raise UsageError(
                f"there is no option {name}" + (f"; did you mean {wanted}?" if wanted else ""),
                hint=f"`{parser.prog} --help` shows the options.",
            )
    return parser.parse_args(args)


def _unknown_command(args: list[str], place: int, known: set[str]) -> RolecallError:
    """The error for an unknown word at `place`."""
    from rolecall.cli.oldnames import new_name
    from rolecall.errors import UsageError

    before, wanted = " ".join(["rolecall", *args[:place]]), nearest(args[place], sorted(known))
    meant = f"Did you mean `{before} {wanted}`? " if wanted else ""
    hint = new_name(args) or f"{meant}`{before} --help` lists the commands."
    return UsageError(f"there is no command {' '.join(args[: place + 1])!r}", hint=hint)


def nearest(word: str, known: list[str]) -> str | None:
    """The known word that is closest to an unknown one."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, known, 1, 0.6)), None)


def _verbs(noun: str) -> dict[str, Verb]:
    from importlib import import_module

    module = import_module(NOUNS[noun][0])
    if not hasattr(module, "VERBS"):  # another door, which knows nothing of this one
        return {"": Verb(module.run, module.HELP, module.EXAMPLE, module.add_arguments)}
    verbs: dict[str, Verb] = module.VERBS
    return verbs


def _verb_parser(noun: str, name: str, verb: Verb, *, add_help: bool = True) -> ArgumentParser:
    from rolecall.cli.output import add_color

    parser = _parser_class()(
        prog=f"{program()} {noun} {name}".strip(),
        description=verb.help[0].upper() + verb.help[1:] + ".",
        epilog=_examples(verb.example),
        formatter_class=_formatter(),
        add_help=add_help,
    )
    verb.arguments(parser)
    add_color(parser)
    parser.set_defaults(run=verb.run, verb=f"{noun} {name}".strip())
    return parser


def build_parser() -> ArgumentParser:
    """The parser with every command in it: for help, completion and commands that are misspelt."""
    parser = _parser_class()(
        prog=program(),
        description=DESCRIPTION,
        epilog=_examples(EXAMPLES),
        formatter_class=_formatter(),
    )
    parser.add_argument("--version", "-V", action="version", version=f"rolecall {__version__}")
    nouns = parser.add_subparsers(metavar="COMMAND", required=True)
    for noun, (_, line) in NOUNS.items():
        verbs = _verbs(noun)
        parents = [_verb_parser(noun, "", verbs[""], add_help=False)] if "" in verbs else []
        child = nouns.add_parser(
            noun,
            help=line,
            description=line[0].upper() + line[1:] + ".",
            epilog=_first_examples(verbs),
            parents=parents,
            formatter_class=_formatter(),
        )
        if set(verbs) != {""}:
            _add_verbs(child, noun, verbs)
    return parser


def _add_verbs(parser: ArgumentParser, noun: str, verbs: dict[str, Verb]) -> None:
    """Verbs below a noun; a verb of two words ("schema list") makes a level of its own."""
    commands = parser.add_subparsers(metavar="VERB", required="" not in verbs)
    groups: dict[str, dict[str, Verb]] = {}
    for name, verb in verbs.items():
        if not name:  # the noun itself, whose arguments the parser has already
            continue
        first, _, rest = name.partition(" ")
        if rest:
            groups.setdefault(first, {})[rest] = verb
            continue
        parent = _verb_parser(noun, name, verb, add_help=False)
        commands.add_parser(
            name,
            help=verb.help,
            description=parent.description,
            epilog=parent.epilog,
            parents=[parent],
            formatter_class=parent.formatter_class,
        )
    for first, group in groups.items():
        line = f"{first}: {', '.join(group)}"
        child = commands.add_parser(
            first,
            help=", ".join(group),
            description=line,
            epilog=_first_examples(group),
            formatter_class=_formatter(),
        )
        _add_verbs(child, f"{noun} {first}", group)


def _parser_class() -> type[ArgumentParser]:
    """Parsers that raise our errors and whose help shows the name that started the program."""
    import argparse

    from rolecall.errors import UsageError

    class Parser(argparse.ArgumentParser):
        def format_help(self) -> str:
            return under_this_name(super().format_help())

        def error(self, message: str) -> NoReturn:
            raise UsageError(message, hint=f"{self.format_usage().rstrip()}\n`{self.prog} --help` says more.")

    return Parser


def _formatter() -> type[HelpFormatter]:
    """Help that keeps our line breaks. Argparse makes a formatter for every argument it is given, and
    its own way to the terminal's width imports the compression modules."""
    import argparse
    import os

    class Formatter(argparse.RawDescriptionHelpFormatter):
        def __init__(self, prog: str) -> None:
            try:
                width = os.get_terminal_size(1).columns
            except (OSError, ValueError):
                width = 80
            super().__init__(prog, width=min(width, 120) - 2)

    return Formatter


def _first_examples(verbs: dict[str, Verb]) -> str:
    return _examples("\n".join(verb.example.splitlines()[0] for verb in verbs.values()))


def _examples(text: str) -> str:
    return "examples:\n" + "\n".join(f"  {line}" for line in text.splitlines())

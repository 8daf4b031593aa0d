"""Find a command, parse its options, run it, turn errors into exit codes, and explain commands."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from contextlib import suppress
from importlib import import_module
from shlex import quote
from typing import TYPE_CHECKING, Any, NoReturn

from rolecall import __version__
from rolecall.cli import (
    DESCRIPTION,
    EXAMPLES,
    MODULES,
    NOUNS,
    OLD_OPTIONS,
    SCREEN,
    CommandResult,
    Verb,
    argument,
    output,
    program,
    verb,
)
from rolecall.errors import Damaged, NotFound, RolecallError, UsageError
from rolecall.settings import config
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import difflib

    from rolecall import api
    from rolecall.cli import hints, workflow_pack
    from rolecall.settings import verbs
else:
    api = Module("rolecall.api")
    difflib = Module("difflib")
    hints = Module("rolecall.cli.hints")
    verbs = Module("rolecall.settings.verbs")
    workflow_pack = Module("rolecall.cli.workflow_pack")

UWF_NAMES = {
    "thread exec": "`rolecall thread step THREAD` takes one step, `rolecall thread run THREAD` takes all of them, "
    "`rolecall run WORKFLOW -p TEXT --detach` leaves them to the service.",
    "thread stop": "Ctrl-C stops `rolecall thread run` cleanly, `rolecall serve stop` stops the service; threads can "
    "continue later. `rolecall thread kill THREAD` ends one for good.",
    "thread cancel": "`rolecall thread kill THREAD` does this.",
    "thread running": "`rolecall thread list --status running` does this.",
    "start": "`rolecall run WORKFLOW -p TASK` starts a thread and follows it.",
    "list": "`rolecall thread list` lists threads, `rolecall workflow list` workflows, `rolecall new` ready-made ones.",
    "step list": "`rolecall thread steps THREAD` does this.",
    "step show": "`rolecall thread step-details STEP` does this.",
    "step read": "`rolecall thread step-details STEP` does this.",
    "step fork": "`rolecall thread fork STEP` does this.",
    "step": "`rolecall thread steps THREAD` and `rolecall thread step-details STEP` show steps.",
    "log": "`rolecall thread watch THREAD` shows the events of a thread, `rolecall serve logs` the log of the service.",
}
"""Commands of uwf, and words that beginners try, each with advice for a person who types it."""

_MOST_EXAMPLES = 3
"""The maximum number of examples in the help of a noun. The help of each verb shows all of its examples."""


def run(args: list[str]) -> int:
    """Run the command given by `args`, and return its exit code."""
    if args in (["--help"], ["-h"]):
        output.say(output.under_this_name(help_screen()))
        return 0
    try:
        options = _parse(args or ["status"])
        output.color_mode = options.color
        if config.plays_role():
            verbs.check_verb(
                options.verb.name,
                lambda option: getattr(options, option),
                restrictions=config.restrictions(),
                is_in_step=bool(config.run()),
                may_start_threads=config.may_start_threads(),
            )
        while True:
            try:
                reply = options.verb.run(options)
                break
            except UsageError as error:
                # A workflow from a pack that nobody has allowed yet. The command has had no effect so far, so it runs
                # again once a person has read what the workflow may do, and allowed it.
                path = getattr(error, "untrusted", "")
                if not path or not (sys.stdin.isatty() and sys.stderr.isatty()):
                    raise
                if not workflow_pack.ask_for_trust(path):
                    return 1
        if not isinstance(reply, CommandResult):
            return int(reply or 0)
        output.show(options, reply.value, reply.text)
        if reply.note:
            output.tell(reply.note)
        return reply.code
    except RolecallError as error:
        return report(error)


def report(error: RolecallError) -> int:
    """Print an error and its hint; return the exit code."""
    output.tell(f"{output.paint(f'{program()}:', 'red')} {error.message}")
    if error.hint:
        output.tell("  " + hints.word(error.hint).replace("\n", "\n  "))
    codes = {UsageError: 2, NotFound: 3, Damaged: 4}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), 5)


def help_screen() -> str:
    """Return the help screen, with the commands that most people use, in groups."""
    lines = [f"usage: {program()} COMMAND ...", "", DESCRIPTION, ""]
    for group, commands in SCREEN.items():
        known = [name for name in commands if name.split()[0] in NOUNS]
        lines += [f"{'' if at else group:17}{name:15}{commands[name]}" for at, name in enumerate(known)]
    more = f"""`{program()}` alone shows what waits for you, what runs and what to do next.
`{program()} COMMAND --help` explains a command, `{program()} help all` lists all."""
    return "\n".join([*lines, "", _epilog(EXAMPLES), "", more])


# -- parsing --


def verbs_of(noun: str, word: str = "") -> dict[str, Verb]:
    """Return the verbs of a noun by their names, which do not include the noun. If one of the noun's modules has a verb
    that begins with `word`, only that module is imported."""
    modules = MODULES.get(noun) or {NOUNS[noun][0]: ()}
    found: dict[str, Verb] = {}
    for name in [name for name, words in modules.items() if word in words] or modules:
        module = import_module(name)
        if hasattr(module, "add_arguments"):  # a module that does not depend on the CLI
            arguments = (module.add_arguments,)
            found[""] = Verb(noun, module.HELP, module.EXAMPLE, arguments, module.run, has_reply=False)
        for one in vars(module).values():
            if isinstance(one, Verb) and one.name.split()[0] == noun:
                found[one.name[len(noun) + 1 :]] = one
    return found


def _parse(args: list[str]) -> Namespace:
    """Parse the options of a command. Only the parser of that command is built, unless the command's name is incomplete
    or misspelt."""
    if args and args[0] in NOUNS:
        verbs = verbs_of(args[0], "".join(args[1:2]))
        for words in (2, 1, 0):
            name = " ".join(args[1 : 1 + words])
            is_misspelt = not words and len(verbs) > 1 and len(args) > 1 and not args[1].startswith("-")
            if name in verbs and len(args) > words and not is_misspelt:
                return _parse_verb(verbs[name], args[1 + words :])
    if args[0].startswith("-") and args[0] not in ("-h", "--help", "-V", "--version"):
        wanted = nearest(args[0], ["--help", "--version"])
        raise UsageError(
            f"unknown option {args[0]}" + (f"; did you mean {wanted}?" if wanted else ""),
            hint="`rolecall --help` lists the commands.",
        )
    commands = set(NOUNS)
    for count, word in enumerate(args):
        if word.startswith("-"):
            break
        if word not in commands:
            before, wanted = " ".join(["rolecall", *args[:count]]), nearest(word, sorted(commands))
            meant = f"Did you mean `{before} {wanted}`? " if wanted else ""
            if not count:
                with suppress(RolecallError, OSError), api.reader() as rolecall:
                    rolecall.find_workflow(word)
                    meant = f"Did you mean `rolecall run {word} -p 'What to do'`? "
            raise UsageError(
                f"unknown command {' '.join(args[: count + 1])!r}",
                hint=UWF_NAMES.get(" ".join(args[:2]))
                or UWF_NAMES.get(args[0])
                or f"{meant}`{before} --help` lists the commands.",
            )
        below = [name.split() for name in verbs_of(args[0]) if name.split()[:count] == args[1 : count + 1]]
        commands = {words[count] for words in below if len(words) > count}
    else:  # an incomplete command: the help lists the possible continuations
        args = [*args, "--help"]
    return build_parser(only=args[0]).parse_args(args)


def _parse_verb(chosen: Verb, args: list[str]) -> Namespace:
    parser = verb_parser(chosen)
    options = [option for action in parser._actions for option in action.option_strings]
    renamed, args = OLD_OPTIONS.get(chosen.name, {}), list(args)
    for at, arg in enumerate(args[: args.index("--")] if "--" in args else args):
        name, equals, value = arg.partition("=")
        if name in renamed:
            output.tell(f"note: {name} is now {renamed[name]}")
            args[at] = renamed[name] + equals + value
            continue
        # A word with spaces is a value, and argparse accepts abbreviated options.
        if name.startswith("--") and " " not in arg and not any(one.startswith(name) for one in options):
            wanted = nearest(name[2:], [option[2:] for option in options if option.startswith("--")])
            wanted = wanted and f"--{wanted}"
            raise UsageError(
                f"unknown option {name}" + (f"; did you mean {wanted}?" if wanted else ""),
                hint=f"`{parser.prog} --help` shows the options.",
            )
    positionals = [action for action in parser._actions if not action.option_strings]
    if len(positionals) > 1 and any(one.nargs == "?" for one in positionals):
        # `parse_args` misplaces or refuses one of two positional arguments if an option comes between them.
        return parser.parse_intermixed_args(args)
    return parser.parse_args(args)


def nearest(word: str, known: list[str]) -> str | None:
    """Return the known word closest to an unknown one."""
    return next(iter(difflib.get_close_matches(word, known, 1, 0.6)), None)


def verb_parser(chosen: Verb, *, add_help: bool = True) -> ArgumentParser:
    parser = Parser(
        prog=f"{program()} {chosen.name}",
        description=chosen.help[0].upper() + chosen.help[1:] + ".",
        epilog=_epilog(chosen.examples),
        formatter_class=Formatter,
        add_help=add_help,
    )
    for add in (*chosen.arguments, *((output.FORMAT,) if chosen.has_reply else ()), output.COLOR):
        add(parser)
    parser.set_defaults(verb=chosen)
    return parser


def build_parser(only: str = "") -> ArgumentParser:
    """Build the parser with all commands, for help and completion. If `only` is given, all other nouns are added
    without their verbs."""
    parser = Parser(
        prog=program(), description=DESCRIPTION, epilog=_epilog(EXAMPLES), formatter_class=Formatter
    )
    parser.add_argument("--version", "-V", action="version", version=f"rolecall {__version__}")
    nouns = parser.add_subparsers(metavar="COMMAND", required=True)
    for noun, (_, line) in NOUNS.items():
        verbs = verbs_of(noun) if only in ("", noun) else {}
        own = [verb_parser(verbs[""], add_help=False)] if "" in verbs else []
        child = _add_command(nouns, noun, line, line[0].upper() + line[1:] + ".", verbs, own)
        if verbs.keys() - {""}:
            _add_verbs(child, verbs)
    return parser


def _add_verbs(parser: ArgumentParser, verbs: dict[str, Verb]) -> None:
    """Add the verbs of a noun. Verbs of two words, such as "schema list", are grouped below their first word."""
    commands = parser.add_subparsers(metavar="VERB", required="" not in verbs)
    groups: dict[str, dict[str, Verb]] = {}
    for name, one in verbs.items():
        first, _, rest = name.partition(" ")
        if rest:
            groups.setdefault(first, {})[rest] = one
        elif name:  # a verb without a name is the noun itself, whose arguments the parser already has
            own = verb_parser(one, add_help=False)
            _add_command(commands, name, one.help, own.description or "", {name: one}, [own])
    for first, group in groups.items():
        line = ", ".join(group)
        _add_verbs(_add_command(commands, first, line, f"{first}: {line}", group, []), group)


def _add_command(
    parent: Any, name: str, line: str, description: str, verbs: dict[str, Verb], parents: list[ArgumentParser]
) -> ArgumentParser:
    """Add a command. Its help shows all examples of a single verb, otherwise the first example of each verb."""
    examples = [one.examples for one in verbs.values()]
    if len(examples) > 1:
        examples = [text.splitlines()[0] for text in examples][:_MOST_EXAMPLES]
    made: ArgumentParser = parent.add_parser(
        name,
        help=line,
        description=description,
        epilog=_epilog("\n".join(examples)),
        parents=parents,
        formatter_class=Formatter,
    )
    return made


class Parser(ArgumentParser):
    """An argument parser that raises Rolecall's errors and shows the current program name in its help."""

    def format_help(self) -> str:
        return output.under_this_name(super().format_help())

    def error(self, message: str) -> NoReturn:
        if message.startswith("argument "):  # a wrong value; the message is complete
            raise UsageError(
                message.removeprefix("argument "), hint=f"`{self.prog} --help` shows the options."
            )
        words = message.removeprefix("unrecognized arguments: ")
        if words != message and "--prompt" in self._option_string_actions:
            raise UsageError(message, hint=f"Is it the task? Write -p {quote(words)}.")
        if message.endswith(": WORKFLOW"):  # the first command that many people type is `rolecall run`
            known = "`rolecall new` lists those that come with Rolecall, `rolecall workflow list` your own"
            raise UsageError("no workflow is named", hint=f"{known}.\n`{self.prog} --help` says more.")
        raise UsageError(message, hint=f"{self.format_usage().rstrip()}\n`{self.prog} --help` says more.")


class Formatter(RawDescriptionHelpFormatter):
    """A help formatter that keeps line breaks. The width is passed to argparse, which creates a formatter for every
    argument and would import the compression modules to find the terminal's width."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(output.columns_of_terminal(), 120) - 2)


def _epilog(examples: str) -> str:
    return "examples:\n" + "\n".join(f"  {line}" for line in examples.splitlines())


@verb(
    "help",
    "explain a command",
    "rolecall help\nrolecall help all\nrolecall help thread start",
    argument("words", "COMMAND", "a command, and one of its verbs; or all", nargs="*"),
    has_reply=False,
)
def print_help(options: Namespace) -> int:
    if options.words == ["all"]:
        print(build_parser(only="help").format_help(), end="")
        return 0
    return run([*options.words, "--help"])


@verb("version", "print the version", "rolecall version")
def print_version(_options: Namespace) -> CommandResult:
    return CommandResult({"version": __version__}, f"rolecall {__version__}")

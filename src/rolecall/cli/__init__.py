"""The command line: finds the command, imports its module, turns errors into exit codes.

A noun's module is imported only when it is used: a command that reads one node should take little longer than starting
Python. Exit codes: 0 success, 1 a negative answer, 2 wrong usage, 3 not found, 4 damaged, 5 refused by the disk, the
server or another process.
"""

from __future__ import annotations

import sys

from rolecall import __version__

TYPE_CHECKING = False  # typing.TYPE_CHECKING without importing typing for `--version`
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable
    from typing import Any, NoReturn

    from rolecall.errors import RolecallError

    Argument = Callable[[Any], object]
    """Adds one or more arguments to a parser or an argument group."""

NOUNS = {
    "workflow": ("rolecall.cli.workflow", "put, show, check and draw workflows"),
    "thread": ("rolecall.cli.thread_*", "start, step, read and steer threads"),
    "run": ("rolecall.cli.run", "start threads of a workflow and follow them"),
    "serve": ("rolecall.cli.serve*", "run queued threads: the service, its status, its log"),
    "fleet": ("rolecall.cli.fleet", "show the machines that share a database"),
    "init": ("rolecall.cli.init", "make a project with a workflow that runs at once"),
    "validate": ("rolecall.cli.validate", "check a project: its file, workflows, agents and triggers"),
    "trigger": ("rolecall.cli.trigger", "list, fire and pause a project's triggers"),
    "plan": ("rolecall.cli.plan*", "a project's open questions and decisions"),
    "task": ("rolecall.cli.task", "the tasks of a project's current cycle"),
    "history": ("rolecall.cli.task", "search the cycles a project has closed"),
    "artifact": ("rolecall.cli.task", "files that one step of the work leaves for the next"),
    "memory": ("rolecall.cli.memory", "lessons a project has learnt: keep, read, merge, forget"),
    "knowledge": ("rolecall.cli.knowledge", "index a repository and search it"),
    "rule": ("rolecall.cli.rule", "rules for the agents of a project"),
    "config": ("rolecall.cli.config", "read and change the configuration"),
    "agents": ("rolecall.cli.agents", "list the agents Rolecall can run, try one"),
    "doctor": ("rolecall.cli.doctor", "check that this machine has what the workflows need"),
    "setup": ("rolecall.cli.setup", "configure a provider, a model and an agent"),
    "mcp": ("rolecall.mcp.command", "serve the project's tools to an MCP host"),
    "hook": ("rolecall.cli.hook", "answer an event of a host"),
    "install": ("rolecall.cli.install", "let Claude Code, Codex or OpenCode use Rolecall"),
    "uninstall": ("rolecall.cli.install", "remove from a host what install wrote"),
    "conformance": ("rolecall.cli.conformance", "run fixtures of the contract against the project's tools"),
    "cas": ("rolecall.cli.cas", "read and write the content-addressed store"),
    "completion": ("rolecall.cli.completion", "print a shell completion script"),
    "status": ("rolecall.cli.status", "show project, threads, service and the next command"),
    "help": ("rolecall.cli.help", "explain a command"),
    "version": ("rolecall.cli.help", "print the version"),
}
"""Every noun with its module, loaded on demand, and its line in the help."""

MODULES = {
    "thread": {
        "rolecall.cli.thread_run": ("start", "step", "run", "resume", "kill", "watch", "fork"),
        "rolecall.cli.thread_answer": ("answer",),
        "rolecall.cli.thread_read": ("show", "list", "steps", "read", "step-details", "diff"),
        "rolecall.cli.thread_files": ("export", "folder", "import"),
    },
    "serve": {"rolecall.cli.serve": (), "rolecall.cli.serve_status": ("status", "stop", "logs")},
    "plan": {
        "rolecall.cli.plan": ("start", "status", "add", "remove", "edit", "reopen", "decide"),
        "rolecall.cli.plan_run": ("run",),
    },
}
"""Nouns with several modules, and the verbs of each, so that reading a thread does not load what running one needs."""

OLD_OPTIONS = {
    "serve": {"--limit": "--at-once"},
    "plan run": {"--limit": "--at-once"},
    "thread list": {"--limit": "--max"},
    "cas walk": {"--limit": "--max"},
    "knowledge query": {"--limit": "--max"},
}
"""Renamed options. The old name works in this version, with a note on standard error."""

DESCRIPTION = "Runs teams of coding agents through workflows that cannot lose work."
EXAMPLES = (
    "rolecall doctor\nrolecall workflow validate .workflows/fix-bug.yaml\n"
    "rolecall thread start fix-bug -p 'The login page is blank' --agent claude\nrolecall thread list --all"
)


# -- how a module declares its commands --


class Reply:
    """A command's result: the value to print as JSON or YAML, its text (indented JSON if None), and an exit code."""

    def __init__(self, value: Any, text: str | Callable[[], str] | None = None, code: int = 0) -> None:
        self.value = value
        self.text = text
        self.code = code


class Verb:
    """A command: its name, its line in the help, examples, arguments, and the function that implements it."""

    def __init__(
        self,
        name: str,
        help: str,
        examples: str,
        arguments: tuple[Argument, ...],
        run: Callable[[Namespace], Reply | int | None],
        has_reply: bool,
    ) -> None:
        self.name = name
        self.help = help
        self.examples = examples
        self.arguments = arguments
        self.run = run
        self.has_reply = has_reply


def verb(
    name: str, help: str, examples: str, *arguments: Argument, has_reply: bool = True
) -> Callable[[Callable[[Namespace], Reply | int | None]], Verb]:
    """Declare the decorated function as the command `name`. It returns a value to print, an exit code, or nothing.

    The command accepts --format and --json unless `has_reply` is False.
    """
    return lambda run: Verb(name, help, examples, arguments, run, has_reply)


def argument(names: str, metavar: str | None, help: str | None, **options: Any) -> Argument:
    """Declare an argument by its name or names, with further options of `ArgumentParser.add_argument`."""
    return lambda parser: parser.add_argument(*names.split(), metavar=metavar, help=help, **options)


def flag(names: str, help: str, **options: Any) -> Argument:
    """Declare an option without a value."""
    return lambda parser: parser.add_argument(*names.split(), action="store_true", help=help, **options)


def either(*arguments: Argument, required: bool = False) -> Argument:
    """Declare mutually exclusive arguments, one of which must be given if `required`."""

    def add(parser: ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group(required=required)
        for one in arguments:
            one(group)

    return add


def verbs_of(noun: str, word: str = "") -> dict[str, Verb]:
    """Return a noun's verbs, by name without the noun. `word` limits this to the module with such a verb."""
    from importlib import import_module

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


# -- running one --


def program() -> str:
    """Return the name that started the command: `rolecall`, or `uwf` like the predecessor."""
    return "uwf" if sys.argv[0].rpartition("/")[2] == "uwf" else "rolecall"


def under_this_name(text: str) -> str:
    """Replace `rolecall` in the commands within `text` by the current program name."""
    if program() == "rolecall":
        return text
    import re

    return re.sub(r"(?<![\w/.-])rolecall (?=[a-z]|--)", f"{program()} ", text)


def command() -> int:
    """Set up the process and run `main`."""
    import gc

    gc.set_threshold(100_000)  # most commands end before there is any garbage to collect
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _fill_closed_streams()
    if sys.stdout is None:
        print(
            "rolecall: standard output is closed\n  Redirect it, to /dev/null for example.", file=sys.stderr
        )
        return 1 if sys.argv[1:2] == ["hook"] else 2  # hosts interpret 2 as a refusal
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    try:
        return main()
    finally:
        gc.freeze()  # otherwise the interpreter searches all objects once more at exit


def _fill_closed_streams() -> None:
    """Open /dev/null for closed standard streams. Otherwise the next file opened, perhaps the store, would get that
    descriptor and all printed text."""
    import os

    while (number := os.open(os.devnull, os.O_WRONLY)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 -- stays open while the program runs
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
            sys.stdout.flush()  # now, while a closed pipe or a full disk can still be reported
    except KeyboardInterrupt:
        print(f"{program()}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has exited (`| head`)
        sys.stdout = None  # otherwise Python flushes again at exit, fails, and ends with 120
        sys.stderr.close()
        return 141
    except OSError as error:
        import errno
        import warnings

        print(f"{program()}: {error}", file=sys.stderr)
        sys.stdout = None  # a full disk would fail again at exit
        if error.errno in (errno.EMFILE, errno.ENFILE):
            print("  Allow more open files: `ulimit -n 1024`, for example.", file=sys.stderr)
            # An event loop that could not open its files reports that again when it is garbage-collected.
            sys.unraisablehook = lambda _: None
            warnings.simplefilter("ignore")
        return 5


def _run(args: list[str]) -> int:
    if args[:1] == ["hook"] and not {"-h", "--help"}.intersection(args):
        from rolecall.cli.hook import run_directly  # hosts run it at every tool call

        return run_directly(args[1:])
    from rolecall.cli import output
    from rolecall.errors import RolecallError
    from rolecall.settings import config

    try:
        options = _parse(args)
        output.color_mode = options.color
        if config.plays_role():
            from rolecall.settings import verbs

            verbs.check_verb(
                options.verb.name,
                lambda option: getattr(options, option),
                restrictions=config.restrictions(),
                is_in_step=bool(config.run()),
                may_start_threads=config.may_start_threads(),
            )
        reply = options.verb.run(options)
        if isinstance(reply, Reply):
            output.show(options, reply.value, reply.text)
            return reply.code
        return int(reply or 0)
    except RolecallError as error:
        return report(error)


def report(error: RolecallError) -> int:
    """Print an error and its hint; return the exit code."""
    from rolecall.cli import hints
    from rolecall.cli.output import colored, say
    from rolecall.errors import Damaged, NotFound, UsageError

    say(f"{colored(f'{program()}:', 'red')} {error.message}", sys.stderr)
    if error.hint:
        say("  " + hints.word(error.hint).replace("\n", "\n  "), sys.stderr)
    codes = {UsageError: 2, NotFound: 3, Damaged: 4}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), 5)


# -- parsing --


def _parse(args: list[str]) -> Namespace:
    """Parse a command's options. Only its own parser is built, unless its name is incomplete or misspelt."""
    if args and args[0] in NOUNS:
        verbs = verbs_of(args[0], "".join(args[1:2]))
        for words in (2, 1, 0):
            name = " ".join(args[1 : 1 + words])
            is_misspelt = not words and len(verbs) > 1 and len(args) > 1 and not args[1].startswith("-")
            if name in verbs and len(args) > words and not is_misspelt:
                return _parse_verb(verbs[name], args[1 + words :])
    commands = set(NOUNS)
    for count, word in enumerate(args):
        if word.startswith("-"):
            break
        if word not in commands:
            from rolecall.cli.oldnames import new_name
            from rolecall.errors import UsageError

            before, wanted = " ".join(["rolecall", *args[:count]]), nearest(word, sorted(commands))
            meant = f"Did you mean `{before} {wanted}`? " if wanted else ""
            raise UsageError(
                f"unknown command {' '.join(args[: count + 1])!r}",
                hint=new_name(args) or f"{meant}`{before} --help` lists the commands.",
            )
        below = [name.split() for name in verbs_of(args[0]) if name.split()[:count] == args[1 : count + 1]]
        commands = {words[count] for words in below if len(words) > count}
    else:  # an incomplete command: the help lists the possible continuations
        args = [*args, "--help"]
    return build_parser(only=args[0]).parse_args(args)


def _parse_verb(chosen: Verb, args: list[str]) -> Namespace:
    from rolecall.errors import UsageError

    parser = verb_parser(chosen)
    options = [option for action in parser._actions for option in action.option_strings]
    renamed, args = OLD_OPTIONS.get(chosen.name, {}), list(args)
    for at, arg in enumerate(args[: args.index("--")] if "--" in args else args):
        name, equals, value = arg.partition("=")
        if name in renamed:
            print(f"note: {name} is now {renamed[name]}", file=sys.stderr)
            args[at] = renamed[name] + equals + value
            continue
        # A word with spaces is a value, and argparse accepts abbreviated options.
        if name.startswith("--") and " " not in arg and not any(one.startswith(name) for one in options):
            wanted = nearest(name, options)
            raise UsageError(
                f"unknown option {name}" + (f"; did you mean {wanted}?" if wanted else ""),
                hint=f"`{parser.prog} --help` shows the options.",
            )
    return parser.parse_args(args)


def nearest(word: str, known: list[str]) -> str | None:
    """Return the known word closest to an unknown one."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, known, 1, 0.6)), None)


def verb_parser(chosen: Verb, *, add_help: bool = True) -> ArgumentParser:
    from rolecall.cli.output import COLOR, FORMAT

    parser = _make_parser(
        f"{program()} {chosen.name}",
        chosen.help[0].upper() + chosen.help[1:] + ".",
        chosen.examples,
        add_help,
    )
    for add in (*chosen.arguments, *((FORMAT,) if chosen.has_reply else ()), COLOR):
        add(parser)
    parser.set_defaults(verb=chosen)
    return parser


def build_parser(only: str = "") -> ArgumentParser:
    """Build the parser with all commands, for help and completion; nouns other than `only` get just their names."""
    parser = _make_parser(program(), DESCRIPTION, EXAMPLES)
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
    """Add the verbs of a noun; a verb of two words ("schema list") creates a level of its own."""
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
    """Add a command below `parent`, with the examples of its only verb, or the first example of each verb."""
    examples = [one.examples for one in verbs.values()]
    if len(examples) > 1:
        examples = [text.splitlines()[0] for text in examples]
    made: ArgumentParser = parent.add_parser(
        name,
        help=line,
        description=description,
        epilog=_epilog("\n".join(examples)),
        parents=parents,
        formatter_class=_formatter(),
    )
    return made


def _make_parser(prog: str, description: str, examples: str, add_help: bool = True) -> ArgumentParser:
    """Create a parser that raises our errors and shows the current program name in its help."""
    import argparse

    from rolecall.errors import UsageError

    class Parser(argparse.ArgumentParser):
        def format_help(self) -> str:
            return under_this_name(super().format_help())

        def error(self, message: str) -> NoReturn:
            raise UsageError(message, hint=f"{self.format_usage().rstrip()}\n`{self.prog} --help` says more.")

    return Parser(
        prog=prog,
        description=description,
        epilog=_epilog(examples),
        formatter_class=_formatter(),
        add_help=add_help,
    )


def _formatter() -> Any:
    """Return a help formatter that keeps line breaks. Argparse creates a formatter for every argument, and its default
    way to find the terminal's width imports the compression modules."""
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


def _epilog(examples: str) -> str:
    return "examples:\n" + "\n".join(f"  {line}" for line in examples.splitlines())

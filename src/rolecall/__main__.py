"""The process around a command: its streams, its exit code, and the commands that need no parser."""

from __future__ import annotations

import errno
import gc
import os
import sys

from rolecall import __version__


def command() -> int:
    """Set up the process and run `main`."""
    gc.set_threshold(100_000)  # most commands end before there is any garbage to collect
    if None in (sys.stdin, sys.stdout, sys.stderr):
        # Otherwise, the next file that is opened, perhaps the store, would get the file descriptor of a closed stream,
        # and with it all text that is printed.
        while (number := os.open(os.devnull, os.O_WRONLY)) <= 2:
            os.set_inheritable(number, True)
        os.close(number)
        sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 -- stays open while the program runs
        sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
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
        gc.freeze()  # otherwise the interpreter would search all objects once more at exit


def main(argv: list[str] | None = None) -> int:
    args = sys.argv[1:] if argv is None else argv
    try:
        if args in (["--version"], ["-V"]):
            print(f"rolecall {__version__}", flush=True)
            return 0
        try:
            if args[:1] == ["hook"] and not {"-h", "--help"}.intersection(args):
                from rolecall.cli.hook import run_directly  # hosts run a hook at every tool call

                return run_directly(args[1:])
            from rolecall.cli.parser import run  # `--version` needs no parser

            return run(args)
        finally:
            sys.stdout.flush()  # flush now, while a closed pipe or a full disk can still be reported
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    except BrokenPipeError:  # the reader of our output has exited (`| head`)
        sys.stdout = sys.stderr = None  # otherwise Python would flush again at exit, fail, and end with 120
        return 141
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not error.filename:  # raised by `os.getcwd`
            _complain("this folder no longer exists\n  Change to another: `cd ~`.")
        else:
            _complain(str(error))
        sys.stdout = None  # otherwise a full disk would cause an error again at exit
        if error.errno in (errno.EMFILE, errno.ENFILE):
            print("  Allow more open files: `ulimit -n 1024`, for example.", file=sys.stderr)
            import warnings  # most commands do not need this module

            # An event loop that could not open its files reports that again when it is garbage-collected.
            sys.unraisablehook = lambda _: None
            warnings.simplefilter("ignore")
        return 5


def _complain(text: str) -> None:
    from rolecall.cli import program  # `--version` does not need this module

    print(f"{program()}: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(command())

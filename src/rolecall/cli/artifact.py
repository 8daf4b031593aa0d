"""`rolecall artifact`: files that one step of the work leaves for the next."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from rolecall.cli import Verb
from rolecall.cli.output import read_file, read_input, show
from rolecall.cli.project_call import add_project, call


def _write(options: Namespace) -> None:
    content = read_input("-") if options.file == "-" else read_file(options.file)
    reply = call(options, "artifact_write", filename=options.name, content=content)
    show(options, reply, lambda: str(reply["path"]))


def _write_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="its name among the artifacts, with folders if wanted")
    parser.add_argument(
        "file", metavar="FILE", nargs="?", default="-", help="what goes into it (default: standard input)"
    )
    add_project(parser)


VERBS = {
    "write": Verb(
        _write,
        "write an artifact, over one of the same name",
        "rolecall artifact write findings/storage.md notes.md\ngit diff | rolecall artifact write change.diff",
        _write_arguments,
    ),
}

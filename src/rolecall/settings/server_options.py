"""Options that several commands share: which store to use, where to listen for HTTP, and who may call."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError


def add_store_option(parser: ArgumentParser) -> None:
    about = "a SQLite file, files:FOLDER or postgresql://… (default: the configured one)"
    parser.add_argument("--store", metavar="URL", help=about)


def add_server_options(parser: ArgumentParser) -> None:
    """Add --host, --port, --token-env and --allow-host, which `service/http.py` reads."""
    parser.add_argument("--host", metavar="ADDRESS", help="listen here (default: 127.0.0.1)")
    parser.add_argument("--port", type=_port, metavar="N", help="listen on this port (default: a free one)")
    parser.add_argument(
        "--token-env", metavar="NAME", help="the variable that holds the token clients must give"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another name clients may call this machine by",
    )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ArgumentTypeError(f"{text!r} is not a port")
    return int(text)

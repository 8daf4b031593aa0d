"""`rolecall web`: serve the page that shows and steers threads in a browser.

The CLI lists this module in its table of commands. The packages of the `web` extra are imported only when the page is
served.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import webbrowser
from argparse import SUPPRESS, ArgumentParser, Namespace
from typing import TYPE_CHECKING

from rolecall.errors import UsageError, explain_missing
from rolecall.service import control, http
from rolecall.settings import config
from rolecall.settings.server_options import add_server_options, add_store_option
from rolecall.store.lazy import Module
from rolecall.web.signin import LINK_MINUTES, BrowserSignIn

if TYPE_CHECKING:
    from rolecall.web import app
else:
    app = Module("rolecall.web.app")

HELP = "open a page that shows and steers threads (needs rolecall[web])"
EXAMPLE = "rolecall web\nrolecall web --no-open --port 8080 --read-only"


def run(options: Namespace) -> None:
    folder = os.path.abspath(options.project or os.getcwd())
    with explain_missing("web", "the page"):
        settings = app.SiteSettings(folder, options.store, options.read_only)
    if not os.path.isdir(folder):
        raise UsageError(f"the folder {folder!r} does not exist", hint="--project names a folder.")
    signin = BrowserSignIn(config.home(), token=http.read_token(options), is_read_only=options.read_only)
    address = ""

    def tell_link(path: str) -> None:
        print(f"for another browser: {address}{path}", file=sys.stderr, flush=True)

    def tell(found: str) -> None:
        nonlocal address
        address = found
        link = f"{address}/signin?once={signin.make_link()}"
        print(link, flush=True)
        control.note_page(config.home(), address)
        notice = f"The link signs one browser in, once, within {LINK_MINUTES} minutes. Ctrl-C stops the page."
        print(notice, file=sys.stderr, flush=True)
        if not options.no_open and config.has_display():
            webbrowser.open(link)

    if options.with_stdin:

        def end_with_parent() -> None:
            sys.stdin.read()
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=end_with_parent, daemon=True).start()
    http.serve(
        lambda: app.make_app(settings, signin, tell=tell_link),
        options,
        path="",
        extra="web",
        tell=tell,
        asks_token=False,
    )


def add_arguments(parser: ArgumentParser) -> None:
    add_server_options(parser)
    parser.add_argument("--read-only", action="store_true", help="show everything and change nothing")
    parser.add_argument("--no-open", action="store_true", help="do not open a browser")
    parser.add_argument("--with-stdin", action="store_true", help=SUPPRESS)
    parser.add_argument("--project", metavar="DIR", help="the folder to work from (default: this one)")
    add_store_option(parser)

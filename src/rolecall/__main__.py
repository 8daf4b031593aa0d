"""`python -m rolecall`, for where there is no script on the path."""

from rolecall.cli import command

raise SystemExit(command())

"""`python -m rolecall`, if the script is not on the path."""

from rolecall.cli import command

raise SystemExit(command())

"""One adapter per module; `rolecall.agents` has the table."""

"""The event format for any other host."""

"""The format for any other host."""

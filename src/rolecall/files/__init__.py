"""Work folders and git."""

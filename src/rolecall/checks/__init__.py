"""What doctor and validate look at."""

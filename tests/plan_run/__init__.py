"""Plans carried out by agents that are real processes."""

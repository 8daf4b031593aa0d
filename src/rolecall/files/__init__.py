"""Work folders, git, and fetching packs of workflows."""

"""The workflow language."""

"""Codex as a host."""

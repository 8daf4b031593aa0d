"""Rolecall runs teams of coding agents through workflows that cannot lose work."""

__version__ = "0.1.0"

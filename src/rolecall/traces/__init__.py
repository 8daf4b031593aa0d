"""Threads as OpenTelemetry traces: a projection of what is recorded, so nothing here runs while a step is taken."""

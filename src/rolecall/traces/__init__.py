"""Threads as OpenTelemetry traces: a projection of the recorded steps, so nothing here runs during a step."""

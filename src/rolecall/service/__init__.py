"""The service: many threads at once. `admission.py` decides, `queue.py` writes it down, `supervisor.py` does it."""

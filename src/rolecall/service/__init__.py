"""The service runs many threads at once: `admission.py` decides, `queue.py` records, `supervisor.py` acts."""

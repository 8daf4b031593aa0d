"""The checks behind `doctor` and `validate`."""

"""The checks behind `doctor` and `validate`, and the choice of agents that are ready."""

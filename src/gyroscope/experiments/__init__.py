"""Grids of runs: the paper's, a user's own, the scheduler that runs them, and what they say together."""

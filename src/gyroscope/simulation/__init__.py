"""Simulated training: the workers' gradients, tasks and data, the round, and what is measured of it."""

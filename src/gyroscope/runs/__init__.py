"""Configured runs: configuration, the training loop with its callbacks, run directories, results."""

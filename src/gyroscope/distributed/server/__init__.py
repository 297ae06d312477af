"""The parameter server, which links worker processes and runs the training loop with their gradients."""

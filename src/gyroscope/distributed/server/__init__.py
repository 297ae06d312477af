"""The parameter server: it links worker processes and runs the training loop with their gradients."""

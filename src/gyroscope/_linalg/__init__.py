"""Linear algebra on (n, d) matrices of gradients; `_kernels` holds the compiled CPU paths."""

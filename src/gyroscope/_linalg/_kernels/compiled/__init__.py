"""What numba compiles. Only these modules import it, and only when a kernel is called."""

"""The functions that numba compiles. Only these modules import numba, and only when a kernel is called."""

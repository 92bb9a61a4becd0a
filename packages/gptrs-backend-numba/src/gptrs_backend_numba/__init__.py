"""Compiles portable tensor programs to schedules of numba kernels: the CPU backend of gptrs."""

"""Kernel sources by op family, the intrinsics they use, and their compilation with numba."""

"""Report on the work of a program: its ops, its diagram, the times of its kernels."""

"""Kernels that no store has, compiled by several processes at once.

`together` finds out what a program lacks, `workers` sends it to other processes, `worker` is what
these run, and `kernel_spec` is how a kernel is written down for them.
"""

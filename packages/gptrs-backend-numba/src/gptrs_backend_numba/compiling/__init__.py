"""Compile kernels that no store has, in several processes at once.

`workers` finds the kernels that a program lacks and sends them to processes that run `worker`.
"""

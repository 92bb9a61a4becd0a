"""Readers of StableHLO from files and JAX functions, to the plain data of `module`."""

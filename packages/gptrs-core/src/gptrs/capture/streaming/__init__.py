"""Weights under a budget: a program in `segments`, `prefetch` ahead, `residency` evicts."""

"""Weights under a budget: a program in `segments`, `prefetch` ahead, `mru_streamer` evicts."""

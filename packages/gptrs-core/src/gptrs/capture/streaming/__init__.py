"""Weights under a budget: `segments` cuts a program, `streamed_executable` loads and evicts."""

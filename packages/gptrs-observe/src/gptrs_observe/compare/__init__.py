"""Compares models: `validation` runs model and reference, `agreement` measures their
differences."""

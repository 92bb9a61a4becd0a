"""Runs portable tensor programs op by op with NumPy: the reference backend of gptrs."""

"""Weights and settings come in: hostile files are read safely, tensors are loaded on first use."""

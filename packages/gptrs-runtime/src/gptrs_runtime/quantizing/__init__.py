"""Quantization of weights: groups are rounded, then written or used directly."""

"""Weights made quantized: groups are rounded, and written or computed with as they are."""

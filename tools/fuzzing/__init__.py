"""Mutated programs, and the judge of what becomes of them."""

"""Passes over a region before its lowering: short lives of large values, elementwise groups."""

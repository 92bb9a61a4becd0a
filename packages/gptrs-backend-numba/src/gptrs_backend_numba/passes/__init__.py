"""Decisions this backend makes about a whole program before it lowers it to kernel calls."""

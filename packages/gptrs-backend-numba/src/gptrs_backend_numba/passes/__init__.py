"""Passes over a whole program: elementwise groups before lowering, scratch memory after it."""

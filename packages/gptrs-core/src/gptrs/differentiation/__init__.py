"""Derivatives of captured programs: a program becomes a program, before it is optimized."""

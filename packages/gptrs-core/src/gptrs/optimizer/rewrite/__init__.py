"""Rewriting by equations: patterns, mutable regions, and the driver that applies rewrites."""

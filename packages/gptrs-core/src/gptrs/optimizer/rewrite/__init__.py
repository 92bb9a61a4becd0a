"""Rewriting by equations: patterns, a mutable form of regions, and the driver that applies them."""

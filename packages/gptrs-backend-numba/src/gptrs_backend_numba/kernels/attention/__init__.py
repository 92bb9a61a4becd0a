"""Attention without a table of scores: one query, or panels of many."""

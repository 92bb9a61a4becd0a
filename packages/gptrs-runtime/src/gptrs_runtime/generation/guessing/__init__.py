"""Guessing ahead: tokens that a text may go on with are checked together, in one step."""

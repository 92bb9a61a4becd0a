"""Speculative decoding: guessed tokens of a text are verified together in one step."""

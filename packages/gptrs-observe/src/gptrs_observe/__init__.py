"""Observes running programs: `dump` writes each to a folder, `profile` sums up kernel times."""

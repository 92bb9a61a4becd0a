"""Watch programs run: `dump` writes each of them to a folder, `profile` sums up kernel times."""

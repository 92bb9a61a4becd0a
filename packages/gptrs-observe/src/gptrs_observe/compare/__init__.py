"""Compare models: `validation` runs model and reference, `agreement` says how far they differ."""

"""Texts to vectors: `recipe` reads the model's files, `embed` runs, pools, applies `steps`."""

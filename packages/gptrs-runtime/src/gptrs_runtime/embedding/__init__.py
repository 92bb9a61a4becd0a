"""Texts to vectors: `modules` reads the model's files, `embed` runs the model and pools."""

"""Models on disk: `find_model` resolves a name and opens a `model_source`."""

"""Models on disk: `find_model` resolves a name, `open_model` gives a `model_source`."""

"""The work of `gptrs validate`: the reference that a model is compared with."""

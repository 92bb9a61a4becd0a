"""The work of `gptrs validate`: the references that a model is compared with."""

"""A model as a GGUF file: its settings, its tokenizer and its tensors."""

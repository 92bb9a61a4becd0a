"""Load any model by its capabilities and run it: text generation and plain forward passes."""

"""Packed weights on disk: `weight_file` writes and maps one, `weight_store` keeps to a budget."""

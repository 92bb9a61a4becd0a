"""Ownership of the pages of the key/value cache: bookkeeping without tensors."""

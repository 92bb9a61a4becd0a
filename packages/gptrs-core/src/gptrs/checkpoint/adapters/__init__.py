"""Adapters: small changes of a model that are kept apart from its weights."""

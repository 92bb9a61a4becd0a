"""Conversations in the form of a model's training: chat templates, rendered in another process."""

"""Conversations as a model was trained on them: chat templates, rendered in a separate process."""

"""Conversations as a model was trained to read them: templates, rendered where they do no harm."""

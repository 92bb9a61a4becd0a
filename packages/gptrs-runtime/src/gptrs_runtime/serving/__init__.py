"""Many requests at once: an engine with a thread of its own, and the answers as they grow."""

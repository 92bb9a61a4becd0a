"""Concurrent requests: an engine with its own thread, and the answers as they grow."""

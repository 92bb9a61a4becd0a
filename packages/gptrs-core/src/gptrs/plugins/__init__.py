"""Plugins: extension points and descriptions, discovery, selection, states, the manager."""

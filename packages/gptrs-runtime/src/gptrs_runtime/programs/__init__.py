"""PTIR programs by themselves: read from a file, given inputs, run."""

"""What happens to programs, for listeners: compiled, changed by a pass, run."""

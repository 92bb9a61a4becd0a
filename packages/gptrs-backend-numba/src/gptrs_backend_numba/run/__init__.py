"""Run a schedule: bind inputs and results, take the lock, start the interpreter or the profiler."""

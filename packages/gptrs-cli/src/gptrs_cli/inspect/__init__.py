"""The work of `gptrs inspect`: checkpoints, programs, what a pass does, pictures."""

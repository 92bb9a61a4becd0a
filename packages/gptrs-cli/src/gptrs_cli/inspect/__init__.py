"""The work of `gptrs inspect`: checkpoints, programs, effects of a pass, pictures."""

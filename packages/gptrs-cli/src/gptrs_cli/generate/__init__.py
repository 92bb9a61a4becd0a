"""The work of `gptrs generate`: a prompt, many prompts, or a conversation."""

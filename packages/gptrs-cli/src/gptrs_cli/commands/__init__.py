"""The commands of `gptrs`, one module each; a command imports its dependencies when it runs."""

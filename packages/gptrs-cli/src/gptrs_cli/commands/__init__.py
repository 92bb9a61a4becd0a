"""The commands of `gptrs`, one module each; what a command needs is imported when it runs."""

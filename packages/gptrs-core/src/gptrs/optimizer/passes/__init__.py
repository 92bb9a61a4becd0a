"""The passes by subject; `gptrs.optimizer.pipeline` says which run and in which order."""

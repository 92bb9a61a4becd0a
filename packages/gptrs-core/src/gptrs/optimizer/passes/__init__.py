"""The passes, one file each; `gptrs.optimizer.pipeline` says which run and in which order."""

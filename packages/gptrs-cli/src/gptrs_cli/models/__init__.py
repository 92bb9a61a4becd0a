"""The work of `gptrs models`: models on this disk, in the cache of the hub and elsewhere."""

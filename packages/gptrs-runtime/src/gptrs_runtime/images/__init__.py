"""Image files to model inputs: `decoding`, then the steps of `processor`, as `settings` says."""

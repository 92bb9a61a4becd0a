"""Which implementation a call uses: the `registry`, scopes of overrides, and their policies."""

"""The options that several commands share, and the values that they read."""

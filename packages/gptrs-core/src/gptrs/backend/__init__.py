"""The contract of a backend, and the pieces that backends share."""

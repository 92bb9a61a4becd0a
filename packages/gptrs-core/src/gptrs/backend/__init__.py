"""What a backend promises, and the pieces that backends share."""

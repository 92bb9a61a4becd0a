"""What can be plugged in, how it is found, and what state each plugin is in."""

"""Tools: how models are told of them, and the calls that they write."""

"""Models behind Ray Serve: replicas, and a door that knows which of them has read a prompt."""

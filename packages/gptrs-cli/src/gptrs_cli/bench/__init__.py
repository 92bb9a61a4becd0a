"""`gptrs bench serve`: load on an engine and on a server."""

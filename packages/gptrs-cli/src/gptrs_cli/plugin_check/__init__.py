"""`gptrs plugins check`: what an author wants to know of a plugin before others install it."""

"""`gptrs plugins check`: checks that an author runs before others install a plugin."""

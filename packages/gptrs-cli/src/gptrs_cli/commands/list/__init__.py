"""`gptrs list`: what is installed, what models call, and what a backend runs."""

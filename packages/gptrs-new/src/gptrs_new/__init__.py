"""`gptrs new`: packages with plugins, made from templates."""

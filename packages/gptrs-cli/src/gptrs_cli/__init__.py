"""The gptrs command line."""

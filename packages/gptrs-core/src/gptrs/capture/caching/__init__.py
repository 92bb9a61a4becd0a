"""Compiled programs by structure: `program_key` to `program_cache`, and reasons for misses."""

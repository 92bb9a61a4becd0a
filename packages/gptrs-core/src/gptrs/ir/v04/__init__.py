"""PTIR v0.4: programs and JSON dumps of that version, read as v0.5."""

"""PTIR programs by themselves: read a `file`, find `inputs`, `run`, and `report` on the work."""

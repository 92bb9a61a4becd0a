"""Models and programs as shared libraries, which run without Python."""

"""A plugin that cannot be imported, as when a library that it needs is missing."""

raise ImportError("libhello.so.7: cannot open shared object file")

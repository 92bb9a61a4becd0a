"""Programs on backends that run only some ops: parts of a program run on another backend."""

"""The conformance kit: the requirements on a backend, as executable cases."""

"""Kits of the other kinds of plugins: importers, exporters, functionals, sinks, commands, models.

A kit is a tuple of checks. Each takes a subject, which is the plugin and what its author adds
(samples, references), and a backend, and raises CheckFailure. UnsupportedError means that the check
has nothing to work on, which is a refusal as in the kit of backends.
"""

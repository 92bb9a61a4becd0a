"""Measures models: `bench` times `bench_cases` and relates them to the limits of the machine."""

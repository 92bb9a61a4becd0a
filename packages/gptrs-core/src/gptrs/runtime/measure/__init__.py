"""Measure models: `bench` times its `bench_cases` in turns and relates them to `machine_limits`."""

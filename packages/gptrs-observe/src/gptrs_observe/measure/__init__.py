"""Measure models: `bench` times `bench_cases`, `rows` relates them to `machine_limits`."""

"""Measure models: `bench` times alternating `bench_cases`, relates them to `machine_limits`."""

"""Commands on imported models: run, forward, inspect, bench and validate."""

"""Commands on models that an importer reads: run, forward, inspect, bench and validate."""

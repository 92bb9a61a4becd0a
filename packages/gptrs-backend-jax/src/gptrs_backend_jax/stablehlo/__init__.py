"""The importer and exporter of StableHLO: programs of JAX, converted op by op, on any backend."""

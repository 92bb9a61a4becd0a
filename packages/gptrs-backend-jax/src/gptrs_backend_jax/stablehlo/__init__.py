"""Programs of JAX in: StableHLO is read, converted op by op, and run on any backend."""

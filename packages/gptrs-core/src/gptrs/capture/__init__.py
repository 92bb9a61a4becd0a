"""Python calls become a graph: lazy tensors, primitives, jit, and the flush that runs a graph."""

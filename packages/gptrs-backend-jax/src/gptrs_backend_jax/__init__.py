"""The JAX backend: a program becomes one function that XLA compiles for CPUs, GPUs and TPUs."""

"""StableHLO out of files and functions of JAX, as the plain data that `module` describes."""

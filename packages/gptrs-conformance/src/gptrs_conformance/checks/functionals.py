"""Every functional on the backend, lazily and compiled by jit, against NumPy in f64."""

from gptrs_conformance.uses import ALL_USES

CHECKS = [use.check() for use in ALL_USES]

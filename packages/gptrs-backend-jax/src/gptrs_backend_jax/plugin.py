"""The light description of the JAX backend that its entry point names; imports no JAX."""

from __future__ import annotations

from gptrs.api import BackendPlugin
from gptrs_backend_jax.devices import has_accelerator

PLUGIN = BackendPlugin(
    name="jax",
    summary="JAX/XLA: a whole program as one compiled function, for GPUs, TPUs and CPUs",
    # On a CPU the numba backend (50) is the default, where a device is found this one.
    priority=60 if has_accelerator() else 20,
    takes=("device", "options", "mesh", "processes"),
    factory="gptrs_backend_jax.creation:create",
    api="0.1",
)

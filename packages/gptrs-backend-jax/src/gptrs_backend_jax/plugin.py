"""The light description of the JAX backend that its entry point names; imports no JAX."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from gptrs.api import BackendPlugin
from gptrs_backend_jax.environment import PLATFORM

_DEVICES = {
    "/dev/nvidiactl": ("jax_cuda12_plugin", "jax_cuda13_plugin"),
    "/dev/kfd": ("jax_rocm60_plugin", "jax_rocm7_plugin"),
    "/dev/accel0": ("libtpu",),
    "/dev/vfio/0": ("libtpu",),
}
"""The device file of a driver, and the packages of JAX that can use it."""


def has_accelerator() -> bool:
    """Return whether there is a device file of an accelerator, and a package of JAX for it.

    False if `GPTRS_JAX_PLATFORM`, or JAX's own `JAX_PLATFORMS`, asks for the CPU.
    """
    asked = os.environ.get(PLATFORM) or os.environ.get("JAX_PLATFORMS", "")
    if asked.split(",")[0] == "cpu":
        return False
    return any(
        Path(file).exists() and any(find_spec(package) is not None for package in packages)
        for file, packages in _DEVICES.items()
    )


PLUGIN = BackendPlugin(
    name="jax",
    summary="JAX/XLA: a whole program as one compiled function, for GPUs, TPUs and CPUs",
    # On a CPU, numba (50) is the default; with a device, JAX.
    priority=60 if has_accelerator() else 20,
    takes=("device", "options", "mesh", "processes"),
    factory="gptrs_backend_jax.creation:create",
    api="0.1",
)

"""Whether JAX will find a GPU or TPU here, without importing it."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "GPTRS_JAX_PLATFORM"
"""The platform to run on, as JAX calls it: cpu, gpu, cuda, rocm, tpu; unset leaves it to JAX."""

_DEVICES = {
    "/dev/nvidiactl": ("jax_cuda12_plugin", "jax_cuda13_plugin"),
    "/dev/kfd": ("jax_rocm60_plugin", "jax_rocm7_plugin"),
    "/dev/accel0": ("libtpu",),
    "/dev/vfio/0": ("libtpu",),
}
"""The device file that a driver makes, and the packages of JAX that can use it."""


def has_accelerator() -> bool:
    """Whether there is a device file of an accelerator, and the package of JAX for it.

    Never where `GPTRS_JAX_PLATFORM`, or JAX's own `JAX_PLATFORMS`, asks for the CPU.
    """
    asked = os.environ.get(VARIABLE) or os.environ.get("JAX_PLATFORMS", "")
    if asked.split(",")[0] == "cpu":
        return False
    return any(
        Path(file).exists() and any(find_spec(package) is not None for package in packages)
        for file, packages in _DEVICES.items()
    )

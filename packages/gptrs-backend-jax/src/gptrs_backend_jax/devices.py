"""The device that programs run on, and how XLA compiles for it."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from gptrs.api import BackendError
from gptrs_backend_jax.accelerators import VARIABLE
from gptrs_backend_jax.client import Device, local_devices

_THREADS_VARIABLE = "NPROC"
"""XLA reads the number of its threads from it when its CPU client starts."""
_CPU_OPTIONS: Mapping[str, bool | str] = {
    # jaxlib 0.10.2 gives wrong sums of products of broadcast operands with this fusion: a depthwise
    # convolution was off by 25. The conformance kit found it.
    "xla_cpu_experimental_ynn_fusion_type": "",
}


def chosen_device(threads: int | None) -> Device:
    """Return the first device of the platform that `GPTRS_JAX_PLATFORM` names, else of JAX's own.

    `threads` are those of XLA on the CPU, which are fixed when JAX starts in a process.
    BackendError, with what to do, where the platform is not there.
    """
    platform = os.environ.get(VARIABLE) or None
    try:
        with _threads_of_cpu(threads):
            return local_devices(platform)[0]
    except RuntimeError as error:
        asked = f" `{platform}`" if platform else ""
        raise BackendError(
            f"JAX has no platform{asked} here: {str(error).splitlines()[0]}",
            hint=f"set {VARIABLE}=cpu, or install JAX for your device: pip install 'jax[cuda13]'",
        ) from error


@contextmanager
def _threads_of_cpu(threads: int | None) -> Generator[None]:
    before = os.environ.get(_THREADS_VARIABLE)
    if threads is not None and before is None:
        os.environ[_THREADS_VARIABLE] = str(threads)
    try:
        yield
    finally:
        if threads is not None and before is None:
            del os.environ[_THREADS_VARIABLE]


def compiler_options(device: Device) -> dict[str, bool | str]:
    """Return the options of XLA: each op rounds to its own type, and known faults are avoided."""
    exact: dict[str, bool | str] = {"xla_allow_excess_precision": False}
    return exact | (dict(_CPU_OPTIONS) if device.platform == "cpu" else {})

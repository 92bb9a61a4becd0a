"""The backend: programs compiled by XLA, buffers that are arrays of JAX."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax import Array

from gptrs.api import (
    BackendSettings,
    Buffer,
    DeviceInfo,
    InputRole,
    Op,
    Program,
    TensorType,
    UsageError,
    require_supported,
)
from gptrs_backend_jax.client import Device
from gptrs_backend_jax.devices import (
    all_devices,
    chosen_device,
    compiler_options,
    ignored_settings,
)
from gptrs_backend_jax.executable import JaxExecutable
from gptrs_backend_jax.host_values import HostValue, buffer_of
from gptrs_backend_jax.kept_programs import KeptPrograms, keep_compiled_programs
from gptrs_backend_jax.lowerings import TABLE


class JaxBackend(KeptPrograms):
    """Runs every op, on every element type but for `rng_normal` of f64, on one device of JAX."""

    name = "jax"
    shares_functions = True

    def __init__(self, device: Device, settings: BackendSettings | None = None) -> None:
        settings = settings or BackendSettings()
        self.device = device
        self.ignored = ignored_settings(settings, device)
        self._options = compiler_options(device, settings.options)

    def __repr__(self) -> str:
        return f"<JaxBackend on {self.device}>"

    @property
    def flushes_subnormals(self) -> bool:
        """XLA sets its threads on CPUs to flush, and so do TPUs; GPUs keep subnormal numbers."""
        return self.device.platform != "gpu"

    def devices(self) -> Sequence[DeviceInfo]:
        """Return the devices of JAX in this process."""
        return all_devices([self.device])

    def refusal(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> str | None:
        """Return why there is no lowering of `op` on these types, None if there is one."""
        return TABLE.refusal(op, operands, results)

    def reads_quantized(self, codes: TensorType, bits: int, group_size: int) -> bool:
        """Return True: weights stay packed on the device, XLA decodes them where they are used."""
        return True

    def padded_size(self, size: int) -> int:
        """Return the next power of two: XLA compiles for seconds, and for each size anew."""
        return 1 << (size - 1).bit_length()

    def compile(self, program: Program, roles: Sequence[InputRole]) -> JaxExecutable:
        """Compile a program to one function of XLA.

        UnsupportedError lists every op that has no lowering, UsageError says if a role is missing.
        """
        require_supported(self, program)
        expected = len(program.main.body.params)
        if len(roles) != expected:
            raise UsageError(
                f"a program of {expected} inputs needs {expected} roles, got {len(roles)}"
            )
        return JaxExecutable(program, roles, self.device, self._options)

    def to_device(self, array: np.ndarray) -> Buffer:
        """Put `array` on the device; one of few bytes goes there with the program that reads it."""
        return buffer_of(array, self.device)

    def to_host(self, buffer: Buffer) -> np.ndarray:
        """Return the elements of `buffer`, read-only; waits until they are computed."""
        if isinstance(buffer, HostValue):
            return buffer.read_only()
        if not isinstance(buffer, Array):
            kind = type(buffer).__name__
            raise UsageError(f"`to_host` takes a buffer of JAX, got `{kind}`", hint="use `run`")
        return np.asarray(buffer)


def create(settings: BackendSettings) -> JaxBackend:
    """Return the backend on the device of `settings`, of `GPTRS_JAX_PLATFORM`, or JAX's own."""
    keep_compiled_programs()
    return JaxBackend(chosen_device(settings), settings)

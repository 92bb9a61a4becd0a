"""The backend: programs compiled by XLA, buffers that are arrays of JAX."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
from jax import Array

from gptrs.api import UsageError
from gptrs.api.backends import (
    ArraySource,
    Backend,
    BackendSettings,
    Buffer,
    DeviceInfo,
    Executable,
    InputRole,
    Sharding,
    ShardSource,
    require_supported,
)
from gptrs.api.programs import Op, Program, TensorType
from gptrs_backend_jax import lowering
from gptrs_backend_jax.client import Device, InputType, all_types, array_type, compiled
from gptrs_backend_jax.conversion import HostValue, buffer_of
from gptrs_backend_jax.devices import (
    all_devices,
    chosen_grid,
    chosen_steps,
    compiler_options,
    ignored_settings,
    require_alike,
)
from gptrs_backend_jax.executable import Compiled, JaxExecutable
from gptrs_backend_jax.grid import Grid, GridCall
from gptrs_backend_jax.kept_programs import (
    KeptPrograms,
    keep_executable,
    keeps_executables,
    program_key,
    read_executable,
    unsealed,
)
from gptrs_backend_jax.lowerings import TABLE


class JaxBackend(KeptPrograms, Backend):
    """Runs every op, on every element type except `rng_normal` of f64, on one device of JAX."""

    name = "jax"
    shares_functions = True
    keeps_code = True
    own_memory = True

    def __init__(self, device: Device, settings: BackendSettings | None = None) -> None:
        settings = settings or BackendSettings()
        self.device = device
        self._grid = None if settings.mesh is None else chosen_grid(settings, device)
        self.mesh = self._grid.mesh if self._grid else None
        self.ignored = ignored_settings(settings, device)
        self.steps_at_once = chosen_steps(settings.options)
        # XLA sets its threads on CPUs to flush, and so do TPUs; GPUs keep subnormal numbers.
        self.flushes_subnormals = device.platform != "gpu"
        self._options = compiler_options(device, settings.options)
        group = settings.processes
        # Where one process leads, the others run what it says.
        self._together = group is not None and not group.led
        self._array_type = array_type()

    def __repr__(self) -> str:
        return f"<JaxBackend on {self.mesh or self.device}>"

    def require_grid(self) -> Grid:
        """Return the devices of the mesh; UsageError for a single device."""
        if self._grid is None:
            raise UsageError(f"{self!r} has no mesh")
        return self._grid

    def agree(self, facts: Callable[[], Mapping[str, str]]) -> None:
        """Compare `facts` with those of the other processes, if there are any; UsageError."""
        if self._together:
            require_alike(facts())

    def devices(self) -> Sequence[DeviceInfo]:
        """Return the devices of JAX in this process."""
        return all_devices(self._grid.devices if self._grid else [self.device])

    def refusal(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> str | None:
        """Return why there is no lowering of `op` on these types, None if there is one."""
        return TABLE.refusal(op, operands, results)

    def reads_quantized(self, codes: TensorType, bits: int, group_size: int) -> bool:
        """Return True: weights remain packed on the device, XLA decodes them on use."""
        return True

    def padded_size(self, size: int) -> int:
        """Return the next power of two: XLA compiles for seconds, and again for each size."""
        return 1 << (size - 1).bit_length()

    def compile(self, program: Program, roles: Sequence[InputRole]) -> JaxExecutable:
        """Compile a program to one function of XLA.

        UnsupportedError lists every op without a lowering; UsageError for a missing role.
        """
        require_supported(self, program)
        expected = len(program.main.body.params)
        if len(roles) != expected:
            raise UsageError(
                f"a program of {expected} inputs needs {expected} roles, got {len(roles)}"
            )
        key = program_key(program, roles, self.device, self._options)
        kept = self._grid is None and keeps_executables()
        found = self.deserialize(read_executable(key), program, roles) if kept else None
        if found is not None:
            return found
        started = time.perf_counter()
        # Devices with separate memory copy pages quickly; on a mesh all devices would take part.
        made = JaxExecutable(
            program, roles, self.device, self._compiled, key,
            for_one_cpu=self._grid is None and self.device.platform == "cpu",
        )  # fmt: skip
        if kept:
            keep_executable(key, lambda: self.serialize(made), time.perf_counter() - started)
        return made

    def serialize(self, executable: Executable) -> bytes | None:
        """Return an executable as bytes, None on a mesh, and if JAX cannot serialize it.

        An executable that was itself read from disk is not written again while its file exists.
        """
        if not isinstance(executable, JaxExecutable) or self._grid is not None:
            return None
        found = executable.serialized()
        if found is not None:
            return found.sealed(executable.key)
        kept = read_executable(executable.key)
        return kept if unsealed(kept, executable.key) else None

    def deserialize(
        self, data: bytes, program: Program, roles: Sequence[InputRole]
    ) -> JaxExecutable | None:
        """Return the executable that `serialize` wrote for this program, None if it is another."""
        key = program_key(program, roles, self.device, self._options)
        found = unsealed(data, key)
        if found is None or self._grid is not None:
            return None
        return JaxExecutable.of_serialized(found, program, roles, self.device, key)

    def _compiled(
        self,
        function: Compiled,
        types: Sequence[InputType],
        donated: Sequence[int],
        heirs: Sequence[int | None],
    ) -> Compiled:
        if self._grid is None:
            device, options = self.device, self._options
            return compiled(function, types, donated=donated, device=device, options=options)
        return GridCall(function, types, donated, heirs, self._grid, self._options)

    def to_device(self, array: np.ndarray) -> Buffer:
        """Put `array` on the device; a small one is transferred with the program that reads it.

        On a mesh it is replicated.
        """
        if self._grid is not None:
            native = array.astype(array.dtype.newbyteorder("="), copy=False)
            return self._grid.placed(ArraySource(native), (None,) * native.ndim)
        return buffer_of(array, self.device)

    def place(self, source: ShardSource, sharding: Sharding) -> Buffer:
        """Put `source` on the devices of the mesh, each part on those that need it."""
        return self.require_grid().placed(source, sharding)

    def host_view(self, buffer: Buffer) -> np.ndarray | None:
        """Return None for a buffer on a device."""
        return buffer.array if isinstance(buffer, HostValue) else None

    def copy(self, buffer: Buffer) -> Buffer:
        """Return a copy of `buffer` on the same device."""
        if isinstance(buffer, HostValue):
            return HostValue(buffer.array.copy())
        with all_types(self.device):
            return lowering.copy(cast("Array", buffer))

    def to_host(self, buffer: Buffer) -> np.ndarray:
        """Return the elements of `buffer`, read-only; waits until they are computed."""
        if isinstance(buffer, HostValue):
            return buffer.read_only()
        if type(buffer) is not self._array_type and not isinstance(buffer, Array):
            kind = type(buffer).__name__
            raise UsageError(f"`to_host` takes a buffer of JAX, got `{kind}`", hint="use `run`")
        array = cast("Array", buffer)
        return np.asarray(array if self._grid is None else self._grid.whole(array))

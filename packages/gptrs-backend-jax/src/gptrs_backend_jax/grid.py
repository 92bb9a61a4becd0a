"""A mesh of devices: buffers distributed over them, programs that XLA partitions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import jax
import numpy as np
from jax import Array
from msgspec import Struct, field

from gptrs.api import UsageError
from gptrs.api.backends import Mesh, Sharding, ShardSource
from gptrs_backend_jax.client import Device, wide_types

Index: TypeAlias = tuple[slice, ...]
Types: TypeAlias = Sequence[tuple[tuple[int, ...], np.dtype[np.generic]]]

# The types of these functions of JAX are partly unknown.
_jax = cast("Any", jax)


class Grid:
    """The devices of a `Mesh`, including those of other processes."""

    def __init__(self, mesh: Mesh, devices: Sequence[Device]) -> None:
        if len(devices) < mesh.size:
            raise UsageError(
                f"the mesh `{mesh}` has {mesh.size} devices, JAX has {len(devices)} of the platform"
                f" `{devices[0].platform}`",
                hint="on CPUs JAX_NUM_CPU_DEVICES=8 makes eight; docs/distributed.md",
            )
        self.mesh = mesh
        self.devices = devices[: mesh.size]
        names, sizes = zip(*mesh.axes, strict=True)
        kinds = (_jax.sharding.AxisType.Auto,) * len(names)
        self._grid = _jax.make_mesh(sizes, names, axis_types=kinds, devices=self.devices)

    def sharding(self, sharding: Sharding) -> Any:
        """Return the JAX form of a sharding."""
        return _jax.sharding.NamedSharding(self._grid, _jax.P(*sharding))

    def indices(self, shape: Sequence[int], sharding: Sharding) -> dict[int, list[Index]]:
        """Return the parts of a tensor that each process needs, each part once."""
        found: dict[int, dict[str, Index]] = {}
        named = self.sharding(sharding)
        for device, index in named.devices_indices_map(tuple(shape)).items():
            found.setdefault(device.process_index, {})[str(index)] = index
        return {process: list(parts.values()) for process, parts in found.items()}

    def placed(self, source: ShardSource, sharding: Sharding) -> Array:
        """Return an array on the devices of this process; each part is read once, then dropped."""
        type_, named = source.type, self.sharding(sharding)
        positions: dict[str, tuple[Index, list[Device]]] = {}
        for device, index in named.addressable_devices_indices_map(type_.shape).items():
            positions.setdefault(str(index), (index, []))[1].append(device)
        with wide_types():
            arrays: list[Any] = []
            for index, devices in positions.values():
                part = _part(source, index)
                arrays += [_jax.device_put(part, device) for device in devices]
            made = _jax.make_array_from_single_device_arrays(type_.shape, named, arrays)
        return cast("Array", made)

    def whole(self, array: Array) -> Array:
        """Return an array whose elements are all on each device; all processes call it."""
        if array.is_fully_addressable or array.is_fully_replicated:
            return array
        with wide_types():
            copy = _jax.jit(_same, out_shardings=self.sharding((None,) * array.ndim))
            return cast("Array", copy(array))


def _part(source: ShardSource, index: Index) -> np.ndarray:
    part = source.read(index)
    # NumPy makes a row of an array of rank 0.
    return np.ascontiguousarray(part).reshape(part.shape)


def _same(array: Array) -> Array:
    return array


class GridCall(Struct):
    """A traced function, compiled for each combination of input shardings on a grid.

    A result that replaces a donated input has its sharding; XLA chooses that of others, and results
    of a program without inputs are replicated. `heirs` has the position of that input for each
    result.
    """

    function: Callable[..., Any]
    types: Types
    donated: Sequence[int]
    heirs: Sequence[int | None]
    grid: Grid
    options: Mapping[str, bool | str]
    compiled: dict[tuple[Any, ...], Any] = field(default_factory=dict[tuple[Any, ...], Any])

    def __call__(self, *inputs: Array) -> Any:
        """Run on arrays that lie on the grid; within `with wide_types():`."""
        key = tuple([x.sharding for x in inputs])
        found = self.compiled.get(key)
        if found is None:
            found = self.compiled[key] = self._compile(key)
        return found(*inputs)

    def texts(self) -> list[str]:
        """Return the programs of XLA, with the collectives that it chose."""
        return [each.as_text() for each in self.compiled.values()]

    def _compile(self, shardings: tuple[Any, ...]) -> Any:
        structures = [
            _jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
            for (shape, dtype), sharding in zip(self.types, shardings, strict=True)
        ]
        positions: Any = self.grid.sharding(())
        if shardings:
            positions = (
                [None if heir is None else shardings[heir] for heir in self.heirs],
                positions,
            )
        with wide_types(), warnings.catch_warnings():
            # A donated input that fits no result is freed, as intended, so JAX's warning is
            # suppressed.
            warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
            made = _jax.jit(
                self.function, donate_argnums=tuple(self.donated), out_shardings=positions
            )
            return made.lower(*structures).compile(dict(self.options))

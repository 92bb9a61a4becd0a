"""Rules for backends that list devices, have separate memory, or have a mesh."""

from __future__ import annotations

import itertools

import numpy as np

from gptrs.api.backends import ArraySource
from gptrs.backend.contract import Backend
from gptrs_conformance.check import Check
from gptrs_conformance.running import compiled, normal, require, require_equal

_SUM = """
ptir.v0.5
func @main(%x: f32[8, 8], %y: f32[8, 8]) -> f32[8, 8] {
  %0 = add %x, %y : f32[8, 8]
  return %0
}
"""


def devices_are_distinct(backend: Backend) -> None:
    """Names of devices differ, and the backend runs on at least one of them."""
    devices = backend.devices()
    if not devices:
        return
    names = [device.name for device in devices]
    require(len(set(names)) == len(names), f"devices have one name: {names}")
    require(any(device.used for device in devices), "it runs on none of its devices")


def copies_are_equal(backend: Backend) -> None:
    """`copy` gives another buffer of the same elements, and a view is of the host."""
    x = normal(1, 8, 8)
    buffer = backend.to_device(x)
    copy = backend.copy(buffer)
    require(copy is not buffer, "`copy` gives the buffer itself")
    require_equal([backend.to_host(copy)], [x], "a copy")
    view = backend.host_view(buffer)
    require(view is None or np.array_equal(view, x), "`host_view` has other elements")


def split_tensors_are_whole(backend: Backend) -> None:
    """A tensor that is split over the mesh has the shape and the values of the whole."""
    mesh = backend.mesh
    if mesh is None:
        return
    x, y = normal(1, 8, 8), normal(2, 8, 8)
    axes = [None, *(name for name, size in mesh.axes if len(x) % size == 0)]
    executable = compiled(backend, _SUM)
    for first, second in itertools.product(axes, axes):
        if first is not None and first == second:
            continue
        buffer = backend.place(ArraySource(x), (first, second))
        require(buffer.shape == x.shape, f"a split buffer has the shape {buffer.shape}")
        require_equal([backend.to_host(buffer)], [x], f"a tensor split by {first}, {second}")
        (result,) = executable.run([buffer, backend.to_device(y)])
        require_equal([backend.to_host(result)], [x + y], f"a sum split by {first}, {second}")


CHECKS = [
    Check("devices are distinct", "core", devices_are_distinct),
    Check("copies on the device are equal", "core", copies_are_equal),
    Check("split tensors are whole", "core", split_tensors_are_whole),
]

"""A device of a backend in words."""

from __future__ import annotations

from gptrs.api.backends import DeviceInfo

_GIB = 1 << 30


def shown_device(device: DeviceInfo) -> str:
    """Return a device as `gpu:1 (NVIDIA H200, 139.7 GiB)*`, with `*` if the backend runs on it."""
    memory = "" if device.memory is None else f", {device.memory / _GIB:.1f} GiB"
    kind = "" if not memory and device.name.startswith(device.kind) else f" ({device.kind}{memory})"
    return f"{device.name}{kind}{'*' if device.used else ''}"

"""The part of JAX that the backend uses: devices, arrays and compiled functions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, Final, Protocol, TypeVar, cast

import jax
import numpy as np
from jax import Array
from jax.experimental import multihost_utils, serialize_executable

Results = TypeVar("Results")

# The types of these functions of JAX are partly unknown.
_jax = cast("Any", jax)
_hosts = cast("Any", multihost_utils)
_dump = cast("Any", serialize_executable.serialize)
_load = cast("Any", serialize_executable.deserialize_and_load)


_TOLD_BYTES = 4096
_PLACES: Final = "jax_traceback_in_locations_limit"
InputType = tuple[tuple[int, ...], np.dtype[np.generic]]
"""The shape and the type of the elements of an input."""


class Device(Protocol):
    """A device of JAX."""

    @property
    def platform(self) -> str:
        """`cpu`, `gpu` or `tpu`."""
        ...

    @property
    def device_kind(self) -> str:
        """The product, such as `NVIDIA H200`; `cpu` for any processor."""
        ...

    def memory_stats(self) -> Mapping[str, int] | None:
        """Return figures of its memory; None on CPUs."""
        ...


def join_processes(
    coordinator: str | None, count: int | None, number: int, *, outlive: bool
) -> None:
    """Meet the other processes, before JAX looks for devices; RuntimeError if it has.

    JAX gets missing values (None) from the launcher; ValueError if there is no launcher. JAX ends
    this process when another one ends, unless `outlive` is set.
    """
    if outlive:
        change_setting("jax_enable_recoverability", True)
        change_setting("jax_enable_preemption_service", False)
    _jax.distributed.initialize(coordinator, num_processes=count, process_id=number)


def leave_processes() -> None:
    """Notify the other processes that this one ends; no effect if there are none."""
    _jax.distributed.shutdown()


def texts_of_processes(own: str) -> list[str]:
    """Return what each process tells the others, which call this together, in their order.

    ValueError for more than 4,095 bytes: texts of any length are one program, so that processes
    with unlike ones do not wait for each other.
    """
    sent = np.zeros(_TOLD_BYTES, np.uint8)
    sent[: len(own.encode())] = np.frombuffer(own.encode(), np.uint8)
    heard = np.asarray(_hosts.process_allgather(sent), np.uint8).reshape(-1, _TOLD_BYTES)
    return [each.tobytes().rstrip(b"\0").decode() for each in heard]


def every_device(platform: str | None) -> Sequence[Device]:
    """Return the devices of all processes; RuntimeError if JAX has no such platform."""
    return cast("Sequence[Device]", _jax.devices(backend=platform))


def local_devices(platform: str | None) -> Sequence[Device]:
    """Return the devices of this process; RuntimeError if JAX has no such platform."""
    return cast("Sequence[Device]", _jax.local_devices(backend=platform))


def wide_types() -> AbstractContextManager[object]:
    """Return a scope in which 64-bit types are enabled in JAX."""
    return cast("AbstractContextManager[object]", _jax.enable_x64(True))


@contextmanager
def all_types(device: Device) -> Generator[None]:
    """Scope in which 64-bit types are enabled in JAX, and arrays are put on `device`."""
    with wide_types(), _jax.default_device(device):
        yield


def placed(array: np.ndarray, device: Device) -> Array:
    """Return `array` on a device, to which it is not committed."""
    # JAX compares the layouts of committed arrays, and has two for an integer of 4 bits.
    with all_types(device):
        return cast("Array", _jax.device_put(array))


@cache
def array_type() -> type[object]:
    """Return the concrete class of JAX's arrays: comparing with it is faster than `isinstance` of
    `Array`."""
    return cast("type[object]", type(_jax.device_put(np.zeros(1))))


def compiled(
    function: Callable[..., Results],
    types: Sequence[tuple[tuple[int, ...], np.dtype[np.generic]]],
    *,
    donated: Sequence[int],
    device: Device,
    options: Mapping[str, bool | str],
) -> Callable[..., Results]:
    """Record `function` on arguments of these types, and compile it for a device.

    The result is called within `with wide_types():`, with arrays on that device or of NumPy.
    """
    structures = [_jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in types]
    with all_types(device), warnings.catch_warnings():
        # A donated input that matches no result is freed, as requested.
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        lowered = _jax.jit(function, donate_argnums=tuple(donated)).lower(*structures)
        return cast("Callable[..., Results]", lowered.compile(dict(options)))


def platform_version(device: Device) -> str:
    """Return the versions of the compiler and the driver of a device."""
    return cast("str", cast("Any", device).client.platform_version)


def serialized(function: Callable[..., object]) -> bytes | None:
    """Return a compiled function as bytes; None if JAX cannot serialize it."""
    try:
        return cast("bytes", _dump(function)[0])
    except (ValueError, NotImplementedError, _jax.errors.JaxRuntimeError):
        return None


def deserialized(
    code: bytes, inputs: int, results: object, device: Device
) -> Callable[..., Any] | None:
    """Return the `serialized` function of so many `inputs`; None if JAX cannot load it.

    `results` has the nesting of its results.
    """
    structure = _jax.tree_util.tree_structure
    try:
        found: object = _load(
            code,
            structure(((0,) * inputs, {})),
            structure(results),
            backend=cast("Any", device).client,
            execution_devices=[device],
        )
    # JAX raises the errors of unpickling: pickles are of this version, but may name missing
    # objects.
    except Exception:
        return None
    return cast("Callable[..., Any]", found)


def program_text(function: Callable[..., object]) -> str | None:
    """Return the compiled function in the language of XLA, None for other functions."""
    as_text = cast("Callable[[], str | None] | None", getattr(function, "as_text", None))
    return None if as_text is None else as_text()


def waited_for(results: Results) -> Results:
    """Return `results` once they have been computed."""
    return cast("Results", _jax.block_until_ready(results))


def setting(name: str) -> object:
    """Return a setting of JAX."""
    return cast("object", _jax.config.values[name])


def change_setting(name: str, value: object) -> None:
    """Change a setting of JAX for this process."""
    _jax.config.update(name, value)


@contextmanager
def without_places() -> Generator[None]:
    """Within it, traced programs do not name the lines of code that made them.

    Files would otherwise have paths of this machine, and differ by who calls.
    """
    before = setting(_PLACES)
    change_setting(_PLACES, 0)
    try:
        yield
    finally:
        change_setting(_PLACES, before)

"""Settings of a backend: threads, a device, options of its own; and the devices that it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, get_args, runtime_checkable

from gptrs.backend.mesh import Mesh
from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import quoted

Setting = Literal["device", "options", "mesh", "processes"]
"""A setting besides threads, which every backend is given."""
SETTINGS: tuple[Setting, ...] = get_args(Setting)


@dataclass(frozen=True)
class ProcessGroup:
    """Processes, of one host or several, that run the same program: this is `number` of `count`.

    They meet at `coordinator`, HOST:PORT of the first. UsageError for numbers that do not fit.
    """

    coordinator: str
    count: int
    number: int

    def __post_init__(self) -> None:
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal():
            raise UsageError(f"a coordinator is HOST:PORT, got {quoted(self.coordinator)}")
        if not 0 <= self.number < self.count:
            raise UsageError(
                f"process {self.number} is none of {self.count}",
                hint="they are numbered from 0, and all have the same coordinator and number",
            )

    def __str__(self) -> str:
        return f"{self.number} of {self.count} at {self.coordinator}"


@dataclass(frozen=True)
class BackendSettings:
    """The settings that a backend is made with; a factory that `takes` settings is given them.

    `device` is a name of the backend's own, such as `gpu:1`, `options` are pairs of a name and a
    value that only it knows, `mesh` is the devices that weights and batches are split over, those
    of all `processes` together. Fields that are None or empty are left to the backend. A backend
    that cannot do what a setting asks for raises UsageError, with what it can do.
    """

    threads: int | None = None
    device: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    mesh: Mesh | None = None
    processes: ProcessGroup | None = None

    def given(self) -> dict[Setting, str]:
        """Return the settings besides threads that are set, with their values in words."""
        found: dict[Setting, str] = {}
        if self.device is not None:
            found["device"] = self.device
        if self.options:
            found["options"] = ", ".join(f"{name}={value}" for name, value in self.options)
        if self.mesh is not None:
            found["mesh"] = str(self.mesh)
        if self.processes is not None:
            found["processes"] = str(self.processes)
        return found

    def require_taken(self, backend: str, takes: Sequence[str]) -> None:
        """UsageError for a setting that `backend`, which takes those in `takes`, would ignore."""
        for name, value in self.given().items():
            if name not in takes:
                raise UsageError(
                    f"backend `{backend}` takes no {name}, got {quoted(value)}",
                    hint="leave it out, or name a backend that does: `gptrs list backends` says"
                    " which; docs/devices.md",
                )


@dataclass(frozen=True)
class DeviceInfo:
    """A device of a backend: its `name` as users type it, what it is, and its bytes of memory.

    `used` says whether the backend runs on it. `memory` is None where it is not known.
    """

    name: str
    kind: str
    memory: int | None = None
    used: bool = False


@runtime_checkable
class DeviceBackend(Protocol):
    """A backend that says which devices it has."""

    def devices(self) -> Sequence[DeviceInfo]:
        """Return all devices that this process can use, in a fixed order."""
        ...


def devices_of(backend: object) -> Sequence[DeviceInfo]:
    """Return the devices of a backend, none of one that does not say."""
    return backend.devices() if isinstance(backend, DeviceBackend) else ()


def ignored_by(backend: object) -> Sequence[str]:
    """Return what a backend says that it ignores of its settings, a sentence each."""
    return tuple(getattr(backend, "ignored", ()))


def parsed_options(given: Sequence[str] | Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return options in the order of their names; UsageError for text that is not NAME=VALUE."""
    if isinstance(given, Mapping):
        return tuple(sorted(given.items()))
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"a backend option is NAME=VALUE, got {quoted(text)}")
        pairs[name] = value
    return tuple(sorted(pairs.items()))

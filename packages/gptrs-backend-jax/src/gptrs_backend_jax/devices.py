"""The device that programs run on, and how XLA compiles for it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from gptrs.api import BackendError, UsageError
from gptrs.api.backends import BackendSettings, DeviceInfo, ProcessGroup, granted_cpus
from gptrs_backend_jax.client import (
    Device,
    every_device,
    join_processes,
    local_devices,
    texts_of_processes,
)
from gptrs_backend_jax.environment import PLATFORM, THREADS
from gptrs_backend_jax.grid import Grid

_CPU_OPTIONS: Mapping[str, bool | str] = {
    # Only products are left to the library YNN, which halves their time. With its fusions of sums,
    # too, jaxlib 0.10.2 gives wrong sums of products of broadcast operands: a depthwise convolution
    # was off by 25. The conformance kit found it.
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
}
_FAMILIES = {"cuda": "gpu", "rocm": "gpu"}
"""Names that users know, and the platforms that JAX has for them."""
_OPTION = "xla_"
"""The prefix of options for XLA's compiler."""
_STEPS = "steps_at_once"
"""Our own option: the number of steps of a generation in one run."""
_FEW_STEPS, _MOST_STEPS = 8, 256


_DIGEST = "blake2b:"
_MOST_SHOWN = 200
"""Bytes of a fact in JSON: all facts of a call must fit into what processes exchange."""
_joined: list[ProcessGroup] = []
"""The processes that this one has met."""
_started: dict[str, int | None] = {}
"""Platforms that JAX has started here, each with the threads requested then."""


def chosen_device(settings: BackendSettings) -> Device:
    """Return the device that `settings` name: `gpu:1`, `cuda`, `cpu`; the first of a platform.

    Without a name it is the first of the platform in `GPTRS_JAX_PLATFORM`, else of JAX's own.
    `threads` are those of XLA on the CPU, fixed when JAX starts in a process. BackendError, with a
    hint, if the platform is missing, UsageError for a device number that it does not have.
    """
    asked, _, number = (settings.device or "").partition(":")
    platform = asked or os.environ.get(PLATFORM) or None
    found = _devices_of(platform, settings.threads)
    if not number:
        return found[0]
    if not number.isdecimal() or int(number) >= len(found):
        names = ", ".join(device_name(device, index) for index, device in enumerate(found))
        raise UsageError(f"JAX has no device `{settings.device}` here", hint=f"it has {names}")
    return found[int(number)]


def join(settings: BackendSettings) -> None:
    """Meet the processes of `settings`, the first time that it is called.

    UsageError without a mesh, and for other processes than the first time; BackendError if JAX has
    started without them, or they do not connect.
    """
    group = settings.processes
    if group is None or _joined == [group]:
        return
    if settings.mesh is None:
        raise UsageError(
            f"{_words(group)} run one model over the devices of all of them",
            hint="say how by `--mesh tensor=N`, N the number of all devices",
        )
    if _joined:
        raise UsageError(f"this process is {_joined[0]} already, it cannot be {group}")
    launched = group.count is None
    try:
        where = None if launched else group.coordinator
        join_processes(where, group.count, group.number, outlive=group.led)
    except (RuntimeError, ValueError) as error:
        kubernetes = "; Kubernetes needs `pip install 'jax[k8s]'`" if launched else ""
        raise BackendError(
            f"{_words(group)} did not meet: {str(error).splitlines()[0]}",
            hint=f"start all of them, before anything else of this process uses JAX{kubernetes}",
        ) from error
    _joined.append(group)


def require_alike(facts: Mapping[str, str]) -> None:
    """Compare `facts` of all processes, which call this together; UsageError if they differ.

    All of them raise the same error.
    """
    own = json.dumps({name: _shortened(fact) for name, fact in facts.items()})
    first, *others = map(json.loads, texts_of_processes(own))
    for number, found in enumerate(others, 1):
        for name in {**first, **found}:
            here, there = found.get(name), first.get(name)
            if here != there:
                shown = [each for each in (here, there) if each and not each.startswith(_DIGEST)]
                values = f": {', not '.join(shown)}" if shown else ""
                raise UsageError(
                    f"process {number} has another {name} than process 0{values}",
                    hint="start the same command, of the same files and versions, in each process",
                )


def _shortened(fact: str) -> str:
    """Return a fact that is short enough to send and to show, else its digest."""
    if len(json.dumps(fact)) <= _MOST_SHOWN:
        return fact
    return _DIGEST + hashlib.blake2b(fact.encode(), digest_size=16).hexdigest()


def _words(group: ProcessGroup) -> str:
    if group.count is None:
        return "the processes that a launcher started"
    return f"{group.count} processes at {group.coordinator}"


def chosen_grid(settings: BackendSettings, device: Device) -> Grid:
    """Return the grid of the mesh in `settings`, of devices of the platform of `device`.

    UsageError if there are too few of them, or if a device is named together with a mesh.
    """
    assert settings.mesh is not None, "asked for one"
    if ":" in (settings.device or ""):
        raise UsageError(
            f"a mesh takes the devices of a platform, got the device `{settings.device}` alone",
            hint=f"write `--device {device.platform}`",
        )
    devices = every_device(device.platform)
    if settings.processes is not None and settings.mesh.size != len(devices):
        raise UsageError(
            f"the mesh `{settings.mesh}` must have all devices of"
            f" {_words(settings.processes)}, which are {len(devices)}"
        )
    return Grid(settings.mesh, devices)


def device_name(device: Device, index: int) -> str:
    """Return the name of a device for `--device`; `index` is its index on its platform."""
    return f"{device.platform}:{index}"


def all_devices(used: Sequence[Device]) -> list[DeviceInfo]:
    """Return the devices of the platform of `used`, and of JAX's own where that is another."""
    platforms = dict.fromkeys((used[0].platform, local_devices(None)[0].platform))
    return [
        DeviceInfo(
            device_name(device, index),
            device.device_kind,
            (device.memory_stats() or {}).get("bytes_limit"),
            device in used,
        )
        for platform in platforms
        for index, device in enumerate(local_devices(platform))
    ]


def ignored_settings(settings: BackendSettings, device: Device) -> list[str]:
    """Return the `settings` that `device` cannot honor, a sentence each."""
    threads, first = settings.threads, _started.get(device.platform)
    if threads is None or (device.platform == "cpu" and threads == first):
        return []
    if device.platform != "cpu":
        return [f"`threads` are for CPUs and do not count on `{device.platform}`"]
    before = os.environ.get(THREADS) if first is None else first
    known = f"{before} threads" if before else "threads of its own choice"
    return [f"XLA has {known}, fixed when it started in this process; {threads} are not used"]


def parallelism(device: Device) -> str:
    """Return a text that identifies how XLA divides work on a CPU."""
    if device.platform != "cpu":
        return ""
    threads = os.environ.get(THREADS), _started.get("cpu")
    return f"{threads} of {granted_cpus()}"


def _devices_of(platform: str | None, threads: int | None) -> Sequence[Device]:
    try:
        with _threads_of_cpu(threads):
            found = local_devices(_FAMILIES.get(platform or "", platform))
    except RuntimeError as error:
        asked = f" `{platform}`" if platform else ""
        raise BackendError(
            f"JAX has no platform{asked} here: {str(error).splitlines()[0]}",
            hint=f"set {PLATFORM}=cpu, or install JAX for your device: pip install 'jax[cuda13]'",
        ) from error
    has_own = THREADS in os.environ
    _started.setdefault(found[0].platform, None if has_own else threads)
    return found


@contextmanager
def _threads_of_cpu(threads: int | None) -> Generator[None]:
    before = os.environ.get(THREADS)
    if threads is not None and before is None:
        os.environ[THREADS] = str(threads)
    try:
        yield
    finally:
        if threads is not None and before is None:
            del os.environ[THREADS]


def compiler_options(
    device: Device, given: Sequence[tuple[str, str]] = ()
) -> dict[str, bool | str]:
    """Return the options of XLA: each op rounds to its own type, and known faults are avoided.

    Those `given` by the user, which come last, are options of XLA, or our own; UsageError for other
    names.
    """
    exact: dict[str, bool | str] = {"xla_allow_excess_precision": False}
    for name, _ in given:
        if not name.startswith(_OPTION) and name != _STEPS:
            raise UsageError(
                f"backend `jax` has no option `{name}`",
                hint=f"it takes {_STEPS}=N, and those of XLA's compiler: xla_NAME=VALUE",
            )
    own = {name: value for name, value in given if name != _STEPS}
    return exact | (dict(_CPU_OPTIONS) if device.platform == "cpu" else {}) | own


def chosen_steps(given: Sequence[tuple[str, str]]) -> int:
    """Return how many steps one run takes at most; UsageError for an invalid number."""
    asked = dict(given).get(_STEPS)
    if asked is None:
        return _FEW_STEPS
    if not asked.isdecimal() or not 1 <= int(asked) <= _MOST_STEPS:
        raise UsageError(f"`{_STEPS}` is a number from 1 to {_MOST_STEPS}, got `{asked}`")
    return int(asked)

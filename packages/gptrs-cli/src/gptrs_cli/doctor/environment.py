"""Checks of `gptrs doctor` on variables, optional libraries, threads and speed."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from gptrs.api.backends import cpu_quota, granted_cpus, requested_threads
from gptrs.errors import GptrsError
from gptrs.install_hints import install_extra, install_own
from gptrs.plugins.descriptions import BackendPlugin, ModelPlugin
from gptrs.plugins.manager import PluginManager
from gptrs.quoting import did_you_mean
from gptrs.variables import VARIABLES
from gptrs_cli.doctor.devices import shown_device
from gptrs_cli.terminal.check_lines import Check
from gptrs_observe.measure.machine_limits import measure_limits
from gptrs_runtime.generation.options import all_options


class _Optional(NamedTuple):
    """A library that some work needs, and the extra that brings it."""

    module: str
    purpose: str
    distribution: str
    extra: str


_OPTIONAL: Final = (
    _Optional("jinja2", "chat templates", "gptrs-runtime", "chat"),
    _Optional("PIL", "images", "gptrs-runtime", "images"),
    _Optional("huggingface_hub", "models of the Hugging Face hub", "gptrs-runtime", "hub"),
    _Optional("torch", "`gptrs validate`", "gptrs-cli", "torch"),
    _Optional("transformers", "`gptrs validate`", "gptrs-cli", "torch"),
)


def variables(environment: Mapping[str, str], plugins: PluginManager) -> Iterator[Check]:
    """Yield the variables that are set, and a note for each that nothing known reads."""
    own = tuple(f"GPTRS_{record.name.upper()}_" for record in plugins.installed())
    found = {name: environment[name] for name in sorted(environment) if name[:6] == "GPTRS_"}
    detail = ", ".join(f"{name}={value}" for name, value in found.items())
    yield Check("environment", "ok", detail or "no GPTRS_* variable is set", data=found)
    known = known_variables()
    for name in found:
        if name not in known and not name.startswith(own):
            guess = did_you_mean(name, known).strip()
            hint = guess or "gptrs does not read it"
            yield Check("environment", "note", f"{name} is not known", hint, {"variable": name})


def known_variables() -> frozenset[str]:
    """Return the variables that gptrs reads, without those of plugins."""
    options = (field.option.variable for field in all_options().values())
    return VARIABLES.union(name for name in options if name is not None)


def optional_libraries() -> Iterator[Check]:
    """Yield each optional library, and what needs it."""
    for library in _OPTIONAL:
        there = importlib.util.find_spec(library.module) is not None
        state = "is there" if there else "is not installed"
        detail = f"{library.module} {state}, for {library.purpose}"
        hint = None if there else install_extra(library.distribution, library.extra)
        data = {"module": library.module, "installed": there, "purpose": library.purpose}
        yield Check("optional", "ok" if there else "note", detail, hint, data)


def model_kinds(plugins: PluginManager) -> Iterator[Check]:
    """Yield a note where no kind of model is installed."""
    if not plugins.descriptions(ModelPlugin):
        hint = install_own("gptrs-models")
        yield Check("models", "note", "no kind of model is installed: no model can be loaded", hint)


def threads() -> Check:
    """Return how many threads programs run on, and why."""
    try:
        asked = requested_threads(None)
    except GptrsError as error:
        return Check("threads", "broken", error.message, error.hint)
    quota = cpu_quota()
    granted = granted_cpus()
    limited = quota is not None and granted <= quota + 1 and granted < (os.cpu_count() or 1)
    why = "the quota of its control group" if limited else "the CPUs that this process may use"
    detail = f"{granted}: {why}" if asked is None else f"{asked}: GPTRS_NUM_THREADS"
    data = {"threads": asked or granted, "requested": asked, "granted": granted, "quota": quota}
    return Check("threads", "ok", detail, data=data)


def precision(plugins: PluginManager) -> Check:
    """Return what the default backend computes products with; broken for one that it lacks."""
    try:
        backend = plugins.get_backend(None, None)
        if len(backend.precisions) == 1:
            return Check("precision", "ok", f"f32: all that {backend.name} has")
        quantized, known = backend.quantized_precision(), list(backend.precisions)
    except GptrsError as error:
        return Check("precision", "broken", error.message, error.hint)
    detail = f"f32; {quantized} with quantized weights ({backend.name} has {', '.join(known)})"
    return Check("precision", "ok", detail, data={"quantized": quantized, "known": known})


def devices(plugins: PluginManager) -> Iterator[Check]:
    """Yield the devices of each backend that has a choice of them."""
    for plugin in plugins.descriptions(BackendPlugin):
        if "device" not in plugin.takes:
            continue
        try:
            found = plugins.get_backend(plugin.name).devices()
        except GptrsError as error:
            yield Check("devices", "note", f"{plugin.name}: {error.message}", error.hint)
            continue
        detail = ", ".join(shown_device(device) for device in found)
        data = [dataclasses.asdict(device) for device in found]
        yield Check("devices", "ok", f"{plugin.name} has {detail}", data={plugin.name: data})


def speed(plugins: PluginManager) -> Check:
    """Return what the machine reads and computes at most, as the default backend measures it."""
    try:
        limits = measure_limits(plugins.get_backend(None, None))
    except GptrsError as error:
        return Check("speed", "note", f"cannot be measured: {error.message}", error.hint)
    by = f"by {limits.measured_by}" + (f" on {limits.threads} threads" if limits.threads else "")
    detail = (
        f"reads {limits.read_gb_per_s:.1f} GB/s from memory, computes"
        f" {limits.gflop_per_s:.0f} GFLOP/s (f32), measured {by}"
    )
    data = {
        "read_gb_per_s": limits.read_gb_per_s,
        "gflop_per_s": limits.gflop_per_s,
        "measured_by": limits.measured_by,
        "threads": limits.threads,
    }
    return Check("speed", "ok", detail, data=data)

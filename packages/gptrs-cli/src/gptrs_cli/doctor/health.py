"""The checks of `gptrs doctor`: what is installed, whether it works, how fast it starts."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from gptrs.api.backends import granted_cpus
from gptrs.errors import GptrsError
from gptrs.install_hints import install_libraries
from gptrs.plugins.child_checks import check_plugins
from gptrs.plugins.entry_points import metadata_of
from gptrs.plugins.manager import PluginManager
from gptrs.plugins.selection import OWN
from gptrs.plugins.state import PluginRecord, PluginState
from gptrs_cli.doctor import environment, machine
from gptrs_cli.doctor.startup import measure_startup
from gptrs_cli.terminal.check_lines import Check
from gptrs_runtime.sources.hf_directory import HfDirectory

_STARTUP_GOAL_S = 0.25
_GIB = 1 << 30


def run_checks(plugins: PluginManager) -> Iterator[Check]:
    """Yield every check as soon as it is done."""
    yield from _machine_checks()
    check_plugins(plugins)
    yield from _distributions(plugins.installed())
    yield from _plugin_checks(plugins)
    yield _demo_model(plugins)
    yield from environment.model_kinds(plugins)
    yield from environment.optional_libraries()
    yield _cache_directory()
    yield from environment.variables(os.environ, plugins)
    yield environment.threads()
    yield environment.precision(plugins)
    yield from environment.devices(plugins)
    yield environment.speed(plugins)
    yield _startup(plugins.installed())


def _machine_checks() -> Iterator[Check]:
    yield Check(
        "python", "ok", machine.python_version(), data={"version": platform.python_version()}
    )
    yield Check("platform", "ok", platform.platform())
    name, features = machine.processor()
    yield Check(
        "processor",
        "ok",
        f"{name}: {' '.join(features) or 'no vector features known'}",
        data={"name": name, "features": features},
    )
    cores = machine.cores()
    quota = f", quota of {cores['quota']:g}" if cores["quota"] else ""
    detail = f"{cores['affinity']} of {cores['machine']} usable{quota}"
    yield Check("cores", "ok", detail, data=cores)
    memory = machine.memory()
    known = {name: number for name, number in memory.items() if number is not None}
    detail = ", ".join(f"{name} {number / _GIB:.1f} GiB" for name, number in known.items())
    yield Check("memory", "ok", detail or "unknown", data=memory)


def _distributions(records: list[PluginRecord]) -> Iterator[Check]:
    """Yield versions: of gptrs and every distribution with a plugin, then of their requirements."""
    installed = {name for name in OWN if metadata_of(name) is not None}
    own = {"gptrs-core", "gptrs-cli", "gptrs-observe", "gptrs-runtime", *installed}
    own |= {record.distribution for record in records if record.distribution}
    yield _versions("packages", own)
    yield _versions("libraries", {name for one in own for name in _requirements(one)} - own)


def _versions(title: str, distributions: set[str]) -> Check:
    found = {name: metadata_of(name) for name in sorted(distributions)}
    missing = [name for name, metadata in found.items() if metadata is None]
    versions = {name: metadata and (metadata.version or None) for name, metadata in found.items()}
    unread = [name for name, version in versions.items() if name not in missing and not version]
    shown = {name: version or "is missing" for name, version in versions.items()}
    shown |= dict.fromkeys(unread, "has metadata that cannot be read")
    detail = ", ".join(f"{name} {words}" for name, words in shown.items())
    hint = install_libraries(missing) if missing else None
    if unread and not missing:
        hint = f"reinstall {' and '.join(f'`{name}`' for name in unread)}"
    return Check(title, "broken" if missing or unread else "ok", detail, hint, versions)


def _requirements(distribution: str) -> list[str]:
    metadata = metadata_of(distribution)
    found = metadata.requires if metadata else ()
    # Requirements with a marker (";") are for extras or other systems.
    return [re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in found if ";" not in text]


def _plugin_checks(plugins: PluginManager) -> Iterator[Check]:
    """Yield the state of each plugin; backends were started, as that shows a missing library."""
    for record in plugins.installed():
        state = "ok" if record.state.usable else "broken"
        if record.state in (PluginState.DISABLED, PluginState.DUPLICATE):
            state = "note"
        detail = f"{record.name} ({record.distribution} {record.version}) is {record.state}"
        detail += f": {record.reason}" if record.reason else ""
        data = {"name": record.name, "kind": record.kind, "state": str(record.state)}
        yield Check(record.kind.replace("_", " "), state, detail, record.hint, data)


def _demo_model(plugins: PluginManager) -> Check:
    try:
        directory = HfDirectory.open(plugins.demo_model_path())
        tensors = len(directory.weights.names())
    except GptrsError as error:
        return Check("bundled model", "note", error.message, error.hint)
    detail = f"{tensors} tensors in {directory.path}"
    return Check("bundled model", "ok", detail, data={"path": str(directory.path)})


def _cache_directory() -> Check:
    """Check that compiled kernels can be kept: make a file in the directory, and remove it."""
    folder = Path(os.environ.get("GPTRS_CACHE_DIR") or platformdirs.user_cache_dir("gptrs"))
    data: dict[str, object] = {"path": str(folder), "writable": True}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        detail = f"{folder} is not writable: {error.strerror}"
        hint = "set `GPTRS_CACHE_DIR` to a directory of yours, or every start compiles anew"
        return Check("cache", "note", detail, hint, {**data, "writable": False})
    return Check("cache", "ok", f"{folder} is writable", data=data)


def _startup(records: list[PluginRecord]) -> Check:
    try:
        startup = measure_startup(records)
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return Check("startup", "broken", f"`gptrs --help` failed: {error}")
    modules = ", ".join(startup.heavy_modules)
    detail = f"`gptrs --help` takes {startup.seconds:.2f} s and imports"
    detail += f" {modules}" if modules else " no heavy module"
    data = {"seconds": startup.seconds, "heavy_modules": list(startup.heavy_modules)}
    busy = os.getloadavg()[0] > granted_cpus()
    slow = startup.seconds > _STARTUP_GOAL_S and not busy
    hint = f"the goal is {_STARTUP_GOAL_S} s, and the machine is not busy" if slow else None
    return Check("startup", "note" if modules or slow else "ok", detail, hint, data)

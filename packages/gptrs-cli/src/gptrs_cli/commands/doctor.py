"""`gptrs doctor`: checks the installation, and says how to mend what is wrong."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import platformdirs
import typer
from msgspec import Struct
from msgspec.structs import asdict

from gptrs.api.backends import (
    affinity_cpus,
    cpu_quota,
    granted_cpus,
    memory_limit,
    requested_threads,
)
from gptrs.errors import GptrsError
from gptrs.install_hints import install_extra, install_libraries, install_own
from gptrs.plugins.descriptions import BackendPlugin, ModelPlugin
from gptrs.plugins.entry_points import metadata_of
from gptrs.plugins.manager import PluginManager, manager
from gptrs.plugins.selection import OWN
from gptrs.plugins.state import PluginRecord, PluginState
from gptrs.quoting import counted, did_you_mean
from gptrs.variables import VARIABLES
from gptrs_cli.commands.list.plugins import GIB, shown_device
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.plugin_check.children import check_plugins
from gptrs_cli.terminal.json_result import BROKEN_CODE, Check, print_check, print_result, shortened
from gptrs_observe.measure.kernel_caches import kernel_caches
from gptrs_observe.measure.step_work import measure_limits
from gptrs_runtime.generation.options import all_options
from gptrs_runtime.results import Result
from gptrs_runtime.sources.hf_directory import HfDirectory

# Checks of `gptrs doctor` on variables, optional libraries, threads and speed.


class _Optional(NamedTuple):
    """An optional library: what needs it, and the extra that installs it."""

    module: str
    purpose: str
    distribution: str
    extra: str


_OPTIONAL: Final = (
    _Optional("jinja2", "chat templates", "gptrs-runtime", "chat"),
    _Optional("PIL", "images", "gptrs-runtime", "images"),
    _Optional("av", "MP3, FLAC and other sounds than WAV", "gptrs-runtime", "sounds"),
    _Optional("huggingface_hub", "models of the Hugging Face hub", "gptrs-runtime", "hub"),
    _Optional("torch", "`gptrs validate`", "gptrs-cli", "torch"),
    _Optional("transformers", "`gptrs validate`", "gptrs-cli", "torch"),
)


def variables(environment: Mapping[str, str], plugins: PluginManager) -> Iterator[Check]:
    """Yield the variables that are set, with a note for those that nothing reads."""
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
    """Return the variables that gptrs itself reads, without those of plugins."""
    options = (field.option.variable for field in all_options().values())
    return VARIABLES.union(name for name in options if name is not None)


def optional_libraries() -> Iterator[Check]:
    """Yield each optional library and its purpose."""
    for library in _OPTIONAL:
        there = importlib.util.find_spec(library.module) is not None
        state = "is there" if there else "is not installed"
        detail = f"{library.module} {state}, for {library.purpose}"
        hint = None if there else install_extra(library.distribution, library.extra)
        data = {"module": library.module, "installed": there, "purpose": library.purpose}
        yield Check("optional", "ok" if there else "note", detail, hint, data)


def model_kinds(plugins: PluginManager) -> Iterator[Check]:
    """Yield a note if no kind of model is installed."""
    if not plugins.descriptions(ModelPlugin):
        hint = install_own("gptrs-models")
        yield Check("models", "note", "no kind of model is installed: no model can be loaded", hint)


def threads() -> Check:
    """Return the number of threads that programs run on, and its source."""
    try:
        asked = requested_threads(None)
    except GptrsError as error:
        return Check("threads", "broken", error.message, error.hint)
    quota = cpu_quota()
    granted = granted_cpus()
    # `granted` rounds a quota of 1.5 CPUs up.
    limited = quota is not None and granted <= quota + 1 and granted < (os.cpu_count() or 1)
    why = "the quota of its control group" if limited else "the CPUs that this process may use"
    detail = f"{granted}: {why}" if asked is None else f"{asked}: GPTRS_NUM_THREADS"
    data = {"threads": asked or granted, "requested": asked, "granted": granted, "quota": quota}
    return Check("threads", "ok", detail, data=data)


def precision(plugins: PluginManager) -> Check:
    """Return the precision of products on the default backend; broken if it lacks that."""
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
    """Yield the devices of each backend that offers a choice."""
    for plugin in plugins.descriptions(BackendPlugin):
        if "device" not in plugin.takes:
            continue
        try:
            found = plugins.get_backend(plugin.name).devices()
        except GptrsError as error:
            yield Check("devices", "note", f"{plugin.name}: {error.message}", error.hint)
            continue
        detail = ", ".join(shown_device(device) for device in found)
        data = [asdict(device) for device in found]
        yield Check("devices", "ok", f"{plugin.name} has {detail}", data={plugin.name: data})


def speed(plugins: PluginManager) -> Check:
    """Return the limits of the machine in memory and arithmetic, by the default backend."""
    try:
        limits = measure_limits(plugins.get_backend(None, None))
    except GptrsError as error:
        return Check("speed", "note", f"cannot be measured: {error.message}", error.hint)
    by = f"by {limits.measured_by}"
    by += f" on {counted(limits.threads, 'thread')}" if limits.threads else ""
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


# The resources of this process: processor, cores, memory, interpreter.


_FEATURES = (
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"),
    *("avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)
"""Flags of /proc/cpuinfo (x86 and ARM) that decide which kernels can run."""


def python_version() -> str:
    """Return implementation, version and path of the interpreter."""
    return f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"


def processor() -> tuple[str, list[str]]:
    """Return the name of the processor, and which of `_FEATURES` it has."""
    fields: dict[str, str] = {}
    for line in _lines(Path("/proc/cpuinfo")):
        key, _, value = line.partition(":")
        # The first processor of the file: the others repeat its flags.
        fields.setdefault(key.strip().lower(), value.strip())
    name = fields.get("model name") or platform.processor() or platform.machine()
    flags = set((fields.get("flags") or fields.get("features") or "").split())
    return name, [feature for feature in _FEATURES if feature in flags]


def cores() -> dict[str, float | int | None]:
    """Return the logical cores of the machine and of this process, and its quota or None."""
    return {"machine": os.cpu_count() or 1, "affinity": affinity_cpus(), "quota": cpu_quota()}


def memory() -> dict[str, int | None]:
    """Return bytes of memory: the machine's, available ones, the control group's limit or None."""
    fields: dict[str, int] = {}
    for line in _lines(Path("/proc/meminfo")):
        key, _, value = line.partition(":")
        number = value.split()[:1]
        if number and number[0].isdigit():
            fields[key] = int(number[0]) * 1024
    return {
        "total": fields.get("MemTotal"),
        "available": fields.get("MemAvailable"),
        "limit": memory_limit(),
    }


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


# The startup of the command line: its time, and the heavy modules it imports.


_PROBE = """
import sys
before = set(sys.modules)
from gptrs_cli.main import main
code = main(["--help"])
print(*{name.partition(".")[0] for name in set(sys.modules) - before}, file=sys.stderr)
sys.exit(code)
"""
_OWN = frozenset({"gptrs", "gptrs_cli", "gptrs_runtime"})  # whose table of tasks has summaries
_NEEDED = frozenset(
    {
        *("annotated_doc", "click", "msgspec", "pluggy"),
        *("rich", "shellingham", "typer", "typing_extensions"),
    }
)
"""Modules that records, typer and plugin discovery import."""


class Startup(Struct, frozen=True):
    """The seconds that `gptrs --help` took, and the heavy modules it imported needlessly."""

    seconds: float
    heavy_modules: tuple[str, ...]


def measure_startup(plugins: list[PluginRecord], runs: int = 3) -> Startup:
    """Run `gptrs --help` in new processes; the fastest run counts."""
    light = _OWN | _NEEDED | set(sys.stdlib_module_names)
    # Listing a plugin imports its description, so the package by itself is not heavy.
    light |= {record.entry_point.partition(":")[0].partition(".")[0] for record in plugins}
    fastest = float("inf")
    imported: set[str] = set()
    # The least of several: the first run reads modules from disk and may write .pyc files.
    for _ in range(runs):
        started = time.perf_counter()
        result = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, check=True, timeout=60
        )
        fastest = min(fastest, time.perf_counter() - started)
        imported |= set(result.stderr.splitlines()[-1].split())
    return Startup(fastest, tuple(sorted(imported - light)))


# The checks of `gptrs doctor`: versions, plugins, caches, speed.


_STARTUP_GOAL_S = 0.25


def run_checks(plugins: PluginManager) -> Iterator[Check]:
    """Yield each check as soon as it is done."""
    yield from _machine_checks()
    check_plugins(plugins)
    yield from _distributions(plugins.installed())
    yield from _plugin_checks(plugins)
    yield _demo_model(plugins)
    yield from model_kinds(plugins)
    yield from optional_libraries()
    yield _cache_directory()
    yield from _installed_kernels()
    yield from variables(os.environ, plugins)
    yield threads()
    yield precision(plugins)
    yield from devices(plugins)
    yield speed(plugins)
    yield _startup(plugins.installed())


def _machine_checks() -> Iterator[Check]:
    yield Check("python", "ok", python_version(), data={"version": platform.python_version()})
    yield Check("platform", "ok", platform.platform())
    name, features = processor()
    yield Check(
        "processor",
        "ok",
        f"{name}: {' '.join(features) or 'no vector features known'}",
        data={"name": name, "features": features},
    )
    processors = cores()
    quota = f", quota of {processors['quota']:g}" if processors["quota"] else ""
    detail = f"{processors['affinity']} of {processors['machine']} usable{quota}"
    yield Check("cores", "ok", detail, data=processors)
    available = memory()
    known = {name: number for name, number in available.items() if number is not None}
    detail = ", ".join(f"{name} {number / GIB:.1f} GiB" for name, number in known.items())
    yield Check("memory", "ok", detail or "unknown", data=available)


def _distributions(records: list[PluginRecord]) -> Iterator[Check]:
    """Yield versions: gptrs and every distribution with a plugin, then their requirements."""
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
    """Yield the state of each plugin. Backends were created: only that shows a missing library."""
    for record in plugins.installed():
        state = "ok" if record.state.usable else "broken"
        if record.state in (PluginState.DISABLED, PluginState.DUPLICATE, PluginState.MISPLACED):
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
    detail = f"{counted(tensors, 'tensor')} in {directory.path}"
    return Check("bundled model", "ok", detail, data={"path": str(directory.path)})


def _cache_directory() -> Check:
    """Check that the directory of compiled kernels is writable, by making a file in it."""
    folder = Path(os.environ.get("GPTRS_CACHE_DIR") or platformdirs.user_cache_dir("gptrs"))
    data: dict[str, object] = {"path": str(folder), "writable": True}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Permission bits do not tell: the file system may be read-only, full, or map the user to
        # another.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        detail = f"{folder} is not writable: {error.strerror}"
        hint = (
            "set `GPTRS_CACHE_DIR` to a directory that you can write to; otherwise every start"
            " compiles again"
        )
        return Check("cache", "note", detail, hint, {**data, "writable": False})
    return Check("cache", "ok", f"{folder} is writable", data=data)


def _installed_kernels() -> Iterator[Check]:
    """Yield the kernels that are installed with each backend, or why they are not used."""
    for name, backend in kernel_caches().items():
        if not backend.tells_kernels:
            continue  # its cache holds whole programs, which cannot be compiled in advance
        installed = backend.cache_report().installed
        used = [part for part in installed if part.current]
        if used:
            listed = ", ".join(f"{part.entries.count} for {part.name}" for part in used)
            detail = f"{name}: {listed}"
        else:
            found = "; ".join(part.name for part in installed) or "none are installed"
            detail = f"{name}: the first run of a model compiles its kernels: {found}"
        data: dict[str, object] = {"backend": name, "used": bool(used)}
        data["installed"] = [part.name for part in installed]
        yield Check("kernels", "ok", detail, data=data)


def _startup(records: list[PluginRecord]) -> Check:
    try:
        startup = measure_startup(records)
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return Check("startup", "broken", f"`gptrs --help` failed: {error}")
    modules = ", ".join(startup.heavy_modules)
    detail = f"`gptrs --help` takes {startup.seconds:.2f} s and imports"
    detail += f" {modules}" if modules else " no heavy module"
    data = {"seconds": startup.seconds, "heavy_modules": list(startup.heavy_modules)}
    # A busy machine says nothing about the start, and a warning that comes and goes is ignored.
    busy = os.getloadavg()[0] > granted_cpus()
    slow = startup.seconds > _STARTUP_GOAL_S and not busy
    hint = f"the goal is {_STARTUP_GOAL_S} s, and the machine is not busy" if slow else None
    return Check("startup", "note" if modules or slow else "ok", detail, hint, data)


class Doctor(Result, frozen=True, kw_only=True, tag="gptrs.doctor/1"):
    """`gptrs doctor`; `ok` unless something is broken."""

    ok: bool
    checks: list[Check]


@command_options()
def doctor(settings: Settings) -> None:
    """Check the installation: machine, versions, plugins, caches.

    Start-up time and speed are measured, too. Exits with 4 if anything is broken.
    """
    checks: list[Check] = []

    def noted() -> Iterator[Check]:
        for check in run_checks(manager()):
            checks.append(check)
            yield check

    for check in noted() if settings.json else shortened(noted()):
        if not settings.json:
            print_check(check)
    broken = [check for check in checks if check.state == "broken"]
    if settings.json:
        print_result(Doctor(ok=not broken, checks=checks))
    elif broken:
        print(f"\n{len(broken)} of {len(checks)} checks found something broken.")
    elif any(check.state == "note" for check in checks):
        print("\nNothing is broken; lines with `!` show what could be better.")
    else:
        print("\nEverything that gptrs needs is there.")
    if broken:
        raise typer.Exit(BROKEN_CODE)

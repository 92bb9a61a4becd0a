"""Python of aarch64, its libraries and qemu, in a folder: unpacked, nothing is installed.

What is missing is fetched by `apt-get download` and `pip download`, once: 60 MB for qemu, 13 MB for
Python, 120 MB of wheels. Pure packages are those of this environment.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from zipfile import ZipFile

MACHINE: Final = "aarch64"
_EMULATOR: Final = "qemu-aarch64-static"
_SYSTEM: Final = (
    "python3.11-minimal", "python3.11", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6",
    "libstdc++6", "libgcc-s1", "libssl3", "libffi8", "zlib1g", "libbz2-1.0", "liblzma5",
    "libsqlite3-0", "libexpat1", "libuuid1", "libncursesw6", "libtinfo6", "libreadline8",
    "libdb5.3", "libcrypt1", "libnsl2", "libtirpc3", "media-types",
)  # fmt: skip
"""Packages of Debian 12 that its Python needs."""
_NEEDED: Final = (
    "it takes `qemu-user-static`, and unpacks these packages of Debian 12 for arm64: "
    + " ".join(_SYSTEM)
)
_WHEELS: Final = (
    "numpy", "numba", "llvmlite", "ml_dtypes", "safetensors", "tokenizers", "blake3", "msgspec",
    "regex", "scipy",
)  # fmt: skip
"""Distributions with machine code that tests import."""
_PURE: Final = (
    "pluggy", "platformdirs", "typing_extensions.py", "jinja2", "markupsafe", "pytest", "_pytest",
    "py.py", "iniconfig", "packaging", "pygments",
)  # fmt: skip
_PYTHON: Final = (3, 11)
"""The version in Debian 12: extension modules and kernels are for it."""


class UnavailableError(Exception):
    """An environment that cannot be had; the text says why."""


class Emulated:
    """An environment that is there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        found = shutil.which(_EMULATOR) or shutil.which("qemu-aarch64")
        self._emulator = found or str(folder / "qemu" / "usr" / "bin" / _EMULATOR)

    def command(self, cpu: str, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs Python with arguments on an emulated processor."""
        root = self._folder / "system"
        python = root / "usr" / "bin" / "python3.11"
        return [self._emulator, "-cpu", cpu, "-L", str(root), str(python), *arguments]

    def variables(self, path: Sequence[str]) -> Mapping[str, str]:
        """Return the variables of Python, which finds modules in `path` and the environment's."""
        own = [str(self._folder / "site"), str(self._folder / "pure")]
        return {
            "PYTHONHOME": str(self._folder / "system" / "usr"),
            "PYTHONPATH": os.pathsep.join([*own, *path]),
            "PYTHONPYCACHEPREFIX": str(self._folder / "compiled"),
        }


def prepared(folder: Path) -> Emulated:
    """Return the environment in a folder, after fetching what it lacks; UnavailableError."""
    if sys.version_info[:2] != _PYTHON:
        raise UnavailableError("Python 3.11 is needed here, too: Debian has it for aarch64")
    if not (folder / "complete").exists():
        for tool in ("apt-get", "dpkg"):
            if shutil.which(tool) is None:
                raise UnavailableError(f"`{tool}` is not installed; {_NEEDED}")
        try:
            _fetch(folder)
        except UnavailableError as error:
            raise UnavailableError(f"{error}; {_NEEDED}") from None
        (folder / "complete").touch()
    return Emulated(folder)


def _fetch(folder: Path) -> None:
    for name in ("qemu", "system", "site", "wheels", "lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if shutil.which(_EMULATOR) is None and shutil.which("qemu-aarch64") is None:
        _run(["apt-get", "download", "qemu-user-static"], folder / "qemu")
        _unpack(folder / "qemu", folder / "qemu")
    options = {
        "APT::Architecture": "arm64", "APT::Architectures": "arm64",
        "Dir::State::Lists": str(folder / "lists"), "Dir::State::status": "/dev/null",
        "Dir::Cache": str(folder / "cache"), "Debug::NoLocking": "1",
    }  # fmt: skip
    apt = ["apt-get", *(f"-o{name}={value}" for name, value in options.items())]
    _run([*apt, "update"], folder)
    _run([*apt, "download", *_SYSTEM], folder / "cache")
    _unpack(folder / "cache", folder / "system")
    pinned = [f"{name}=={importlib.metadata.version(name)}" for name in _WHEELS]
    kinds = ("2_28", "2_27", "2_17")
    platforms = [f"--platform=manylinux_{kind}_{MACHINE}" for kind in kinds]
    platforms.append(f"--platform=manylinux2014_{MACHINE}")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    pip += ["--only-binary=:all:", "--python-version=3.11", *platforms, "-d", "wheels"]
    _run([*pip, *pinned], folder)
    for wheel in (folder / "wheels").glob("*.whl"):
        with ZipFile(wheel) as archive:
            archive.extractall(folder / "site")
    _link_pure(folder / "pure")


def _link_pure(pure: Path) -> None:
    installed = Path(sysconfig.get_path("purelib"))
    pure.mkdir(exist_ok=True)
    described = [
        each for name in (*_PURE, "gptrs*") for each in installed.glob(f"{name}-*.dist-info")
    ]
    for each in (*(installed / name for name in _PURE), *described):
        link = pure / each.name
        if each.exists() and not link.exists():
            link.symlink_to(each)


def _unpack(packages: Path, target: Path) -> None:
    for package in packages.glob("*.deb"):
        _run(["dpkg", "-x", str(package), str(target)], target)


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no reason"]
        raise UnavailableError(f"`{' '.join(command[:2])}` failed: {lines[-1]:.200}")

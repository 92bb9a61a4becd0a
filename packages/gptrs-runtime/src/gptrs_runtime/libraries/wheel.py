"""A Python wheel around a library: it needs NumPy, and nothing of gptrs."""

from __future__ import annotations

import base64
import hashlib
import platform
import zipfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path


def write_wheel(
    folder: Path, name: str, version: str, contents: Sequence[str], template: str, made_by: str
) -> Path:
    """Write a wheel with `contents`, files of `folder`, into that folder; return its path.

    `name` is the module, made of the text in `template`, and `made_by` the version of gptrs.

    The format is that of the Python packaging user guide, "Binary distribution format".
    """
    library = next(each for each in contents if each.endswith(".so"))
    tag = f"py3-none-{platform.system().lower()}_{_machine_of(folder / library)}"
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-{tag}.whl"
    package = files("gptrs_runtime.libraries").joinpath(template).read_text(encoding="utf-8")
    texts = {
        f"{name}/__init__.py": package.replace("@NAME@", name),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\n"
        f"Version: {version}\nSummary: {name} as a library of machine code, written by gptrs\n"
        "Requires-Python: >=3.9\nRequires-Dist: numpy\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: gptrs {made_by}\n"
        f"Root-Is-Purelib: false\nTag: {tag}\n",
    }
    record: list[str] = []
    # Stored: weights hardly get smaller, and an installation copies them at the speed of the disk.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for file in contents:
            archive.write(folder / file, f"{name}/{file}")
            record.append(_line(f"{name}/{file}", *_digest_of(folder / file)))
        for file, text in texts.items():
            data = text.encode()
            archive.writestr(file, data)
            record.append(_line(file, hashlib.sha256(data).digest(), len(data)))
        archive.writestr(f"{info}/RECORD", "\n".join((*record, f"{info}/RECORD,,", "")))
    return path


def _machine_of(library: Path) -> str:
    """Return the instruction set of a library, which may be for another machine."""
    with library.open("rb") as file:
        number = int.from_bytes(file.read(20)[18:], "little")
    return {62: "x86_64", 183: "aarch64"}.get(number, platform.machine())  # ELF, `e_machine`


def _digest_of(path: Path) -> tuple[bytes, int]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
        return digest, file.tell()


def _line(name: str, digest: bytes, nbytes: int) -> str:
    encoded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    return f"{name},sha256={encoded},{nbytes}"

"""Links the objects of a library, of one kind of processors or of several, by a C compiler."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from gptrs.backend.contract import WrittenLibrary
from gptrs.errors import ExecutionError, UnsupportedError, UsageError
from gptrs_backend_numba.codegen.processor import this_machine
from gptrs_backend_numba.codegen.targets import TARGETS, Target, target_named

HEAD: Final = 64
"""Bytes that a file of weights begins with, and then zeros."""
WEIGHTS: Final = "weights"
"""The file of weights while parts of a library are written."""
OBJECTS: Final = "objects"
"""The folder of what is not linked here."""
SCRIPT: Final = "link.sh"
"""The commands that link a library, where nothing here does."""
_DIGEST_BYTES: Final = 32
_SHOWN_LINES: Final = 10
_FLAGS: Final = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
_FUNCTION: Final = re.compile(
    r'__attribute__\(\(visibility\("default"\)\)\)\s+([^;{]*?)(\w+)\(([^)]*)\);'
)
"""A function in a header: its type, its name, and what it takes."""

_LAST_WORD: Final = re.compile(r"\w+")


def c_compiler(machine: str) -> list[str]:
    """Return the command of the C compiler for a machine: `CC`, `cc`, or a cross compiler.

    ExecutionError if there is none, UnsupportedError on a system other than Linux: the runtime and
    the linker's options are for it.
    """
    if platform.system() != "Linux":
        raise UnsupportedError(f"libraries are written on Linux only, this is {platform.system()}")
    command = compiler_command(machine)
    found = shutil.which(command[0])
    if found is None:
        raise ExecutionError(
            f"a library is linked by a C compiler, and `{command[0]}` is not installed",
            hint="install gcc or clang, or name another one in `CC`",
        )
    return [found, *command[1:]]


def compiler_command(machine: str) -> list[str]:
    """Return the words of `CC`, or the usual name of a compiler for a machine."""
    usual = "cc" if machine == this_machine() else f"{machine}-linux-gnu-gcc"
    return os.environ.get("CC", "").split() or [usual]


def targets_together(names: Sequence[str]) -> tuple[Target, ...]:
    """Return targets of one library, the best first; UsageError if no processor is of all kinds."""
    found = [target_named(name) for name in dict.fromkeys(names)]
    machines = sorted({each.machine for each in found})
    if len(machines) > 1:
        raise UsageError(
            f"one library cannot be for {' and '.join(machines)}", hint="write one for each"
        )
    return tuple(sorted(found, key=TARGETS.index, reverse=True))


def join_library(
    name: str, folder: Path, work: Path, parts: Sequence[WrittenLibrary]
) -> WrittenLibrary:
    """Link parts, each in a folder of its name below `work`, and bring the files to `folder`.

    Where the machine is another one and there is no compiler for it, sources and objects stay
    there, with the commands that link them.
    """
    names = [part.header.removesuffix(".h") for part in parts]
    machine = _machine_of(work / names[0])
    header = (work / names[0] / f"{names[0]}.h").read_text(encoding="utf-8")
    if names[0] != name:
        header = header.replace(names[0].upper(), name.upper()).replace(names[0], name)
    (work / "weights.h").write_text(_weights_text(work / WEIGHTS))
    (work / f"{name}.h").write_text(header, encoding="utf-8")
    exported = [match[2] for match in _FUNCTION.finditer(header)]
    (work / "exports.map").write_text(f"{{ global: {'; '.join(exported)}; local: *; }};\n")
    sources = [f"{each}/{each}.c" for each in names]
    if names != [name]:
        (work / "choice.c").write_text(_choice(name, names, header), encoding="utf-8")
        sources.insert(0, "choice.c")
    objects = sorted(str(each.relative_to(work)) for each in work.glob("*/*.o"))
    library = f"lib{name}.so"
    inputs = ["-I.", "-Wl,--version-script=exports.map", *sources, *objects]
    arguments = [*_FLAGS, *inputs]
    link = None
    if machine == this_machine() or shutil.which(compiler_command(machine)[0]):
        libraries = ["-o", library, "-lm", "-lpthread"]
        _run([*c_compiler(machine), *arguments, *libraries], work)
        shutil.move(work / library, folder / library)
    else:
        shutil.copytree(work, folder / OBJECTS, ignore=shutil.ignore_patterns("weights*"))
        shutil.copy(work / "weights.h", folder / OBJECTS)
        words = shlex.join([*arguments, "-o", f"../{library}", "-lm", "-lpthread"])
        (folder / SCRIPT).write_text(
            f"cd {OBJECTS} && ${{CC:-{compiler_command(machine)[0]}}} {words}\n"
        )
        link = f"sh {SCRIPT}"
    (folder / f"{name}.h").write_text(header, encoding="utf-8")
    shutil.move(work / WEIGHTS, folder / f"{name}.weights")
    return replace(
        parts[-1],  # what needs least
        library=library,
        header=f"{name}.h",
        weights=f"{name}.weights",
        kernels=sum(part.kernels for part in parts),
        link=link,
    )


def _machine_of(part: Path) -> str:
    """Return the machine of the objects of a part, as their heads say."""
    with next(part.glob("*.o")).open("rb") as file:
        number = int.from_bytes(file.read(20)[18:], "little")
    return {62: "x86_64", 183: "aarch64"}[number]  # System V ABI, `e_machine`


def _weights_text(path: Path) -> str:
    """Return the C text that tells a library what weights are its own."""
    with path.open("rb") as file:
        head = file.read(_DIGEST_BYTES)
    digest = "".join(f"\\x{byte:02x}" for byte in head)
    return f'#define DIGEST "{digest}"\n#define WEIGHT_BYTES {path.stat().st_size}LL\n'


def _choice(name: str, parts: Sequence[str], header: str) -> str:
    """Return the C text that calls the part that fits the processor."""
    words: dict[str, list[str]] = {
        key: [] for key in ("FIELDS", "DECLARATIONS", "ROW", "FUNCTIONS")
    }
    for match in _FUNCTION.finditer(header):
        type_, takes = match[1], " ".join(match[3].split())
        short = match[2].removeprefix(f"{name}_")
        given = [_LAST_WORD.findall(each)[-1] for each in takes.split(",") if each != "void"]
        words["FIELDS"].append(f"  {type_}(*{short})({takes});")
        words["DECLARATIONS"].append(f"{type_}part##_{short}({takes});")
        words["ROW"].append(f"part##_{short}")
        result = "" if type_.strip() == "void" else "return "
        called = f"{result}chosen()->{short}({', '.join(given)});"
        words["FUNCTIONS"].append(f"{type_}{match[2]}({takes}) {{ {called} }}")
    joined = {
        "NAME": name,
        "PARTS": " ".join(f"part({each})" for each in parts),
        "FIELDS": "\n".join(words["FIELDS"]),
        "DECLARATIONS": " ".join(words["DECLARATIONS"]),
        "ROW": ", ".join(words["ROW"]),
        "FUNCTIONS": "\n\n".join(words["FUNCTIONS"]),
    }
    text = files("gptrs_backend_numba.native").joinpath("choice.c").read_text(encoding="utf-8")
    return re.sub(r"@([A-Z]+)@", lambda match: joined[match[1]], text)


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        shown = [line for line in lines if "error" in line] or lines[-_SHOWN_LINES:]
        said = "\n".join(shown[:_SHOWN_LINES]) or f"it ended with {done.returncode}"
        raise ExecutionError(f"the C compiler `{command[0]}` failed: {said}")

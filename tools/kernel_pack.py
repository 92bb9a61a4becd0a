"""Compile the kernels that models of all kinds need, into packs: see `codegen/kernel_pack.py`.

    python tools/kernel_pack.py                       # for this machine, into the package here
    python tools/kernel_pack.py --all --out FOLDER    # for each target of this instruction set
    python tools/kernel_pack.py --target neon_i8mm    # for one of another

Which kernels these are follows from the kinds: `kernel_needs` makes small models of each, whose
sizes lead to the kernels of real ones, and runs them in all precisions and quantizations. Kernels
do nothing meanwhile, so that this machine need not have the processor; then they are compiled.

What is compiled lies in the folder --work, for these sources of the kernels: a build that was
interrupted goes on from there, with any number of processes.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from gptrs_backend_numba.codegen.processor import this_machine
from gptrs_backend_numba.codegen.targets import TARGETS, VARIABLE, chosen_target

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = ROOT / "packages" / "gptrs-backend-numba" / "src" / "gptrs_backend_numba"
WORK: Final = ROOT / "build" / "kernel-packs"
MOST_BYTES: Final = 25 << 20
"""Bytes that all packs of a wheel may take."""
_OURS: Final = ("GPTRS_", "NUMBA_")
"""How variables begin that would change what kernels there are."""
HERE: Final = "here"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=PACKAGE / "pack", help="folder of the packs")
    parser.add_argument(
        "--all", action="store_true", help="for each target of this instruction set"
    )
    parser.add_argument("--target", action="append", choices=[each.name for each in TARGETS])
    parser.add_argument("--work", type=Path, default=WORK, help="folder of what is compiled")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", metavar="WORD", action="append", help="needs named like this")
    parser.add_argument("--collect", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.collect:
        name, work = options.collect
        collect(name, Path(work), options.only)
        return 0
    machine = this_machine()
    everything = [each.name for each in TARGETS if each.machine == machine]
    names = options.target or (everything if options.all else [HERE])
    options.out.mkdir(parents=True, exist_ok=True)
    for name in names:
        made = build(name, options.out, options.jobs, options.only, options.work)
        print(made, flush=True)
    total = sum(path.stat().st_size for path in options.out.glob("*.kernels"))
    if total > MOST_BYTES:
        print(f"packs take {total} bytes, {MOST_BYTES} are allowed", file=sys.stderr)
        return 1
    return 0


def build(
    target: str,
    out: Path,
    jobs: int,
    only: Sequence[str] | None = None,
    works: Path | None = None,
) -> str:
    """Write the pack for a target into the folder `out`; return what was done, in words.

    Kernels that an interrupted build left in a folder below `works` are not compiled again; None: a
    temporary folder. No other build may use it meanwhile.
    """
    started = time.monotonic()
    with _work_folder(target, works) as work:
        count = _compiled(target, work, jobs, only)
        path = out / f"{target}.kernels"
        packs = import_module("gptrs_backend_numba.codegen.kernel_pack")
        head = packs.head_of((work / "head.json").read_bytes())
        files = [file for file in (work / "kernels").iterdir() if not file.suffix]
        packs.write_pack(path.with_suffix(".new"), head, {f.name: f.read_bytes() for f in files})
        path.with_suffix(".new").replace(path)
    size, seconds = path.stat().st_size / 1e6, time.monotonic() - started
    return f"{path.name}: {len(files)} kernels, {count} of them new, {size:.1f} MB, {seconds:.0f} s"


@contextmanager
def _work_folder(target: str, works: Path | None) -> Iterator[Path]:
    """Scope of the folder for what is compiled, for a target and the sources of kernels."""
    with tempfile.TemporaryDirectory(prefix="gptrs-pack-") as temporary:
        store = import_module("gptrs_backend_numba.codegen.kernel_store")
        made_by = hashlib.blake2b(_compiler().encode(), digest_size=4).hexdigest()
        name = f"{target}-{store.SOURCES_DIGEST.hex()[:16]}-{made_by}"
        work = (works or Path(temporary)) / name
        for each in ("kernels", "needs", "claims"):
            (work / each).mkdir(parents=True, exist_ok=True)
        for claim in (work / "claims").iterdir():  # those of a build that was interrupted
            claim.unlink()
        yield work


def _compiled(target: str, work: Path, jobs: int, only: Sequence[str] | None) -> int:
    """Compile what `work` lacks, by that many processes; return the number of kernels."""
    before = len(list((work / "kernels").iterdir()))
    kept = {name: each for name, each in os.environ.items() if name[:6] not in _OURS}
    environment = {**kept, **quiet_environment(work)}
    if target != HERE:
        environment[VARIABLE] = target
    command = [sys.executable, __file__, *(f"--only={word}" for word in only or ())]
    running = [
        subprocess.Popen([*command, "--collect", target, work], env=environment)
        for _ in range(jobs)
    ]
    if any([each.wait() for each in running]):
        raise SystemExit(f"kernels for `{target}` cannot be compiled")
    return len(list((work / "kernels").iterdir())) - before


def _compiler() -> str:
    """Return the compiler and its version."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numba", "llvmlite"))


def quiet_environment(work: Path) -> dict[str, str]:
    """Return variables for a process in which kernels do nothing: nothing is kept, memory is 0."""
    return {
        "GPTRS_CACHE_DIR": str(work / "cache"),
        "GPTRS_CACHE_BYTES": "0",
        "GPTRS_WEIGHT_CACHE_BYTES": "0",
        "GPTRS_NUMBA_FILL": "0",
        "GPTRS_NUMBA_PACK": "0",
        "GPTRS_NUMBA_COMPILERS": "1",
        "GPTRS_NUM_THREADS": "2",
    }


# What one process does: it runs needs that no other has begun, and compiles the kernels that they
# lack.


def collect(target: str, work: Path, only: Sequence[str] | None) -> None:
    """Compile the kernels of needs for the target that a variable names."""
    packs = import_module("gptrs_backend_numba.codegen.kernel_pack")
    needs = import_module("kernel_needs")
    logging.getLogger("gptrs").setLevel(logging.ERROR)  # settings that some kinds do not have
    _write(work / "head.json", packs.head_for_target(_compiler()).encoded())
    chosen = [each for each in needs.NEEDS if any(word in each.name for word in only or [""])]
    with kernels_noted() as noted, tempfile.TemporaryDirectory(prefix="gptrs-pack-") as models:
        faults = import_module("gptrs_backend_numba.codegen.read_faults")
        faults.handle_read_faults()  # which all that read files need
        for number, need in enumerate(chosen, start=1):
            name = hashlib.blake2b(need.name.encode(), digest_size=8).hexdigest()
            if _is_done(work, name) or not _claim(work, name):
                continue
            began = time.monotonic()
            need.run(Path(models, "model"))
            asked = [packs.digest_of(key) for key in noted]
            made = _compile(noted, work)
            _write(work / "needs" / name, "\n".join(asked).encode())
            seconds = time.monotonic() - began
            what = f"{target}: {number} of {len(chosen)}, {need.name}"
            print(f"{what}: {made} of {len(noted)} kernels new, {seconds:.0f} s", flush=True)
            noted.clear()


def _is_done(work: Path, name: str) -> bool:
    """Return whether an earlier build has compiled all kernels of a need."""
    try:
        asked = (work / "needs" / name).read_text().split()
    except FileNotFoundError:
        return False
    return all((work / "kernels" / digest).exists() for digest in asked)


def _claim(work: Path, name: str) -> bool:
    """Return whether this process is the first of a build to ask for `name`."""
    try:
        (work / "claims" / name).open("xb").close()
    except FileExistsError:
        return False
    return True


def _write(path: Path, content: bytes) -> None:
    """Write a whole file, even if the process ends."""
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


@contextmanager
def kernels_noted() -> Iterator[dict[str, Any]]:
    """Scope in which kernels do nothing when they are called, and are noted by their keys."""
    noted: dict[str, Any] = {}
    changes = _changes(noted)
    former = {place: getattr(*place) for place in changes}
    for (owner, name), value in changes.items():
        setattr(owner, name, value)
    try:
        yield noted
    finally:
        for (owner, name), value in former.items():
            setattr(owner, name, value)


def _changes(noted: dict[str, Any]) -> Mapping[tuple[Any, str], Any]:
    """Return what stands for names of the backend meanwhile."""
    compiled = import_module("gptrs_backend_numba.codegen.compiled")
    backend = import_module("gptrs_backend_numba.backend").NumbaBackend
    compiler = import_module("gptrs_backend_numba.compiler")
    faults = import_module("gptrs_backend_numba.codegen.read_faults")
    patterns = import_module("gptrs_backend_numba.fusion.needed_patterns")
    nothing = _nothing()
    compile_program = backend.compile

    def found(wanted: Any) -> Any:
        noted.setdefault(wanted.key, wanted)
        return nothing

    def stored(name: str, key: str, make: Any) -> Any:
        noted.setdefault(key, make)
        return nothing

    def compile_or_compute(self: Any, program: Any, roles: Sequence[Any]) -> Any:
        made = compile_program(self, program, roles)
        return made if roles else reference().compile(program, roles)

    def evaluate(program: Any) -> list[Any]:
        compiler.lower(program, (), 1)
        made = reference().compile(program, ())
        return [reference().to_host(each) for each in made.run(())]

    return {
        (compiled, "_found"): found,
        (faults, "link_stored"): stored,
        (faults, "_install"): lambda address: None,
        # The values of constants decide what a program becomes.
        (backend, "compile"): compile_or_compute,
        (patterns, "evaluate"): evaluate,
    }


def _nothing() -> Any:
    machine_code = import_module("gptrs_backend_numba.codegen.machine_code")

    class Nothing(machine_code.Kernel):
        """A kernel that does nothing."""

        def __call__(self, *arguments: int) -> int:
            return 0

        def one_at_a_time(self, *first: int) -> Callable[..., int]:
            return self

    return Nothing(64, 0)


def reference() -> Any:
    """Return the reference backend."""
    return import_module("gptrs_backend_ref.backend").create()


def _compile(noted: Mapping[str, Any], work: Path) -> int:
    """Compile kernels that no process has begun; return how many."""
    machine = this_machine()
    is_foreign = machine != getattr(chosen_target(), "machine", machine)
    packs = import_module("gptrs_backend_numba.codegen.kernel_pack")
    compiler = import_module("gptrs_backend_numba.codegen.numba_compiler")
    count = 0
    for key, wanted in noted.items():
        path = work / "kernels" / packs.digest_of(key)
        if path.exists() or not _claim(work, path.name):
            continue
        if callable(wanted):
            if is_foreign:  # LLVM's own code for the system, by LLVM for this one
                continue
            code = wanted()
        else:
            code = compiler.target_code(wanted.function(), wanted.fastmath)
        _write(path, code.encoded())
        count += 1
    return count


if __name__ == "__main__":
    sys.exit(main())

"""List the machine code of the numba kernels that some tests need, for any processor.

    python tools/kernel_code.py --cpu sapphirerapids --out after tests/backends/test_reduction.py
    python tools/kernel_code.py --compare before after

The first form runs pytest with the remaining arguments. Kernels are compiled for `--cpu` (this one
if not given) but do nothing when they are called, so this machine need not have that processor, and
most tests fail, which does not matter. Each kernel is written to the folder `--out`: its assembly
without names as `DIGEST.s`, and a line with the first test that needed it, its name, the bytes of
its code and the digest in `index.tsv`. To list the kernels of another revision, run this file with
the Python and in the root of a worktree of that revision.

The second form lists the kernels that only one of two folders has, side by side by test, and exits
1 if there are any. See the difference between two of them by `diff before/DIGEST.s after/DIGEST.s`.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import llvmlite.binding as llvm
import pytest

_AVX2 = "+sse4.2,+popcnt,+lzcnt,+bmi,+bmi2,+movbe,+avx,+avx2,+fma,+f16c"
_AVX512 = f"{_AVX2},+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"
_AMX = f"{_AVX512},+avx512vnni,+avx512bf16,+avx512fp16,+amx-tile,+amx-int8,+amx-bf16"
CPUS = {"haswell": _AVX2, "skylake-avx512": _AVX512, "sapphirerapids": _AMX}
"""The processors that `--cpu` knows, with those of their features that kernels ask for."""
_SYMBOL = re.compile(r"(?:_ZN|\.L|\.const\.|\.numba\.|cfunc\.|NRT_|kernel_)[\w.$<>:@+-]*")
_DROPPED = re.compile(
    r"\s*\.(file|ident|ascii|asciz|string|type|size|globl|weak|section|comm|addrsig)"
)


@dataclass(frozen=True)
class Code:
    """The machine code of one kernel."""

    test: str
    name: str
    nbytes: int
    digest: str


def main() -> int:
    """Parse the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu", choices=CPUS, help="what to compile for (default: this machine)")
    parser.add_argument("--out", type=Path, help="the folder to write to")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"))
    options, rest = parser.parse_known_args()
    if options.compare:
        return compare(*map(read_index, options.compare))
    if options.out is None:
        parser.error("one of --out and --compare is needed")
    if options.cpu:
        os.environ["NUMBA_CPU_NAME"] = options.cpu
        os.environ["NUMBA_CPU_FEATURES"] = CPUS[options.cpu]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["GPTRS_CACHE_DIR"] = cache
        record(options.out, rest)
    return 0


def record(folder: Path, arguments: list[str]) -> None:
    """Write the kernels that the tests need to `folder`."""
    # Imported here, since the environment says by now what to compile for.
    numba_compiler = import_module("gptrs_backend_numba.codegen.numba_compiler")
    machine_code = import_module("gptrs_backend_numba.codegen.machine_code")
    target = import_module("gptrs_backend_numba.codegen.machine")
    amx_matmul = import_module("gptrs_backend_numba.lowering.amx_matmul")
    folder.mkdir(parents=True, exist_ok=True)
    index = (folder / "index.tsv").open("w")

    def capture(library) -> None:
        # To emit code changes the module, of which the kernel is made afterwards.
        machine, module = library._codegen._tm, library._final_module
        text = normalized(machine.emit_assembly(module.clone()))
        digest = hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
        (folder / f"{digest}.s").write_text(text)
        test = os.environ.get("PYTEST_CURRENT_TEST", "").removesuffix(" (call)")
        name = re.sub(r"^.*?((?!_ZN)[a-z]\w*?)_?[0-9a-f]{32}.*", r"\1", library.name)
        print(
            test,
            name,
            text_bytes(machine.emit_object(module.clone())),
            digest,
            sep="\t",
            file=index,
        )

    numba_compiler._require_known = capture
    machine_code.Kernel.__call__ = lambda self, *arguments: 0  # do not run what may be foreign
    amx_matmul.is_there = lambda: {"amx-tile", "amx-bf16"} <= target.features()
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-n", "0", "--tb=no",
                 "-W", "ignore", "-r", "N", *arguments])  # fmt: skip
    index.close()
    kernels = read_index(folder)
    print(f"{len(kernels)} kernels, {sum(kernel.nbytes for kernel in kernels)} bytes of code")


def normalized(assembly: str) -> str:
    """Return instructions and constants, with names numbered in the order of their appearance."""
    numbers: dict[str, str] = collections.defaultdict(lambda: f"name{len(numbers)}")
    lines = (line.split("#")[0].rstrip() for line in assembly.splitlines())
    kept = (line for line in lines if line and not _DROPPED.match(line))
    return "".join(f"{_SYMBOL.sub(lambda found: numbers[found[0]], line)}\n" for line in kept)


def text_bytes(object_file: bytes) -> int:
    """Return the size of the code in an object file."""
    sections = llvm.ObjectFileRef.from_data(object_file).sections()
    return sum(section.size() for section in sections if section.is_text())


def read_index(folder: Path) -> list[Code]:
    """Return the kernels in a folder that `record` has written."""
    lines = (folder / "index.tsv").read_text().splitlines()
    fields = (line.split("\t") for line in lines)
    return [Code(test, name, int(nbytes), digest) for test, name, nbytes, digest in fields]


def compare(before: list[Code], after: list[Code]) -> int:
    """Print the kernels that only one side has; 0 if there are none."""
    known = [{code.digest for code in codes} for codes in (before, after)]
    gone = by_test(code for code in before if code.digest not in known[1])
    new = by_test(code for code in after if code.digest not in known[0])
    for test in sorted(gone.keys() | new.keys()):
        print(test)
        for old, now in itertools.zip_longest(gone[test], new[test]):
            sides = (f"{c.name} {c.nbytes} {c.digest}" if c else "-" for c in (old, now))
            print(f"    {'  ->  '.join(sides)}")
    print(
        f"{len(known[0])} kernels before, {len(known[1])} after, {len(known[0] & known[1])} alike"
    )
    return int(known[0] != known[1])


def by_test(codes: Iterable[Code]) -> dict[str, list[Code]]:
    """Return the kernels by the test that needed them first."""
    found: dict[str, list[Code]] = collections.defaultdict(list)
    for code in codes:
        found[code.test].append(code)
    return found


if __name__ == "__main__":
    sys.exit(main())

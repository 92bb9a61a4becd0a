"""Feed mutated model files to gptrs; save those that are not handled as they must be."""

from __future__ import annotations

import argparse
import faulthandler
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

from fuzzing.file_formats import FORMATS, FileFormat
from fuzzing.file_judge import Watch, judge
from fuzzing.import_formats import IMPORTED, import_formats
from fuzzing.input_formats import OTHER_FORMATS
from gptrs.backend.contract import Backend
from gptrs_backend_ref.backend import create
from gptrs_conformance.program_generator.dice import Dice

ALL = {**FORMATS, **OTHER_FORMATS}
MEMORY = 2 * 2**30
"""Bytes of address space beyond what the process has at the start."""
TOGETHER = 50
"""Files that are watched together, as starting a watch takes as long as a file."""
SLOW = {"chat-template": 50, "onnx": 10, "pt2": 50}
"""How many times fewer files of a format are made than of others."""
HANGS_AFTER = 300
"""Seconds for these: then, where no signal interrupts a call, the whole process is given up."""
MAX_FLAWS = 20


def main(arguments: list[str] | None = None) -> int:
    """Fuzz as `arguments` say and print what came of it; 1 if a file was not handled well."""
    options = _parser().parse_args(arguments)
    warnings.simplefilter("error")
    os.environ["GPTRS_CACHE_BYTES"] = "0"  # a file that is read must make no other one
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    backend = create(None)
    formats = {**ALL, **import_formats(options.formats)}
    if missing := set(options.formats) - formats.keys():
        sys.exit(f"unknown, or its library is not installed: {', '.join(sorted(missing))}")
    errors = _errors_of_libraries_unseen()
    with tempfile.TemporaryDirectory(prefix="gptrs-fuzz-") as scratch:
        watch = Watch(Path(scratch))
        _limit_memory()
        flaws = 0
        for name in options.formats or formats:
            folder = Path(scratch) / name / "model"
            folder.mkdir(parents=True)
            run = _Run(name, formats[name], folder, backend, watch, seed, errors)
            flaws += run.fuzz(max(1, options.count // SLOW.get(name, 1)), options.out)
    print(f"{flaws:8} not handled as they must be" + (f", in {options.out}" if flaws else ""))
    return 1 if flaws else 0


class _Run:
    """Mutated files of one format."""

    def __init__(
        self,
        name: str,
        form: FileFormat,
        folder: Path,
        backend: Backend,
        watch: Watch,
        seed: int,
        errors: int,
    ) -> None:
        self._name = name
        self._form = form
        self._path = folder / form.name
        self._watch = watch
        self._seed = seed
        self._errors = errors
        self._contents = form.prepare(folder, backend)
        for content in self._contents:  # what is sound is read, and imports what that needs
            self._path.write_bytes(content)
            form.read(self._path, Dice(0))

    def fuzz(self, count: int, out: Path) -> int:
        """Try that many files and print what came of them; how many were not handled well."""
        outcomes: Counter[str] = Counter()
        started = time.monotonic()
        for number in range(count):
            if number % TOGETHER == 0:
                faulthandler.dump_traceback_later(HANGS_AFTER, exit=True, file=self._errors)
            dice = Dice(self._seed * 2**32 + number)
            data = self._form.mutate(dice, dice.pick(self._contents), dice.pick(self._contents))
            self._path.write_bytes(data)
            try:
                outcomes[judge(self._form, self._path, dice, self._watch)] += 1
            except Exception:
                outcomes["flaw"] += 1
                self._save(out, number, data, traceback.format_exc())
                if outcomes["flaw"] == MAX_FLAWS:
                    break
        faulthandler.cancel_dump_traceback_later()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        found = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
        seconds = time.monotonic() - started
        print(f"{self._name:12} {found}, in {seconds:.0f} s, at most {peak} MiB", flush=True)
        return outcomes["flaw"]

    def _save(self, out: Path, number: int, data: bytes, flaw: str) -> None:
        """Write a file and, beside it, what is wrong."""
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{self._name}-{self._seed}-{number}"
        path.write_bytes(data)
        path.with_suffix(".txt").write_text(flaw, encoding="utf-8", errors="replace")
        print(f"{path}: {flaw.strip().splitlines()[-1][:300]}", flush=True)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def _errors_of_libraries_unseen() -> int:
    """Throw away what libraries write to standard error, where Rust tells of each panic.

    Returns a descriptor of the standard error that there was, for the end of this process.
    """
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    sys.stderr = os.fdopen(os.dup(kept), "w", buffering=1)
    return kept


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "formats", nargs="*", metavar="FORMAT", help=f"of {' '.join([*ALL, *IMPORTED])}"
    )
    parser.add_argument("--count", type=int, default=100_000, help="files of each format")
    parser.add_argument("--seed", type=int, help="makes a run repeatable; default: the time")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"), help="where to save")
    return parser


if __name__ == "__main__":
    sys.exit(main())

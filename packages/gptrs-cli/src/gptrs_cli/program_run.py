"""Runs one program for `gptrs run`: gathers the inputs, prints and writes the results."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gptrs.api import run_program
from gptrs.checkpoint.formats.tensor_archive import require_writable, write_archive
from gptrs.plugins.manager import get_backend
from gptrs.runtime.observe.profile import Profile
from gptrs.runtime.programs.file import read_program
from gptrs.runtime.programs.inputs import InputFiles, random_inputs, require_complete
from gptrs.runtime.programs.report import result_types
from gptrs.runtime.programs.sizes import with_sizes
from gptrs.runtime.programs.value_text import MAX_JSON_ELEMENTS, json_values, shown_values
from gptrs_cli.observation import profile_fields
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.progress import compilation_shown
from gptrs_cli.terminal.stderr import Waiting, note, printable


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    program: Path
    inputs: tuple[Path, ...]
    out: Path | None
    random_seed: int | None
    sizes: dict[int, int]


def run_and_print(request: Request, settings: Settings, profile: Profile | None = None) -> None:
    """Run the program and print its results; what is wrong with the request is said before."""
    if request.out is not None:
        require_writable(request.out)
    with Waiting(f"reading `{request.program}`") as waiting:
        program = read_program(request.program)
        waiting.now("reading the inputs")
        with InputFiles(request.inputs) as files:
            files.require_known(program)
            types = files.types()
            if request.random_seed is None:
                require_complete(program, types)
            program = with_sizes(program, request.sizes, types)
            arrays = files.read(program)
        if request.random_seed is not None:
            arrays |= random_inputs(program, request.random_seed, arrays)
        backend = get_backend(settings.backend, settings.threads)
        waiting.now(f"running on {backend.name}")
        started = time.perf_counter()
        with compilation_shown(backend, waiting):
            found = run_program(program, arrays, backend)
        seconds = time.perf_counter() - started
        results = {f"result{position}": array for position, array in enumerate(found)}
        if request.out is not None:
            waiting.now(f"writing `{request.out}`")
            write_archive(request.out, results)
    found_types = result_types(program)
    if settings.json:
        fields = _as_json(found_types, results, backend.name, seconds)
        print(json.dumps(fields | profile_fields(profile)))
        return
    _print(found_types, results)
    noun = "result" if len(results) == 1 else "results"
    written = f", written to {request.out}" if request.out is not None else ""
    # Results and notes go to different streams, and must not appear in another order.
    sys.stdout.flush()
    note(f"{len(results)} {noun} in {seconds:.3f} s, backend {backend.name}{written}")


def _print(types: Mapping[str, str], results: Mapping[str, np.ndarray]) -> None:
    for name, array in results.items():
        print(f"{name}: {types[name]}")
        for line in shown_values(array).splitlines():
            print(printable(f"  {line}".rstrip()))


def _as_json(
    types: Mapping[str, str],
    results: Mapping[str, np.ndarray],
    backend: str,
    seconds: float,
) -> dict[str, object]:
    listed: list[dict[str, object]] = []
    for name, array in results.items():
        fields: dict[str, object] = {
            "name": name,
            "dtype": types[name].partition("[")[0],
            "shape": list(array.shape),
        }
        if array.size <= MAX_JSON_ELEMENTS:
            fields["values"] = json_values(array)
        listed.append(fields)
    return {"backend": backend, "results": listed, "seconds": seconds}

"""`gptrs forward` for imported models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.formats.tensor_archive import require_writable, write_archive
from gptrs_cli.imported.inspection import ImportOptions, loaded_import
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.progress import compilation_shown
from gptrs_cli.terminal.streams import note_below, printable
from gptrs_cli.terminal.tables import print_table
from gptrs_runtime.imported.batch import ImportedBatch, imported_batch, named_sizes
from gptrs_runtime.imported.scores import ImageFiles, ImportedScores, LoadedImport, run_scores
from gptrs_runtime.model_inputs import InputChoice
from gptrs_runtime.results import Forward, Profile, RunTimings, Score


class ImportedRun(Struct, frozen=True):
    """A model, its inputs, and its scores."""

    loaded: LoadedImport
    batch: ImportedBatch
    result: ImportedScores

    def origins(self) -> list[str]:
        """Return the origin of each row."""
        count = len(self.result.best)
        return [self.batch.origin_of(row, count) for row in range(count)]

    def told(self, profile: Profile) -> Forward:
        """Return the `--json` form."""
        result = self.result
        return Forward(
            model=self.loaded.name,
            kind=self.loaded.importer,
            backend=self.loaded.backend.name,
            inputs=self.origins(),
            output=result.output,
            shape=list(result.scores.shape),
            top=list(result.best),
            timings=RunTimings(load_s=self.loaded.load_seconds, forward_s=result.seconds),
            profile=profile,
        )


def run_imported(
    path: Path,
    importer: str,
    choice: InputChoice,
    options: ImportOptions,
    settings: Settings,
    top: int,
    out: Path | None,
) -> ImportedRun:
    """Run a model on the chosen input and write its scores to `out`.

    An unwritable file is refused before any work.
    """
    if out is not None:
        require_writable(out)
    with Waiting(f"reading `{path}`") as waiting:
        loaded = loaded_import(path, importer, settings)
        waiting.now("reading the input")
        sizes = named_sizes(options.symbols)
        images = ImageFiles(path, options.preprocessor)
        batch = imported_batch(loaded.model, choice, sizes, images)
        waiting.now(f"running on {loaded.backend.name}")
        with compilation_shown(loaded.backend, waiting):
            result = run_scores(loaded, batch.arrays, top)
        if out is not None:
            waiting.now(f"writing `{out}`")
            write_archive(out, {"logits": result.scores})
    return ImportedRun(loaded, batch, result)


def print_imported(
    done: ImportedRun, cells: Callable[[Score, bool], Sequence[str]], out: Path | None
) -> None:
    """Print a table for each row, and a line about the run."""
    result, loaded = done.result, done.loaded
    columns = ("probability", "token", "text") if result.are_tokens else _CLASSES
    origins = done.origins()
    for position, (origin, best) in enumerate(zip(origins, result.best, strict=True)):
        if position:
            print()
        if len(origins) > 1:
            print(printable(origin))
        print_table(columns, [cells(score, result.are_tokens) for score in best])
    what = "probabilities" if result.are_probabilities else "logits"
    to_file = f", written to {out}" if out is not None else ""
    made_up = "" if done.batch.rows else f" of {', '.join(done.batch.origins)}"
    note_below(
        f"{what} {_type(result.scores)} in the output `{result.output}`{made_up}"
        f" in {result.seconds:.3f} s, backend {loaded.backend.name}, loaded in"
        f" {loaded.load_seconds:.2f} s{to_file}"
    )


_CLASSES = ("probability", "class", "label")


def _type(array: np.ndarray) -> str:
    return f"f32[{', '.join(map(str, array.shape))}]"

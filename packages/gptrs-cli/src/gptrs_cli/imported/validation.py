"""`gptrs validate` of a model that an importer reads: its outputs beside expected ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.formats.tensor_archive import open_archive
from gptrs.errors import UsageError
from gptrs.plugins.descriptions import BackendPlugin
from gptrs.plugins.exporters import file_reference, importer_of
from gptrs.plugins.manager import manager
from gptrs_cli.imported.inspection import ImportOptions, loaded_import
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.progress import compilation_shown
from gptrs_cli.terminal.streams import note_below
from gptrs_cli.validate.report import agreement_cells, print_agreements
from gptrs_observe.compare.agreement import Agreement, output_agreements
from gptrs_observe.results import Agreement as AgreementResult
from gptrs_observe.results import ValidateOutputs
from gptrs_runtime.imported.batch import ImportedBatch, imported_batch, named_sizes
from gptrs_runtime.imported.scores import ImageFiles, LoadedImport, load_import
from gptrs_runtime.load_options import LoadOptions
from gptrs_runtime.model_inputs import ARCHIVES, InputChoice
from gptrs_runtime.results import Profile, RunTimings

_Arrays = Mapping[str, np.ndarray]


class ImportedOutcome(Struct, frozen=True):
    """The outputs of a model compared with those of `reference`, relative to their range."""

    loaded: LoadedImport
    reference: str
    batch: ImportedBatch
    tolerance: float
    found: tuple[Agreement, ...]
    seconds: float

    def holds(self, one: Agreement) -> bool:
        """Whether the errors of an output are within the tolerance."""
        # Written so that NaN does not hold.
        return one.relative_max_error <= self.tolerance

    @property
    def agrees(self) -> bool:
        """Whether the errors of all outputs are within the tolerance."""
        return all(map(self.holds, self.found))

    def told(self, profile: Profile) -> ValidateOutputs:
        """Return the `--json` form."""
        return ValidateOutputs(
            model=self.loaded.name,
            kind=self.loaded.importer,
            backend=self.loaded.backend.name,
            reference=self.reference,
            inputs=list(self.batch.origins),
            tolerance=self.tolerance,
            agrees=self.agrees,
            outputs=[AgreementResult.of(one, self.holds(one)) for one in self.found],
            timings=RunTimings(load_s=self.loaded.load_seconds, validate_s=self.seconds),
            profile=profile,
        )

    def print(self) -> None:
        """Print a line for each output, and the verdict."""
        print_agreements([agreement_cells(one, self.holds(one)) for one in self.found])
        verdict = "agrees" if self.agrees else "DISAGREES"
        note_below(
            f"`{self.loaded.name}` {verdict} with {self.reference} on"
            f" {', '.join(self.batch.origins)}; tolerance {self.tolerance:g} of the range, backend"
            f" {self.loaded.backend.name}, {self.seconds:.1f} s"
        )


def validate_import(
    path: Path,
    importer: str,
    against: Path | None,
    choice: InputChoice,
    options: ImportOptions,
    tolerance: float,
    settings: Settings,
) -> ImportedOutcome:
    """Run a model, and compare its outputs with those of `against`.

    `against` is a file of tensors, another imported model, or a backend for this model; by default
    the program that the importer compares with, ONNX Runtime for ONNX. UsageError for anything
    else. Also raises the errors of a run.
    """
    with Waiting(f"reading `{path}`") as waiting:
        loaded = loaded_import(path, importer, settings)
        reference, expected_of = _reference(loaded, against, settings)
        images = ImageFiles(path, options.preprocessor)
        # Made once: both sides get the same arrays, even random ones.
        batch = imported_batch(loaded.model, choice, named_sizes(options.symbols), images)
        waiting.now(f"running on {loaded.backend.name}")
        started = time.perf_counter()
        with compilation_shown(loaded.backend, waiting):
            ours = loaded.run(batch.arrays)
        waiting.now(f"taking {reference}")
        found = output_agreements(ours, expected_of(batch.arrays))
        seconds = time.perf_counter() - started
    return ImportedOutcome(loaded, reference, batch, tolerance, found, seconds)


def _reference(
    loaded: LoadedImport, against: Path | None, settings: Settings
) -> tuple[str, Callable[[_Arrays], _Arrays]]:
    """Return the name of the reference, and a function from inputs to its outputs."""
    if against is None:
        found = file_reference(loaded.path, loaded.importer)
        if found is None:
            raise UsageError(
                f"`{loaded.path}` is read by the importer `{loaded.importer}`: what should it agree"
                " with?",
                hint=f"--against FILE with the outputs, another model, or one of the backends"
                f" {_backends()}",
            )
        return found
    if against.suffix.lower() in ARCHIVES:
        expected = _stored(against)

        def stored(_: _Arrays) -> _Arrays:
            return expected

        return f"`{against}`", stored
    importer = importer_of(against)
    if importer is not None:
        other = loaded_import(against, importer, settings)
        return f"`{against}`", other.run
    name = str(against)
    if name not in _backend_names():
        raise UsageError(
            f"`--against {name}` is not a file of tensors, a model that an importer reads or a"
            " backend",
            hint=f"the backends are {_backends()}",
        )
    if name == loaded.backend.name:
        raise UsageError(
            f"the model runs on `{name}` itself", hint="choose another one with --backend"
        )
    options = LoadOptions(backend=name, threads=settings.load.threads)
    other = load_import(loaded.path, loaded.importer, options)
    return f"backend {name}", other.run


def _stored(path: Path) -> _Arrays:
    with closing(open_archive(path)) as archive:
        return {name: archive.read(name) for name in archive.names()}


def _backends() -> str:
    return ", ".join(f"`{name}`" for name in _backend_names())


def _backend_names() -> list[str]:
    return [plugin.name for plugin in manager().descriptions(BackendPlugin)]

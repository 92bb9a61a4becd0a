"""The kit of importers: samples, free sizes, inputs that do not fit, and damaged files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np
from msgspec import Struct

from gptrs.backend.contract import Backend
from gptrs.capture.events import CompileStart, ExecutionTraceSink, tracing
from gptrs.errors import UsageError
from gptrs.ir.dtypes import DType, from_numpy
from gptrs.plugins.descriptions import ExporterPlugin, ImporterPlugin
from gptrs.plugins.exporters import ImportedModel, ModelInput, OutgoingModel
from gptrs.plugins.manager import manager
from gptrs_conformance.check import CheckFailure
from gptrs_conformance.plugin_kits.samples import written_sample
from gptrs_conformance.plugin_kits.subject import (
    KitCheck,
    absent,
    partner_of,
    require_close_by_name,
    require_error,
    tried,
    undisturbed,
)
from gptrs_runtime.imported.batch import example_sizes, free_sizes, random_batch

Arrays = Mapping[str, np.ndarray]
_SIZES = (1, 2, 5)
_MANY = 67
"""More than the lanes and the rows that kernels handle at once, and no multiple of them."""
_CUTS = (0.0, 0.02, 0.1, 0.3, 0.5, 0.75, 0.9, 0.99)
"""Where a file is cut, as parts of its bytes; one byte before the end comes on top."""
_FLIPS = 40
"""Damaged copies that are read, each with one byte of its own that is wrong."""


class Importer(Struct, frozen=True, kw_only=True):
    """An importer under test: the factory, the suffix of its files, and what its author adds.

    `sample` writes a file into a folder and returns its path; without it, the exporter of its
    distribution makes one. `reference` computes the outputs of the sample in NumPy.
    """

    read: Callable[[Path, Backend], object]
    suffix: str
    sample: Callable[[Path], Path] | None = None
    reference: Callable[[Arrays], Arrays] | None = None


def installed_importer(
    name: str,
    sample: Callable[[Path], Path] | None = None,
    reference: Callable[[Arrays], Arrays] | None = None,
) -> Importer:
    """Return the importer of a plugin; PluginError as `PluginManager.factory` raises it."""
    plugins = manager()
    suffix = plugins.find(ImporterPlugin, name).suffixes[0]
    if sample is None:
        sample = _sample_of_exporter(name, suffix)
    read = cast("Callable[[Path, Backend], object]", plugins.factory(ImporterPlugin, name))
    return Importer(read=read, suffix=suffix, sample=sample, reference=reference)


def _sample_of_exporter(name: str, suffix: str) -> Callable[[Path], Path] | None:
    plugins, partner = manager(), partner_of(name, ImporterPlugin, ExporterPlugin)
    if partner is None:
        return None
    factory = plugins.factory(ExporterPlugin, partner.name)
    write = cast("Callable[[OutgoingModel, Path], list[Path]]", factory)
    return lambda folder: written_sample(write, folder / f"sample{suffix}")


@contextmanager
def _sample(subject: Importer) -> Generator[Path]:
    """Scope with the sample file in a folder of its own."""
    if subject.sample is None:
        raise absent("it has no sample file, nor does an exporter come with it")
    with tempfile.TemporaryDirectory() as folder:
        yield subject.sample(Path(folder))


def _read(subject: Importer, path: Path, backend: Backend) -> ImportedModel:
    made = subject.read(path, backend)
    if not isinstance(made, ImportedModel):
        raise CheckFailure(f"reading gave a `{type(made).__name__}`, an `ImportedModel` is needed")
    return made


def _arrays(model: ImportedModel, sizes: Mapping[str, int], seed: int = 1) -> dict[str, np.ndarray]:
    return random_batch(model, seed, {**example_sizes(model.inputs, {}), **sizes})


def _run(model: ImportedModel, arrays: Arrays) -> dict[str, np.ndarray]:
    """Return the outputs; CheckFailure unless they are arrays under the names of the model."""
    found = cast("object", model(**arrays))
    if not isinstance(found, dict):
        raise CheckFailure(f"a run gave a `{type(found).__name__}`, arrays by name are needed")
    results = cast("dict[str, object]", found)
    if list(results) != list(model.outputs):
        raise CheckFailure(f"a run gave {list(results)}, `outputs` says {list(model.outputs)}")
    for name, value in results.items():
        if not isinstance(value, np.ndarray):
            kind = type(value).__name__
            raise CheckFailure(f"a run gave a `{kind}` as `{name}`, a NumPy array is needed")
    return cast("dict[str, np.ndarray]", results)


def reads_its_sample(subject: Importer, backend: Backend) -> None:
    """The model names its inputs and outputs, and runs twice with one result."""
    with _sample(subject) as path:
        before = path.read_bytes()
        model = _read(subject, path, backend)
        for name, each in model.inputs.items():
            if not isinstance(cast("object", each), ModelInput) or each.name != name:
                raise CheckFailure(f"the input `{name}` is {each!r:.80}, a `ModelInput` is needed")
        arrays = _arrays(model, {})
        # Copies: a model may return its inputs, or write to them.
        kept = {name: array.copy() for name, array in arrays.items()}
        first = {name: array.copy() for name, array in _run(model, arrays).items()}
        require_close_by_name(_run(model, arrays), first, "the second run")
        require_close_by_name(arrays, kept, "a run changed its inputs; it")
        if path.read_bytes() != before:
            raise CheckFailure("reading changed the file")


def keeps_earlier_results(subject: Importer, backend: Backend) -> None:
    """A result stays as it is while the model runs with other inputs."""
    with _sample(subject) as path:
        model = _read(subject, path, backend)
        first = _run(model, _arrays(model, {}))
        kept = {name: array.copy() for name, array in first.items()}
        _run(model, _arrays(model, {}, seed=2))
        require_close_by_name(first, kept, "after another run, the result of the first")


def takes_arrays_in_any_memory_order(subject: Importer, backend: Backend) -> None:
    """Arrays in Fortran order, and parts of larger ones, are read by their elements."""
    with _sample(subject) as path:
        model = _read(subject, path, backend)
        # Several rows: an array of one has one order only.
        arrays = _arrays(model, dict.fromkeys(free_sizes(model.inputs), 5))
        wanted = {name: array.copy() for name, array in _run(model, arrays).items()}
        columns = {name: np.asfortranarray(array) for name, array in arrays.items()}
        require_close_by_name(_run(model, columns), wanted, "with inputs in Fortran order, it")
        parts = {name: np.stack([array] * 2, -1)[..., 0] for name, array in arrays.items()}
        require_close_by_name(_run(model, parts), wanted, "with parts of larger arrays, it")


def leaves_the_process_alone(subject: Importer, backend: Backend) -> None:
    """Reading and running print nothing, leave no file beside, and no other state behind."""
    with _sample(subject) as path:
        before = sorted(path.parent.iterdir())
        with undisturbed("a model"):
            model = _read(subject, path, backend)
            _run(model, _arrays(model, {}))
        more = set(path.parent.iterdir()) - set(before)
        if more:
            names = sorted(each.name for each in more)
            raise CheckFailure(f"reading and running leave {names} beside the file")


def reads_the_same_from_every_folder(subject: Importer, backend: Backend) -> None:
    """Two reads of a file, in folders with awkward names, agree."""
    with _sample(subject) as path, tempfile.TemporaryDirectory() as other:
        awkward = Path(other) / "a b ü % {x}"
        awkward.mkdir()
        # All files, since weights may lie beside the model and be named in it by relative path.
        for each in path.parent.iterdir():
            (awkward / each.name).write_bytes(each.read_bytes())
        model, again = _read(subject, path, backend), _read(subject, awkward / path.name, backend)
        arrays = _arrays(model, {})
        require_close_by_name(_run(again, arrays), _run(model, arrays), "the copy of the file")


def runs_all_free_sizes(subject: Importer, backend: Backend) -> None:
    """One model takes each free size as 1, 2 and 5, in any order, and 0 or refuses it."""
    with _sample(subject) as path:
        model = _read(subject, path, backend)
        names = free_sizes(model.inputs)
        if not names:
            raise absent("its sample has no free size")
        for name in names:
            alone: dict[int, dict[str, np.ndarray]] = {}
            # Up and down again: a program kept for one size must not be used for another.
            for size in (*_SIZES, *reversed(_SIZES)):
                arrays = _arrays(model, {name: size})
                found = _run(model, arrays)
                # Compared with a model read for this size alone, which has nothing kept.
                fresh = alone.setdefault(size, _run(_read(subject, path, backend), arrays))
                what = f"`{name}` = {size} after other sizes"
                require_close_by_name(found, fresh, what)
            # A format may refuse tensors without elements; an error of Python is a bug.
            none = _arrays(model, {name: 0})
            tried(lambda none=none: _run(model, none), f"`{name}` = 0")


def gives_the_values_of_the_reference(subject: Importer, backend: Backend) -> None:
    """The outputs are those of the reference, for few and many rows, and no wider."""
    if subject.reference is None:
        raise absent("it has no reference for the values")
    with _sample(subject) as path:
        model = _read(subject, path, backend)
        for size in (*_SIZES[1:], _MANY):
            arrays = _arrays(model, dict.fromkeys(free_sizes(model.inputs), size))
            wanted, found = subject.reference(arrays), _run(model, arrays)
            require_close_by_name(found, wanted, "compared with the reference, it")
            for name, array in found.items():
                _require_type(name, from_numpy(array.dtype), from_numpy(wanted[name].dtype))


def _require_type(name: str, found: DType, wanted: DType) -> None:
    """CheckFailure for an output of another kind or a wider type than the reference's.

    A narrower one passes: references may compute in f64.
    """
    if found.bits > wanted.bits or (found.is_float, found.is_bool) != (
        wanted.is_float,
        wanted.is_bool,
    ):
        raise CheckFailure(f"the output `{name}` is {found}, that of the reference is {wanted}")


def runs_on_its_backend(subject: Importer, backend: Backend) -> None:
    """The programs of a model are compiled for the backend that the factory got."""
    names: set[str] = set()

    class Hearing(ExecutionTraceSink):
        def before_program(self, event: CompileStart) -> None:
            names.add(event.backend)

    with _sample(subject) as path, tracing(Hearing()):
        model = _read(subject, path, backend)
        _run(model, _arrays(model, {}))
    others = names - {backend.name}
    if others:
        raise CheckFailure(f"it ran on `{'`, `'.join(sorted(others))}`, not on `{backend.name}`")


def refuses_inputs_that_do_not_fit(subject: Importer, backend: Backend) -> None:
    """UsageError for inputs that are missing, unknown, or of another type, rank or size."""
    with _sample(subject) as path:
        model = _read(subject, path, backend)
        arrays = _arrays(model, {})

        def refused(given: Arrays, what: str) -> None:
            require_error(lambda: model(**given), what, (UsageError,))

        refused({**arrays, "no_such_input": np.zeros(1)}, "an unknown input")
        for name, array in arrays.items():
            refused({k: v for k, v in arrays.items() if k != name}, f"the input `{name}` missing")
            # A wider type and narrower ones: casts that lose nothing hide a wrong caller, too.
            for other in map(np.dtype, (np.float64, np.float32, np.float16, np.int32)):
                if other != array.dtype:
                    refused({**arrays, name: array.astype(other)}, f"`{name}` as {other}")
            shape = model.inputs[name].shape
            if shape is None:
                continue
            refused({**arrays, name: array[None]}, f"`{name}` with another axis")
            if shape:
                refused({**arrays, name: array[0]}, f"`{name}` without its first axis")
            for axis, size in enumerate(shape):
                if isinstance(size, int):
                    if size > 1:
                        # 1 is what a broadcast would take.
                        one = array.take([0], axis)
                        refused({**arrays, name: one}, f"`{name}` of shape {list(one.shape)}")
                    longer = np.concatenate(
                        [array, array[(slice(None),) * axis + (slice(1),)]], axis
                    )
                    refused({**arrays, name: longer}, f"`{name}` of shape {list(longer.shape)}")


def requires_equal_sizes_under_one_name(subject: Importer, backend: Backend) -> None:
    """An error for a free size that two inputs give differently."""
    with _sample(subject) as path:
        model = _read(subject, path, backend)
        small, large = (
            _arrays(model, dict.fromkeys(free_sizes(model.inputs), size)) for size in (2, 5)
        )
        shared = [
            name
            for name in small
            if _free(model.inputs[name]) & set().union(*(
                _free(each) for other, each in model.inputs.items() if other != name
            ))
        ]  # fmt: skip
        if not shared:
            raise absent("no two inputs of its sample share a free size")
        for name in shared:
            require_error(
                lambda name=name: model(**{**small, name: large[name]}),
                f"`{name}` of shape {list(large[name].shape)} beside inputs of another size",
            )


def _free(each: ModelInput) -> set[str]:
    return {size for size in each.shape or () if isinstance(size, str)}


def refuses_what_is_no_model(subject: Importer, backend: Backend) -> None:
    """One clear error for files of other contents, a folder, and a file that is not there."""
    random = np.random.default_rng(0)
    contents = {
        "an empty file": b"",
        "a file of a zero byte": b"\0",
        "a file of random bytes": random.bytes(3000),
        "a text": b"This is no model.\n" * 40,
        "an empty JSON object": b"{}",
        "an empty JSON list": b"[]",
        "JSON null": b"null",
        "a number": b"7",
        "a JSON list of lists of text": b'[[["a"]]]',
        "JSON without an end": b'{"a": [1, 2',
        "JSON nested 100,000 deep": b"[" * 100_000,
        "an empty zip archive": b"PK\x05\x06" + b"\0" * 18,
    }
    with tempfile.TemporaryDirectory() as folder:
        none = Path(folder) / f"none{subject.suffix}"
        require_error(lambda: subject.read(none, backend), "no file")
        none.mkdir()
        require_error(lambda: subject.read(none, backend), "a folder")
        for number, (what, data) in enumerate(contents.items()):
            path = Path(folder) / f"{number}{subject.suffix}"
            path.write_bytes(data)
            require_error(lambda path=path: subject.read(path, backend), what)


def refuses_truncated_files(subject: Importer, backend: Backend) -> None:
    """A file without its end is an error, unless what is left gives the results of the whole."""
    with _sample(subject) as path:
        data = path.read_bytes()
        model = _read(subject, path, backend)
        arrays = _arrays(model, {})
        whole = _run(model, arrays)
        # Headers at the beginning and indexes at the end both get cut; one byte less is what a
        # download that stopped at the end leaves.
        for length in sorted({*(int(part * len(data)) for part in _CUTS), len(data) - 1}):
            path.write_bytes(data[:length])
            what = f"the first {length} of {len(data)} bytes"
            # Some formats end with padding: a file without it is still whole.
            found = tried(lambda: _run(_read(subject, path, backend), arrays), what)
            if found is not None:
                require_close_by_name(found, whole, f"{what} is read as a model, which")


def survives_damaged_files(subject: Importer, backend: Backend) -> None:
    """A wrong byte gives a model or a clear error, never an error of Python."""
    # A fixed seed: a failure must come again for the author of the plugin.
    random = np.random.default_rng(7)
    with _sample(subject) as path:
        data = path.read_bytes()
        arrays = _arrays(_read(subject, path, backend), {})
        for at in sorted(set(random.integers(0, len(data), _FLIPS).tolist())):
            damaged = bytearray(data)
            # Never by 0, which would leave the byte as it is.
            damaged[at] ^= int(random.integers(1, 256))
            path.write_bytes(bytes(damaged))
            what = f"the file with byte {at} as {damaged[at]} instead of {data[at]}"
            model = tried(lambda: _read(subject, path, backend), what)
            if model is not None:
                tried(lambda model=model: model(**arrays), f"running {what}")


KIT: tuple[KitCheck[Importer], ...] = (
    reads_its_sample,
    keeps_earlier_results,
    takes_arrays_in_any_memory_order,
    leaves_the_process_alone,
    reads_the_same_from_every_folder,
    runs_all_free_sizes,
    gives_the_values_of_the_reference,
    runs_on_its_backend,
    refuses_inputs_that_do_not_fit,
    requires_equal_sizes_under_one_name,
    refuses_what_is_no_model,
    refuses_truncated_files,
    survives_damaged_files,
)
"""The checks of an importer."""

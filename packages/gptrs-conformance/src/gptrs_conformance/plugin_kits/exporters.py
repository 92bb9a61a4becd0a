"""The kit of exporters: files whole or not at all, refusals by name, and the way back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.backend.contract import Backend
from gptrs.capture.execute import run_program
from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.errors import CheckpointError, GptrsError, UnsupportedError
from gptrs.plugins.descriptions import ExporterPlugin, ImporterPlugin
from gptrs.plugins.exporters import ImportedModel, OutgoingModel
from gptrs.plugins.manager import manager
from gptrs_conformance.check import CheckFailure
from gptrs_conformance.numerics import Tolerance
from gptrs_conformance.plugin_kits.samples import (
    Write,
    inputs_of,
    programs,
    weight,
    weighted,
)
from gptrs_conformance.plugin_kits.subject import (
    KitCheck,
    absent,
    partner_of,
    require_clear,
    require_close,
    require_error,
    tried,
    undisturbed,
)
from gptrs_runtime.imported.batch import free_sizes

Read = Callable[[Path, Backend], ImportedModel]
_DIGITS = Tolerance.close(2e-6, 2e-6)
"""Few operations in f32: what a file keeps of numbers shows."""


class Exporter(Struct, frozen=True, kw_only=True):
    """An exporter under test: the factory, the suffix of its files, and what reads them back."""

    write: Write
    suffix: str
    read: Read | None = None


def installed_exporter(name: str, read: Read | None = None) -> Exporter:
    """Return the exporter of a plugin; without `read`, the importer that comes with it reads."""
    plugins = manager()
    suffix = plugins.find(ExporterPlugin, name).suffixes[0]
    partner = partner_of(name, ExporterPlugin, ImporterPlugin)
    if read is None and partner is not None:
        read = cast("Read", plugins.factory(ImporterPlugin, partner.name))
    write = cast("Write", plugins.factory(ExporterPlugin, name))
    return Exporter(write=write, suffix=suffix, read=read)


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="gptrs-kit-")


def _write(subject: Exporter, model: OutgoingModel, path: Path) -> list[Path]:
    """Write a model; CheckFailure unless the result is what was written."""
    found: object = subject.write(model, path)
    if not isinstance(found, list | tuple):
        raise CheckFailure(f"it returned a `{type(found).__name__}`, a list of paths is needed")
    files = [Path(each) for each in cast("Sequence[str | os.PathLike[str]]", found)]
    if path not in files:
        raise CheckFailure(f"it returned {[each.name for each in files]}, without `{path.name}`")
    # Files that are not returned would be left behind when the caller moves or removes the model.
    _require_files(path.parent, [each.name for each in files], "it returned")
    empty = [each.name for each in files if not each.stat().st_size]
    if empty:
        raise CheckFailure(f"it wrote nothing to {empty}")
    return files


def _require_files(folder: Path, names: Sequence[str], what: str) -> None:
    found = sorted(each.name for each in folder.iterdir())
    if found != sorted(names):
        raise CheckFailure(f"{what} {sorted(names)}, the folder has {found}")


def _written(subject: Exporter, folder: Path) -> Iterator[tuple[str, OutgoingModel, Path]]:
    """Yield the programs that the format has, each with its file in a folder of its own."""
    for number, (what, model) in enumerate(programs().items()):
        # A folder for each: files of one program beside those of another would hide a wrong list.
        own = folder / str(number)
        own.mkdir()
        path = own / f"model.v2{subject.suffix}"  # only the last dot begins the suffix
        try:
            _write(subject, model, path)
        except UnsupportedError:
            continue
        yield what, model, path


def writes_programs(subject: Exporter, backend: Backend) -> None:
    """At least one of the small programs is written; the files are those that it returns."""
    with _folder() as folder:
        if not list(_written(subject, Path(folder))):
            listed = ", ".join(programs())
            raise CheckFailure(f"it refuses every program of the kit: {listed}")


def writes_the_same_bytes_again(subject: Exporter, backend: Backend) -> None:
    """A second file of a program, in another folder, equals the first, byte for byte."""
    with _folder() as folder:
        other = Path(folder) / "größe 50% v1.2"
        other.mkdir()
        for what, model, path in _written(subject, Path(folder)):
            first = path.read_bytes()
            again = other / path.name
            # Over an old, longer file: nothing of it may be left.
            again.write_bytes(bytes(2 * len(first)))
            files = _write(subject, model, again)
            if again.read_bytes() != first:
                raise CheckFailure(f"two files of {what}, in other folders, differ")
            for each in files:
                each.unlink()


def refuses_by_name_before_it_writes(subject: Exporter, backend: Backend) -> None:
    """UnsupportedError that names an op of the program, with no file left behind."""
    refused = 0
    with _folder() as folder:
        path = Path(folder) / f"model{subject.suffix}"
        for what, model in programs().items():
            try:
                subject.write(model, path)
            except UnsupportedError as error:
                refused += 1
                require_clear(error, what)
                # The author of a program can only act on a refusal that says which operation to
                # avoid.
                ops = {step.op.name for step in model.program.main.body.walk()}
                if not any(op in error.message for op in ops):
                    raise CheckFailure(
                        f"the refusal of {what} names none of {sorted(ops)}: {error.message:.200}"
                    ) from error
                _require_files(path.parent, [], f"after the refusal of {what}, expected")
            except GptrsError as error:
                raise CheckFailure(
                    f"{what} raised {type(error).__name__}, an `UnsupportedError` is needed:"
                    f" {error.message:.200}"
                ) from error
            else:
                for each in path.parent.iterdir():
                    each.unlink()
    if not refused:
        raise absent("it refuses no program of the kit")


def writes_weights_in_parts(subject: Exporter, backend: Backend) -> None:
    """A weight that comes in parts gives a file of the size of one that comes whole.

    With an importer, of the same values.
    """
    sizes: list[int] = []
    with _folder() as folder:
        # Fortran order: elements in memory are not in the order of their indices.
        models = {f"{count} parts": weighted(count) for count in (1, 2, 4)}
        models["Fortran order"] = weighted(w=np.asfortranarray(weight(1)))
        for number, (what, model) in enumerate(models.items()):
            path = Path(folder) / str(number) / f"model{subject.suffix}"
            path.parent.mkdir()
            try:
                _write(subject, model, path)
            except UnsupportedError as error:
                raise absent(f"it refuses a program of `mul` and `add`: {error.message}") from error
            sizes.append(sum(each.stat().st_size for each in path.parent.iterdir()))
            if subject.read is not None:
                _require_weights(subject.read(path, backend), f"of weights in {what}")
    if subject.read is None and len(set(sizes)) > 1:
        raise CheckFailure(f"weights in {', '.join(models)} give files of {sizes} bytes")


def leaves_the_old_file_when_it_fails(subject: Exporter, backend: Backend) -> None:
    """If a weight cannot be read, its error comes through and the old file is intact."""

    def lost() -> list[np.ndarray]:
        raise CheckpointError("the weight of the kit cannot be read")

    model = weighted()
    # The last weight: by then most of the file is written.
    last = OutgoingTensor(model.weights[-1].name, model.weights[-1].type, lost)
    broken = replace(model, weights=(*model.weights[:-1], last))
    with _folder() as folder:
        path = Path(folder) / f"model{subject.suffix}"
        # No valid file of the format: nothing may read or repair it.
        path.write_bytes(b"the old file")
        try:
            subject.write(broken, path)
        except UnsupportedError as error:
            raise absent(f"it refuses a program of `mul` and `add`: {error.message}") from error
        except GptrsError as error:
            if "the weight of the kit" not in error.message:
                raise CheckFailure(
                    f"the error of a weight became another one: {error.message:.200}"
                ) from error
        else:
            raise CheckFailure("it ignores a weight that cannot be read")
        _require_files(path.parent, [path.name], "after an error, expected")
        if path.read_bytes() != b"the old file":
            raise CheckFailure("an error in the middle damaged the file that was there before")


def reports_where_it_cannot_write(subject: Exporter, backend: Backend) -> None:
    """One clear error for a folder that is not there, and for a folder in the file's position."""
    with _folder() as folder:
        model = next((model for _, model, _ in _written(subject, Path(folder))), None)
        if model is None:
            raise absent("it writes no program of the kit")
        path = Path(folder) / "none" / f"model{subject.suffix}"
        require_error(lambda: subject.write(model, path), "a path in no folder")
        path = Path(folder) / f"folder{subject.suffix}"
        path.mkdir()
        # Not empty: an exporter that removes what stands in its way fails here, not at a user.
        (path / "kept").touch()
        require_error(lambda: subject.write(model, path), "a path that is a folder")


def _reader(subject: Exporter) -> Read:
    if subject.read is None:
        raise absent("no importer comes with it, so nothing reads its files")
    return subject.read


def comes_back_the_same(subject: Exporter, backend: Backend) -> None:
    """The file of a program gives its values, with its names and its free sizes."""
    read = _reader(subject)
    with _folder() as folder:
        for what, model, path in _written(subject, Path(folder)):
            again = read(path, backend)
            names = [each.name for each in model.inputs]
            if (list(again.inputs), tuple(again.outputs)) != (names, model.outputs):
                raise CheckFailure(
                    f"{what} has the inputs {names} and outputs {list(model.outputs)}, it came"
                    f" back with {list(again.inputs)} and {list(again.outputs)}"
                )
            for each in model.inputs:
                dtype = again.inputs[each.name].dtype
                if dtype is not each.dtype:
                    raise CheckFailure(f"`{each}` of {what} came back as {dtype}")
            if len(free_sizes(again.inputs)) < len(free_sizes({e.name: e for e in model.inputs})):
                raise CheckFailure(f"a free size of {what} came back as a number or as another one")
            for size in (1, 2, 5):
                given = inputs_of(model, size)
                wanted = run_program(model.program, given, backend)
                found = again(**given)
                for name, value in zip(model.outputs, wanted, strict=True):
                    about = f"{what} of {size} rows came back: `{name}`"
                    if found[name].dtype != value.dtype:
                        raise CheckFailure(f"{about} has {found[name].dtype}, not {value.dtype}")
                    require_close(found[name], value, about, _DIGITS)


def brings_weights_back(subject: Exporter, backend: Backend) -> None:
    """Weights keep their values and outputs their order."""
    read = _reader(subject)
    with _folder() as folder:
        path = Path(folder) / f"model{subject.suffix}"
        model = weighted()
        try:
            _write(subject, model, path)
        except UnsupportedError as error:
            raise absent(f"it refuses a program of `mul` and `add`: {error.message}") from error
        for number, each in enumerate(model.weights, 1):
            if each.whole().tobytes() != weight(number).tobytes():
                raise CheckFailure(f"writing changes the weight `{each.name}` in memory")
        _require_weights(read(path, backend), "after the way back")


def brings_numbers_of_any_size_back(subject: Exporter, backend: Backend) -> None:
    """Weights that are infinite, NaN, -0 or very large keep their values, or are refused."""
    read = _reader(subject)
    values = [np.inf, -np.inf, np.nan, -0.0, 0.0, 3e38, -3e38, 1e-30, 16777215, 1 / 3, 7, -1]
    w = np.array(values, np.float32).reshape(4, 3)
    with _folder() as folder:
        path = Path(folder) / f"model{subject.suffix}"
        model = weighted(w=w)
        written = tried(lambda: _write(subject, model, path), f"a weight of {values}")
        if written is None:
            raise absent("it refuses such weights")
        found = read(path, backend)(x=np.ones((4, 3), np.float32))["product"]
        # Relative alone: 0 instead of a small number is another number.
        require_close(found, w, "a weight came back: `product`", Tolerance.close(2e-6, 0))


def leaves_the_process_alone(subject: Exporter, backend: Backend) -> None:
    """Writing prints nothing, and leaves no other state behind."""
    with _folder() as folder, undisturbed("writing"):
        for _ in _written(subject, Path(folder)):
            pass


def _require_weights(again: ImportedModel, what: str) -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    found = again(x=x)
    product = x * weight(1)
    require_close(found["sum"], product + weight(2), f"{what}, `sum`", _DIGITS)
    require_close(found["product"], product, f"{what}, `product`", _DIGITS)


def takes_awkward_names(subject: Exporter, backend: Backend) -> None:
    """Names with dots, quotes, spaces and letters of any language come back or are refused."""
    (model, *_) = programs().values()
    pairs = (("a.b/c:0", 'say "x"'), ("x y", "größe"), ("step0", "weight0"))
    for first, second in pairs:
        named = [
            replace(each, name=name)
            for each, name in zip(model.inputs, (first, second), strict=True)
        ]
        renamed = replace(model, inputs=tuple(named))
        with _folder() as folder:
            path = Path(folder) / f"model{subject.suffix}"
            try:
                _write(subject, renamed, path)
            except GptrsError as error:
                require_clear(error, f"the names `{first}` and `{second}`")
                continue
            if subject.read is None:
                continue
            again = subject.read(path, backend)
            x, y = np.array([[1, 2]], np.float32), np.array([[3, 5]], np.float32)
            if list(again.inputs) != [first, second]:
                names = list(again.inputs)
                raise CheckFailure(f"the inputs `{first}` and `{second}` came back as {names}")
            wanted = run_program(model.program, {"x": x, "y": y}, backend)
            found = again(**{first: x, second: y})
            require_close(found[model.outputs[0]], wanted[0], f"with `{first}` and `{second}`, it")


KIT: tuple[KitCheck[Exporter], ...] = (
    writes_programs,
    leaves_the_process_alone,
    writes_the_same_bytes_again,
    refuses_by_name_before_it_writes,
    writes_weights_in_parts,
    leaves_the_old_file_when_it_fails,
    reports_where_it_cannot_write,
    comes_back_the_same,
    brings_weights_back,
    brings_numbers_of_any_size_back,
    takes_awkward_names,
)
"""The checks of an exporter."""

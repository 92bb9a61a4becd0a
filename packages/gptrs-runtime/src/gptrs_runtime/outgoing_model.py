"""Models and programs for exporters: plugins that write files of other formats."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.capture.backend_calls import to_host
from gptrs.capture.execute import host_value
from gptrs.capture.graph import Leaf, Stored
from gptrs.capture.jitting.jit import Lowered, jit
from gptrs.capture.parameter import Parameter
from gptrs.capture.tensor import Tensor, tensor
from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.errors import GptrsError, ModelError, UnsupportedError, UsageError
from gptrs.ir.program import Program, Value
from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs.nn.layers import Computation
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs.optimizer.pipeline import Pipeline
from gptrs.plugins.exporters import ModelInput, OutgoingModel, export_model, importer_of
from gptrs.plugins.imported_graph import ConvertedGraph
from gptrs.progress import StepProgress
from gptrs.quoting import quoted
from gptrs_runtime.converting.convert import require_free, watched
from gptrs_runtime.imported.batch import example_sizes, free_sizes, random_batch, type_with
from gptrs_runtime.imported.scores import LoadedImport, load_import
from gptrs_runtime.load import load_model
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.programs import is_program, read_program
from gptrs_runtime.results import Converted

NO_SIZES: Final[Mapping[str, int]] = MappingProxyType({})
_LIMIT: Final = re.compile(r"\w+ <= [0-9]+")
"""Condition of a limited context: longer inputs have no positions and fail in any runtime."""
_EDGES: Final = ("height", "width")
_MAX_EDGE: Final = 4096
_EXAMPLE: Final = 3
"""Example for free sizes during capture, chosen so that no code treats it specially."""


def outgoing_program(program: Program, name: str) -> OutgoingModel:
    """Return a program in the form of exporters; free sizes are named after their symbols."""
    canonical = _canonical(program)
    inputs = [
        ModelInput(each, value.type.dtype, tuple(map(_size_name, value.type.shape)))
        for each, value in program.inputs.items()
    ]
    outputs = [f"result{position}" for position in range(len(canonical.main.body.results))]
    return OutgoingModel(name, canonical, tuple(inputs), tuple(outputs))


class ModelCapture(Struct, frozen=True):
    """The computation of a model, to be captured for example sizes."""

    name: str
    inputs: tuple[ModelInput, ...]
    examples: Mapping[str, int]
    """Sizes that suit the model, for all names in the shapes of its inputs."""
    capture: Callable[[Mapping[str, int]], tuple[Lowered, tuple[str, ...]]]
    """Returns the program for free sizes with these examples, and the names of the outputs."""

    stem: str
    """A short name: that of a file has no suffix."""

    def outgoing(self) -> OutgoingModel:
        """Return it in the form of exporters.

        UnsupportedError if it depends on free sizes in ways that a program cannot express.
        """
        lowered, outputs = self.capture(self.examples)
        special = [each for each in lowered.conditions if _LIMIT.fullmatch(each) is None]
        if special:
            raise UnsupportedError(
                f"{quoted(self.name)} cannot be written for all sizes: {', '.join(special)}",
                hint=_fix(list(self.examples)),
            )
        weights = tuple(_weight(leaf, self.name) for leaf in lowered.bound)
        program = _canonical(lowered.program)
        return OutgoingModel(self.stem, program, self.inputs, outputs, weights, lowered.conditions)


def outgoing_model(model: LoadedModel, sizes: Mapping[str, int]) -> OutgoingModel:
    """Return the computation of a model in the form of exporters; errors of `model_capture` and
    `ModelCapture.outgoing`.
    """
    return model_capture(model, sizes).outgoing()


def model_capture(model: LoadedModel, sizes: Mapping[str, int]) -> ModelCapture:
    """Return the computation of a model, with `sizes` fixed, such as the height of images.

    ModelError for a model that does not define a single function; UsageError for a size that it
    does not leave open.
    """
    computation = model.computation()
    edge = model.config.get("image_size")
    stated = dict.fromkeys(_EDGES, edge) if isinstance(edge, int) and 0 < edge <= _MAX_EDGE else {}
    fixed = {**computation.fixed, **stated, **sizes}
    _require_sizes(model.name, computation, sizes)
    inputs = {
        name: ModelInput(name, dtype, tuple(fixed.get(str(size), size) for size in shape))
        for name, (dtype, shape) in computation.inputs.items()
    }
    axes = {
        name: tuple(size if isinstance(size, str) else None for size in each.shape or ())
        for name, each in inputs.items()
    }

    def capture(examples: Mapping[str, int]) -> tuple[Lowered, tuple[str, ...]]:
        outputs: list[str] = []

        def results(arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            found = computation.function(*arguments)
            outputs[:] = found
            return tuple(found.values())

        given = [
            tensor(np.ones(type_with(each, examples).shape, each.dtype.numpy))
            for each in inputs.values()
        ]
        step = jit(results, dynamic={"arguments": tuple(axes.values())})
        return step.captured(tuple(given)), tuple(outputs)

    names = free_sizes(inputs)
    return ModelCapture(
        model.name,
        tuple(inputs.values()),
        dict.fromkeys(names, _EXAMPLE),
        capture,
        model.name,
    )


def _require_sizes(name: str, computation: Computation, given: Iterable[str]) -> None:
    """UsageError for a size that a model does not have."""
    shapes = [shape for _, shape in computation.inputs.values()]
    free = [size for shape in shapes for size in shape if isinstance(size, str)]
    known = dict.fromkeys((*computation.fixed, *free))
    for each in given:
        if each not in known:
            raise UsageError(
                f"{quoted(name)} has no size {quoted(each)} to choose",
                hint=f"it has {', '.join(known) or 'none'}",
            )


def outgoing_import(loaded: LoadedImport, sizes: Mapping[str, int]) -> OutgoingModel:
    """Return the graph of another format as exporters take it, with `sizes` in place of free ones;
    errors of `import_capture`.
    """
    return import_capture(loaded, sizes).outgoing()


def import_capture(loaded: LoadedImport, sizes: Mapping[str, int]) -> ModelCapture:
    """Return the computation of a graph of another format, with `sizes` in place of free ones.

    UsageError for a size that it does not leave free; UnsupportedError for a format whose models
    show no weights, and for a graph that needs numbers for sizes that are not given.
    """
    model = loaded.model
    if not isinstance(model, ConvertedGraph):
        raise UnsupportedError(
            f"models of the importer `{loaded.importer}` cannot be written in other formats",
            hint="make an ONNX file with the program that wrote the model, and convert that",
        )
    examples = example_sizes(model.inputs, sizes)
    model.inputs = {
        name: replace(each, shape=each.shape and tuple(sizes.get(str(s), s) for s in each.shape))
        for name, each in model.inputs.items()
    }
    made_up = {name: size for name, size in examples.items() if name not in sizes}
    needed = [name for name, each in model.inputs.items() if not each.optional]
    inputs = tuple(replace(model.inputs[name], optional=False) for name in needed)

    def capture(examples: Mapping[str, int]) -> tuple[Lowered, tuple[str, ...]]:
        arrays = random_batch(model, 0, examples)
        try:
            lowered = model.captured(**arrays)
        except GptrsError as error:
            if not examples:
                raise
            listed = ", ".join(f"{name}={size}" for name, size in examples.items())
            raise UnsupportedError(
                f"{quoted(loaded.name)} cannot be written for all sizes, nor with {listed}:"
                f" {error.message}",
                # What no size mends has its own hint, or none.
                hint=error.hint if isinstance(error, UnsupportedError) else _fix(list(examples)),
            ) from error
        _require_symbols(loaded, inputs, lowered.program.main.body.params[: len(inputs)])
        return lowered, model.outputs

    return ModelCapture(loaded.name, inputs, made_up, capture, Path(loaded.name).stem)


def _require_symbols(
    loaded: LoadedImport, inputs: Sequence[ModelInput], params: Sequence[Value]
) -> None:
    """UnsupportedError if the program has numbers where the model leaves sizes free."""
    fixed: dict[str, None] = {}
    for each, param in zip(inputs, params, strict=True):
        for stated, dim in zip(each.shape or (), param.type.shape, strict=False):
            if isinstance(stated, str) and not isinstance(dim, SymbolicDim):
                fixed[stated] = None
    if fixed:
        raise UnsupportedError(
            f"{quoted(loaded.name)} cannot be written for all sizes: its graph needs numbers",
            hint=_fix(list(fixed)),
        )


def _fix(names: Sequence[str]) -> str:
    return f"fix them: {' '.join(f'--symbol {name}=SIZE' for name in names)}"


def export(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    exporter: str,
    *,
    sizes: Mapping[str, int] = NO_SIZES,
    force: bool = False,
    progress: StepProgress | None = None,
) -> Converted:
    """Write a model, or the program in a file, as the plugin `exporter` does.

    `sizes` are as for `outgoing_model` and `outgoing_import`; `force` replaces an existing file.
    UsageError for a destination that exists; else the errors of `load_model`, `read_program`,
    `import_model` and these two.
    """
    require_free(Path(destination), "tensors", force)
    kind = None
    importer = importer_of(source)
    if importer is not None:
        require_other(source, destination)
        kind, outgoing = importer, outgoing_import(load_import(Path(source), importer), sizes)
    elif is_program(source):
        if sizes:
            raise UsageError("a program has its own sizes", hint="leave out `--symbol`")
        outgoing = outgoing_program(read_program(source), Path(source).stem)
    else:
        model = load_model(os.fspath(source))
        kind, outgoing = model.kind, outgoing_model(model, sizes)
    weights = tuple(watched(outgoing.weights, progress))
    files = export_model(replace(outgoing, weights=weights), destination, exporter)
    return Converted(
        form=exporter,
        kind=kind,
        files=tuple(map(str, files)),
        tensors=len(weights),
        parameters=sum(each.type.size for each in weights),
        nbytes=sum(path.stat().st_size for path in files),
        rounded=0,
        left_out=(),
        limits=outgoing.limits,
    )


def require_other(source: str | os.PathLike[str], destination: str | os.PathLike[str]) -> None:
    """UsageError if a file would overwrite itself, since its weights are read while writing."""
    if os.path.realpath(source) == os.path.realpath(destination):
        raise UsageError(
            f"{quoted(str(source), 200)} would be overwritten while it is read",
            hint="choose another name",
        )


def _weight(leaf: Leaf, name: str) -> OutgoingTensor:
    """Return the weight behind a parameter of the program, read when written."""
    if isinstance(leaf, Parameter):
        return OutgoingTensor(leaf.name, leaf.type, partial(_elements, leaf))
    if isinstance(leaf, Stored):
        return OutgoingTensor.of("constant", host_value(leaf))
    raise ModelError(f"{quoted(name)} computes with a tensor that is not a weight: `{leaf.type}`")


def _elements(weight: Parameter) -> Iterable[np.ndarray]:
    yield to_host(weight.backend, weight.buffer(keep=False))


def _canonical(program: Program) -> Program:
    """Return only `@main`, without calls and unnecessary instructions."""
    return Pipeline(inlining=Inlining()).before_folding(program)


def _size_name(size: int) -> int | str:
    return f"d{str(size).replace('?', '')}" if isinstance(size, SymbolicDim) else size

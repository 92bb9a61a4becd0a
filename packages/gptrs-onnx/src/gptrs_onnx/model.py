"""An ONNX model that runs: converted once for its free sizes, compiled and run by a backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

import numpy as np
import onnx
from typing_extensions import override

from gptrs.api import GptrsError, UnsupportedError
from gptrs.api.backends import Backend
from gptrs.api.importers import ConvertedGraph, ModelInput, Step, free_axes, jitted
from gptrs.api.models import Params, Tensor, tensor
from gptrs.backend.weight_identity import WeightFile
from gptrs_onnx import ops
from gptrs_onnx.conversion import (
    Conversion,
    NeedsKnownError,
    SymbolsRefusedError,
    symbols_may_be_refused,
)
from gptrs_onnx.element_types import dtype_of
from gptrs_onnx.node import SMALL, Known, as_tensor, converts, shown
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.reading import InitializerSource, model_of, read_model

assert ops  # its modules register the converters
Result = TypeVar("Result")


class OnnxModel(ConvertedGraph):
    """A model out of an ONNX file, called with NumPy arrays by name.

    Sizes that the file names instead of giving are free: one program serves all of them. Where the
    graph computes sizes from the values of inputs (`Reshape` to a shape that is an input), those
    values are part of what is compiled, and others compile anew; at most 64 are kept.
    """

    def __init__(
        self,
        model: ir.Model,
        backend: str | Backend | None,
        origin: str,
        own: WeightFile | None = None,
    ) -> None:
        """Take a model, which `own` is the file of; None where it is in memory."""
        self._model = model
        graph = model.graph
        inner = set(graph.initializers)
        slots = [slot_of(each) for each in graph.inputs if each.name not in inner]
        outputs = [str(each.name) for each in graph.outputs]
        super().__init__(origin, backend, {slot.name: slot for slot in slots}, outputs)
        stored = {
            name: value.const_value
            for part in model.graphs()
            for name, value in part.initializers.items()
            if value.const_value is not None and value.const_value.size > SMALL
        }
        self.weights = InitializerSource(stored, own)
        self._params = Params(self.weights, backend=self.backend, dtype=None, origin=origin)
        self._known_inputs: dict[str, NeedsKnownError] = {}  # and what asks for their values

    @override
    def _tried(
        self,
        given: Mapping[str, np.ndarray],
        call: Callable[[Step, tuple[Tensor, ...]], Result],
    ) -> Result:
        """Return what `call` gives, after it was said which values and sizes must be known.

        That is noted for later calls if it helped.
        """
        known = dict(self._known_inputs)
        named, always = self._names_agree(given), False
        numbers = not named
        while True:
            step, arguments = self._step(given, known, numbers)
            try:
                result = call(step, arguments)
            except NeedsKnownError as need:
                asked = {name: need for name in need.origins if name not in known}
                if numbers and not asked:
                    raise _refused(need) from None
                if numbers or need.__cause__ is None:  # else numbers may do without the values
                    known |= asked
                    numbers = not (asked and named)
                else:
                    numbers = True
            except SymbolsRefusedError as refusal:
                numbers, always = True, refusal.always
            else:
                for name, need in known.items():  # without what led to it, which holds the graph
                    self._known_inputs.setdefault(name, NeedsKnownError(need.origins, str(need)))
                self._is_static = self._is_static or always
                return result

    def _names_agree(self, given: Mapping[str, np.ndarray]) -> bool:
        """Return whether axes of one name have one size: a file may give any two the same."""
        sizes: dict[str, int] = {}
        return all(
            sizes.setdefault(name, size) == size
            for each, array in given.items()
            for name, size in zip(self.inputs[each].shape or (), array.shape, strict=False)
            if isinstance(name, str)
        )

    def _step(
        self, given: Mapping[str, np.ndarray], asked: Mapping[str, NeedsKnownError], numbers: bool
    ) -> tuple[Step, tuple[Tensor, ...]]:
        """Return what computes the outputs, and the inputs that it takes as tensors.

        It is made for the values of the inputs `asked` for, and with `numbers` for these sizes
        alone. Where that was needed once for these sizes, it is again.
        """
        known = {name: array for name, array in given.items() if name in asked}
        for name, array in known.items():
            if array.size > SMALL:
                raise _refused(asked[name], name, array.size)
        free = [name for name in given if name not in known]
        values = tuple(
            (name, each.dtype.str, each.shape, each.tobytes()) for name, each in known.items()
        )
        ranks = tuple((name, given[name].ndim) for name in free)
        here = (values, tuple((name, given[name].shape) for name in free))
        numbers = numbers or self._is_static
        alone = self._steps.find(here) is not None or (numbers and not self._is_static)
        key = here if alone else (values, ranks, numbers)
        step = self._kept(key, partial(self._made, known, free, given, numbers))
        return step, tuple(tensor(given[name]) for name in free)

    def _made(
        self,
        known: Mapping[str, np.ndarray],
        free: Sequence[str],
        given: Mapping[str, np.ndarray],
        numbers: bool,
    ) -> Step:
        axes = tuple(free_axes(self.inputs[name], given[name].ndim) for name in free)
        dynamic = any(map(any, axes)) and not numbers

        def convert(arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            with symbols_may_be_refused() if dynamic else nullcontext():
                return self._converted(known, dict(zip(free, arguments, strict=True)))

        return jitted(convert, "onnx_model", axes if dynamic else ())

    def _converted(
        self, known: Mapping[str, Known], free: Mapping[str, Tensor]
    ) -> tuple[Tensor, ...]:
        model = self._model
        conversion = Conversion(model.functions, dict(model.opset_imports), self._weight)
        for value in model.graph.inputs:
            name = str(value.name)
            if name in known:
                conversion.bind(value, known[name])
            elif name in free:
                conversion.bind(value, free[name], frozenset({name}))
            elif name in self.inputs:
                conversion.bind(value, None)
        return tuple(map(as_tensor, conversion.run(model.graph)))

    def _weight(self, name: str, stored: ir.TensorProtocol) -> Tensor:
        del stored
        return self._params.tensor(name, floating=False)


def _refused(need: NeedsKnownError, name: str = "", size: int = 0) -> GptrsError:
    """Return the error for values that must be known, and are computed, or those of a large input.

    If they would only have helped, that is what went wrong without them.
    """
    if isinstance(need.__cause__, GptrsError):
        return need.__cause__
    if not name:
        return UnsupportedError(f"{need} depends on values that are computed of data")
    return UnsupportedError(
        f"{need} depends on the values of the input `{shown(name)}`, which has {size} elements",
        hint=f"sizes may depend on inputs of at most {SMALL} elements",
    )


def slot_of(value: ir.Value) -> ModelInput:
    """Return what a graph says about an input; UnsupportedError for types that PTIR lacks."""
    name = str(value.name)
    held = value.type
    optional = isinstance(held, ir.OptionalType)
    if isinstance(held, ir.OptionalType):
        held = held.elem_type
    if not isinstance(held, ir.TensorType):
        kind = type(held).__name__.removesuffix("Type").lower() if held else "unknown"
        raise UnsupportedError(f"the input `{shown(name)}` is of type {kind}, tensors are taken")
    dtype = dtype_of(held.dtype, f"the input `{shown(name)}`")
    if value.shape is None or optional:
        return ModelInput(name, dtype, None, optional)
    dims = [_size_of(size, f"{name}_{place}") for place, size in enumerate(value.shape)]
    return ModelInput(name, dtype, tuple(dims))


def _size_of(size: int | ir.SymbolicDim, place: str) -> int | str:
    """Return a size or the name of a free one; that of its place if a file has no name for it.

    Negative numbers, `?` and the like are what exporters write for "any".
    """
    if isinstance(size, int):
        return size if size >= 0 else place
    stated = str(size.value or "")
    return stated if any(map(str.isalpha, stated)) else place


# Models out of files and out of protobuf messages, and which operators are converted.


def load(path: str | os.PathLike[str], backend: str | Backend | None = None) -> OnnxModel:
    """Return the model in an .onnx file, ready to be called.

    `backend` is a name, a backend, or None for the default. External data must lie in the folder
    of the file. ModelError for a file that is no sound model, UnsupportedError for an operator set
    or a type of input that is not read.
    """
    model, own = read_model(path)
    return OnnxModel(model, backend, os.fspath(path), own)


def from_proto(model: onnx.ModelProto, backend: str | Backend | None = None) -> OnnxModel:
    """Return a model that is in memory; errors as `load`, and external data is refused."""
    return OnnxModel(model_of(model, None), backend, model.graph.name or "the model")


def supported_operators() -> dict[str, list[str]]:
    """Return the operators that are converted by themselves, in order, by domain.

    Those that the standard defines by others (`NegativeLogLikelihoodLoss`) are converted, too.
    """
    found: dict[str, list[str]] = {}
    for operator in sorted(converts):
        domain, _, name = operator.rpartition(".")
        found.setdefault(domain or "ai.onnx", []).append(name)
    return found

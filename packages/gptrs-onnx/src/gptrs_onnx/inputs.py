"""Inputs of ONNX models: tensors, strings, sequences, optional ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from gptrs.api import UnsupportedError, UsageError
from gptrs.api.importers import ModelInput
from gptrs_onnx.element_types import dtype_of, stored_dtype
from gptrs_onnx.node import Known
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.search import shown
from gptrs_onnx.strings import Words, cut_off

if TYPE_CHECKING:
    from gptrs_onnx.string_functions import StringFunctions


_DEFAULTS_SINCE: Final = 4
"""The version of the format in which an initializer need not be an input."""


class StringInput(ModelInput, frozen=True):
    """An input of strings; programs take their codes."""

    @override
    def __str__(self) -> str:
        return super().__str__().replace(f": {self.dtype}", ": string", 1)

    @override
    def array(self, value: object) -> np.ndarray:
        """Return strings as an array of Python's; UsageError for anything else."""
        array = np.asarray(value)
        if array.dtype.kind == "S":
            array = np.char.decode(array, "utf-8")
        if array.dtype.kind not in "OUT" or not all(isinstance(each, str) for each in array.flat):
            raise UsageError(f"the input {self} got an array of {array.dtype}")
        if not self.fits(array.shape):
            raise UsageError(f"the input {self} got an array of shape {list(array.shape)}")
        return array.astype(object)

    @override
    def made_up(self, numbers: np.ndarray) -> np.ndarray:
        """Return random strings: the digits of numbers."""
        return numbers.astype(str).astype(object)


def item_name(sequence: str, place: int) -> str:
    """Return the name of a tensor of a sequence among the inputs of a program."""
    return f"{sequence}[{place}]"


class SequenceInput(ModelInput, frozen=True):
    """An input that is a list of arrays, each of any rank."""

    @override
    def __str__(self) -> str:
        return super().__str__().replace(f": {self.dtype}[..]", f": seq({self.dtype}[..])", 1)

    @override
    def array(self, value: object) -> np.ndarray:
        """Return the arrays of a list; UsageError for another type."""
        if not isinstance(value, (list, tuple)):
            raise UsageError(f"the input {self} got a `{type(value).__name__}`, not a list")
        if self.optional and not value:
            raise UsageError(
                f"the input {self} got an empty list", hint="leave it out, or give None"
            )
        items = cast("Sequence[object]", value)
        return cast("np.ndarray", [super(SequenceInput, self).array(each) for each in items])


def slot_of(value: ir.Value) -> ModelInput:
    """Return the declaration of an input; UnsupportedError for types that PTIR lacks."""
    name = str(value.name)
    held = value.type
    optional = isinstance(held, ir.OptionalType)
    if isinstance(held, ir.OptionalType):
        held = held.elem_type
    if isinstance(held, ir.SequenceType) and isinstance(held.elem_type, ir.TensorType):
        dtype = dtype_of(held.elem_type.dtype, f"the input `{shown(name)}`")
        return SequenceInput(name, dtype, None, optional)
    if not isinstance(held, ir.TensorType):
        kind = type(held).__name__.removesuffix("Type").lower() if held else "unknown"
        raise UnsupportedError(
            f"the input `{shown(name)}` is a {kind}, only tensors and sequences are supported"
        )
    dtype = stored_dtype(held.dtype, f"the input `{shown(name)}`")
    kind = StringInput if held.dtype == ir.DataType.STRING else ModelInput
    if value.shape is None or optional:
        return kind(name, dtype, None, optional)
    dims = [_size_of(size, f"{name}_{place}") for place, size in enumerate(value.shape)]
    return kind(name, dtype, tuple(dims))


def required_inputs(model: ir.Model) -> list[ir.Value]:
    """Return the inputs that a graph has no values for."""
    return [each for each in model.graph.inputs if each.name not in model.graph.initializers]


def default_inputs(model: ir.Model) -> list[ir.Value]:
    """Return the inputs whose values are initializers, which a call may replace.

    In older files all initializers are inputs; there they are constants, as in ONNX Runtime.
    """
    if model.ir_version < _DEFAULTS_SINCE:
        return []
    return [each for each in model.graph.inputs if each.name in model.graph.initializers]


def _size_of(size: int | ir.SymbolicDim, place: str) -> int | str:
    """Return a size or the name of a free one, by default that of its place.

    Negative numbers, `?` and the like are what exporters write for "any".
    """
    if isinstance(size, int):
        return size if size >= 0 else place
    stated = str(size.value or "")
    return stated if any(map(str.isalpha, stated)) else place


class Border(Struct, frozen=True):
    """The border between calls and a program: lists, strings, and functions of strings.

    Calls give `inputs`, the program takes `slots`; a sequence as its tensors, strings as codes.
    """

    inputs: tuple[ModelInput, ...]
    slots: tuple[ModelInput, ...]
    words: Words
    functions: StringFunctions | None
    is_needed: bool
    """Whether any input or output is something else than a tensor of numbers."""

    @classmethod
    def of(cls, model: ir.Model) -> Border:
        """Return that of a model, and take the functions of strings out of its graph.

        UnsupportedError for types that PTIR lacks.
        """
        graph = model.graph
        inputs = tuple(map(slot_of, required_inputs(model)))
        functions = cut_off(model)
        if functions is None:
            inputs += tuple([replace(slot_of(e), optional=True) for e in default_inputs(model)])
            slots = inputs
        else:  # these may have taken the defaults of inputs, which remain constants
            slots = tuple(map(slot_of, required_inputs(model)))
        own = functions is not None or any(map(_is_other, (*graph.inputs, *graph.outputs)))
        return cls(inputs, slots, Words(model), functions, own)

    @property
    def sequences(self) -> list[SequenceInput]:
        """The inputs that are lists of arrays."""
        return [each for each in self.slots if isinstance(each, SequenceInput)]

    def items(self, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return inputs with the arrays of lists by names of their own.

        UsageError if the file has an input of such a name.
        """
        made = dict(given)
        for each in self.sequences:
            for place, array in enumerate(made.pop(each.name, ())):
                name = item_name(each.name, place)
                if name in made:
                    raise UsageError(
                        f"`{shown(name)}` is an input, and an array of the input {each}",
                        hint="rename one of them in the file",
                    )
                made[name] = array
        return made

    def taken(self, given: Mapping[str, np.ndarray]) -> tuple[dict[str, Known], list[str]]:
        """Return what the program takes, and the strings of the call that the file lacks.

        UsageError where the strings do not fit their functions.
        """
        made = dict(given)
        if self.functions is not None:
            made |= self.functions(given)
            slots = {each.name for each in self.slots}
            for each in self.inputs:
                if each.name not in slots:
                    made.pop(each.name, None)
        return self.words.coded(made)

    def decoded(self, codes: Known, others: Sequence[str]) -> Known:
        """Return the strings of codes, as an array of Python's."""
        return self.words.decoded(codes, others)


def _is_other(value: ir.Value) -> bool:
    """Return whether a value is a sequence, or consists of strings."""
    held = value.type.elem_type if isinstance(value.type, ir.OptionalType) else value.type
    return isinstance(held, ir.SequenceType) or value.dtype == ir.DataType.STRING

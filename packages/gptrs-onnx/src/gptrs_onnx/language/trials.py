"""Trials of a graph: values that depend on the past, computed for a few sizes of past and step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from gptrs.api.models import Tensor
from gptrs.capture.execute import use_backend
from gptrs.ir.symbolic_dim import evaluated, symbols_of
from gptrs_onnx.conversion import Conversion
from gptrs_onnx.node import Items, Known, Narrow, Value, settled, stored_array
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.search import SMALL


class UnrecognizedError(Exception):
    """The cache of a graph does not fit steps over pages; the message says why."""


class Tried(Protocol):
    """The conversion whose values are tried: its results so far, and its inputs."""

    @property
    def functions(self) -> Mapping[ir.OperatorIdentifier, ir.Function]:
        """The functions of the file."""
        ...

    @property
    def opsets(self) -> Mapping[str, int]:
        """The operator sets of the file."""
        ...

    @property
    def weight(self) -> Callable[[str, ir.TensorProtocol], Tensor]:
        """Returns a large initializer by its name."""
        ...

    def given(
        self, value: ir.Value, past: int, new: int, random: np.random.Generator
    ) -> Known | None:
        """Return an input of the graph for one text; None for other values."""
        ...

    def carried_shape(self, value: ir.Value, past: int, new: int) -> tuple[int, ...] | None:
        """Return the shape of keys or values, of the past or joined; None for other values."""
        ...

    def held(self, value: ir.Value) -> Value | None:
        """Return the result of converting a value, if it was converted."""
        ...

    def is_of_tokens(self, value: ir.Value) -> bool:
        """Return whether a value depends on tokens, and not only on their positions."""
        ...


class Trial(Conversion):
    """The values of a graph for one text with `past` positions and a step of `new` tokens.

    Values are computed on demand. Of what the program computes of tokens, a trial
    has random numbers of the same shape: a function of them is recognized by its results.
    """

    def __init__(self, outer: Tried, past: int, new: int, seed: int) -> None:
        super().__init__(outer.functions, outer.opsets, outer.weight)
        self._outer = outer
        self._random = np.random.default_rng(seed)
        self.past = past
        self.new = new

    def array(self, value: ir.Value) -> np.ndarray:
        """Return a value as an array."""
        # The reference computes op by op: nothing is compiled for a trial that runs once.
        with use_backend("ref"):
            found = self._asked(value)
            return found.numpy() if isinstance(found, Tensor) else settled(found)

    def _asked(self, value: ir.Value) -> Value:
        if value not in self._values:
            self._compute(value)
        found = self._values[value]
        if found is None or isinstance(found, (Items, Narrow)):
            raise UnrecognizedError(f"`{value.name}` is a sequence, absent, or of a narrow type")
        return found

    def _compute(self, value: ir.Value) -> None:
        """Bind a value: given, a stand-in, or the result of its node."""
        given = self._outer.given(value, self.past, self.new, self._random)
        held = self._outer.held(value)
        if given is not None:
            self.bind(value, given)
        elif held is not None and not isinstance(held, Tensor):
            self.bind(value, self._sized(held))
        elif isinstance(held, Tensor) and value.const_value is not None:
            self.bind(value, self._stored(value, held))
        elif isinstance(held, Tensor) and self._outer.is_of_tokens(value):
            self.bind(value, self._stand_in(held))
        else:
            self._converted(value)

    def _converted(self, value: ir.Value) -> None:
        node = value.producer()
        if node is None:
            raise UnrecognizedError(f"nothing computes `{value.name}`")
        first = node.inputs[0] if node.inputs else None
        if node.op_type == "Shape" and first is not None:
            shape = self._outer.carried_shape(first, self.past, self.new)
            if shape is not None:  # without the numbers, which fill memory for a long text
                self._bind_shape(node, shape)
                return
        for each in node.inputs:
            if each is not None and each.name and each not in self._values:
                self._asked(each)
        self._convert(node)

    def _bind_shape(self, source: ir.Node, shape: tuple[int, ...]) -> None:
        node = self._node(source)
        start, end = node.integer("start", 0), node.integer("end", len(shape))
        self.bind(source.outputs[0], np.array(shape[start:end], np.int64))

    def _sized(self, known: Known) -> Known:
        """Return a known value with the number of tokens in it."""
        if known.dtype != object:
            return known
        made = [self._size(each) for each in known.reshape(-1)]
        return np.array(made, np.int64).reshape(known.shape)

    def _size(self, dim: int) -> int:
        return evaluated(dim, dict.fromkeys(symbols_of([dim]), self.new))

    def _stored(self, value: ir.Value, held: Tensor) -> Value:
        """Return a constant of the file, small enough to compute with it as the reference does."""
        stored = value.const_value
        if stored is None or stored.size > SMALL * SMALL:
            return held
        return stored_array(stored, f"the initializer `{value.name}`")

    def _stand_in(self, held: Tensor) -> Known:
        if not held.dtype.is_float:
            raise UnrecognizedError("integers that depend on tokens meet the cache")
        shape = [self._size(dim) for dim in held.shape]
        # Scores stay small, so that no weight of attention vanishes.
        return (self._random.standard_normal(shape) / 2).astype(held.dtype.numpy)

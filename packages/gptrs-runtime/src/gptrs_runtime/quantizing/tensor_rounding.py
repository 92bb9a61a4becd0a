"""A weight on its way to codes and scales, some rows at a time, and how far these are from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Self

import numpy as np

from gptrs.backend.contract import Backend
from gptrs.backend.process_limits import granted_cpus, requested_threads
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor, reads_quantized
from gptrs.errors import CheckpointError
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import quoted
from gptrs_runtime.quantizing.group_rounding import (
    Rounded,
    Rounding,
    round_affine,
    round_symmetric,
    round_with_zero_point,
)
from gptrs_runtime.quantizing.threads import in_threads
from gptrs_runtime.quantizing.weight_types import WeightType
from gptrs_runtime.results import TensorError

_ELEMENTS = 2**18
"""About how many weights a thread rounds at a time: what NumPy makes of them stays in caches."""

_INPUTS = 16
"""Vectors that errors of products are measured with: 2 % of the time that the search takes."""
_INPUT_GROUP = 32
"""Inputs that share a scale in products of the precision `int8`."""


class RoundedTensor:
    """A matrix [O, I] that `load` gives, quantized to `type`; [I, O] there if it is `turned`.

    `threads` round it; None stands for `GPTRS_NUM_THREADS`, else for one on each processor.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], np.ndarray],
        shape: tuple[int, int],
        type: WeightType,
        rounding: Rounding,
        *,
        turned: bool = False,
        threads: int | None = None,
    ) -> None:
        self.name = name
        self.shape = shape
        self.type = type
        self.turned = turned
        self._load = load
        self._rounding: Rounding = rounding
        self._threads = threads
        self._inputs: np.ndarray | None = None
        self._rounded_inputs: np.ndarray | None = None
        self._start()

    def _start(self) -> None:
        self._squares = self._errors = self._largest = 0.0
        self._product_squares = self._product_errors = 0.0

    def computed_on(self, backend: Backend) -> Self:
        """Return this weight, which will measure errors of products as `backend` has them."""
        backend = backend.with_precision(backend.quantized_precision())
        self._inputs = self._rounded_inputs = _normal_inputs(self.shape[1])
        if backend.precision == "int8" and reads_quantized(backend, self.described()):
            self._rounded_inputs = rounded_to_8_bits(self._inputs)
        return self

    def described(self) -> QuantizedTensor:
        """Return the parts as programs have them: codes packed."""
        rows, columns = self.shape
        kind, size = self.type, self.type.group_of(columns)
        signed = kind.bits == 8 and kind.offset == "none"
        codes = dtypes.si8 if signed else dtypes.ui8
        parts: dict[Part, TensorType] = {
            "codes": TensorType(codes, (rows, columns * kind.bits // 8)),
            "scale": TensorType(dtypes.f16, (rows, columns // size)),
        }
        if kind.offset == "zero_point":
            parts["zero_point"] = TensorType(dtypes.si32, (rows, columns // size))
        if kind.offset == "bias":
            parts["bias"] = TensorType(dtypes.f16, (rows, columns // size))
        middle = 0 if signed or kind.offset != "none" else 1 << kind.bits - 1
        return QuantizedTensor(
            kind.name, self.shape, parts, kind.bits, size, middle, transposed=self.turned
        )

    def chunks(self) -> Iterator[tuple[dict[Part, np.ndarray], np.ndarray]]:
        """Yield the parts of some rows after another, and their values f32 [rows, I].

        Codes are one to an element; symmetric ones are si8. CheckpointError for values that are not
        finite or too large for scales in f16.
        """
        stored = self._load()
        matrix = stored.T if self.turned else stored
        rows, columns = self.shape
        step = max(1, _ELEMENTS // columns)
        self._start()
        parts_of_rows = (matrix[start : start + step] for start in range(0, rows, step))
        threads = requested_threads(self._threads) or granted_cpus()
        for block, found in in_threads(self._round, parts_of_rows, threads):
            values = found.values.reshape(block.shape)
            self._count(block, values)
            yield (
                {part: array.reshape(len(block), -1) for part, array in found.parts.items()},
                values,
            )

    def _round(self, rows: np.ndarray) -> tuple[np.ndarray, Rounded]:
        """Return some rows as f32, and what they are rounded to."""
        block = np.ascontiguousarray(rows, np.float32)
        groups = block.reshape(-1, self.type.group_of(self.shape[1]))
        with np.errstate(all="ignore"):
            if self.type.offset == "zero_point":
                return block, round_with_zero_point(groups, self.type.bits, self._rounding)
            if self.type.offset == "bias":
                return block, round_affine(groups, self.type.bits, self._rounding)
            return block, round_symmetric(groups, self.type.bits, self._rounding)

    def error(self) -> TensorError:
        """Return the errors of the last round of `chunks`."""
        kind, columns = self.type, self.shape[1]
        offset = {"none": 0, "bias": 16, "zero_point": kind.bits}[kind.offset]
        bits = kind.bits + (16 + offset) / kind.group_of(columns)
        relative = _relative(self._errors, self._squares)
        of_products = _relative(self._product_errors, self._product_squares)
        return TensorError(
            self.name, kind.name, self.shape, bits, relative, of_products, self._largest
        )

    def _count(self, block: np.ndarray, values: np.ndarray) -> None:
        difference = block.astype(np.float64) - values
        largest = float(np.abs(difference).max(initial=0.0))
        if not math.isfinite(largest):
            raise CheckpointError(
                f"tensor {quoted(self.name)} cannot be quantized: it has values that are not"
                " finite, or beyond the range of scales in f16",
                hint="`--keep` leaves a tensor as it is",
            )
        self._largest = max(self._largest, largest)
        self._errors += float(np.square(difference).sum())
        self._squares += float(np.square(block, dtype=np.float64).sum())
        if self._inputs is None or self._rounded_inputs is None:
            return
        exact = block @ self._inputs
        self._product_squares += float(np.square(exact, dtype=np.float64).sum())
        exact -= values @ self._rounded_inputs
        self._product_errors += float(np.square(exact, dtype=np.float64).sum())


@cache
def _normal_inputs(columns: int) -> np.ndarray:
    """Return f32 [I, `_INPUTS`], the same each time."""
    drawn = np.random.default_rng(0).standard_normal((_INPUTS, columns), np.float32)
    return np.ascontiguousarray(drawn.T)


def rounded_to_8_bits(inputs: np.ndarray) -> np.ndarray:
    """Return f32 [I, N] rounded as `gptrs.backend.contract` says of `int8`."""
    columns = len(inputs)
    size = math.gcd(columns, _INPUT_GROUP)
    groups = inputs.reshape(columns // size, size, -1)
    scale = np.maximum(np.abs(groups).max(axis=1, keepdims=True) / 127, np.float32(1e-30))
    return (np.rint(groups / scale) * scale).reshape(inputs.shape)


def _relative(errors: float, squares: float) -> float:
    return math.sqrt(errors / squares) if squares else 0.0

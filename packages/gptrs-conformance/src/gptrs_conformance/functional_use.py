"""A use of a functional: a call on arrays, and its expected results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from msgspec import Struct

from gptrs.backend.contract import Backend
from gptrs.capture.execute import use_backend
from gptrs.capture.jitting.jit import jit
from gptrs.capture.tensor import Tensor
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_conformance.check import Check, CheckFailure
from gptrs_conformance.numerics import EXACT, Tolerance, decode
from gptrs_conformance.samples import as_float

Arrays = tuple[np.ndarray, ...]
Result = TypeVar("Result", np.ndarray, Tensor)
TOLERANCES = {
    "f32": Tolerance.close(1e-5, 5e-6),
    "f16": Tolerance.close(2.0**-8, 2.0**-8),
    "bf16": Tolerance.close(2.0**-5, 2.0**-5),
}
"""A functional is several ops, and each rounds to the element type."""


class Use(Struct, frozen=True):
    """A call of a functional on arrays, and what NumPy gives for them in f64 (or exactly)."""

    functional: str
    inputs: Arrays
    call: Callable[..., Tensor | Sequence[Tensor]]
    """Called with a tensor for each input."""
    expected: Callable[..., np.ndarray | Sequence[np.ndarray]]
    """Called with the inputs, their floats widened to f64; must not import torch."""
    label: str = ""
    """Distinguishes several uses of one functional."""
    small_floats: bool = True
    """Whether it is tried with its f32 inputs in f16 and bf16 too."""
    tolerance: Callable[[np.ndarray, DType], Tolerance] | None = None
    """Returns the tolerance for an expected result and its type; None: that of `TOLERANCES`."""
    torch: Callable[..., Any] | None = None
    """The same call in torch, where it has one: `(torch, *tensors)`; for the parity tests."""

    @property
    def name(self) -> str:
        """The functional with the label."""
        return f"{self.functional} ({self.label})" if self.label else self.functional

    def run(self, backend: Backend) -> None:
        """Raise CheckFailure if a result is wrong; UnsupportedError passes through."""
        for dtype, arrays in self.cases():
            wanted = self.wanted(arrays)
            with use_backend(backend):
                tensors = [Tensor.of_array(array) for array in arrays]
                for how, call in (("lazily", self.call), ("by jit", jit(self.call))):
                    found = [result.numpy() for result in several(call(*tensors))]
                    self.require_close(found, wanted, dtype, how)

    def wanted(self, arrays: Arrays) -> list[np.ndarray]:
        """Return what NumPy gives for arrays, floats in f64."""
        with np.errstate(invalid="ignore"):  # of NaN and infinity
            return several(self.expected(*map(wide, arrays)))

    def cases(self) -> Iterator[tuple[DType, Arrays]]:
        """Yield the inputs with the floats of each type that it is tried with."""
        types = (dtypes.f32, dtypes.f16, dtypes.bf16) if self.small_floats else (dtypes.f32,)
        for dtype in types:
            yield (
                dtype,
                tuple(
                    as_float(array.astype(np.float64), dtype)
                    if array.dtype == np.float32
                    else array
                    for array in self.inputs
                ),
            )

    def require_close(
        self, found: Sequence[np.ndarray], wanted: Sequence[np.ndarray], dtype: DType, how: str
    ) -> None:
        """Raise CheckFailure unless results of a case of `dtype` are as wanted, which is wide."""
        for index, (result, value) in enumerate(zip(found, wanted, strict=True)):
            type_, expected = dtypes.from_numpy(result.dtype), np.asarray(value)
            tolerance = TOLERANCES[dtype.name] if type_.is_float else EXACT
            if self.tolerance is not None:
                tolerance = self.tolerance(expected, type_)
            problem = tolerance.mismatch(result, expected, type_)
            if problem:
                raise CheckFailure(f"with {dtype}, {how}: result {index} {problem}")

    def check(self) -> Check:
        """Return a check that this use gives the expected results."""
        return Check(f"functional {self.name}", "full", self.run)


def wide(array: np.ndarray) -> np.ndarray:
    """Return the numbers of an array, floats in f64."""
    return decode(array) if dtypes.from_numpy(array.dtype).is_float else array


def several(found: Result | Sequence[Result]) -> list[Result]:
    """Return one result or several as a list."""
    return list(found) if isinstance(found, tuple | list) else [cast("Result", found)]

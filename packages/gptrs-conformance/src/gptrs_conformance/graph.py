"""A whole program with inputs and expected results: the form of graph checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from gptrs.backend.contract import Backend
from gptrs.ir import dtypes
from gptrs_conformance.check import Check, CheckFailure
from gptrs_conformance.numerics import EXACT, Tolerance
from gptrs_conformance.running import compiled, run_on

CLOSE = Tolerance.close(1e-5, 5e-6)
"""For f32 results after some dozens of operations on values of magnitude 1."""


class Graph(Struct, frozen=True):
    """A program in text, its inputs by name, and a function that gives its results.

    The function takes the inputs as keywords, f32 ones widened to f64, and must share nothing with
    a backend. Float results are compared by `tolerance`, others must be equal.
    """

    text: str
    inputs: Mapping[str, np.ndarray]
    expected: Callable[..., Sequence[np.ndarray]]
    tolerance: Tolerance = CLOSE

    def run(self, backend: Backend) -> None:
        """Raise CheckFailure if a result on `backend` is wrong; UnsupportedError passes through."""
        found = run_on(backend, compiled(backend, self.text), *self.inputs.values())
        wide = {
            name: array.astype(np.float64) if array.dtype == np.float32 else array
            for name, array in self.inputs.items()
        }
        with np.errstate(all="ignore"):
            wanted = self.expected(**wide)
        if len(found) != len(wanted):
            raise CheckFailure(f"gave {len(found)} results, expected {len(wanted)}")
        for index, (result, value) in enumerate(zip(found, wanted, strict=True)):
            dtype = dtypes.from_numpy(result.dtype)
            tolerance = self.tolerance if dtype.is_float else EXACT
            problem = tolerance.mismatch(result, np.asarray(value), dtype)
            if problem:
                raise CheckFailure(f"result {index} {problem}")

    def check(self, name: str) -> Check:
        """Return the check that this graph runs right."""
        return Check(name, "core", self.run)

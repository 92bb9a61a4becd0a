"""The op that stands for a kernel of some backend, which PTIR itself does not know."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gptrs.ir import dtypes
from gptrs.ir.attributes import FunctionName
from gptrs.ir.dictionary import Dictionary
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op, Signature, op
from gptrs.ir.tensor_type import TensorType

_TARGET = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+\.v[0-9]+")


@op("custom_call")
class CustomCall(Op):
    """A pure function that a backend provides: `target` for these operands and `attrs`.

    `target` is namespaced and versioned, `gptrs.numba.linear.f32.v1`; only its owner says what it
    means. `results` are the types of the results, which nothing else can tell, at least one. A
    backend that does not know the target refuses the program before it runs; the call is never
    replaced by something else. With a `decomposition`, a function above that takes the operands
    and gives the results, every backend can run it: the function says what the call means.
    """

    target: str
    results: tuple[TensorType, ...]
    attrs: Dictionary = Dictionary()
    decomposition: FunctionName | None = None

    def infer(self, *operands: TensorType, bodies: tuple[Signature, ...]) -> tuple[TensorType, ...]:
        """`results`."""
        if not _TARGET.fullmatch(self.target):
            reason = "needs a target of dotted words and a version such as `vendor.kernel.v1`"
            raise self.error(f"{reason}, got `{self.target}`")
        if not self.results:
            raise self.error("needs at least one result")
        for body in bodies:
            wanted = Signature(operands, self.results)
            if body != wanted:
                raise self.error(f"needs a decomposition {wanted}, got {body}")
        return self.results

    def key_dtype(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> DType:
        """`i1` whatever the operands are: a backend knows a call by its target."""
        return dtypes.i1

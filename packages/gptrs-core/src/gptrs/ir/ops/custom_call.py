"""Ops for named functions, and for kernels unknown to PTIR."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from gptrs.errors import UsageError
from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary, DictionaryValue, FunctionName
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op, Signature, op
from gptrs.ir.ops.control_flow import ControlFlow, Types
from gptrs.ir.program import Program, Region
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import counted

KIND = re.compile(r"(?:[a-z][a-z0-9_]*\.)+v[0-9]+(?:/\S+)?")
"""Kinds of composites, such as `softmax.v1`."""
_TARGET = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+\.v[0-9]+")


T = TypeVar("T")


def _require_names(op: Op, given: str, count: int) -> None:
    names = given.split()
    if len(names) != count or len(set(names)) != count:
        raise op.error(f"needs {count} distinct names of operands, got `{given}`")


@op("composite")
class Composite(ControlFlow):
    """A named computation, such as `softmax.v1`, defined by `decomposition`, an earlier function.

    The function defines what the composite computes; `kind`, `attrs` and the names of the
    `operands` identify it, so that a backend may substitute a kernel. A backend that does not know
    the `kind` runs the function, so a composite never changes the meaning of a program. `kind` is a
    name with a version; an implementation other than the usual one follows a slash,
    `gelu.v1/sigmoid`. `operands` lists the parameter name of each operand in order, separated by
    blanks: `x weight bias`.
    """

    kind: str
    decomposition: FunctionName
    operands: str = ""
    attrs: Dictionary = Dictionary()

    def infer(self, *operands: TensorType, bodies: tuple[Signature, ...]) -> Types:
        """Return the results of the decomposition."""
        if not KIND.fullmatch(self.kind):
            reason = "needs a kind of dotted words and a version such as `softmax.v1`"
            raise self.error(f"{reason}, got `{self.kind}`")
        _require_names(self, self.operands, len(operands))
        (body,) = bodies
        self.require_types(f"arguments for `@{self.decomposition}`", body.params, operands)
        return self.require_some(body.results)

    @property
    def title(self) -> str:
        """The name of the functional: `softmax` for the kind `softmax.v1`."""
        return self.kind.partition("/")[0].rpartition(".")[0]

    @property
    def operand_names_given(self) -> tuple[str, ...]:
        """The parameter names of the operands, in order."""
        return tuple(self.operands.split())


@op("custom_call")
class CustomCall(Op):
    """A pure function that a backend provides: `target` for these operands and `attrs`.

    `target` is namespaced and versioned, as in `gptrs.numba.linear.f32.v1`; its owner defines its
    meaning. `results` lists the result types, at least one, since they cannot be inferred. A
    backend that does not know the target refuses the program before it runs; the call is never
    replaced. For computations that every backend can run, use `composite`. A call that stands for a
    composite keeps the names of its `operands`.
    """

    target: str
    results: tuple[TensorType, ...]
    attrs: Dictionary = Dictionary()
    operands: str = ""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        """`results`."""
        if not _TARGET.fullmatch(self.target):
            reason = "needs a target of dotted words and a version such as `vendor.kernel.v1`"
            raise self.error(f"{reason}, got `{self.target}`")
        if not self.results:
            raise self.error("needs at least one result")
        if self.operands:
            _require_names(self, self.operands, len(operands))
        return self.results

    def key_dtype(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> DType:
        """`i1` for all operands: a backend recognizes a call by its target."""
        return dtypes.i1


def functional_arguments(call: CustomCall, operands: Sequence[T]) -> dict[str, T | DictionaryValue]:
    """Return the arguments of the functional that `call` stands for, by parameter.

    `operands` has a tensor for each operand of the call. Parameters whose argument is None are left
    out; pairs of pairs are flat: a `padding` of `((0, 1), (2, 3))` is `(0, 1, 2, 3)`. UsageError
    for another number of tensors.
    """
    names = call.operands.split()
    if len(names) != len(operands):
        raise UsageError(
            f"`{call.target}` takes {counted(len(names), 'named tensor')}, got {len(operands)}"
        )
    return {**dict(call.attrs.items), **dict(zip(names, operands, strict=True))}


def decompositions(program: Program) -> frozenset[str]:
    """Return the names of the functions that only composites refer to."""
    plain, inner = {"main"}, set[str]()
    # Reversed, so that each function comes after everything that refers to it.
    for function in reversed(program.functions):
        is_inner = function.name in inner - plain
        for made in function.body.walk():
            names = inner if is_inner or isinstance(made.op, Composite) else plain
            names.update(made.op.callees())
    return frozenset(inner - plain)


# A backend's decisions on composites, made before canonicalization.


class Declined(Struct, frozen=True):
    """A refusal, by a backend of a composite that it knows, or of a rewrite that would gain
    nothing."""

    reason: str
    """One sentence for users; `gptrs inspect --why` prints it."""


Claimed = Op | Region | Declined | None
"""A backend's decision on a composite. An op, usually a `custom_call`, computes it from the same
operands; a region computes it from the operands as its parameters. `Declined` and None inline the
composite; None gives no reason, as for unknown kinds.
"""
Claim = Callable[[Composite, Sequence[TensorType], Sequence[TensorType]], Claimed]
"""Decides on a composite, given its op and the types of its operands and results."""


def unclaimed(op: Composite, operands: Sequence[TensorType], results: Sequence[TensorType]) -> None:
    """Claim nothing: every composite is inlined."""
    del op, operands, results

"""Ops that run regions and functions: branches, loops and calls.

A region sees only its parameters, so all outside values that it needs are operands.
"""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.ir import dtypes
from gptrs.ir.attributes import FunctionName
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op, Signature, op
from gptrs.ir.tensor_type import TensorType

Types = tuple[TensorType, ...]


class ControlFlow(Op):
    """Common base of control flow: no element of an operand is read, except a predicate."""

    def key_dtype(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> DType:
        """`i1` for all operands: a backend has such an op for all types or for none."""
        return dtypes.i1

    def require_types(self, what: str, wanted: Types, found: Types) -> None:
        """ProgramError unless `what`, a list of parameters or results, has the wanted types."""
        if wanted != found:
            need, have = (", ".join(map(str, types)) or "none" for types in (wanted, found))
            raise self.error(f"needs {what} ({need}), got ({have})")

    def require_some(self, results: Types) -> Types:
        """Return `results`; ProgramError if there are none, since the op would have no effect."""
        if not results:
            raise self.error("needs at least one result")
        return results


@op("cond")
class Cond(ControlFlow):
    """The results of `then` if `predicate` is true, else the results of `else`.

    `results = predicate ? then(operands..) : else(operands..)`. `predicate` is `i1[]`. Both regions
    take the operands and give results of the same types, at least one. Only the chosen region runs,
    so an error in the other is never raised.
    """

    region_names = ("then", "else")

    def infer(
        self, predicate: TensorType, *operands: TensorType, bodies: tuple[Signature, ...]
    ) -> Types:
        """Return the results of the regions."""
        if predicate != TensorType(dtypes.i1, ()):
            raise self.error("needs a predicate of i1[]", predicate)
        then, otherwise = bodies
        self.require_types("parameters of `then`", operands, then.params)
        self.require_types("parameters of `else`", operands, otherwise.params)
        self.require_types("results of `else`", then.results, otherwise.results)
        return self.require_some(then.results)


@op("while")
class While(ControlFlow):
    """`state = body(state)` as long as `condition(state)` is true; the last state.

    The operands are the initial state, at least one value. `condition` returns one `i1[]` and
    `body` the next state; both take the state, whose types do not change. If the condition is false
    at once, the results are the operands. The number of iterations is unbounded.
    """

    region_names = ("condition", "body")

    def infer(self, *state: TensorType, bodies: tuple[Signature, ...]) -> Types:
        """Return the types of the state."""
        condition, body = bodies
        self.require_types("parameters of `condition`", state, condition.params)
        predicate = (TensorType(dtypes.i1, ()),)
        self.require_types("results of `condition`", predicate, condition.results)
        self.require_types("parameters of `body`", state, body.params)
        self.require_types("results of `body`", state, body.results)
        return self.require_some(state)


@op("scan")
class Scan(ControlFlow):
    """A loop over the leading axis of tensors that carries values along and stacks results.

    The first `carry_count` operands are the initial carried values; the others are scanned and
    share one leading dim, the number of steps. Step i runs `carried.., y.. = body(carried..,
    x[i]..)`; the results are the last carried values, then each `y` stacked along a new leading
    axis, `out[i] = y` of step i. With `reverse` the steps go from the last i to the first, and
    `out[i]` still belongs to `x[i]`. `length` is the number of steps; it is needed where nothing is
    scanned and must agree otherwise. Zero steps give the first carried values and stacks of leading
    dim 0. The types of carried values do not change.
    """

    carry_count: int
    length: int | None = None
    reverse: bool = False
    region_names = ("body",)

    def infer(self, *operands: TensorType, bodies: tuple[Signature, ...]) -> Types:
        """Return the types of the carried values, then the stacked results of the body."""
        (body,) = bodies
        if not 0 <= self.carry_count <= len(operands):
            raise self.error(f"carries {self.carry_count} of {len(operands)} operands", *operands)
        carried, scanned = operands[: self.carry_count], operands[self.carry_count :]
        steps = self.steps(operands)
        slices = tuple(x.with_shape(x.shape[1:]) for x in scanned)
        self.require_types("parameters of `body`", carried + slices, body.params)
        if body.results[: self.carry_count] != carried:
            need, have = (", ".join(map(str, types)) for types in (carried, body.results))
            raise self.error(f"needs results of `body` that begin with ({need}), got ({have})")
        stacked = (y.with_shape((steps, *y.shape)) for y in body.results[self.carry_count :])
        return self.require_some((*carried, *stacked))

    def steps(self, operands: Sequence[TensorType]) -> int:
        """Return the number of iterations for operands of these types."""
        scanned = operands[self.carry_count :]
        if any(x.rank == 0 for x in scanned):
            raise self.error("needs a leading axis in its scanned operands", *scanned)
        if self.length is None and not scanned:
            raise self.error("scans nothing and so needs `length`")
        steps = scanned[0].shape[0] if self.length is None else self.length
        if any(x.shape[0] != steps for x in scanned):
            raise self.error(f"needs the leading dim {steps} in all scanned operands", *scanned)
        if steps < 0:
            raise self.error(f"needs a length >= 0, got {steps}")
        return steps


@op("call")
class Call(ControlFlow):
    """The results of `function`, defined earlier in the program, for these operands."""

    function: FunctionName

    def infer(self, *operands: TensorType, bodies: tuple[Signature, ...]) -> Types:
        """Return the results of the function."""
        (body,) = bodies
        self.require_types(f"arguments for `@{self.function}`", body.params, operands)
        return self.require_some(body.results)

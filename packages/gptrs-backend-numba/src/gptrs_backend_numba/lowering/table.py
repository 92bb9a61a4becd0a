"""The table of lowerings: the ops that this backend can run, both for refusal and for compiling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gptrs.backend.op_table import OpTable
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder

Lowering = Callable[[ScheduleBuilder, Unit], None]

TABLE = OpTable[Lowering]("numba")
"""Filled by the modules of this package when they are imported."""

MOVABLE: tuple[DType, ...] = dtypes.ALL
"""Element types that can be moved: kernels move 1, 2, 4, 8 or 16 bytes at a time."""


# `custom_call`: the fused kernels of this backend, each a target with a lowering of its own.


Condition = Callable[[CustomCall, Sequence[TensorType]], bool]

_TARGETS: dict[str, tuple[Lowering, Condition]] = {}


def custom_call(target: str, *, when: Condition) -> Callable[[Lowering], Lowering]:
    """Return a decorator that registers a lowering for calls of `target` that `when` accepts.

    Any other call is refused, like one of an unknown target.
    """

    def add(lowering: Lowering) -> Lowering:
        if target in _TARGETS:
            raise ValueError(f"`{target}` is registered twice")
        _TARGETS[target] = (lowering, when)
        return lowering

    return add


def _find(op: CustomCall, operands: Sequence[TensorType]) -> Lowering | None:
    found = _TARGETS.get(op.target)
    return found[0] if found is not None and found[1](op, operands) else None


def _when(op: Op, operands: Sequence[TensorType]) -> bool:
    assert isinstance(op, CustomCall)
    return _find(op, operands) is not None


@TABLE.register(CustomCall, dtypes=[dtypes.i1], when=_when)
def call(builder: ScheduleBuilder, unit: Unit) -> None:
    """Lower the call by the lowering of its target."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    lowering, _ = _TARGETS[op.target]  # `when` accepted the call
    lowering(builder, unit)

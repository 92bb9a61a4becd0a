"""Single applications of an op with expected results, registered by op and element type."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache

import numpy as np
from msgspec import Struct

from gptrs.ir.dtypes import ALL, DType
from gptrs.ir.op import Op
from gptrs.ir.program import Function, Region
from gptrs_conformance.numerics import EXACT, Tolerance
from gptrs_runtime.conformance import Level


class OpCase(Struct, frozen=True, eq=False):
    """An op on given operands, and what must come out, or the error that must be raised.

    `expected` holds one array a result, wide: f64 or complex128 for floats, an integer type that
    holds the values (or objects) for integers, bool for i1. `error` is text that the
    ExecutionError contains; nothing is expected then.
    """

    op: Op
    inputs: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]
    tolerance: Tolerance = EXACT
    label: str = ""
    """A description for reports."""
    error: str | None = None
    regions: tuple[Region, ...] = ()
    functions: tuple[Function, ...] = ()


CaseMaker = Callable[[type[Op], DType, np.random.Generator], Iterator[OpCase]]

ROWS: dict[type[Op], dict[DType, CaseMaker]] = {}
"""The makers of cases of each op, by the element type that its kernel is chosen by."""


def rows(*op_classes: type[Op], dtypes: Iterable[DType]) -> Callable[[CaseMaker], CaseMaker]:
    """Decorator: a function that makes the cases of these ops, for every legal `key_dtype`."""
    legal = tuple(dtypes)

    def register(make: CaseMaker) -> CaseMaker:
        for op_class in op_classes:
            makers = ROWS.setdefault(op_class, {})
            for dtype in legal:
                if dtype in makers:
                    raise ValueError(f"`{op_class.name}` on {dtype} has rows already")
                makers[dtype] = make
        return make

    return register


def legal_dtypes(op_class: type[Op]) -> list[DType]:
    """Return the element types that an op has rows for, in the order of `gptrs.ir.dtypes`.

    `custom_call` has none: only the backend of its target knows its meaning.
    """
    return [dtype for dtype in ALL if dtype in ROWS.get(op_class, {})]


def cases(op_class: type[Op], dtype: DType, level: Level = "full") -> list[OpCase]:
    """Return the cases of an op on a type, the same in every process; their arrays are read-only.

    `smoke` has the first only.
    """
    make = ROWS[op_class][dtype]
    if level == "smoke":
        return [next(new_cases(make, op_class, dtype))]
    return list(_kept_cases(make, op_class, dtype))


def new_cases(make: CaseMaker, op_class: type[Op], dtype: DType) -> Iterator[OpCase]:
    """Make new cases of an op on a type."""
    seed = zlib.crc32(f"{op_class.name} {dtype}".encode())
    return make(op_class, dtype, np.random.default_rng(seed))


@cache
def _kept_cases(make: CaseMaker, op_class: type[Op], dtype: DType) -> tuple[OpCase, ...]:
    """Make the cases once: checks and generated programs ask for them again and again.

    All cases of all ops take some 40 MB.
    """
    made = tuple(new_cases(make, op_class, dtype))
    for case in made:
        for array in (*case.inputs, *case.expected):
            array.flags.writeable = False
    return made

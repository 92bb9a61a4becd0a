"""Uses of the functionals that are rows of elementwise ops: ordinary values and edges."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gptrs import functionals as F
from gptrs.ir.op import OPS
from gptrs.ir.ops.elementwise import Row, Unary
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal

X = normal(1, 3, 4)
POSITIVE = np.abs(normal(2, 3, 4)) + np.float32(0.25)
HALVES = np.array([-2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5, 3.2, np.inf, np.nan], np.float32)
EDGES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0], np.float32)
COUNTS = np.array([[-3, 0, 2], [9, -1, 1]])
# Quotients that are far from integers, so that no rounding decides.
UNEVEN = np.array([7.25, -7.25, -0.75, 5.5, 0.0], np.float32)
DIVISORS = np.array([[2.0], [-2.0], [3.0]], np.float32)
WHOLE, BY = np.array([[-7, 7, -6], [6, 0, -1]]), np.array([3, -3, 4])


def _oracle(op: type[Row]) -> Callable[..., np.ndarray]:
    """The definition of a row, for arrays that broadcast."""
    assert op.definition is not None
    compute = np.frompyfunc(op.definition, len(op.operand_names), 1)

    def expected(*arrays: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(compute(*arrays)).astype(np.result_type(*arrays))

    return expected


def _quietly(oracle: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """An oracle that does not warn of infinite results."""

    def expected(x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return oracle(x)

    return expected


def _uses(op: type[Row]) -> list[Use]:
    if not op.functional or not op.definition:
        return []
    name, call, expected = op.functional, getattr(F, op.functional), _oracle(op)

    def torch(torch, *operands):  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
        return getattr(torch, name)(*operands)

    def use(label: str, *inputs: np.ndarray, torch=torch) -> Use:  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
        return Use(name, inputs, call, expected, label, torch=torch)

    takes_floats, takes_integers = "float" in op.kinds, "signed" in op.kinds
    if not issubclass(op, Unary):
        uses = [use("broadcast", UNEVEN, DIVISORS)] if takes_floats else []
        # torch divides integers to floats
        of_torch = None if name == "div" else torch
        whole = [use("broadcast integers", WHOLE, BY, torch=of_torch)] if takes_integers else []
        return uses + whole
    uses = [use("integers", COUNTS)] if takes_integers else []
    if takes_floats:
        x = X if np.isfinite(expected(X.astype(np.float64))).all() else POSITIVE
        uses += [use("", x), use("rank 0", x[:1, 0].reshape(())), use("empty", x[:0])]
        # torch calls the sign of NaN 0
        uses.append(use("edges", EDGES, torch=None if name == "sign" else torch))
        uses.append(use("halves", HALVES, torch=None if name == "sign" else torch))
    return uses


USES = (
    *(use for op in OPS.values() if issubclass(op, Row) for use in _uses(op)),
    Use("square", (X,), F.square, np.square, torch=lambda torch, x: torch.square(x)),
    Use("square", (EDGES,), F.square, np.square, "edges", torch=lambda torch, x: torch.square(x)),
    Use("square", (X[:0],), F.square, np.square, "empty", torch=lambda torch, x: torch.square(x)),
    Use("square", (COUNTS,), F.square, np.square, "integers"),
    Use("trunc", (X * 3,), F.trunc, np.trunc, torch=lambda torch, x: torch.trunc(x)),
    Use("trunc", (HALVES,), F.trunc, np.trunc, "halves", torch=lambda torch, x: torch.trunc(x)),
    Use("trunc", (EDGES,), F.trunc, np.trunc, "edges", torch=lambda torch, x: torch.trunc(x)),
    *(
        use
        for name, oracle in (("exp2", np.exp2), ("log2", np.log2), ("log10", np.log10))
        for use in (
            Use(
                name,
                (POSITIVE,),
                getattr(F, name),
                oracle,
                torch=lambda torch, x, name=name: getattr(torch, name)(x),
            ),
            Use(
                name,
                (np.array([0.0, np.inf, np.nan, 1.0], np.float32),),
                getattr(F, name),
                _quietly(oracle),
                "edges",
                torch=lambda torch, x, name=name: getattr(torch, name)(x),
            ),
        )
    ),
)

"""Derivatives of ops on a backend, in both modes, against differences in f64.

The cases of the kit give ops, shapes and indices. Their floats are replaced by distinct ones of
moderate size, so that no function has a kink or a pole nearby.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import cast

import numpy as np

from gptrs.backend.contract import Backend
from gptrs.capture.execute import use_backend
from gptrs.capture.jitting.jit import jit
from gptrs.capture.primitives import constant
from gptrs.capture.tensor import Tensor, apply_many
from gptrs.capture.tensor import tensor as made_tensor
from gptrs.differentiation.forward import push
from gptrs.differentiation.functions import grad, jvp
from gptrs.differentiation.reverse import Linearized
from gptrs.differentiation.rules import RULES, filled
from gptrs.errors import GptrsError, UnsupportedError, UsageError
from gptrs.functionals.arithmetic import is_finite, where
from gptrs.functionals.creation import zeros
from gptrs.functionals.reduction import sum as total
from gptrs.ir import dtypes
from gptrs.ir.attributes import FunctionName
from gptrs.ir.builder import Builder
from gptrs.ir.literal_text import Literal
from gptrs.ir.op import OPS, Op
from gptrs.ir.ops import elementwise as e
from gptrs.ir.ops.control_flow import Call, Cond, Scan, While
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.custom_call import Composite
from gptrs.ir.ops.reduction import Reduce
from gptrs.ir.program import Function, Program, Region, Value
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.op_case import OpCase, legal_dtypes
from gptrs_conformance.op_case import cases as cases_of
from gptrs_conformance.op_runner import Outcome

# The cube root of the precision of f64, about: rounding adds 1e-11, the third derivative 1e-10.
_STEP = 1e-5
_LARGEST = 4096
"""Most elements of a case: more values would be too close to each other."""
_POSITIVE = (e.Log, e.Log1p, e.Sqrt, e.Rsqrt, e.Pow)
_NO_PRODUCTS = ("reduce_window", "scatter_reduce", "segment_reduce")


def differentiable_ops() -> list[type[Op]]:
    """Return the ops with a derivative in either mode."""
    return [op for op in OPS.values() if op in RULES or op is While]


def derivative_cases(op_class: type[Op]) -> Iterator[OpCase]:
    """Return one case for each kind of call that takes f64 operands and returns floats."""
    known: set[object] = set()
    yield from _flows(op_class)
    for dtype in legal_dtypes(op_class):
        for case in cases_of(op_class, dtype, "full"):
            types = tuple(TensorType.of(array) for array in case.inputs)
            key = case.op, types, len(case.regions)
            if case.error or key in known or not _is_smooth(case, types):
                continue
            if all(type_.size <= _LARGEST for type_ in types):
                known.add(key)
                yield case


def _is_smooth(case: OpCase, operands: Sequence[TensorType]) -> bool:
    """Return whether the op has a derivative, and results that differences can be taken of."""
    if case.op.name in _NO_PRODUCTS and getattr(case.op, "kind", None) in ("prod", "mul"):
        return False
    if getattr(case.op, "accum_dtype", None) not in (None, dtypes.f64):
        return False
    bodies = [*case.regions, *(each.body for each in case.functions[-1:])]
    results = case.op.result_types(operands, [body.signature for body in bodies])
    floats = [type_.dtype for type_ in (*operands, *results) if type_.dtype.is_float]
    return dtypes.f64 in {type_.dtype for type_ in operands} and set(floats) == {dtypes.f64}


def run_derivative(backend: Backend, case: OpCase) -> Outcome:
    """Run a case in both modes; returns an Outcome whatever the backend raises."""
    try:
        with use_backend(backend):
            return _judged(case)
    except UnsupportedError as error:
        return Outcome("refused", str(error))
    except GptrsError as error:
        return Outcome("fail", f"raised {type(error).__name__}: {error}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a backend under test may raise anything, SystemExit, too
        return Outcome("fail", f"raised {type(error).__name__}, which is not a GptrsError: {error}")


def _judged(case: OpCase) -> Outcome:
    random = np.random.default_rng(1)
    inputs = [_moderate(case, at, random) for at in range(len(case.inputs))]
    if isinstance(case.op, e.Rem):  # it jumps where the ratio is an integer
        inputs[0] = inputs[1] * (2 + random.uniform(0.2, 0.8, inputs[1].shape))
    moving = [at for at, array in enumerate(inputs) if array.dtype == np.float64]
    points = [inputs[at] for at in moving]
    moved = [random.uniform(-1, 1, point.shape) for point in points]
    loss = partial(_loss, case, inputs, moving)
    value = jit(loss)
    # The step that varies is an argument, so that both sides run the same program.
    sides = [
        float(value(*(made_tensor(x + step * v) for x, v in zip(points, moved, strict=True))))
        for step in (_STEP, -_STEP)
    ]
    wanted = (sides[0] - sides[1]) / (2 * _STEP)
    at, along = [made_tensor(x) for x in points], [made_tensor(v) for v in moved]
    found = {"forward": float(jit(partial(_along, loss))(at, along))}
    if not isinstance(case.op, While):
        gradient = cast("Sequence[Tensor]", jit(grad(loss, range(len(points))))(*at))
        pairs = zip(gradient, moved, strict=True)
        found["reverse"] = sum(float(np.sum(each.numpy() * v)) for each, v in pairs)
    # The second part is the rounding of the two values, divided by the step: it grows with them,
    # not with their difference.
    slack = 1e-6 * (1 + abs(wanted)) + 1e-9 * max(map(abs, sides))
    for mode, slope in found.items():
        # `not <=`, as NaN must fail.
        if not abs(slope - wanted) <= slack:
            return Outcome("fail", f"{mode} derivative {slope!r}, by differences {wanted!r}")
    return Outcome("pass")


def _loss(
    case: OpCase, inputs: Sequence[np.ndarray], moving: Sequence[int], *points: Tensor
) -> Tensor:
    """Return a sum of all float results, each element with its own weight."""
    operands = [made_tensor(array) for array in inputs]
    for at, point in zip(moving, points, strict=True):
        operands[at] = point
    found = zeros((), "f64")
    results = apply_many(case.op, *operands, regions=case.regions, functions=case.functions)
    for result in results:
        if result.dtype.is_float:
            # Unequal weights: with a plain sum, derivatives that land on wrong elements would
            # cancel.
            weights = np.linspace(0.5, 1.5, result.size).reshape(result.shape)
            parts = result * made_tensor(weights)
            # Padding, and the identities of max and min, are constants.
            found = found + total(where(is_finite(result), parts, 0.0))
    return found


def _along(
    loss: Callable[..., Tensor], points: Sequence[Tensor], moved: Sequence[Tensor]
) -> Tensor:
    return cast("Tensor", jvp(loss, points, moved)[1])


def _moderate(case: OpCase, at: int, random: np.random.Generator) -> np.ndarray:
    """Return distinct numbers instead of the f64 ones of an operand, other ones as they are.

    No number of another operand is near, either.
    """
    array = case.inputs[at]
    if array.dtype != np.float64:
        return array
    shift = (at + 0.3 * random.uniform(0, 1, array.size)) / len(case.inputs)
    spread = 0.3 + 1.6 * (np.arange(array.size) + shift) / max(array.size, 1)
    found = random.permutation(spread).reshape(array.shape)
    return found if isinstance(case.op, _POSITIVE) else found * random.choice([-1, 1], array.shape)


# Random programs: their derivatives in both modes, and on two backends.


def derived_program(program: Program, seed: int) -> Program | None:
    """Return the program of the derivatives of `program` in both modes; None if it has none.

    It takes the parameters of `program`. Its results are the cotangents of the float parameters,
    all cotangents of the results being 1; then the slope of the sum of the results in a
    direction made of `seed`, in reverse mode and again in forward mode.
    """
    body = program.main.body
    functions = {each.name: each for each in program.functions if each is not program.main}
    wanted = [param.type.dtype.is_float for param in body.params]
    random = np.random.default_rng(seed)
    moved = [
        constant(random.uniform(-1, 1, param.type.shape), param.type.dtype) if varies else None
        for param, varies in zip(body.params, wanted, strict=True)
    ]

    directions = [each for each in moved if each is not None]

    def derived(*inputs: Tensor) -> list[Tensor]:
        ran = Linearized(body, functions, inputs, wanted)
        ones = [filled(1, each) if each.dtype.is_float else None for each in ran.results]
        pulled = [
            filled(0, x) if found is None else found
            for x, found, varies in zip(inputs, ran.pull(ones), wanted, strict=True)
            if varies
        ]
        pushed = push(body, functions, inputs, moved).tangents
        slopes = [
            _sum_of([x * v for x, v in zip(pulled, directions, strict=True)]),
            _sum_of([each for each in pushed if each is not None]),
        ]
        return [*pulled, *slopes]

    try:
        return jit(derived).lower(
            *(zeros(each.type.shape, each.type.dtype) for each in body.params)
        )
    except UsageError:
        return None


def _sum_of(parts: Sequence[Tensor]) -> Tensor:
    found = constant(0.0)
    for part in parts:
        found = found + total(part.astype("f64"))
    return found


def far_apart(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Return whether two f64 results differ by more than rounding on the way can explain."""
    same = np.isfinite(found) & np.isfinite(wanted)
    scale = 1 + np.abs(wanted[same]).max(initial=0)
    if not np.array_equal(found[~same], wanted[~same], equal_nan=True):
        return True
    return bool(np.any(np.abs(found[same] - wanted[same]) > 1e-6 * scale))


# Branches, loops and calls: the kit runs them on other types.


def _body(takes: int, gives: Callable[[Builder, Sequence[Value]], Sequence[Value]]) -> Region:
    """Return a region of `takes` parameters of f64[3]."""
    builder = Builder()
    params = [builder.param(_VECTOR) for _ in range(takes)]
    return builder.region(*gives(builder, params))


def _step(builder: Builder, values: Sequence[Value]) -> list[Value]:
    """(a, b, x) -> (sin(a) * b, b, x * a)"""
    a, b, x = values
    return [builder.emit(e.Mul(), builder.emit(e.Sin(), a), b), b, builder.emit(e.Mul(), x, a)]


def _other(builder: Builder, values: Sequence[Value]) -> list[Value]:
    """(a, b, x) -> (a, x, b)"""
    a, b, x = values
    return [a, x, b]


def _is_below(builder: Builder, values: Sequence[Value]) -> list[Value]:
    """(a, b, x) -> max(a) > 1/4"""
    greatest = builder.emit(Reduce("max", (0,)), values[0])
    limit = builder.emit(Constant(Literal.of(np.asarray(0.25))))
    return [builder.emit(e.Compare("gt"), greatest, limit)]


def _shrinking(builder: Builder, values: Sequence[Value]) -> list[Value]:
    """(a, b, x) -> (a * sin(x)^2 * logistic(b), b * a, x)"""
    a, b, x = values
    half = builder.emit(e.Mul(), builder.emit(e.Sin(), x), builder.emit(e.Sin(), x))
    half = builder.emit(e.Mul(), half, builder.emit(e.Logistic(), b))
    return [builder.emit(e.Mul(), a, half), builder.emit(e.Mul(), b, a), x]


_VECTOR = TensorType(dtypes.f64, (3,))


def _flows(op_class: type[Op]) -> Iterator[OpCase]:
    one = np.ones(3)
    function = Function("step", _body(3, _step))
    composite = Composite("test.step.v1", FunctionName("step"), "a b x")
    regions = _body(3, _step), _body(3, _other)
    made: dict[type[Op], list[OpCase]] = {
        Cond: [
            OpCase(Cond(), (np.array(which), one, one, one), (), regions=regions)
            for which in (False, True)
        ],
        Scan: [
            OpCase(Scan(2, None, reverse), (one, one, np.ones((4, 3))), (), regions=regions[:1])
            for reverse in (False, True)
        ],
        While: [
            OpCase(
                While(), (one, one, one), (), regions=(_body(3, _is_below), _body(3, _shrinking))
            )
        ],
        Call: [OpCase(Call(FunctionName("step")), (one, one, one), (), functions=(function,))],
        Composite: [OpCase(composite, (one, one, one), (), functions=(function,))],
    }
    yield from made.get(op_class, [])

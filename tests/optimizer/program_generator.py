"""Seeded random programs that are well typed and raise nothing when they run."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np

from gptrs.ir import Builder, DType, Literal, Op, Program, TensorType, Value, dtypes
from gptrs.ir.ops import contraction, creation, elementwise, layout, reduction

MAX_SIZE = 256
DTYPES = (dtypes.f32, dtypes.f32, dtypes.bf16, dtypes.si32, dtypes.ui8, dtypes.i1)
FLOAT_UNARY = (elementwise.Tanh, elementwise.Exp, elementwise.Neg, elementwise.Sqrt)
INTEGER_UNARY = (elementwise.Not, elementwise.Neg)
NUMBER_BINARY = (elementwise.Add, elementwise.Mul, elementwise.Sub, elementwise.Maximum)
BOOL_BINARY = (elementwise.And, elementwise.Or, elementwise.Xor)


def random_program(seed: int, instructions: int = 40) -> Program:
    """A program of about that many instructions; the same one for the same seed."""
    return _Generator(seed).program(instructions)


def random_inputs(program: Program, seed: int) -> list[np.ndarray]:
    """One array for each parameter of `@main`; floats include infinities, NaN and -0.0."""
    rng = np.random.default_rng(seed)
    return [_random_array(rng, param.type) for param in program.main.body.params]


def _random_array(rng: np.random.Generator, type_: TensorType) -> np.ndarray:
    storage = type_.dtype.numpy
    if type_.dtype.is_bool:
        return rng.integers(0, 2, type_.shape).astype(storage)
    if type_.dtype.is_integer:
        return rng.integers(0, 100, type_.shape).astype(storage)
    values = rng.normal(size=type_.shape)
    special = rng.choice([np.inf, -np.inf, np.nan, -0.0], size=type_.shape)
    return np.where(rng.random(type_.shape) < 0.02, special, values).astype(storage)


class _Generator:
    """Adds one random instruction after another to a pool of values."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.builder = Builder()
        self.values: list[Value] = []
        self.applied: list[tuple[Op, tuple[Value, ...]]] = []
        self.steps: list[Callable[[], None]] = [
            *[self.layout] * 6,
            *[self.layout_chain] * 3,
            *[self.repeat] * 3,
            *[self.unary] * 2,
            *[self.binary] * 3,
            self.constant,
            self.select,
            self.cast,
            self.reduce,
            self.dot,
            self.slice,
            self.concat,
        ]

    def program(self, instructions: int) -> Program:
        for number in range(self.random.randint(1, 4)):
            type_ = TensorType(self.random.choice(DTYPES), self.shape(self.random.randint(0, 4)))
            self.values.append(self.builder.param(type_, f"x{number}"))
        while len(self.applied) < instructions:
            self.random.choice(self.steps)()
        # Parameters and repeated values are results too.
        return self.builder.program(*self.random.choices(self.values, k=self.random.randint(2, 12)))

    def emit(self, op: Op, *operands: Value) -> None:
        (type_,) = op.result_types([operand.type for operand in operands])
        if type_.size <= MAX_SIZE:
            self.values.append(self.builder.emit(op, *operands))
            self.applied.append((op, operands))

    def shape(self, rank: int) -> tuple[int, ...]:
        return tuple(self.random.choices((0, 1, 2, 3, 4), (1, 10, 12, 8, 5), k=rank))

    def pick(self, fits: Callable[[Value], bool] = lambda value: True) -> Value | None:
        """A value of the pool that fits, preferably a late one, so that chains grow."""
        fitting = [value for value in self.values if fits(value)]
        if not fitting:
            return None
        return self.random.choice(fitting[-4:] if self.random.random() < 0.6 else fitting)

    def any(self) -> Value:
        return self.random.choice(self.values[-4:] if self.random.random() < 0.6 else self.values)

    def repeat(self) -> None:
        """An instruction over again: a common subexpression."""
        if self.applied:
            op, operands = self.random.choice(self.applied)
            self.emit(op, *operands)

    def layout_chain(self) -> None:
        """Layout ops on one another, more often than not of one kind."""
        steps = (self.reshape, self.transpose, self.broadcast)
        favourite = self.random.choice(steps)
        self.random.choice(steps)(self.any())
        for _ in range(self.random.randint(2, 4)):
            step = favourite if self.random.random() < 0.7 else self.random.choice(steps)
            step(self.values[-1])

    def layout(self) -> None:
        self.random.choice((self.reshape, self.transpose, self.broadcast))(self.any())

    def reshape(self, x: Value) -> None:
        shape = list(self.factors(x.type))
        if self.random.random() < 0.2:
            shape = list(x.type.shape)
        if shape and self.random.random() < 0.3:
            axis = self.random.randrange(len(shape))
            if math.prod(shape[:axis] + shape[axis + 1 :]):
                shape[axis] = -1
        self.emit(layout.Reshape(tuple(shape)), x)

    def factors(self, type_: TensorType) -> tuple[int, ...]:
        """Dims, some of them 1, whose product is the size of the type."""
        if type_.size == 0:
            return tuple(self.random.sample((0, 1, 3), k=3))
        dims: list[int] = []
        rest = type_.size
        while rest > 1 and len(dims) < 3:
            dim = self.random.choice([d for d in range(2, rest + 1) if rest % d == 0])
            dims.append(dim)
            rest //= dim
        dims += [rest] if rest > 1 else []
        dims += [1] * self.random.choice((0, 0, 1, 2))
        self.random.shuffle(dims)
        return tuple(dims)

    def transpose(self, x: Value) -> None:
        axes = list(range(x.type.rank))
        if self.random.random() < 0.8:
            self.random.shuffle(axes)
        self.emit(layout.Transpose(tuple(axes)), x)

    def broadcast(self, x: Value) -> None:
        grow = self.random.random() < 0.5
        dims = [self.random.choice((1, 2, 3)) if dim == 1 and grow else dim for dim in x.type.shape]
        lead = self.random.choice(((), (), (1,), (2,))) if x.type.rank < 4 else ()
        self.emit(layout.BroadcastTo((*lead, *dims)), x)

    def unary(self) -> None:
        x = self.any()
        choices = FLOAT_UNARY if x.type.dtype.is_float else INTEGER_UNARY
        op = elementwise.Not if x.type.dtype.is_bool else self.random.choice(choices)
        self.emit(op(), x)

    def binary(self) -> None:
        x = self.any()
        y = self.pick(lambda value: value.type == x.type) or x
        if self.random.random() < 0.2:
            self.emit(elementwise.Compare(self.random.choice(("lt", "eq", "ne"))), x, y)
        else:
            self.emit(self.random.choice(_binaries(x.type.dtype))(), x, y)

    def constant(self) -> None:
        type_ = TensorType(self.random.choice(DTYPES), self.shape(self.random.randint(0, 2)))
        # Few distinct ones, so that equal constants meet.
        rng = np.random.default_rng(self.random.randrange(3))
        self.emit(creation.Constant(Literal.of(_random_array(rng, type_))))

    def select(self) -> None:
        predicate = self.pick(lambda value: value.type.dtype.is_bool)
        if predicate is None:
            return
        x = self.pick(lambda value: value.type.shape == predicate.type.shape) or predicate
        y = self.pick(lambda value: value.type == x.type) or x
        self.emit(elementwise.Select(), predicate, x, y)

    def cast(self) -> None:
        self.emit(elementwise.Cast(self.random.choice(DTYPES)), self.any())

    def reduce(self) -> None:
        x = self.pick(lambda value: not value.type.dtype.is_bool)
        if x is not None:
            axes = tuple(axis for axis in range(x.type.rank) if self.random.random() < 0.5)
            kind = self.random.choice(("sum", "max", "min"))
            self.emit(reduction.Reduce(kind, axes, self.random.random() < 0.5), x)

    def dot(self) -> None:
        x = self.pick(lambda value: value.type.rank > 0 and not value.type.dtype.is_bool)
        if x is None:
            return
        axis = self.random.randrange(x.type.rank)
        dim = x.type.shape[axis]
        y = self.pick(lambda v: v.type.dtype is x.type.dtype and dim in v.type.shape) or x
        self.emit(contraction.DotGeneral((axis,), (y.type.shape.index(dim),)), x, y)

    def slice(self) -> None:
        x = self.any()
        starts = [self.random.randint(0, dim) for dim in x.type.shape]
        sizes = [self.random.randint(0 if start == dim else 1, dim - start)
                 for start, dim in zip(starts, x.type.shape, strict=True)]  # fmt: skip
        self.emit(layout.Slice(tuple(starts), tuple(sizes)), x)

    def concat(self) -> None:
        x = self.pick(lambda value: value.type.rank > 0)
        if x is not None:
            y = self.pick(lambda value: value.type == x.type) or x
            self.emit(layout.Concat(self.random.randrange(x.type.rank)), x, y, x)


def _binaries(dtype: DType) -> tuple[type[elementwise.Binary], ...]:
    return BOOL_BINARY if dtype.is_bool else NUMBER_BINARY

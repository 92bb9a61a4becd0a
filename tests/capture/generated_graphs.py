"""Small random graphs that differ in little: what the key of a program must tell apart."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

import gptrs
from gptrs.backend.contract import Backend
from gptrs.capture import primitives
from gptrs.capture.parameter import Parameter
from gptrs.capture.tensor import Tensor, apply
from gptrs.ir import dtypes
from gptrs.ir.literal_text import Literal
from gptrs.ir.ops.creation import Constant
from gptrs.ir.tensor_type import TensorType

SHAPES = [(2,), (2, 2), (4,)]
DTYPES = [dtypes.f32, dtypes.f16, dtypes.bf16]

_BITS = {
    dtypes.f32: [0x3F800000, 0, 0x80000000, 0x7FC00000, 0x7FC00001, 0xFFC00000],
    dtypes.f16: [0x3C00, 0, 0x8000, 0x7E00, 0x7E01, 0xFE00],
    dtypes.bf16: [0x3F80, 0, 0x8000, 0x7FC0, 0x7FC1, 0xFFC0],
}
"""One, the zeros, and NaNs that differ in payload or sign."""


class GraphGenerator:
    """Graphs over `count` values and weights of one type, made anew for each seed."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def graph(self, seed: int) -> list[Tensor]:
        """The outputs of a random graph; few choices each, so that graphs coincide often."""
        rng = random.Random(seed)
        type_ = TensorType(rng.choice(DTYPES), rng.choice(SHAPES))
        values = [gptrs.tensor(np.ones(type_.shape, type_.dtype.numpy)) for _ in range(2)]
        values += [self._weight(f"w{i}", type_) for i in rng.sample(range(2), 2)]
        if rng.random() < 0.2:
            values.append(values[0])
        for _ in range(rng.randint(1, 3)):
            make = rng.choice(_STEPS)
            values.append(make(rng, *rng.choices(values, k=2)))
        return [values[-1], *rng.choices(values[4:], k=rng.randint(0, 1))]

    def _weight(self, name: str, type_: TensorType) -> Tensor:
        array = np.zeros(type_.shape, type_.dtype.numpy)
        key = hash((name, type_))
        return Tensor.of_parameter(Parameter(type_, key, name, lambda: array, self._backend))


def literal(dtype: dtypes.DType, bits: int, shape: tuple[int, ...] = ()) -> Tensor:
    """A constant with these bits in every element."""
    array = np.full(shape, bits, f"u{dtype.itemsize}").view(dtype.numpy)
    return apply(Constant(Literal.of(array)))


def _constant(rng: random.Random, a: Tensor) -> Tensor:
    return literal(a.dtype, rng.choice(_BITS[a.dtype]), a.shape)


def _binary(rng: random.Random, a: Tensor, b: Tensor) -> Tensor:
    op = rng.choice([primitives.add, primitives.sub, primitives.maximum])
    return op(a, b)


def _unary(rng: random.Random, a: Tensor, _: Tensor) -> Tensor:
    return rng.choice([primitives.tanh, primitives.exp])(a)


def _with_literal(rng: random.Random, a: Tensor, _: Tensor) -> Tensor:
    return primitives.add(a, _constant(rng, a))


def _transposed(rng: random.Random, a: Tensor, _: Tensor) -> Tensor:
    return primitives.transpose(a, rng.sample(range(a.rank), a.rank))


def _reduced(rng: random.Random, a: Tensor, b: Tensor) -> Tensor:
    kind, axis = rng.choice(["sum", "max"]), rng.randrange(a.rank)
    reduced = primitives.reduce(a, kind, [axis], keepdims=True)
    return primitives.add(primitives.broadcast_to(reduced, a.shape), b)


def _normalized(rng: random.Random, a: Tensor, b: Tensor) -> Tensor:
    scale = primitives.reshape(b, (b.type.size,))
    scale = primitives.slice(scale, [0], [a.shape[-1]])
    return primitives.layer_norm(a, scale, scale, rng.choice([1e-5, 1e-6, 0.0]))


def _sorted(rng: random.Random, a: Tensor, _: Tensor) -> Tensor:
    values, other = primitives.sort([a, a], a.rank - 1, descending=rng.random() < 0.5)
    return rng.choice([values, other])


def _concat(rng: random.Random, a: Tensor, b: Tensor) -> Tensor:
    parts = rng.choice([[a, b], [a, b, a]])
    return primitives.slice(primitives.concat(parts, 0), [0] * a.rank, a.shape)


def _branch(rng: random.Random, a: Tensor, b: Tensor) -> Tensor:
    predicate = primitives.constant(rng.random() < 0.5)
    then, otherwise = _body(rng), _body(rng)
    return primitives.cond(predicate, lambda x: then(x, b), lambda x: otherwise(x, b), a)[0]


def _loop(rng: random.Random, a: Tensor, b: Tensor) -> Tensor:
    body, reverse = _body(rng), rng.random() < 0.3
    count = rng.choice([1, 2])
    return primitives.scan(lambda x: body(x, b), [a], [], length=count, reverse=reverse)[0][0]


def _called(rng: random.Random, a: Tensor, b: Tensor) -> Tensor:
    return primitives.call(_body(rng), a, b, name=rng.choice(["f", "g"]))[0]


def _foreign(rng: random.Random, a: Tensor, b: Tensor) -> Tensor:
    value: bool | int | float = rng.choice([1, True, 1.0, 0.0, -0.0])
    attrs = {"value": value}
    if rng.random() < 0.5:
        return primitives.custom_call("test.kernel.v1", [a.type], a, b, attrs=attrs)[0]
    return primitives.composite("test.kernel.v1", _body(rng), {"a": a, "b": b}, attrs)[0]


def _body(rng: random.Random) -> Callable[[Tensor, Tensor], Tensor]:
    choice, bits, swap = rng.randrange(3), rng.randrange(6), rng.random() < 0.5

    def run(a: Tensor, b: Tensor) -> Tensor:
        a, b = (b, a) if swap else (a, b)
        if choice == 0:
            return primitives.add(a, literal(a.dtype, _BITS[a.dtype][bits], a.shape))
        return [primitives.sub, primitives.add][choice - 1](a, b)

    return run


_STEPS: list[Callable[[random.Random, Tensor, Tensor], Tensor]] = [
    _binary,
    _binary,
    _unary,
    _with_literal,
    _with_literal,
    _transposed,
    _reduced,
    _normalized,
    _sorted,
    _concat,
    _branch,
    _loop,
    _called,
    _foreign,
]

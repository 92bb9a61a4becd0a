"""Every functional on the backend, lazily and compiled by jit, against NumPy in f64."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np

from gptrs import functionals as F
from gptrs.backend.protocol import Backend
from gptrs.capture.backend_choice import use_backend
from gptrs.capture.jit import jit
from gptrs.capture.tensor import Tensor
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.testing.check import Check, CheckFailure
from gptrs.testing.numerics import decode
from gptrs.testing.running import normal
from gptrs.testing.samples import as_float
from gptrs.testing.tolerance import EXACT, Tolerance

Arrays = tuple[np.ndarray, ...]
Result = TypeVar("Result", np.ndarray, Tensor)
TOLERANCES = {
    "f32": Tolerance.close(1e-5, 5e-6),
    "f16": Tolerance.close(2.0**-8, 2.0**-8),
    "bf16": Tolerance.close(2.0**-5, 2.0**-5),
}
"""A functional is several ops, each of which rounds to the element type."""


@dataclass(frozen=True)
class Use:
    """A call of a functional on arrays, and what NumPy gives for them in f64 (or exactly)."""

    functional: str
    inputs: Arrays
    call: Callable[..., Tensor | Sequence[Tensor]]
    expected: Callable[..., np.ndarray | Sequence[np.ndarray]]
    small_floats: bool = True
    """Whether it is tried with its f32 inputs in f16 and bf16 too."""

    def run(self, backend: Backend) -> None:
        """CheckFailure if a result is wrong; UnsupportedError passes."""
        types = (dtypes.f32, dtypes.f16, dtypes.bf16) if self.small_floats else (dtypes.f32,)
        for dtype in types:
            arrays = tuple(
                as_float(array.astype(np.float64), dtype) if array.dtype == np.float32 else array
                for array in self.inputs
            )
            wanted = _several(self.expected(*map(_wide, arrays)))
            with use_backend(backend):
                tensors = [Tensor.of_array(array) for array in arrays]
                for how, call in (("lazily", self.call), ("by jit", jit(self.call))):
                    found = [result.numpy() for result in _several(call(*tensors))]
                    _compare(found, wanted, dtype, how)

    def check(self) -> Check:
        """The check that this use gives what it should."""
        return Check(f"functional {self.functional}", "full", self.run)


def _wide(array: np.ndarray) -> np.ndarray:
    return decode(array) if dtypes.from_numpy(array.dtype).is_float else array


def _several(found: Result | Sequence[Result]) -> list[Result]:
    return list(found) if isinstance(found, tuple | list) else [cast("Result", found)]


def _compare(
    found: Sequence[np.ndarray], wanted: Sequence[np.ndarray], dtype: DType, how: str
) -> None:
    for index, (result, value) in enumerate(zip(found, wanted, strict=True)):
        type_ = dtypes.from_numpy(result.dtype)
        tolerance = TOLERANCES[dtype.name] if type_.is_float else EXACT
        problem = tolerance.mismatch(result, np.asarray(value), type_)
        if problem:
            raise CheckFailure(f"with {dtype}, {how}: result {index} {problem}")


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _erf(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(value) for value in x.ravel()]).reshape(x.shape)


def _layer_norm(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * w + b


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    return _softmax(np.where(np.tril(np.ones((4, 4), bool)), scores, -np.inf)) @ v


def _updated(cache: np.ndarray, new: np.ndarray, position: np.ndarray) -> np.ndarray:
    after = cache.copy()
    after[:, :, int(position) : int(position) + new.shape[2]] = new
    return after


X, Y = normal(1, 3, 4), normal(2, 3, 4)
HEADS = tuple(normal(seed, 2, 2, 4, 8) for seed in (3, 4, 5))
ROWS = np.array([[2, 0], [4, 4]])
AT = np.array(3)

USES = (
    Use("add", (X, Y), F.add, lambda x, y: x + y),
    Use("sub", (X, normal(3, 4)), F.sub, lambda x, y: x - y),
    Use("mul", (X, normal(4, 3, 1)), F.mul, lambda x, y: x * y),
    Use("div", (X, np.abs(Y) + 1), F.div, lambda x, y: x / y),
    Use("neg", (X,), F.neg, lambda x: -x),
    Use("relu", (X,), F.relu, lambda x: np.maximum(x, 0)),
    Use("tanh", (X,), F.tanh, np.tanh),
    Use("silu", (X,), F.silu, lambda x: x / (1 + np.exp(-x))),
    Use("gelu", (X,), F.gelu, lambda x: x / 2 * (1 + _erf(x / math.sqrt(2)))),
    Use("softmax", (X,), F.softmax, _softmax),
    Use("layer_norm", (X, normal(5, 4), normal(6, 4)), F.layer_norm, _layer_norm),
    Use("embedding", (ROWS, normal(7, 5, 3)), F.embedding, lambda i, w: w[i]),
    Use("linear", (X, normal(8, 5, 4) / 2, normal(9, 5)), F.linear, lambda x, w, b: x @ w.T + b),
    Use("matmul", (normal(1, 2, 1, 3, 4), normal(2, 5, 4, 2) / 2), F.matmul, np.matmul),
    Use(
        "attention", HEADS,
        lambda q, k, v: F.attention(q, k, v, F.causal_mask(4, 4)), _attention,
    ),
    Use("causal_mask", (), lambda: F.causal_mask(2, 4, 1), lambda: np.tri(2, 4, 1, bool)),
    Use(
        "update_cache", (normal(1, 1, 2, 6, 3), normal(2, 1, 2, 2, 3), AT),
        F.update_cache, _updated,
    ),
    Use("arange", (), lambda: F.arange(5, 2), lambda: np.arange(2, 7)),
    Use("reshape", (X,), lambda x: F.reshape(x, (2, -1)), lambda x: x.reshape(2, 6)),
    Use("transpose", (HEADS[0],), lambda x: F.transpose(x, (0, 2, 1, 3)),
        lambda x: x.transpose(0, 2, 1, 3)),
    Use("cast", (X * 10,), lambda x: F.cast(x, dtypes.si32), lambda x: np.trunc(x).astype(int)),
    Use("slice_axis", (X,), lambda x: F.slice_axis(x, -1, 1, 2), lambda x: x[:, 1:3]),
    Use("split", (X,), lambda x: F.split(x, 2), lambda x: [x[:, :2], x[:, 2:]]),
    Use("concat", (X, Y), lambda x, y: F.concat([x, y], 1), lambda x, y: np.concatenate([x, y], 1)),
)  # fmt: skip

CHECKS = [use.check() for use in USES]

"""Uses of the activations and of softmax."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import math

import numpy as np

from gptrs import functionals as F
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Along `axis`."""
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def safe_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Along `axis`, with 0 for a slice in which all elements are -inf."""
    blind = (x == -np.inf).all(axis, keepdims=True)
    return np.where(blind, 0, softmax(np.where(blind, 0, x), axis))


def _erf(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(value) for value in x.ravel()]).reshape(x.shape)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


def _silu(x: np.ndarray) -> np.ndarray:
    return x * _sigmoid(x)


def _gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + _erf(x / math.sqrt(2)))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _hard_sigmoid(x: np.ndarray) -> np.ndarray:
    return np.clip(x + 3, 0, 6) / 6


def _log_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return x - np.logaddexp.reduce(x, axis, keepdims=True)


X = normal(1, 3, 4)
SPREAD = normal(2, 2, 5) * 4
POINT = normal(3)
BATCH = normal(4, 2, 3, 4) * 3
LARGE = np.array([0.0, -0.0, 20.0, -20.0, 88.0, -100.0, 6.0, -3.0, 3.0, 1e-6, np.inf, np.nan],
                 np.float32)  # fmt: skip
EDGES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e30, 6.0, 88.0], np.float32)
ENDS = np.array([np.inf, -np.inf, np.nan, 1e30, -1e30], np.float32)
HIDDEN = np.array([[1e4, 1e4 - 1, -np.inf], [-1e4, -np.inf, -1e4], [0, np.nan, 1], [0, -200, -1e4]],
                  np.float32)  # fmt: skip
COUNTS = np.array([-3, 0, 2, 9])
BLIND = normal(7, 6, 5)
BLIND[1], BLIND[2, 1:], BLIND[4] = -np.inf, -np.inf, -np.inf
BLIND[3, 2], BLIND[4, 1] = np.nan, np.nan

USES = (
    Use("relu", (X,), F.relu, lambda x: np.maximum(x, 0),
        torch=lambda torch, x: torch.relu(x)),
    Use("relu", (EDGES,), F.relu, lambda x: np.maximum(x, 0), "edges",
        torch=lambda torch, x: torch.relu(x)),
    Use("relu", (COUNTS,), F.relu, lambda x: np.maximum(x, 0), "integers",
        torch=lambda torch, x: torch.relu(x)),
    Use("relu6", (X * 5,), F.relu6, lambda x: np.clip(x, 0, 6),
        torch=lambda torch, x: torch.nn.functional.relu6(x)),
    Use("relu6", (EDGES,), F.relu6, lambda x: np.clip(x, 0, 6), "edges",
        torch=lambda torch, x: torch.nn.functional.relu6(x)),
    Use("leaky_relu", (X,), F.leaky_relu, lambda x: np.where(x > 0, x, 0.01 * x),
        torch=lambda torch, x: torch.nn.functional.leaky_relu(x)),
    Use("leaky_relu", (EDGES,), lambda x: F.leaky_relu(x, 0.25),
        lambda x: np.where(x > 0, x, 0.25 * x), "edges",
        torch=lambda torch, x: torch.nn.functional.leaky_relu(x, 0.25)),
    Use("elu", (SPREAD,), F.elu, lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
        torch=lambda torch, x: torch.nn.functional.elu(x)),
    Use("elu", (EDGES,), lambda x: F.elu(x, 1.5),
        lambda x: np.where(x > 0, x, 1.5 * np.expm1(np.minimum(x, 0))), "edges",
        torch=lambda torch, x: torch.nn.functional.elu(x, 1.5)),
    Use("sigmoid", (ENDS,), F.sigmoid, lambda x: np.where(np.isnan(x), x, x > 0), "ends",
        torch=lambda torch, x: torch.sigmoid(x)),
    Use("hard_sigmoid", (LARGE,), F.hard_sigmoid, _hard_sigmoid,
        torch=lambda torch, x: torch.nn.functional.hardsigmoid(x)),
    Use("softplus", (LARGE,), F.softplus, lambda x: np.logaddexp(0, x),
        torch=lambda torch, x: torch.nn.functional.softplus(x)),
    Use("softplus", (ENDS,), F.softplus, lambda x: np.maximum(x, 0), "ends",
        torch=lambda torch, x: torch.nn.functional.softplus(x)),
    Use("silu", (X,), F.silu, _silu, torch=lambda torch, x: torch.nn.functional.silu(x)),
    Use("silu", (LARGE,), F.silu, _silu, "large",
        torch=lambda torch, x: torch.nn.functional.silu(x)),
    Use("hard_swish", (LARGE,), F.hard_swish, lambda x: x * _hard_sigmoid(x),
        torch=lambda torch, x: torch.nn.functional.hardswish(x)),
    Use("gelu", (X,), F.gelu, _gelu, torch=lambda torch, x: torch.nn.functional.gelu(x)),
    Use("gelu", (POINT,), F.gelu, _gelu, "rank 0",
        torch=lambda torch, x: torch.nn.functional.gelu(x)),
    Use("gelu", (LARGE,), F.gelu, _gelu, "large",
        torch=lambda torch, x: torch.nn.functional.gelu(x)),
    Use("gelu", (SPREAD,), lambda x: F.gelu(x, "tanh"), _gelu_tanh, "tanh",
        torch=lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh")),
    Use("gelu", (LARGE,), lambda x: F.gelu(x, "tanh"), _gelu_tanh, "tanh, large",
        torch=lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh")),
    Use("gelu", (SPREAD,), lambda x: F.gelu(x, "quick"), lambda x: x * _sigmoid(1.702 * x),
        "quick", torch=lambda torch, x: x * torch.sigmoid(1.702 * x)),
    Use("swiglu", (BATCH, BATCH[::-1].copy()), F.swiglu, lambda g, v: _silu(g) * v,
        torch=lambda torch, g, v: torch.nn.functional.silu(g) * v),
    Use("swiglu", (BATCH,), F.swiglu, lambda x: _silu(x[..., :2]) * x[..., 2:], "fused",
        torch=lambda torch, x: torch.nn.functional.silu(x[..., :2]) * x[..., 2:]),
    Use("geglu", (X, X[::-1].copy()), F.geglu, lambda g, v: _gelu(g) * v,
        torch=lambda torch, g, v: torch.nn.functional.gelu(g) * v),
    Use("geglu", (X,), lambda x: F.geglu(x, approximate="tanh"),
        lambda x: _gelu_tanh(x[:, :2]) * x[:, 2:], "fused, tanh",
        torch=lambda torch, x:
            torch.nn.functional.gelu(x[:, :2], approximate="tanh") * x[:, 2:]),
    Use("softmax", (X,), F.softmax, softmax, torch=lambda torch, x: torch.softmax(x, -1)),
    Use("softmax", (BATCH,), lambda x: F.softmax(x, 0), lambda x: softmax(x, 0), "first axis",
        torch=lambda torch, x: torch.softmax(x, 0)),
    Use("softmax", (BATCH,), lambda x: F.softmax(x, 1), lambda x: softmax(x, 1), "middle axis",
        torch=lambda torch, x: torch.softmax(x, 1)),
    Use("softmax", (HIDDEN,), F.softmax, softmax, "large and hidden", small_floats=False,
        torch=lambda torch, x: torch.softmax(x, -1)),
    # Longer than a vector of any processor, by a part of one.
    Use("softmax", (normal(9, 75),), F.softmax, softmax, "a vector",
        torch=lambda torch, x: torch.softmax(x, -1)),
    Use("softmax", (normal(9, 2, 1, 3, 2),), lambda x: F.softmax(x, -3),
        lambda x: softmax(x, -3), "an axis of 1", torch=lambda torch, x: torch.softmax(x, -3)),
    Use("softmax", (normal(5, 2, 0),), F.softmax, lambda x: x, "empty axis",
        torch=lambda torch, x: torch.softmax(x, -1)),
    Use("safe_softmax", (X,), F.safe_softmax, softmax),
    Use("safe_softmax", (BLIND,), F.safe_softmax, safe_softmax, "blind rows",
        torch=lambda torch, x: torch.ops.aten._safe_softmax(x, -1)),
    Use("safe_softmax", (BLIND.T,), lambda x: F.safe_softmax(x, 0),
        lambda x: safe_softmax(x, 0), "blind columns",
        torch=lambda torch, x: torch.ops.aten._safe_softmax(x, 0)),
    Use("safe_softmax", (normal(5, 2, 0),), F.safe_softmax, lambda x: x, "empty axis"),
    Use("log_softmax", (X,), F.log_softmax, _log_softmax,
        torch=lambda torch, x: torch.log_softmax(x, -1)),
    Use("log_softmax", (BATCH * 5,), lambda x: F.log_softmax(x, 1),
        lambda x: _log_softmax(x, 1), "middle axis",
        torch=lambda torch, x: torch.log_softmax(x, 1)),
    Use("log_softmax", (HIDDEN,), F.log_softmax, _log_softmax, "large and hidden",
        small_floats=False, torch=lambda torch, x: torch.log_softmax(x, -1)),
    Use("log_softmax", (normal(6, 0, 3),), lambda x: F.log_softmax(x, 0), lambda x: x,
        "empty axis", torch=lambda torch, x: torch.log_softmax(x, 0)),
)  # fmt: skip

"""Calls of `conv2d`, what they should give in f64, and how they are run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

import gptrs
from gptrs import functionals as F
from gptrs.api.backends import Backend
from gptrs.capture.parameter import Parameter
from gptrs.capture.tensor import Tensor
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.backend import NumbaBackend, create


@dataclasses.dataclass(frozen=True)
class Case:
    """A call of `conv2d` with what follows it."""

    image: tuple[int, ...]
    outputs: int
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((1, 1), (1, 1))
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    normalized: bool = True
    residual: bool = False
    activation: str = "none"


def arrays_of(case: Case) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    n, rows, columns, channels = case.image
    weight = (case.outputs, channels // case.groups, *case.kernel)
    low = [sum(pair) for pair in case.padding]
    shape = [n]
    for size, kernel, stride, dilation, pad in zip(
        (rows, columns), case.kernel, case.stride, case.dilation, low, strict=True
    ):
        shape.append((size + pad - (kernel - 1) * dilation - 1) // stride + 1)
    shapes = {
        "x": case.image, "weight": weight, "scale": (case.outputs,), "shift": (case.outputs,),
        "residual": (*shape, case.outputs),
    }  # fmt: skip
    return {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }


def expected(case: Case, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The convolution by its definition, in f64."""
    x, weight, scale, shift, residual = (array.astype(np.float64) for array in arrays.values())
    x = np.pad(x, ((0, 0), *case.padding, (0, 0)))
    out = np.zeros(residual.shape)
    _, rows, columns, _ = residual.shape
    per_group = case.outputs // case.groups
    inputs = weight.shape[1]
    for group in range(case.groups):
        to = slice(group * per_group, (group + 1) * per_group)
        part = x[..., group * inputs : (group + 1) * inputs]
        for i in range(case.kernel[0]):
            for j in range(case.kernel[1]):
                top, left = i * case.dilation[0], j * case.dilation[1]
                seen = part[:, top :: case.stride[0], left :: case.stride[1]]
                out[..., to] += seen[:, :rows, :columns] @ weight[to, :, i, j].T
    if case.normalized:
        out = out * scale + shift
    if case.residual:
        out = out + residual
    return activated(case.activation, out)


def activated(activation: str, x: np.ndarray) -> np.ndarray:
    """An activation by its definition, in f64."""
    if activation == "silu":
        with np.errstate(over="ignore", invalid="ignore"):
            return x / (1 + np.exp(-x))
    if activation == "hard_swish":
        return x * np.clip(x + 3, 0, 6) / 6
    bounds = {"none": (-np.inf, np.inf), "relu": (0, np.inf), "relu6": (0, 6)}
    return np.clip(x, *bounds[activation])


def parameter(name: str, array: np.ndarray, backend: Backend) -> Tensor:
    key = hash((name, array.tobytes())) % 2**127
    return Tensor.of_parameter(Parameter(TensorType.of(array), key, name, lambda: array, backend))


def computed(
    case: Case,
    arrays: dict[str, np.ndarray],
    given: NumbaBackend | None = None,
    constant: bool = True,
) -> np.ndarray:
    # A backend of its own: compiled programs are kept, whatever the variable said at the time.
    backend = given or create(1)

    def leaf(name: str) -> Tensor:
        if constant and name not in ("x", "residual"):
            return parameter(name, arrays[name], backend)
        return gptrs.tensor(arrays[name])

    with gptrs.use_backend(backend):
        y = F.conv2d(
            leaf("x"), leaf("weight"), None, case.stride, case.padding, case.dilation, case.groups
        )
        if case.normalized:
            y = y * leaf("scale") + leaf("shift")
        if case.residual:
            y = y + leaf("residual")
        return ACTIVATIONS[case.activation](y).numpy()


def require_close(case: Case, bound: float = 1e-5, constant: bool = True) -> None:
    arrays = arrays_of(case)
    wanted = expected(case, arrays)
    found = computed(case, arrays, constant=constant)
    assert found.shape == wanted.shape
    unbounded = expected(dataclasses.replace(case, activation="none"), arrays)
    assert np.abs(found - wanted).max() <= bound * max(1.0, np.abs(unbounded).max())


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x, "relu": F.relu, "relu6": F.relu6, "silu": F.silu,
    "hard_swish": F.hard_swish,
}  # fmt: skip
"""The functionals that may follow."""
EPILOGUES = (
    {},
    {"normalized": False},
    {"activation": "relu"},
    {"residual": True},
    {"residual": True, "activation": "relu", "normalized": False},
    {"residual": True, "activation": "relu6"},
    {"activation": "silu"},
    {"residual": True, "activation": "hard_swish"},
)
"""What may follow a convolution."""

"""The weights of a model as its code sees them: a scope of dotted names over lazy tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gptrs.backend.mapped_pages import release_pages
from gptrs.backend.protocol import Backend
from gptrs.capture import primitives
from gptrs.capture.parameter import Lender, Parameter
from gptrs.capture.tensor import Tensor
from gptrs.checkpoint.missing_tensor import suggest
from gptrs.checkpoint.param_source import ParamSource
from gptrs.checkpoint.parameter_ids import base_param_id, new_namespace, param_key
from gptrs.errors import CheckpointError, UsageError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.elementwise import Cast
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import quoted

_MATRIX = 2
"""The rank of weights of which there is one element for each product."""


class Params:
    """A scope in the names of a checkpoint: `(params / "h" / 3 / "attn").tensor("weight", shape)`.

    Floats are converted to `dtype`; None keeps the stored types. Matrices of bf16 or f16 are kept
    as they are stored, and converted by the programs that read them: that is half the memory, and
    a backend may compute with them as they are. All else is converted when it is loaded, which
    happens at its first use by a program on `backend`. `namespace` separates the parameters of
    models that are loaded side by side; None makes a new one. `origin` names the checkpoint in
    errors. What has a `lender` is in memory only as long as that says so.
    """

    __slots__ = ("_loaded", "_prefix")

    def __init__(
        self,
        source: ParamSource,
        *,
        backend: Backend,
        dtype: DType | None = dtypes.f32,
        namespace: int | None = None,
        origin: str = "the checkpoint",
        lender: Lender | None = None,
    ) -> None:
        if dtype is not None and not dtype.is_float:
            raise UsageError(f"weights are computed with as floats, got the dtype `{dtype}`")
        if namespace is None:
            namespace = new_namespace()
        self._loaded = _Loaded(source, backend, dtype, namespace, origin, lender)
        self._prefix = ""

    def __truediv__(self, part: str | int) -> Params:
        """The scope one level (or, for a dotted `part`, several) further down."""
        below = object.__new__(Params)
        below._loaded = self._loaded
        below._prefix = f"{self._prefix}{part}."
        return below

    def __contains__(self, name: str) -> bool:
        """Whether the checkpoint has the tensor `name` in this scope."""
        return self._prefix + name in self._loaded.names

    def __repr__(self) -> str:
        return f"Params({self._prefix.removesuffix('.')!r})"

    @property
    def backend(self) -> Backend:
        """The backend that the weights are loaded to."""
        return self._loaded.backend

    def tensor(
        self, name: str, shape: Sequence[int] | None = None, *, floating: bool = True
    ) -> Tensor:
        """The weight `name` of this scope, not loaded yet; of one name always the same parameter.

        CheckpointError if the checkpoint lacks it, has it in another shape than the given one, or,
        unless `floating` is false, stores anything but floats.
        """
        parameter = self._loaded.parameter(self._prefix + name)
        if floating and not parameter.type.dtype.is_float:
            raise CheckpointError(
                f"tensor {quoted(parameter.name)} in {quoted(self._loaded.origin, 200)} is"
                f" `{parameter.type}`, the model needs floats",
                hint="save the model in a floating-point type",
            )
        if shape is not None and parameter.type.shape != tuple(shape):
            needed = parameter.type.with_shape(tuple(shape))
            raise CheckpointError(
                f"tensor {quoted(parameter.name)} in {quoted(self._loaded.origin, 200)} is"
                f" `{parameter.type}`, the model needs `{needed}`",
                hint="config.json and the weights are not of one model",
            )
        weight = Tensor.of_parameter(parameter)
        dtype = self._loaded.widened.get(parameter.name)
        return weight if dtype is None else primitives.cast(weight, dtype)

    def unused(self) -> list[str]:
        """The tensors of this scope that were never asked for, in the order of the checkpoint."""
        names = self._loaded.source.names()
        asked = self._loaded.asked()
        return [name for name in names if name.startswith(self._prefix) and name not in asked]


class _Loaded:
    """What all scopes of one loaded model share: the source and the parameters made so far."""

    def __init__(
        self,
        source: ParamSource,
        backend: Backend,
        dtype: DType | None,
        namespace: int,
        origin: str,
        lender: Lender | None,
    ) -> None:
        self.source = source
        self.names = frozenset(source.names())
        self.backend = backend
        self.origin = origin
        self.widened: dict[str, DType] = {}
        """What programs convert those weights to that are kept in a narrower type."""
        self._dtype = dtype
        self._lender = lender
        self._namespace = namespace
        self._parameters: dict[str, Parameter] = {}
        self._lock = threading.Lock()

    def parameter(self, name: str) -> Parameter:
        with self._lock:
            found = self._parameters.get(name)
            if found is None:
                found = self._make(name)
                self._parameters[name] = found
        return found

    def asked(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._parameters)

    def _make(self, name: str) -> Parameter:
        if name not in self.names:
            raise CheckpointError(
                f"{quoted(self.origin, 200)} has no tensor {quoted(name)}, which the model needs",
                hint=suggest(name, self.source.names()),
            )
        base_id = base_param_id(name)
        stored = self.source.type_of(name)
        type = _converted(stored, self._dtype)
        if _stays_narrow(stored, type, self.backend):
            self.widened[name] = type.dtype
            type = stored
        load = partial(_load, self.source.load, base_id, type.dtype)
        key = param_key(self._namespace, base_id)
        zero_copy = stored == type and type.dtype.is_float
        return Parameter(type, key, name, load, self.backend, self._lender, zero_copy=zero_copy)


def _converted(stored: TensorType, dtype: DType | None) -> TensorType:
    return stored.with_dtype(dtype) if dtype is not None and stored.dtype.is_float else stored


def _stays_narrow(stored: TensorType, wanted: TensorType, backend: Backend) -> bool:
    """Whether a weight is large enough to be kept as it is stored, and `backend` can convert it.

    Convolutions and stacks of matrices are better off with one conversion ahead: what is computed
    of their weights, such as a folded batch norm, is computed once then.
    """
    halves = stored.dtype in (dtypes.bf16, dtypes.f16) and wanted.dtype is dtypes.f32
    if not halves or stored.rank != _MATRIX:
        return False
    return backend.refusal(Cast(wanted.dtype), [stored], [wanted]) is None


def _load(read: Callable[[int], np.ndarray], base_id: int, dtype: DType) -> np.ndarray:
    """The stored array if it has the dtype already, else its elements rounded to nearest even."""
    stored = read(base_id)
    with np.errstate(over="ignore", invalid="ignore"):  # to inf and NaN, as `cast` of PTIR says
        array = stored.astype(dtype.numpy, copy=False)
    if array is not stored:
        release_pages(stored)
    return array

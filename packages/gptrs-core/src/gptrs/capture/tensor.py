"""The lazy tensor: a handle to a value in memory, to a parameter, or to a captured computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from gptrs.backend.contract import Backend
from gptrs.backend.sharding import Axes
from gptrs.capture import execute
from gptrs.capture.graph import (
    Argument,
    Captured,
    GraphSlice,
    Leaf,
    Source,
    Stored,
    make_node,
    resolve,
)
from gptrs.capture.methods import Methods, Operators
from gptrs.capture.parameter import Parameter
from gptrs.errors import UsageError
from gptrs.ir.dtypes import DType, DTypeLike, dtype_of, from_numpy
from gptrs.ir.op import Op
from gptrs.ir.program import Function, Region
from gptrs.ir.tensor_type import TensorType

# Placeholders for arguments of captured functions, and the errors where a value is needed.


class Placeholder(Argument):
    """An argument of a function that `gptrs.jit` captures."""

    function: str
    """The name of the function."""
    ended: bool = False
    """Whether the capture has ended: a tensor that still depends on it has leaked."""


def require_known(what: str, source: Source, hint: str) -> None:
    """Raise UsageError if `what` needs the value of a `source` that depends on a placeholder."""
    if source.abstract:
        raise _unknown(what, source, hint)


def _unknown(what: str, source: Source, hint: str) -> UsageError:
    below = GraphSlice([source]).leaves
    placeholders = [leaf for leaf in below if isinstance(leaf, Placeholder)]
    asked = f"{what} needs the value of a `{source.type}`"
    for leaf in placeholders:
        # A leak is reported first: the other advice would not help against it.
        if leaf.ended:
            return _leaked(asked, leaf)
    if placeholders:
        when = f"`gptrs.jit` captures `{placeholders[0].function}`"
    else:
        when = "the body of a loop or branch is captured, or a function to differentiate"
    return UsageError(f"{asked}, which is not known while {when}", hint=hint)


def _leaked(asked: str, leaf: Placeholder) -> UsageError:
    """Return the error for a tensor used after its capture has ended."""
    return UsageError(
        f"{asked} that only stood for an argument of `{leaf.function}` while it was captured",
        hint=f"let `{leaf.function}` return the tensor, and use what its calls return",
    )


def require_own(bound: Sequence[Leaf], name: str) -> None:
    """Raise UsageError if the function `name` closes over a placeholder of another function."""
    for leaf in bound:
        if isinstance(leaf, Placeholder):
            raise _leaked(f"`{name}` uses a `{leaf.type}`", leaf)
        if isinstance(leaf, Argument):
            raise UsageError(
                f"`{name}` uses a `{leaf.type}` that stands for an argument of the body of a loop"
                " or branch",
                hint="pass it as an argument",
            )


_DLPACK_CPU = 1
"""The device type `kDLCPU` of DLPack."""
_KNOWN: set[type] = {Stored, Parameter}
"""The sources whose values are always known."""
_KEEP = "compute with functionals, or return the tensor and read it outside"
_CHOOSE = "choose with `F.where` or a branch functional, or decide by an argument named in `static`"
_STATIC = "compute with the tensor itself, or pass a Python number, which is part of the signature"
_LOOP = "loop over `range(x.shape[0])` and slice, or compute with whole tensors"


@lru_cache(maxsize=4096)
def array_type(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> TensorType:
    """Return `TensorType.of`, cached: every step makes tensors of the same few types."""
    return TensorType(from_numpy(dtype), shape)


class Tensor(Operators, Methods):
    """An immutable tensor of known type whose value is computed when read.

    Make one with `gptrs.tensor`; functionals take and return them. `numpy()` runs everything the
    value depends on as one optimized program.
    """

    __slots__ = ("_source",)

    def __init__(self, source: Source) -> None:
        self._source = source

    @classmethod
    def of_array(cls, array: npt.ArrayLike, axes: Axes | None = None) -> Tensor:
        """Return a tensor with a copy of `array`; ProgramError for dtypes unknown to PTIR.

        `axes` names its axes for backends with a mesh.
        """
        # A copy, since a tensor is immutable, and the caller's array is not.
        copy = np.array(array, order="C")
        return cls(Stored(array_type(copy.dtype, copy.shape), copy, None, axes=axes))

    @classmethod
    def of_batch(cls, array: np.ndarray) -> Tensor:
        """`of_array` for texts or images [B, ..] whose batch axis a mesh may split."""
        return cls.of_array(array, ("batch", *(None,) * (array.ndim - 1)))

    @classmethod
    def of_parameter(cls, parameter: Parameter) -> Tensor:
        """Return a tensor whose value is a weight, loaded when a program first needs it."""
        return cls(parameter)

    @property
    def source(self) -> Source:
        """The source of the value; a captured result becomes a stored value once computed."""
        source = self._source
        if isinstance(source, Captured):
            source = self._source = resolve(source)
        return source

    @property
    def type(self) -> TensorType:
        """Element type and shape."""
        return self._source.type

    @property
    def shape(self) -> tuple[int, ...]:
        """The dims."""
        return self._source.type.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self._source.type.dtype

    @property
    def rank(self) -> int:
        """The number of axes."""
        return self._source.type.rank

    @property
    def ndim(self) -> int:
        """The number of axes, as NumPy calls it."""
        return self.rank

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._source.type.size

    @property
    def backend(self) -> Backend | None:
        """The backend that holds or will compute the value, None if still undecided."""
        return self._source.backend

    def numpy(self) -> np.ndarray:
        """Return the value as a read-only NumPy array; computes it first if need be.

        UsageError inside a function that `gptrs.jit` is capturing, ConsumedTensorError for a tensor
        that was donated.
        """
        return self._read("`numpy()`", _KEEP)

    def item(self) -> bool | int | float | complex:
        """Return the only element as a Python number; UsageError if there are more."""
        return self._item("`item()`", _KEEP)

    def astype(self, dtype: DTypeLike) -> Tensor:
        """Return the tensor converted to `dtype`, a name such as `"bf16"` or a type of NumPy.

        ProgramError for an unknown name.
        """
        return self.cast(dtype_of(dtype))

    def tolist(self) -> object:
        """Return the elements as Python numbers in nested lists, a number for rank 0."""
        return self._read("`tolist()`", _KEEP).tolist()

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        return format(self._item("a format", _KEEP), spec)

    def __dlpack__(self, **wanted: Any) -> Any:
        return self._read("DLPack", _KEEP).copy().__dlpack__(**wanted)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_DLPACK_CPU, 0)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        view = self._read("`np.asarray`", _KEEP)
        return np.array(view, dtype, copy=copy)

    def __bool__(self) -> bool:
        return bool(self._item("`if` or `bool()`", _CHOOSE))

    def __int__(self) -> int:
        return int(self._real_item("`int()`"))

    def __float__(self) -> float:
        return float(self._real_item("`float()`"))

    def __index__(self) -> int:
        asked = "an index or `range`"
        require_known(asked, self.source, _STATIC)
        # An array of one element is no index in NumPy either; it would hide a lost axis.
        if self.dtype.is_integer and self.rank == 0:
            return int(self.numpy())
        raise UsageError(f"{asked} needs an integer tensor of rank 0, got `{self.type}`")

    def __len__(self) -> int:
        return self._leading_dim("`len()`")

    def __iter__(self) -> Iterator[Tensor]:
        require_known("iterating", self.source, _LOOP)
        self._leading_dim("iterating")
        # Read once: a slice of each row would be a program for each.
        return map(Tensor.of_array, self.numpy())

    def __contains__(self, value: object) -> bool:
        return bool(np.any(self._read("`in`", _CHOOSE) == value))

    def _read(self, asked: str, hint: str) -> np.ndarray:
        leaf = self.source
        if leaf.abstract:
            require_known(asked, leaf, hint)
        if isinstance(leaf, Captured):
            flush([self])
            leaf = self.source
        assert not isinstance(leaf, Captured)
        # A view, so that the flag of the array itself, which a backend may write again, stays.
        view = execute.host_value(leaf).view()
        view.flags.writeable = False
        return view

    def _item(self, asked: str, hint: str) -> bool | int | float | complex:
        require_known(asked, self.source, hint)
        if self.type.size != 1:
            raise UsageError(f"{asked} needs a tensor of one element, got `{self.type}`")
        return self.numpy().reshape(()).item()

    def _real_item(self, asked: str) -> float:
        value = self._item(asked, _STATIC)
        if isinstance(value, complex):
            raise UsageError(f"{asked} needs a real number, got `{self.type}`")
        return value

    def _leading_dim(self, asked: str) -> int:
        if not self.rank:
            raise UsageError(f"{asked} needs a tensor with axes, got `{self.type}`")
        return self.shape[0]

    def __repr__(self) -> str:
        source = self.source
        if isinstance(source, Captured | Argument):
            return f"Tensor({self.type}, not computed yet)"
        if isinstance(source, Parameter):
            return f"Tensor({self.type}, parameter `{source.name}`)"
        if source.consumed:
            return f"Tensor({self.type}, donated)"
        return f"Tensor({self.type},\n{self.numpy()!r})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the values in IPython; a plain `repr`, which debuggers call, computes nothing."""
        if isinstance(self.source, Captured):
            flush([self])
        printer.text(repr(self))


def flush(tensors: Sequence[Tensor]) -> None:
    """Compute those of the tensors that have no value yet, as one program."""
    sources = [tensor.source for tensor in tensors]
    execute.materialize([source for source in sources if isinstance(source, Captured)])


_SOURCE: Callable[[Tensor], Source] = attrgetter("_source")
"""The `_source` attribute as a C-level getter: replaying a step reads many."""


def known_leaves(tensors: Sequence[Tensor]) -> list[Leaf] | None:
    """Return the leaves with the values of tensors; compute pending ones as one program.

    None if a value is unknown because a function is being captured.
    """
    sources = list(map(_SOURCE, tensors))
    # Types first: a loop over hundreds of weights would cost more than the step's own work.
    if not _KNOWN.issuperset(map(type, sources)):
        sources = [tensor.source for tensor in tensors]
        if any(source.abstract for source in sources):
            return None
        flush(tensors)
        sources = [tensor.source for tensor in tensors]
    return cast("list[Leaf]", sources)


def apply(op: Op, *operands: Tensor) -> Tensor:
    """Capture one application of `op` with a single result; run it at once in eager mode."""
    (result,) = apply_many(op, *operands)
    return result


def apply_many(
    op: Op,
    *operands: Tensor,
    regions: Sequence[Region] = (),
    functions: Sequence[Function] = (),
) -> tuple[Tensor, ...]:
    """Capture one application of `op` with any number of results."""
    node = make_node(op, [operand.source for operand in operands], regions, functions)
    captured = [Captured(node, index) for index in range(len(node.types))]
    if execute.eager() and not node.abstract:
        execute.materialize(captured)
    return tuple(Tensor(source) for source in captured)


def tensor(value: npt.ArrayLike, dtype: DTypeLike | None = None) -> Tensor:
    """Return a tensor with a copy of the elements of `value` (an array, a number, nested lists).

    Python floats become f32, Python ints si64, unless `dtype` says otherwise; arrays keep their
    type. ProgramError for element types that PTIR does not have, UsageError for nested lists of
    unequal lengths.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise UsageError(f"`tensor` cannot take this `{type(value).__name__}`: {error}") from error
    if dtype is not None:
        array = array.astype(dtype_of(dtype).numpy)
    # Only numbers of Python: an array of f64 was chosen by the user.
    elif not isinstance(value, (np.ndarray, np.generic)) and array.dtype == np.float64:
        array = array.astype(np.float32)
    return Tensor.of_array(array)


def from_dlpack(value: object) -> Tensor:
    """Return a tensor with a copy of an array of another library that supports DLPack.

    UsageError for objects without `__dlpack__`, and for memory that is not the CPU's.
    """
    if not hasattr(value, "__dlpack__"):
        raise UsageError(
            f"`from_dlpack` takes an object with `__dlpack__`, got `{type(value).__name__}`",
            hint="`gptrs.tensor` takes arrays, numbers and nested lists",
        )
    try:
        array = np.from_dlpack(cast("Any", value))
    except (BufferError, RuntimeError, TypeError) as error:
        kind = type(value).__name__
        raise UsageError(f"`from_dlpack` cannot take this `{kind}`: {error}") from error
    return Tensor.of_array(array)


# Exchange of memory with arrays of other libraries without a copy.


def share_array(array: np.ndarray) -> Tensor:
    """Return a tensor over the memory of `array`, which is read when a program runs.

    The caller must not change the array while anything that depends on the tensor is still to be
    computed. A backend copies arrays that it cannot use, such as those not in row-major order.
    ProgramError for dtypes unknown to PTIR.
    """
    return Tensor(Stored(array_type(array.dtype, array.shape), array, None))


def take_array(tensor: Tensor) -> np.ndarray:
    """Return the value of `tensor` as an array that the caller owns, computing it if necessary.

    No copy is made if nothing else refers to the memory, as for a program's result that has not
    been read. The tensor is consumed then: reading it raises ConsumedTensorError.
    """
    source = tensor.source
    # Somebody may still look at a viewed one.
    if not isinstance(source, Stored) or source.viewed or source.consumed or not source.backend:
        return tensor.numpy().copy()
    found = execute.host_value(source)
    # Memory of a mapped file, or of somebody else.
    if not found.flags.writeable:
        return found.copy()
    source.consumed = True
    return found

"""Layers whose weights are parameters: linear, embeddings, convolutions, norms and activations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Protocol, cast

from msgspec import Struct

from gptrs import functionals as F
from gptrs.backend.sharding import Axis
from gptrs.capture.tensor import Tensor
from gptrs.checkpoint.params import Params
from gptrs.errors import ModelError
from gptrs.functionals.pooling import Padding
from gptrs.ir.dtypes import DType
from gptrs.record_fields import field_names


class Watcher(Protocol):
    """Stands in for the calls of modules: reads or replaces what goes in and comes out."""

    def call(
        self,
        module: Module,
        call: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        """Return `call(module, *args, **kwargs)`, or something else."""
        ...

    @property
    def wants_attention(self) -> bool:
        """Whether attention weights are computed for the watcher; nothing else needs them."""
        ...

    def attention_of(self, weights: Tensor) -> Tensor:
        """Return the weights of the attention that is being computed, [H, N, N], or others."""
        ...


WATCHER: ContextVar[Watcher | None] = ContextVar("gptrs_watcher", default=None)
"""The watcher of module calls in this thread, if any."""


class Module:
    """A layer or model. Its attributes are weights (`Tensor`), modules, and lists of modules.

    Attribute names are those of the checkpoint, so that a path in Python equals a name in the file.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__call__" in vars(cls):
            cls.__call__ = _watched(cast("Callable[..., object]", vars(cls)["__call__"]))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield all modules below this one with their dotted names, each before those in it."""
        for name, value in vars(self).items():
            yield from _modules(f"{prefix}{name}", value)

    def named_tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """Yield all weights below this module with their dotted names, in order of definition."""
        for name, value in vars(self).items():
            yield from _walk(f"{prefix}{name}", value)


def _walk(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Module):
        yield from value.named_tensors(f"{name}.")
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _walk(f"{name}.{index}", item)


def _modules(name: str, value: object) -> Iterator[tuple[str, Module]]:
    if isinstance(value, Module):
        yield name, value
        yield from value.named_modules(f"{name}.")
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _modules(f"{name}.{index}", item)


def _watched(call: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(call)
    def watched(self: Module, *args: object, **kwargs: object) -> object:
        watcher = WATCHER.get()
        if watcher is None:  # nearly always; and modules are called while they are captured only
            return call(self, *args, **kwargs)
        return watcher.call(self, call, args, kwargs)

    return watched


class HookPoint(Module):
    """A value inside a module that hooks read and change by the attribute's name: `self.hook_q(x)`.

    The names are those of TransformerLens; one below an attention module is `attn.NAME` there.
    """

    def __call__(self, x: Tensor) -> Tensor:
        """Return `x`."""
        return x


def parts_of(
    value: object, owners: tuple[type, ...] = (Module,)
) -> Mapping[Hashable, object] | None:
    """Return the parts of a container by name or position, None if it is not a container.

    Containers are dicts, lists, tuples, dataclasses, Structs, and objects of `owners`, which
    consist of their attributes.
    """
    kind = type(value)
    if kind is dict:
        return cast("dict[Hashable, object]", value)
    if kind in (tuple, list) or (isinstance(value, tuple) and hasattr(kind, "_make")):
        return dict(enumerate(cast("tuple[object, ...]", value)))
    if isinstance(value, owners):
        has_slots = any(vars(base).get("__slots__") for base in kind.__mro__)
        return None if has_slots else cast("dict[Hashable, object]", vars(value))
    names = field_names(kind)
    if names is None:
        return None
    # Its fields, and other attributes that somebody gave it.
    record = cast("object", value)
    found: dict[Hashable, object] = {name: getattr(record, name) for name in names}
    return {**found, **cast("dict[str, object]", getattr(record, "__dict__", {}))}


# Activation functions by the names that config.json of transformers gives them.


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_python": F.gelu,
    "gelu_new": lambda x: F.gelu(x, "tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, "tanh"),
    "gelu_python_tanh": lambda x: F.gelu(x, "tanh"),
    "gelu_fast": lambda x: F.gelu(x, "tanh"),
    "gelu_accurate": lambda x: F.gelu(x, "tanh"),
    "gelu_10": lambda x: F.clamp(F.gelu(x), -10.0, 10.0),
    "quick_gelu": lambda x: x * F.sigmoid(x * 1.702),
    "hardswish": F.hard_swish,
    "laplace": lambda x: (F.erf((x - 0.707107) / (0.282095 * 2**0.5)) + 1.0) * 0.5,
    "leaky_relu": F.leaky_relu,
    "linear": lambda x: x,
    "mish": lambda x: x * F.tanh(F.softplus(x)),
    "relu": F.relu,
    "relu2": lambda x: F.square(F.relu(x)),
    "relu6": F.relu6,
    "sigmoid": F.sigmoid,
    "silu": F.silu,
    "sqrtsoftplus": lambda x: F.sqrt(F.softplus(x)),
    "swish": F.silu,
    "tanh": F.tanh,
}
"""Each keeps the type of its tensor. The tanh forms of gelu differ in order of rounding only."""


# A model as one function of tensors, captured for other formats and runtimes.


class Computation(Struct, frozen=True):
    """A function of tensors: `inputs` in order, each with its element type and sizes.

    A size that is a name is free, and the same wherever it occurs. `fixed` are names whose sizes
    must be chosen before, with the size that is taken if nothing says another one.
    """

    function: Callable[..., dict[str, Tensor]]
    inputs: Mapping[str, tuple[DType, tuple[int | str, ...]]]
    fixed: Mapping[str, int]


# The convolution layer.


class Conv2d(Module):
    """A convolution of images, [N, H, W, inputs] -> [N, OH, OW, outputs], channels last.

    The weight is stored as torch does, [outputs, inputs / groups, kernel, kernel]. `padding` is as
    in `gptrs.functionals.conv2d`: an integer, "same", ((top, bottom), (left, right)).
    """

    def __init__(
        self,
        params: Params,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        padding: Padding = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        self.weight = params.tensor("weight", (outputs, inputs // groups, kernel, kernel))
        self.bias = params.tensor("bias", (outputs,)) if bias else None
        self._stride = stride
        self._padding: Padding = padding
        self._dilation = dilation
        self._groups = groups

    def __call__(self, x: Tensor) -> Tensor:
        """Convolve `x`; UsageError if it has other channels or is smaller than the kernel."""
        return F.conv2d(
            x,
            self.weight,
            self.bias,
            self._stride,
            self._padding,
            self._dilation,
            self._groups,
        )


# The embedding layer.


class Embedding(Module):
    """A table of `count` vectors of size `width`, looked up by number.

    `axis` names the numbers, for devices that split them: `vocab`.
    """

    def __init__(self, params: Params, count: int, width: int, axis: str | None = None) -> None:
        axes = None if axis is None else (axis, "embed")
        self.weight = params.tensor("weight", (count, width), use="table", axes=axes)
        self.tied_weight = params.tied_table("weight", (count, width))
        self.low_rank = [*(params.table_low_rank(count, width) or ())]
        self.rescaling = params.rescaling()

    def __call__(self, indices: Tensor) -> Tensor:
        """Int [i..] -> [i.., width]."""
        found = F.embedding(indices, self.weight)
        if self.low_rank:
            a, b = self.low_rank
            found = found + F.linear(F.embedding(indices, a), b)
        return found if self.rescaling is None else found * self.rescaling

    def table(self) -> Tensor:
        """Return all vectors as an adapter changes them, [count, width]."""
        if not self.low_rank:
            return self.weight
        a, b = self.low_rank
        found = self.weight + F.linear(a, b)
        return found if self.rescaling is None else found * self.rescaling

    def unembedding(self) -> Tensor:
        """Return the weight of the tied output layer, [count, width].

        It is without the product of an adapter, which is of the lookup alone.
        """
        return self.weight if self.tied_weight is None else self.tied_weight

    def unembed(self, x: Tensor) -> Tensor:
        """Scores of every entry, [..., width] -> [..., count]: the tied output layer."""
        return F.linear(x, self.unembedding())


# The affine layer.


class Linear(Module):
    """`x W^T + b`, [..., inputs] -> [..., outputs].

    `layout` says how the checkpoint stores the weight: "out_in" [outputs, inputs] as torch does, or
    "in_out" [inputs, outputs]. `axes` names inputs and outputs, for devices that split them. The
    product of an unmerged adapter is added; with several adapters each row gets that of its own,
    see `adapter_rows`.
    """

    def __init__(
        self,
        params: Params,
        inputs: int,
        outputs: int,
        bias: bool = True,
        layout: Literal["out_in", "in_out"] = "out_in",
        axes: tuple[Axis | str, Axis | str] | None = None,
    ) -> None:
        shape = (outputs, inputs) if layout == "out_in" else (inputs, outputs)
        use = "linear" if layout == "out_in" else "turned"
        named = axes if axes is None or layout == "in_out" else axes[::-1]
        self.weight = params.tensor("weight", shape, use=use, axes=named)
        added = None if axes is None else axes[1:]
        self.bias = params.tensor("bias", (outputs,), axes=added) if bias else None
        self.low_rank = [[*(factors or ())] for factors in params.low_rank(inputs, outputs)]
        self.rescaling = params.rescaling()
        self.row_adapters: Tensor | None = None
        self._layout: Literal["out_in", "in_out"] = layout

    def __call__(self, x: Tensor) -> Tensor:
        """Map the last axis of `x`."""
        if self.rescaling is not None:
            y = F.linear(x, self.weight, layout=self._layout) + self._added(x)
            y = y * self.rescaling
            return y if self.bias is None else y + self.bias
        y = F.linear(x, self.weight, self.bias, self._layout)
        return y + self._added(x) if any(self.low_rank) else y

    def _added(self, x: Tensor) -> Tensor:
        """Return the product of the adapter of each row."""
        rows = self.row_adapters
        if rows is None or x.rank != _FLAT or x.shape[0] != rows.shape[0]:
            if len(self.low_rank) == 1:
                return _product(x, self.low_rank[0])
            raise ModelError(
                "a layer does not know the adapter of each of its rows",
                hint="run the adapters in separate steps",
            )
        added: Tensor | float = 0.0
        for number, factors in enumerate(self.low_rank, 1):
            if factors:
                own = F.equal(F.expand_dims(rows, 1), number)
                added = F.where(own, _product(x, factors), added)
        assert isinstance(added, Tensor), "there is a product at least"
        return added


_FLAT = 2
"""The rank of the rows of a ragged step."""


def _product(x: Tensor, factors: list[Tensor]) -> Tensor:
    a, b = factors
    return F.linear(F.linear(x, a), b)


@contextmanager
def adapter_rows(modules: Iterable[Module], rows: Tensor) -> Generator[None]:
    """Scope in which row n of the linear layers among `modules` is of adapter `rows[n]`, si32 [N].

    The first adapter is 1. A product is chosen even if there is only one adapter, so that its sums
    are rounded as in a step with several.
    """
    layers = [each for each in modules if isinstance(each, Linear) and any(each.low_rank)]
    try:
        for layer in layers:
            layer.row_adapters = rows
        yield
    finally:
        for layer in layers:
            layer.row_adapters = None


# Normalization layers.


class LayerNorm(Module):
    """Layer normalization over the last axis, of size `width`, with weight and bias.

    The checkpoint stores the weight less `weight_offset`. Without `weight` or `bias` it has none.
    Older checkpoints of encoders, and transformers 5 again, call them `gamma` and `beta`.
    """

    def __init__(
        self,
        params: Params,
        width: int,
        epsilon: float,
        weight_offset: float = 0.0,
        *,
        weight: bool = True,
        bias: bool = True,
    ) -> None:
        old = "gamma" in params
        self.weight = params.tensor("gamma" if old else "weight", (width,)) if weight else None
        self.bias = params.tensor("beta" if old else "bias", (width,)) if bias else None
        self._epsilon = epsilon
        self._weight_offset = weight_offset

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize the last axis of `x`."""
        weight = self.weight
        if weight is not None and self._weight_offset:
            weight = weight + self._weight_offset
        return F.layer_norm(x, weight, self.bias, self._epsilon)


class RMSNorm(Module):
    """Root-mean-square normalization over the last axis, of size `width`, with a weight.

    The checkpoint stores the weight less `weight_offset`, which is 1 in Gemma.
    """

    def __init__(
        self, params: Params, width: int, epsilon: float, weight_offset: float = 0.0
    ) -> None:
        self.weight = params.tensor("weight", (width,))
        self._epsilon = epsilon
        self._weight_offset = weight_offset

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize the last axis of `x`."""
        return F.rms_norm(x, self.weight, self._epsilon, self._weight_offset)


# Batch normalization with the statistics of the training.


class BatchNorm2d(Module):
    """Normalization of `channels` channels, the last axis, by statistics of the training.

    Weights have torch's names: `weight`, `bias`, `running_mean`, `running_var`.
    """

    def __init__(self, params: Params, channels: int, epsilon: float = 1e-5) -> None:
        shape = (channels,)
        self.weight = params.tensor("weight", shape)
        self.bias = params.tensor("bias", shape)
        self.running_mean = params.tensor("running_mean", shape)
        self.running_var = params.tensor("running_var", shape)
        self._epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize `x` [N, H, W, C]."""
        mean, variance = self.running_mean, self.running_var
        return F.batch_norm(x, mean, variance, self.weight, self.bias, self._epsilon)

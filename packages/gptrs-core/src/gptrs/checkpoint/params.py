"""The weights of a model as its code sees them: a scope of dotted names over lazy tensors."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np

from gptrs.backend.contract import Backend
from gptrs.backend.settings import Mesh
from gptrs.backend.sharding import Axes, sharding_of
from gptrs.backend.weight_identity import WeightIdentity, identity_of_computed
from gptrs.capture import primitives
from gptrs.capture.parameter import Parameter, WeightStreamer
from gptrs.capture.tensor import Tensor
from gptrs.checkpoint.adapter_config import LowRankAdapter, LowRankProduct
from gptrs.checkpoint.config_fields import load_as, load_slice, stays_narrow
from gptrs.checkpoint.expert_factors import ExpertWeight, expert_factors
from gptrs.checkpoint.param_source import (
    ComparingSource,
    IdentifyingSource,
    MappedSource,
    ParamSource,
    PartialSource,
    TensorPlan,
    suggest,
)
from gptrs.checkpoint.parameter_ids import base_param_id, new_namespace, param_key
from gptrs.checkpoint.quantized_tensor import (
    Part,
    QuantizedSource,
    QuantizedTensor,
    dequantized,
    reads_quantized,
    stack_of,
)
from gptrs.errors import CheckpointError, UsageError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import quoted

WeightUse = Literal["linear", "turned", "table", "expert"]
"""The use of a matrix: a linear layer [O, I], one that is stored as [I, O], a table of vectors,
or one of a stack of linear layers."""

Factors = tuple[Tensor, Tensor]
"""A [rank, inputs] and B [outputs, rank] of a product that is added to a linear layer."""

_PART = "#"
"""Separates the name of a quantized tensor from that of its part."""
_MATRIX = 2
"""The rank of weights that a product reads once for each result: one element, one multiply."""


class Params:
    """A scope in the names of a checkpoint: `(params / "h" / 3 / "attn").tensor("weight", shape)`.

    Floats are converted to `dtype`; None keeps the stored types. Matrices of bf16 or f16 keep their
    stored type, and the programs that read them convert them: that halves the memory, and a backend
    may compute with them directly. Everything else is converted when it is loaded, at its first use
    by a program on `backend`. Quantized tensors are converted, too, unless `backend` reads them as
    stored: then programs get their parts. `namespace` separates the parameters of several loaded
    models; None creates a new one. `origin` names the checkpoint in errors. With a `streamer`,
    weights are in memory only as long as that holds them. An `adapter` changes linear layers: it is
    merged into f32 weights that are not streamed when they are loaded, and `low_rank` has the
    factors for the others. Several adapters, see `adapted`, are never merged. A `plan` says how
    weights are split over devices, overriding the axis names of models.
    """

    def __init__(
        self,
        source: ParamSource,
        *,
        backend: Backend,
        dtype: DType | None = dtypes.f32,
        namespace: int | None = None,
        origin: str = "the checkpoint",
        streamer: WeightStreamer | None = None,
        adapter: LowRankAdapter | None = None,
        plan: TensorPlan | None = None,
    ) -> None:
        if dtype is not None and not dtype.is_float:
            raise UsageError(f"weights are computed with as floats, got the dtype `{dtype}`")
        self.backend = backend
        self._source = source
        # Checked once: checking a protocol looks up all its names, and models have many weights.
        self._quantized_source = source if isinstance(source, QuantizedSource) else None
        self._mapped_source = source if isinstance(source, MappedSource) else None
        self._partial_source = source if isinstance(source, PartialSource) else None
        self._identifying_source = source if isinstance(source, IdentifyingSource) else None
        self._names = frozenset(source.names())
        self._dtype = dtype
        self._namespace = new_namespace() if namespace is None else namespace
        self._origin = quoted(origin, 200)
        self._streamer = streamer
        self._adapters: Sequence[LowRankAdapter] = () if adapter is None else (adapter,)
        self._merges = streamer is None
        self._adapted = set[str]()
        """The modules of the adapters that the model has, and the weights merged with one."""
        self._merged = set[str]()
        self._replaced = set[str]()
        """Tensors of the checkpoint that an adapter replaces."""
        self._prefix = ""
        # Shared by all scopes of a model, so that one name is one parameter.
        self._parameters: dict[str, Parameter] = {}
        self._read_quantized = set[str]()
        self._left_out = set[str]()
        self._uses: dict[str, WeightUse] = {}
        self._copies: dict[tuple[str, str], bool] = {}
        """Whether the first of two tensors has the values of the second."""
        self._narrow = set[str]()
        """Stacks of matrices that keep a stored type of 2 bytes."""
        self._axes: dict[str, Axes] = {}
        self._plan = plan
        self._lock = threading.Lock()

    def __truediv__(self, part: str | int) -> Params:
        """Return the scope one level (or, for a dotted `part`, several) further down."""
        # Shallow: scopes share the dicts of parameters and the lock.
        below = copy.copy(self)
        below._prefix = f"{self._prefix}{part}."
        return below

    def adapted(self, *adapters: LowRankAdapter) -> Params:
        """Return the same parameters with other adapters, which are not merged."""
        other = copy.copy(self)
        other._adapters, other._merges, other._adapted = adapters, False, set[str]()
        return other

    def unadapted(self) -> list[str]:
        """Return the modules and tensors of the adapters that no layer of the model requested."""
        own = dict.fromkeys(
            name for each in self._adapters for name in (*each.modules, *each.tensors)
        )
        return [name for name in own if name not in self._adapted]

    def idle(self) -> list[str]:
        """Return those of `unadapted` whose weights the checkpoint has and the model never reads.

        What an adapter says of them has no effect.
        """
        unread = self.unused()
        layers = [name.removesuffix(".weight") for name in unread if name.endswith(".weight")]
        found = {each.module_of(layer) for each in self._adapters for layer in layers}
        found |= {each.tensor_of(name) for each in self._adapters for name in unread}
        return [name for name in self.unadapted() if name in found]

    def low_rank(self, inputs: int, outputs: int) -> list[Factors | None]:
        """Return what each adapter adds to this layer: A [rank, inputs], B [outputs, rank], scaled.

        None for an adapter that does not change it, or if `tensor` returned the weight merged.
        CheckpointError for other sizes.
        """
        return [self._factors(adapter, inputs, outputs) for adapter in self._adapters]

    def _factors(self, adapter: LowRankAdapter, inputs: int, outputs: int) -> Factors | None:
        layer = self._prefix.removesuffix(".")
        module = adapter.module_of(layer)
        if module is None:
            return None
        self._adapted.add(module)
        product = adapter.product(module)
        found = product.a.shape[1], product.b.shape[0]
        # Before anything is added: a product of other sizes may broadcast silently.
        if found != (inputs, outputs):
            raise CheckpointError(
                f"the adapter {quoted(str(adapter.path), 200)} changes {quoted(module)} from"
                f" {found[0]} to {found[1]} values, the model has {inputs} and {outputs}",
                hint="it is an adapter of another model",
            )
        # Already in the weight: adding it once more would apply the adapter twice.
        if f"{layer}.weight" in self._merged:
            return None
        name = f"{layer}{_PART}adapter {adapter.digest}"
        # Entries of a table are looked up, so that its vectors have to be the rows of A.
        a = np.ascontiguousarray(product.a.T) if product.is_table else product.a
        return self._factor(f"{name} A", a), self._factor(f"{name} B", product.scaled_b())

    def table_low_rank(self, count: int, width: int) -> Factors | None:
        """Return what the adapter adds to a table of vectors: A [count, rank], B [width, rank].

        None without one. Raises the errors of `low_rank`.
        """
        return self._factors(self._adapters[0], count, width) if self._adapters else None

    def expert_low_rank(self, weight: ExpertWeight) -> Factors | None:
        """Return what the adapter adds to matrices of experts, None without one.

        A [experts, rank, inputs] and B [experts, outputs, rank], scaled. CheckpointError for other
        sizes.
        """
        if len(self._adapters) != 1:  # several are of those that add to linear layers alone
            return None
        (adapter,) = self._adapters
        whole = weight.below(self._prefix)
        found = expert_factors(adapter, whole)
        if found is None:
            return None
        self._adapted.update(found.modules)
        name = f"{whole.name}{_PART}adapter {adapter.digest} block {whole.block}"
        return self._factor(f"{name} A", found.a), self._factor(f"{name} B", found.b)

    def rescaling(self) -> Tensor | None:
        """Return what the outputs of this layer are multiplied by after `low_rank` (DoRA).

        None if the adapter has no magnitudes for it, or if `tensor` returned the weight merged.
        """
        layer = self._prefix.removesuffix(".")
        weight = f"{layer}.weight"
        for adapter in self._adapters:
            module = adapter.module_of(layer)
            product = None if module is None else adapter.product(module)
            if product is None or product.magnitude is None or weight in self._merged:
                continue
            turned = product.is_table or self._uses.get(weight) == "turned"
            name = f"{layer}{_PART}adapter {adapter.digest} rescaling"
            type = TensorType(dtypes.f32, product.magnitude.shape)
            load = partial(self._rescaling, weight, product, turned)
            return self._computed(name, type, load)
        return None

    def _rescaling(self, weight: str, product: LowRankProduct, turned: bool) -> np.ndarray:
        own = self._own(weight)
        if own is not None:
            values = own[1].astype(np.float32)
        else:
            type = self._source.type_of(weight).with_dtype(dtypes.f32)
            values = load_as(self._source, weight, type)
        return product.rescaling(values, turned=turned)

    def _computed(self, name: str, type: TensorType, load: Callable[[], np.ndarray]) -> Tensor:
        with self._lock:
            if name not in self._parameters:
                key = param_key(self._namespace, base_param_id(name))
                self._parameters[name] = Parameter(type, key, name, load, self.backend)
            return Tensor.of_parameter(self._parameters[name])

    def _factor(self, name: str, values: np.ndarray) -> Tensor:
        return self._computed(name, TensorType.of(values), lambda: values)

    def _own(self, name: str) -> tuple[LowRankAdapter, np.ndarray] | None:
        """Return the tensor that an adapter has in place of one of the checkpoint, or None."""
        for adapter in self._adapters:
            own = adapter.tensor_of(name)
            if own is not None:
                return adapter, adapter.tensors[own]
        return None

    def tied_table(self, name: str, shape: Sequence[int]) -> Tensor | None:
        """Return the table of an output layer tied to the table `name`; None if it is the same.

        A table that an adapter has in `modules_to_save` is a copy; the output layer keeps its own.
        """
        whole = self._prefix + name
        for adapter in self._adapters:
            own = adapter.tensor_of(whole)
            if own is not None and adapter.is_apart(own) and whole in self._names:
                return self.adapted().tensor(name, shape, use="table")
        return None

    def stores_apart(self, name: str, table: Params | None) -> bool:
        """Return whether the checkpoint has values of its own for an output layer.

        `name` is its weight, `table` the scope of the `weight` it is tied to, if any. As in
        transformers, a stored copy of the table is not a second weight and is left out. To find
        out, both are read until they differ. What an adapter changes is never a copy.
        """
        if table is None:
            return name in self
        whole, tied = self._prefix + name, f"{table._prefix}weight"
        if whole == tied or name not in self or not (whole in self._names or self._own(whole)):
            return False
        if self._is_changed(whole) or not self._is_copy(whole, tied):
            return True
        with self._lock:
            self._left_out.add(whole)
        return False

    def is_copied(self, name: str) -> bool:
        """Return whether a tensor, by its full name, is one that `stores_apart` left out."""
        return any(found and name == copy for (copy, _), found in self._copies.items())

    def _is_changed(self, name: str) -> bool:
        """Return whether an adapter replaces a weight, or adds to it."""
        layer = name.removesuffix(".weight")
        own = (each.tensor_of(name) or each.module_of(layer) for each in self._adapters)
        return any(found is not None for found in own)

    def _is_copy(self, name: str, other: str) -> bool:
        found = self._copies.get((name, other))
        if found is None:
            source, there = self._source, other in self._names
            found = isinstance(source, ComparingSource) and there and source.is_copy(name, other)
            self._copies[name, other] = found
        return found

    def __contains__(self, name: str) -> bool:
        """Return whether the checkpoint, or an adapter, has the tensor `name` in this scope."""
        whole = self._prefix + name
        return whole in self._names or self._own(whole) is not None

    def __repr__(self) -> str:
        return f"Params({self._prefix.removesuffix('.')!r})"

    def tensor(
        self,
        name: str,
        shape: Sequence[int] | None = None,
        *,
        floating: bool = True,
        use: WeightUse | None = None,
        axes: Axes | None = None,
    ) -> Tensor:
        """Return the weight `name` of this scope, unloaded; the same name always gives the same
        parameter.

        `use` is the purpose of a matrix, which decides about quantization; `axes` names its axes,
        which may be split over devices. CheckpointError if the checkpoint lacks it, has it in
        another shape than `shape`, or, unless `floating` is false, stores anything but floats.
        """
        whole = self._prefix + name
        with self._lock:
            if use is not None:
                # The first use decides: a tied table is also the matrix of the output layer.
                self._uses.setdefault(whole, use)
            if axes is not None:
                self._axes.setdefault(whole, axes)
        quantized = self._quantized(self._prefix + name)
        if quantized is not None:
            self._require_shape(self._prefix + name, quantized.type, shape)
            part_of = partial(self._part, self._prefix + name, quantized)
            return dequantized(quantized, part_of, self._dtype or dtypes.f32)
        parameter = self._parameter(self._prefix + name)
        if floating and not parameter.type.dtype.is_float:
            raise CheckpointError(
                f"tensor {quoted(parameter.name)} in {self._origin} is `{parameter.type}`,"
                " the model needs floats",
                hint="save the model in a floating-point type",
            )
        self._require_shape(parameter.name, parameter.type, shape)
        weight = Tensor.of_parameter(parameter)
        wanted = self._wanted(parameter.type)
        return weight if wanted == parameter.type else primitives.cast(weight, wanted.dtype)

    def stacked(
        self, names: Sequence[str], shape: Sequence[int], axes: Axes | None = None
    ) -> Tensor:
        """Return matrices of one shape, such as experts, as one tensor [G, O, I].

        Those of bf16 or f16 keep their stored type, which the caller converts when reading them:
        the joined copy is as large as the files. `axes` names the axes of each matrix. Raises the
        same errors as `tensor`.
        """
        weights = [self.tensor(name, shape, use="expert", axes=axes) for name in names]
        stored = self._stored_alike([self._prefix + name for name in names])
        parts = weights if stored is None else stored
        rows = [primitives.reshape(part, (1, *shape)) for part in parts]
        return primitives.concat(rows, 0) if len(rows) > 1 else rows[0]

    def stacked_whole(self, name: str, shape: Sequence[int]) -> Tensor:
        """Return a weight [G, I, O] of many matrices; one of bf16 or f16 keeps its stored type.

        The caller converts where it reads it. Raises the same errors as `tensor`.
        """
        with self._lock:
            self._narrow.add(self._prefix + name)
        parameter = self._parameter(self._prefix + name)
        self._require_shape(parameter.name, parameter.type, shape)
        if not parameter.type.dtype.is_float:
            return self.tensor(name, shape)
        return Tensor.of_parameter(parameter)

    def stored_parts(
        self, name: str, shape: Sequence[int]
    ) -> tuple[QuantizedTensor, Mapping[Part, Tensor]] | None:
        """Return a quantized weight as stored, for any backend; None if it is not quantized.

        CheckpointError if the decoded weight has another shape.
        """
        full = self._prefix + name
        if self._quantized_source is None or full not in self._names or self._own(full):
            return None
        found = self._quantized_source.quantized(full)
        if found is None:
            return None
        self._require_shape(full, found.type, shape)
        return found, {part: self._part(full, found, part) for part in found.parts}

    def stacked_parts(
        self, names: Sequence[str], shape: Sequence[int], axes: Axes | None = None
    ) -> tuple[QuantizedTensor, Mapping[Part, Tensor]] | None:
        """Return quantized matrices of one shape [O, I] as one weight [G, O, I], as stored.

        None unless all are quantized alike and the backend reads them in this form. `axes` names
        the axes of each matrix. CheckpointError if the decoded weights have another shape.
        """
        source, full = self._quantized_source, [self._prefix + name for name in names]
        if source is None or not self._names.issuperset(full) or any(map(self._own, full)):
            return None
        first, *others = (source.quantized(name) for name in full)
        if first is None or first.transposed or any(other != first for other in others):
            return None
        stack = stack_of(first, len(full))
        if not reads_quantized(self.backend, stack):
            return None
        self._require_shape(full[0], first.type, shape)
        with self._lock:
            self._uses.update(dict.fromkeys(full, "expert"))
            self._axes |= {} if axes is None else dict.fromkeys(full, axes)
            self._read_quantized.update(full)
        return stack, {part: self._stacked_part(full, stack, part) for part in stack.parts}

    def _stacked_part(self, names: Sequence[str], stack: QuantizedTensor, part: Part) -> Tensor:
        """Return a part of all matrices of a stack as one parameter, unloaded."""
        source, key = self._quantized_source, f"{_PART.join((*names, part))}"
        assert source is not None, "it said how the matrices are quantized"
        type_ = stack.parts[part]

        def load() -> np.ndarray:
            # Filled part by part: joining a list would hold all matrices twice.
            joined = np.empty(type_.shape, type_.dtype.numpy)
            for index, name in enumerate(names):
                joined[index] = source.load_part(name, part)
            return joined

        with self._lock:
            if key not in self._parameters:
                stored = [source.identity_of_part(name, part) for name in names]
                made = self._parameters[key] = Parameter(
                    type_,
                    param_key(self._namespace, base_param_id(key)),
                    f"{names[0]} to {names[-1]}{_PART}{part}",
                    load,
                    self.backend,
                    self._streamer,
                    # Derived from those of the parts, so that packed copies on disk stay valid only
                    # with all of them.
                    identity=identity_of_computed("stacked", stored),
                )
                whole = self._axes_of(names[0], stack.type.rank - 1)
                # A part with fewer rows, such as scales of groups, cannot be split at the same
                # places.
                if whole is not None and type_.shape[1] == stack.shape[1]:
                    made.axes = (None, whole[0], *(None,) * (type_.rank - 2))
            return Tensor.of_parameter(self._parameters[key])

    def _stored_alike(self, names: Sequence[str]) -> list[Tensor] | None:
        """Return weights as stored, None if some are quantized or types differ."""
        if any(self._quantized(name) is not None for name in names):
            return None
        parameters = [self._parameter(name) for name in names]
        if len({parameter.type for parameter in parameters}) > 1:
            return None
        return [Tensor.of_parameter(parameter) for parameter in parameters]

    def _require_shape(self, name: str, type: TensorType, shape: Sequence[int] | None) -> None:
        if shape is not None and type.shape != tuple(shape):
            needed = type.with_shape(tuple(shape))
            own = self._own(name)
            if own is not None:
                raise CheckpointError(
                    f"tensor {quoted(name)} in the adapter {quoted(str(own[0].path), 200)} is"
                    f" `{type}`, the model needs `{needed}`",
                    hint="it is an adapter of another model, or the model has got other tokens",
                )
            raise CheckpointError(
                f"tensor {quoted(name)} in {self._origin} is `{type}`, the model needs `{needed}`",
                hint="config.json and the weights are not of one model",
            )

    def unused(self) -> list[str]:
        """Return the tensors of this scope that `tensor` never returned, in checkpoint order."""
        with self._lock:
            used = frozenset((*self._parameters, *self._read_quantized, *self._replaced))
        names = self._source.names()
        return [name for name in names if name.startswith(self._prefix) and name not in used]

    def unread(self) -> list[str]:
        """Return `unused` without tensors named by `leave_out` and empty ones."""
        left = [name for name in self.unused() if name not in self._left_out]
        return [name for name in left if 0 not in self._source.type_of(name).shape]

    def leave_out(self, below: Params | None = None) -> None:
        """Declare that unused tensors of this scope are ignored intentionally.

        Excludes those of the scope `below`.
        """
        kept = frozenset(() if below is None else below.unused())
        left = [name for name in self.unused() if name not in kept]
        with self._lock:
            self._left_out.update(left)

    def uses(self) -> Mapping[str, WeightUse]:
        """Return the purposes of the matrices that `tensor` returned, by their full names."""
        with self._lock:
            return dict(self._uses)

    def _quantized(self, name: str) -> QuantizedTensor | None:
        """Return how a tensor is quantized if the backend computes with it as stored."""
        if self._quantized_source is None or name not in self._names or self._own(name):
            return None
        found = self._quantized_source.quantized(name)
        return found if found is not None and reads_quantized(self.backend, found) else None

    def _part(self, name: str, quantized: QuantizedTensor, part: Part) -> Tensor:
        """Return a part of a quantized tensor as a separate parameter, unloaded."""
        source, key = self._quantized_source, f"{name}{_PART}{part}"
        assert source is not None, "it said how the tensor is quantized"
        with self._lock:
            self._read_quantized.add(name)
            if key not in self._parameters:
                self._parameters[key] = Parameter(
                    quantized.parts[part],
                    param_key(self._namespace, base_param_id(key)),
                    key,
                    partial(source.load_part, name, part),
                    self.backend,
                    self._streamer,
                    identity=source.identity_of_part(name, part),
                )
                whole, found = self._axes_of(name, quantized.type.rank), quantized.parts[part]
                if whole is not None and found.shape[:1] == quantized.type.shape[:1]:
                    # Codes are packed along the last axis, in groups that must not be split.
                    self._parameters[key].axes = (whole[0], *(None,) * (found.rank - 1))
            return Tensor.of_parameter(self._parameters[key])

    def _parameter(self, name: str) -> Parameter:
        own = self._own(name)
        # The tensor of an adapter must not be taken for that of the base, which others share.
        key = name if own is None else f"{name}{_PART}adapter {own[0].digest}"
        with self._lock:
            if own is not None:
                self._adapted.add(own[0].tensor_of(name) or name)
                self._replaced.add(name)
            if key not in self._parameters:
                made = self._made(name) if own is None else self._made_of(name, key, own[1])
                made.axes = self._axes_of(name, made.type.rank)
                self._parameters[key] = made
            return self._parameters[key]

    def _made_of(self, name: str, key: str, values: np.ndarray) -> Parameter:
        """Return the parameter of a tensor that an adapter has."""
        stored = TensorType.of(values)
        wanted = self._wanted(stored)
        ranks = (3,) if name in self._narrow else (_MATRIX,)
        type = stored if stays_narrow(stored, wanted, self.backend, ranks) else wanted

        def load() -> np.ndarray:
            return values.astype(type.dtype.numpy, copy=False)

        id = param_key(self._namespace, base_param_id(key))
        return Parameter(type, id, name, load, self.backend, read=load)

    def _axes_of(self, name: str, rank: int) -> Axes | None:
        if self._plan is not None:
            return self._plan.axes(name, rank, self._uses.get(name))
        return self._axes.get(name)

    def split_axes(self, mesh: Mesh) -> set[str]:
        """Return the axes of `mesh` that split a weight which `tensor` gave."""
        with self._lock:
            made = list(self._parameters.values())
        found = {name for each in made for name in sharding_of(mesh, each.type.shape, each.axes)}
        return {name for name in found if name is not None}

    def _made(self, name: str) -> Parameter:
        if name not in self._names:
            raise CheckpointError(
                f"{self._origin} has no tensor {quoted(name)}, which the model needs",
                hint=suggest(name, self._source.names()),
            )
        stored = self._source.type_of(name)
        wanted = self._wanted(stored)
        ranks = (3,) if name in self._narrow else (_MATRIX,)
        type = stored if stays_narrow(stored, wanted, self.backend, ranks) else wanted
        key = param_key(self._namespace, base_param_id(name))
        source = self._source
        load = read = partial(load_as, source, name, type)
        read_slice = None
        is_plain = self._quantized_source is None or not self._quantized_source.quantized(name)
        product = self._mergeable(name, type)
        if product is not None and is_plain:
            return self._merged_parameter(name, type, read, product)
        zero_copy = False
        mapped = self._mapped_source if stored == type else None
        if mapped is not None and self.backend.reads_mapped_files:
            zero_copy = type.dtype.is_float and is_plain
            load = partial(mapped.view, name)
        if self._partial_source is not None and is_plain:
            read_slice = partial(load_slice, self._partial_source, name, type)
        # Decoding again is quicker than reading several times the bytes from disk.
        identity = (
            self._identity(name, None if stored == type else type.dtype) if is_plain else None
        )
        return Parameter(
            type, key, name, load, self.backend, self._streamer, (), zero_copy, identity, read,
            read_slice,
        )  # fmt: skip

    def _mergeable(self, name: str, type: TensorType) -> LowRankProduct | None:
        """Return the product to add to a weight of `type` when it is loaded, or None."""
        if not (self._adapters and self._merges) or type.dtype is not dtypes.f32:
            return None
        (adapter,) = self._adapters
        module = adapter.module_of(name.removesuffix(".weight"))
        if module is None or self._uses.get(name) not in ("linear", "turned"):
            return None
        product = adapter.product(module)
        shape = product.b.shape[0], product.a.shape[1]
        turned = self._uses[name] == "turned"
        # Left to `low_rank` otherwise, which reports the sizes.
        return product if type.shape == (shape[::-1] if turned else shape) else None

    def _merged_parameter(
        self, name: str, type: TensorType, read: Callable[[], np.ndarray], product: LowRankProduct
    ) -> Parameter:
        (adapter,) = self._adapters
        self._merged.add(name)
        turned = self._uses[name] == "turned"

        def load() -> np.ndarray:
            return product.merged(read(), turned=turned)

        recipe = f"merged with adapter {adapter.digest}"
        stored = self._identity(name, type.dtype)
        # With the adapter in the key: caches of packed weights are on disk, and outlive this
        # process.
        key = param_key(self._namespace, base_param_id(f"{name}{_PART}{recipe}"))
        identity = None if stored is None else stored.computed(recipe)
        return Parameter(type, key, name, load, self.backend, identity=identity, read=load)

    def _identity(self, name: str, converted: DType | None) -> WeightIdentity | None:
        if self._identifying_source is None:
            return None
        found = self._identifying_source.identity_of(name)
        if found is None or converted is None:
            return found
        return found.computed(f"cast to {converted}")

    def _wanted(self, stored: TensorType) -> TensorType:
        """Return the type that the model computes with."""
        if self._dtype is None or not stored.dtype.is_float:
            return stored
        return stored.with_dtype(self._dtype)

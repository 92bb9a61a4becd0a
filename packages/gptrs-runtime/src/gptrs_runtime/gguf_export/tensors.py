"""The tensors of a model in the form of a GGUF file: renamed, with reordered rows, transposed
matrices, and blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from msgspec import Struct

from gptrs import functionals as F
from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.checkpoint.formats.gguf import RowOrder
from gptrs.checkpoint.formats.gguf_writer import GgufOutgoing
from gptrs.checkpoint.formats.tensor_index import stored_bytes
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.params import WeightUse
from gptrs.errors import ModelError
from gptrs.functionals.rotary import unscaled_frequencies
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import TensorType
from gptrs.nn.rope import RopeSettings
from gptrs.quoting import quoted
from gptrs_runtime.converting.model_content import CONVERTIBLE, in_dtype
from gptrs_runtime.sources.gguf_metadata import GgufSettingsOf, Metadata, Rotary

# Expert matrices in GGUF form: one tensor per layer.


_EXPERT = re.compile(r"(blk\.[0-9]+\.ffn_[a-z]+)\.([0-9]+)\.(weight|bias)")
ROUTER = "ffn_gate_inp"
"""Prefixes of the names of router tensors, which files store in f32."""
_GATE = "ffn_gate_inp_shexp.weight"


def stacked(tensors: Sequence[GgufOutgoing]) -> list[GgufOutgoing]:
    """Return the tensors with the experts `blk.N.ffn_up.E.weight` stacked over E.

    The gate of one output is a vector there. ModelError for experts of several types.
    """
    stacks: dict[str, list[tuple[int, GgufOutgoing]]] = {}
    for tensor in tensors:
        name = tensor.data.name
        found = _EXPERT.fullmatch(name)
        key = name if found is None else f"{found[1]}_exps.{found[3]}"
        stacks.setdefault(key, []).append((0 if found is None else int(found[2]), tensor))
    return [_joined(key, sorted(found, key=lambda each: each[0])) for key, found in stacks.items()]


def _joined(name: str, experts: Sequence[tuple[int, GgufOutgoing]]) -> GgufOutgoing:
    first = experts[0][1]
    if first.data.name == name:
        vector = name.endswith(f".{_GATE}")
        return GgufOutgoing(first.data, first.type_name, first.shape[1:]) if vector else first
    alike = {(tensor.type_name, tensor.shape) for _, tensor in experts}
    if len(alike) > 1 or [number for number, _ in experts] != list(range(len(experts))):
        raise ModelError(
            f"the experts of {quoted(name)} are not of one type and shape, or some are missing",
            hint="a pattern of `--keep` must match all experts of a layer or none",
        )

    def parts() -> Iterator[np.ndarray]:
        for _, tensor in experts:
            yield from tensor.data.parts()

    nbytes = sum(tensor.data.type.size for _, tensor in experts)
    data = OutgoingTensor(name, TensorType(dtypes.ui8, (nbytes,)), parts)
    return GgufOutgoing(data, first.type_name, (len(experts), *first.shape))


_ROPE_FACTORS = "rope_freqs.weight"
_NAMES_OF = {dtypes.f32: "F32", dtypes.f16: "F16", dtypes.bf16: "BF16"}
_MATRIX = 2


class GgufNames(Struct, frozen=True):
    """The names of a model's tensors in the file, and the order of their rows."""

    settings: GgufSettingsOf

    def name_of(self, name: str) -> str:
        """Return the name in the file; ModelError for a tensor without one."""
        stem, _, suffix = name.rpartition(".")
        kind = self.settings.own
        body = kind.layers.rpartition(".")[0]
        for own in (stem, f"{body}.{stem}"):  # some folders leave out the name of the body
            layer, inner = _layer_of(own, kind.layers)
            bare = kind.bare_name(f"{inner}.{suffix}")
            if bare is not None:
                return bare if layer is None else f"blk.{layer}.{bare}"
            known = kind.stem_of(inner)
            if known is not None and suffix in ("weight", "bias"):
                return f"{known}.{suffix}" if layer is None else f"blk.{layer}.{known}.{suffix}"
        raise ModelError(
            f"tensor {quoted(name)} has no name in a GGUF file of the architecture"
            f" `{self.settings.architecture}`",
            hint="`gptrs quantize` without `--to gguf` writes a folder",
        )

    def ordered(self, name: str, load: Callable[[], np.ndarray]) -> Callable[[], np.ndarray]:
        """Return a loader of a tensor by its name in the file, with rows in the file's order."""
        stem = _stem_of(name)
        order = self.settings.own.order_of(stem)
        if order is None:
            return load
        heads, kv_heads = self.settings.heads
        if order == "grouped":
            return partial(_ordered, load, RowOrder(heads, kv_heads))
        return partial(_ordered, load, RowOrder(kv_heads if stem == "attn_k" else heads))

    def offset_of(self, name: str) -> float:
        """Return the offset that the file adds to a tensor, by its name in the file."""
        stem, _, suffix = name.rpartition(".")
        return self.settings.own.offset_of(stem.rpartition(".")[2], suffix)

    def is_moved(self, name: str) -> bool:
        """Return whether the file stores a tensor in another form, by its name in the file."""
        own, stem = self.settings.own, _stem_of(name)
        return stem in own.turned or own.order_of(stem) is not None

    def is_router(self, name: str) -> bool:
        """Return whether a tensor is a router of experts, by its name in the file."""
        return _stem_of(name).startswith(ROUTER)


def plain_tensors(
    source: FileSource,
    names: Sequence[str],
    uses: Mapping[str, WeightUse],
    known: GgufNames,
    dtype: DType | None,
) -> Iterator[GgufOutgoing]:
    """Yield the tensors of `names` as floats: vectors in f32, matrices in `dtype` or their own."""
    for name in names:
        type_ = source.type_of(name)
        if type_.dtype not in CONVERTIBLE:
            raise ModelError(f"tensor {quoted(name)} is `{type_}`, a GGUF file has floats")
        stored, turned = known.name_of(name), uses.get(name) == "turned"
        parts: Callable[[], Iterator[np.ndarray]] = partial(source.parts, name)
        if known.is_moved(stored):
            load = known.ordered(stored, partial(source.load, name))
            parts = partial(_whole, load, turned)
        offset = known.offset_of(stored)
        if offset:
            parts = partial(_more, parts, offset)
        shape = type_.shape[::-1] if turned else type_.shape
        own = dtype or (type_.dtype if type_.dtype in _NAMES_OF else dtypes.f32)
        floats = type_.rank != _MATRIX or known.is_router(stored)
        wanted = dtypes.f32 if floats else own
        given = type_.with_dtype(dtypes.f32) if offset else type_
        outgoing = in_dtype(OutgoingTensor(name, given.with_shape(shape), parts), wanted)
        yield as_bytes(outgoing, stored)


def extra_tensors(settings: GgufSettingsOf) -> list[GgufOutgoing]:
    """Return the tensors of the file that are settings in the model."""
    if settings.rope_factors is None:
        return []
    factors = settings.rope_factors.astype(np.float32)
    return [as_bytes(OutgoingTensor.of(_ROPE_FACTORS, factors), _ROPE_FACTORS)]


def as_bytes(tensor: OutgoingTensor, name: str) -> GgufOutgoing:
    """Return a tensor of plain floats called `name` in the file."""

    def parts() -> Iterator[np.ndarray]:
        for part in tensor.parts():
            yield np.ascontiguousarray(part, tensor.type.dtype.numpy).reshape(-1).view(np.uint8)

    data = OutgoingTensor(name, TensorType(dtypes.ui8, (stored_bytes(tensor.type),)), parts)
    return GgufOutgoing(data, _NAMES_OF[tensor.type.dtype], tensor.type.shape)


def _layer_of(stem: str, layers: str) -> tuple[str | None, str]:
    """Return the number of the layer of a tensor, if it is in one, and its name within."""
    if not stem.startswith(f"{layers}."):
        return None, stem
    number, _, inner = stem.removeprefix(f"{layers}.").partition(".")
    return (number, inner) if number.isdigit() else (None, stem)


def _stem_of(name: str) -> str:
    """Return the name of a tensor in the file without its layer and suffix."""
    stem = name.rpartition(".")[0]
    return stem.split(".", 2)[2] if stem.startswith("blk.") else stem


def _ordered(load: Callable[[], np.ndarray], order: RowOrder) -> np.ndarray:
    return order.of_file(load())


def _more(parts: Callable[[], Iterator[np.ndarray]], offset: float) -> Iterator[np.ndarray]:
    for part in parts():
        yield part.astype(np.float32) + np.float32(offset)


def _whole(load: Callable[[], np.ndarray], turned: bool) -> Iterator[np.ndarray]:
    array = load()
    yield array.T if turned and array.ndim == _MATRIX else array


# Rotary embeddings in GGUF metadata.


_BY_DIVISORS = (1.0, 4.0, 8192)
"""The low and high factors, and the positions, of the scaling, which files express only by
divisors.
"""


def read_rotary(
    settings: Mapping[str, object], kind: str, positions: int, head_dim: int, share: float | None
) -> Rotary:
    """Return the rotary embedding of a model; ModelError if GGUF cannot express it."""
    rope = RopeSettings.from_settings(settings, kind, positions, rotated=share)
    return Rotary(rope.theta, rope.rotated, *_scaled(rope, head_dim))


def _scaled(rope: RopeSettings, head_dim: int) -> tuple[Metadata, np.ndarray | None]:
    """Return the metadata of a rotary scaling, and the divisors of frequencies, if it has any."""
    scaling = rope.scaling
    if scaling is None:
        return {}, None
    if isinstance(scaling, F.LinearScaling):
        return {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.factor}, None
    if isinstance(scaling, F.Llama3Scaling):
        own = (scaling.low_frequency_factor, scaling.high_frequency_factor)
        if (*own, scaling.original_max_position) == _BY_DIVISORS:
            exact = unscaled_frequencies(head_dim, rope.theta)
            return {}, exact / scaling.frequencies(head_dim, rope.theta, None)
    if isinstance(scaling, F.YarnScaling):
        factor, original = scaling.factor, scaling.original_max_position
        fast, slow = scaling.beta_fast, scaling.beta_slow
        if scaling == F.YarnScaling(factor, original, beta_fast=fast, beta_slow=slow):
            words: Metadata = {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": factor,
                "rope.scaling.original_context_length": original,
            }
            if (fast, slow) != (32.0, 1.0):  # older versions of llama.cpp know only these
                words |= {"rope.scaling.yarn_beta_fast": fast, "rope.scaling.yarn_beta_slow": slow}
            return words, None
    raise ModelError(
        f"the rotary scaling {scaling} cannot be written as a GGUF file",
        hint="none, linear, YaRN with its own attention factor, and `llama3` as it came out, can",
    )

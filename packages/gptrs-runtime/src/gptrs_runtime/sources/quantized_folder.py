"""The weights of a folder that GPTQ, AWQ or compressed-tensors wrote, as quantized tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from typing_extensions import override

from gptrs.checkpoint.config_fields import Fields
from gptrs.checkpoint.formats.foreign_files import packed_bits
from gptrs.checkpoint.formats.safetensors_header import refused
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor
from gptrs.errors import CheckpointError, ModelError
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs.lazy_module import lazy_module
from gptrs.quoting import listed, quoted, shown_value
from gptrs_runtime.sources.decoded_folder import DecodedFolder

# The `quantization_config` of a model folder: which scheme its weights are stored in.


if TYPE_CHECKING:
    from gptrs_runtime.sources import format_kinds
else:
    format_kinds = lazy_module("gptrs_runtime.sources.format_kinds")

Layout = Literal["packed", "int8", "gptq", "awq", "mxfp4", "mlx", "bitsandbytes"]
"""How codes lie: of compressed-tensors in int32 or int8, of GPTQ, of AWQ (gemm), MXFP4, MLX, ..."""

KEY, MLX_KEY = "quantization_config", "quantization"
_METHODS = ("compressed-tensors", "gptq", "awq", "mxfp4", "bitsandbytes")
_FORMATS: Mapping[str, Layout] = {"pack-quantized": "packed", "int-quantized": "int8"}


@dataclass(frozen=True, slots=True)
class QuantizationScheme:
    """How the quantized weights of a folder are stored, all of them alike.

    `group_size` None stands for one scale a row. `zero_offset` is what is added to stored zero
    points: 1 in the first version of GPTQ's files. `own` has the bits and the group size of single
    layers, by their names.
    """

    method: str
    layout: Layout
    bits: int
    group_size: int | None
    symmetric: bool = False
    zero_offset: int = 0
    own: tuple[tuple[str, int, int], ...] = ()

    def of(self, layer: str) -> tuple[int, int]:
        """Return the bits and the group size of a layer."""
        for name, bits, size in self.own:
            if name == layer:
                return bits, size
        assert self.group_size is not None, "MLX has groups"
        return self.bits, self.group_size


def scheme_of(config: Mapping[str, object], file: str) -> QuantizationScheme | None:
    """Return the scheme in a config.json, None where its weights are not quantized.

    ModelError names what is not supported; `file` is the path of the config in errors.
    """
    found = config.get(KEY)
    if isinstance(config.get(MLX_KEY), Mapping) and not _names_method(found):
        given = cast("Mapping[str, object]", config[MLX_KEY])
        return _mlx(Fields(given, f"of `{MLX_KEY}` in {quoted(file, 200)}"))
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise ModelError(f"`{KEY}` in {quoted(file, 200)} must be an object")
    settings = cast("Mapping[str, object]", found)
    method = settings.get("quant_method")
    if method not in _METHODS:
        raise ModelError(
            f"`{KEY}` in {quoted(file, 200)} has the `quant_method` {shown_value(method)},"
            " which gptrs does not read",
            hint=f"those that are read: {listed(_METHODS, 8)}, and those of MLX; take the model"
            " unquantized, or as a GGUF file",
        )
    fields = Fields(settings, f"of `{KEY}` in {quoted(file, 200)}")
    if method == "gptq":
        return _gptq(fields)
    if method == "mxfp4":
        return QuantizationScheme("mxfp4", "mxfp4", 4, 32, symmetric=True)
    if method == "bitsandbytes":
        return _bitsandbytes(fields, config.get("model_type"), file)
    return _awq_config(fields) if method == "awq" else _compressed(fields, settings)


def _bitsandbytes(fields: Fields, kind: object, file: str) -> QuantizationScheme:
    plugin = format_kinds.kind_named(kind)
    if plugin is not None and plugin.turned:  # those that bitsandbytes rounded are not turned
        raise ModelError(
            f"a {shown_value(kind)} that bitsandbytes rounded, in {quoted(file, 200)}, is not read",
            hint="take the model unquantized; `--weights q8` or `q4` rounds it when it is loaded",
        )
    bits = 4 if fields.boolean("load_in_4bit", False) else 8
    fields.require("bnb_4bit_quant_type", "nf4", "fp4")
    return QuantizationScheme("bitsandbytes", "bitsandbytes", bits, None)


def _names_method(settings: object) -> bool:
    """Return whether they name a `quant_method`; MLX repeats its own settings without one."""
    return isinstance(settings, Mapping) and "quant_method" in settings


def _mlx(fields: Fields) -> QuantizationScheme:
    bits, size = _mlx_layer(fields)
    own: list[tuple[str, int, int]] = []
    for name, value in fields.settings.items():
        if isinstance(value, Mapping):  # false stands for a layer that is not quantized
            given = cast("Mapping[str, object]", value)
            own.append((name, *_mlx_layer(Fields(given, f"of `{MLX_KEY}.{name}`"))))
    return QuantizationScheme("mlx", "mlx", bits, size, own=tuple(own))


def _mlx_layer(fields: Fields) -> tuple[int, int]:
    fields.require("mode", "affine")
    fields.require("bits", 2, 3, 4, 6, 8)
    return fields.integer("bits"), fields.integer("group_size")


def _gptq(fields: Fields) -> QuantizationScheme:
    fields.require("bits", 4, 8)
    version = fields.choice("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    return QuantizationScheme(
        "gptq",
        "gptq",
        fields.integer("bits"),
        _group_size(fields),
        zero_offset=1 if version == "gptq" else 0,
    )


def _awq_config(fields: Fields) -> QuantizationScheme:
    fields.require("bits", 4)
    fields.require("zero_point", True)
    fields.require("version", "gemm", "GEMM")
    return QuantizationScheme("awq", "awq", 4, _group_size(fields))


def _group_size(fields: Fields) -> int | None:
    size = fields.integer("group_size", minimum=-1)
    if size == 0:
        raise fields.error("group_size", "must be -1 or at least 1")
    return None if size == -1 else size


def _compressed(fields: Fields, settings: Mapping[str, object]) -> QuantizationScheme:
    groups = settings.get("config_groups")
    entries = (
        list(cast("Mapping[str, object]", groups).values()) if isinstance(groups, dict) else []
    )
    if len(entries) != 1 or not isinstance(entries[0], dict):
        raise fields.error("config_groups", "must have one group, which is all that is supported")
    group = cast("Mapping[str, object]", entries[0])
    weights = group.get("weights")
    if not isinstance(weights, dict):
        raise fields.error("config_groups", "must say how `weights` are quantized")
    layout = _FORMATS[fields.choice("format", tuple(_FORMATS), "")]
    own = Fields(cast("Mapping[str, object]", weights), "of `weights` in `config_groups`")
    own.require("type", "int")
    own.require("num_bits", *((8,) if layout == "int8" else (4, 8)))
    strategy = own.choice("strategy", ("group", "channel"), "")
    size = own.integer("group_size") if strategy == "group" else None
    symmetric = own.boolean("symmetric", True)
    if layout == "int8" and not symmetric:
        raise own.error("symmetric", "must be true for `int-quantized`")
    bits = own.integer("num_bits")
    return QuantizationScheme("compressed-tensors", layout, bits, size, symmetric)


_NAMES: dict[Layout, tuple[str, str, str, str]] = {
    "packed": ("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx"),
    "int8": ("weight", "weight_scale", "weight_zero_point", "weight_g_idx"),
    "gptq": ("qweight", "scales", "qzeros", "g_idx"),
    "awq": ("qweight", "scales", "qzeros", "g_idx"),
    "mlx": ("weight", "scales", "biases", "g_idx"),
}
"""The last part of the names of codes, scales, zero points, and of the group of each column."""
_SHAPE = "weight_shape"
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""In which place of an int32 the codes of 8 columns lie, from the lowest bits on."""


class QuantizedFolder(DecodedFolder):
    """Tensors of a folder; codes, scales and zero points are shown as the weight of a layer."""

    def __init__(self, stored: FileSource, scheme: QuantizationScheme) -> None:
        super().__init__(stored, f"{scheme}")
        files = self._shown
        self._scheme = scheme
        codes, *others = _NAMES[scheme.layout]
        scale = others[0]
        ends = [name.rpartition(".")[0] for name in files if name.endswith(f".{codes}")]
        whole = [end for end in ends if f"{end}.{scale}" in files]
        self._weights = {f"{end}.weight": end for end in whole}
        hidden = {f"{end}.{each}" for end in whole for each in (codes, *others, _SHAPE)}
        plain = [name for name in files if name not in hidden]
        self._shown = (*plain, *self._weights)

    @override
    def _decoded(self, name: str, quantized: QuantizedTensor) -> np.ndarray:
        parts: dict[Part, np.ndarray] = {part: self._part(name, part) for part in quantized.parts}
        groups = self._groups(name, quantized)
        if groups is not None:  # each column has a group of its own
            parts["scale"], parts["zero_point"] = (
                parts[part][:, groups] for part in ("scale", "zero_point")
            )
            difference = parts["codes"].astype(np.int32) - parts["zero_point"]
            return difference.astype(np.float32) * parts["scale"].astype(np.float32)
        return quantized.values(parts)

    @override
    def quantized(self, name: str) -> QuantizedTensor | None:
        """Return how a tensor is quantized; None if it is not, or its groups are in no order."""
        found = self._described(name)
        return None if found is None or self._groups(name, found) is not None else found

    @override
    def load_part(self, name: str, part: Part) -> np.ndarray:
        array = self._part(name, part)
        packed = part == "codes" and self._scheme.bits < 8
        array = np.ascontiguousarray(packed_bits(array, self._scheme.bits) if packed else array)
        array.flags.writeable = False
        return array

    @override
    def _parts_of(self, name: str) -> Sequence[str]:
        end = self._weights.get(name)
        if end is None:
            return []
        found = [f"{end}.{each}" for each in _NAMES[self._scheme.layout]]
        known = self._stored.names()
        return [each for each in found if each in known]

    @override
    def _described(self, name: str) -> QuantizedTensor | None:
        end = self._weights.get(name)
        if end is None:
            return None
        scheme = self._scheme
        codes_name, scale_name, *_ = (f"{end}.{each}" for each in _NAMES[scheme.layout])
        codes, scale = self._stored.type_of(codes_name), self._stored.type_of(scale_name)
        per_word = 32 // scheme.bits
        wanted = dtypes.si8 if scheme.layout == "int8" else dtypes.si32
        if codes.dtype is not wanted or codes.rank != 2 or not scale.dtype.is_float:
            raise self._misfit(codes_name, f"is `{codes}` with a scale of `{scale}`")
        rows, columns = {
            "packed": (codes.shape[0], codes.shape[1] * per_word),
            "int8": codes.shape,
            "gptq": (codes.shape[1], codes.shape[0] * per_word),
            "awq": (codes.shape[1] * per_word, codes.shape[0]),
        }[scheme.layout]
        size = scheme.group_size or columns
        groups = columns // size if size and columns % size == 0 else 0
        stored_scale = (groups, rows) if scheme.layout in ("gptq", "awq") else (rows, groups)
        if not groups or columns % 8 or scale.shape != stored_scale:
            raise self._misfit(
                codes_name,
                f"of [{rows}, {columns}] does not fit a scale of `{scale}`, groups of {size}",
            )
        signed = scheme.layout == "int8"
        packed = TensorType(
            dtypes.si8 if signed else dtypes.ui8, (rows, columns * scheme.bits // 8)
        )
        parts: dict[Part, TensorType] = {"codes": packed}
        parts["scale"] = TensorType(scale.dtype, (rows, groups))
        if not scheme.symmetric:
            parts["zero_point"] = TensorType(dtypes.si32, (rows, groups))
        zero = 0 if signed or not scheme.symmetric else 1 << scheme.bits - 1
        label = f"{scheme.method}-{scheme.bits}"
        return QuantizedTensor(label, (rows, columns), parts, scheme.bits, size, zero)

    def _groups(self, name: str, quantized: QuantizedTensor) -> np.ndarray | None:
        """Return the group of each column where these are not in order (act-order)."""
        index = f"{self._weights[name]}.{_NAMES[self._scheme.layout][3]}"
        if index not in self._stored.names():
            return None
        found = self._stored.load(index).reshape(-1)
        columns, count = quantized.shape[1], quantized.parts["scale"].shape[1]
        if found.shape != (columns,) or not np.all((found >= 0) & (found < count)):
            raise self._misfit(index, f"must be {columns} numbers of {count} groups")
        ordered = np.arange(columns) // quantized.group_size
        return None if np.array_equal(found, ordered) else found

    def _part(self, name: str, part: Part) -> np.ndarray:
        """Return a part, codes one to an element."""
        end, layout = self._weights[name], self._scheme.layout
        codes_name, scale_name, zeros_name, _ = (f"{end}.{each}" for each in _NAMES[layout])
        across = layout in ("gptq", "awq")
        if part == "scale":
            scale = self._stored.load(scale_name)
            return scale.T if across else scale
        if part == "codes":
            stored = self._stored.load(codes_name)
            if layout == "packed":
                return _unpacked(stored, self._scheme.bits)
            if layout == "gptq":
                return _unpacked(np.ascontiguousarray(stored.T), self._scheme.bits)
            return _awq(stored).T if layout == "awq" else stored
        return self._zero_points(name, self._stored.load(zeros_name), across)

    def _zero_points(self, name: str, stored: np.ndarray, across: bool) -> np.ndarray:
        bits = self._scheme.bits
        if stored.dtype != np.int32 or stored.ndim != 2:
            raise self._misfit(f"{name}", "has zero points that are not packed in int32")
        if self._scheme.layout == "awq":
            zeros = _awq(stored).T
        elif across:
            zeros = _unpacked(stored, bits).T  # (G, O) packed along O
        else:
            zeros = _unpacked(np.ascontiguousarray(stored.T), bits).T  # (O / 8, G)
        found = self._described(name)
        assert found is not None, "zero points are those of a quantized weight"
        wanted = found.parts["zero_point"].shape
        if zeros.shape[0] < wanted[0] or zeros.shape[1] != wanted[1]:
            raise self._misfit(name, f"has zero points of {list(zeros.shape)}")
        moved = zeros[: wanted[0]].astype(np.int32) + np.int32(self._scheme.zero_offset)
        return moved & np.int32((1 << bits) - 1)  # a zero point of 0 was stored as the greatest

    def _misfit(self, name: str, problem: str) -> CheckpointError:
        hint = "config.json and the weights are not of one model"
        return refused(self.origin, name, problem, hint)


def _unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """Return ui8 [N, n * 32 / bits] of int32 [N, n], which hold codes from the lowest bits on."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return octets
    return np.stack([octets & 15, octets >> 4], axis=-1).reshape(len(words), -1)


def _awq(words: np.ndarray) -> np.ndarray:
    """Return ui8 [I, O] of int32 [I, O / 8]."""
    codes = _unpacked(words, 4)
    return codes.reshape(len(words), -1, 8)[..., _AWQ_ORDER].reshape(codes.shape)

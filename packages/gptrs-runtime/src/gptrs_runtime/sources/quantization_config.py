"""The `quantization_config` of a model folder: which scheme its weights are stored in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, cast

from msgspec import Struct

from gptrs.checkpoint.config_fields import Fields
from gptrs.errors import ModelError
from gptrs.lazy_module import lazy_module
from gptrs.quoting import listed, quoted, shown_value
from gptrs.strict_json import record_of

if TYPE_CHECKING:
    from gptrs_runtime.sources import format_kinds
else:
    format_kinds = lazy_module("gptrs_runtime.sources.format_kinds")

Layout = Literal["packed", "int8", "fp8", "fp4", "gptq", "awq", "mxfp4", "mlx", "bitsandbytes"]
"""How codes lie: of compressed-tensors in int32 or int8, of GPTQ, of AWQ (gemm), MXFP4, MLX, ..."""

GPTQ_BITS = (2, 3, 4, 8)
KEY, MLX_KEY = "quantization_config", "quantization"
MODELOPT_CONFIG = "hf_quant_config.json"
_FORMATS: Mapping[str, Layout] = {
    "pack-quantized": "packed",
    "int-quantized": "int8",
    "float-quantized": "fp8",
    "nvfp4-pack-quantized": "fp4",
    "mxfp4-pack-quantized": "fp4",
}
_NVFP4, _MXFP4 = 16, 32
"""The columns that share a scale."""


class QuantizationScheme(Struct, frozen=True):
    """How the quantized weights of a folder are stored, all of them alike.

    `group_size` None stands for one scale a row. `zero_offset` is what is added to stored zero
    points: 1 in the first version of GPTQ's files; `centered` promises that each is the middle one.
    `own` has the bits and the group size of single layers, by their names. `block` has the rows and
    columns that share a scale. `varied`: bits and group size of a layer follow from its shapes.
    """

    method: str
    layout: Layout
    bits: int
    group_size: int | None
    symmetric: bool = False
    zero_offset: int = 0
    centered: bool = False
    own: tuple[tuple[str, int, int], ...] = ()
    block: tuple[int, int] | None = None
    varied: bool = False

    def of(self, layer: str) -> tuple[int, int]:
        """Return the bits and the group size of a layer."""
        for name, bits, size in self.own:
            if name == layer:
                return bits, size
        assert self.group_size is not None, "MLX has groups"
        return self.bits, self.group_size


class ModelOptFile(Struct):
    """The content of `hf_quant_config.json`."""

    quantization: dict[str, object]


def scheme_of(config: Mapping[str, object], file: str) -> QuantizationScheme | None:
    """Return the scheme in a config.json, None if its weights are not quantized.

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
    read = _READERS.get(method) if isinstance(method, str) else None
    if read is None:
        raise ModelError(
            f"`{KEY}` in {quoted(file, 200)} has the `quant_method` {shown_value(method)},"
            " which gptrs does not read",
            hint=f"those that are read: {listed(_READERS, 9)}, and those of MLX; take the model"
            " unquantized, or as a GGUF file",
        )
    plugin = format_kinds.kind_named(config.get("model_type")) if read is _bitsandbytes else None
    if plugin is not None and plugin.turned:  # those that bitsandbytes rounded are not turned
        raise ModelError(
            f"a `{plugin.name}` that bitsandbytes rounded, in {quoted(file, 200)}, is not read",
            hint="take the model unquantized; `--weights q8` or `q4` rounds it when it is loaded",
        )
    return read(Fields(settings, f"of `{KEY}` in {quoted(file, 200)}"))


def _bitsandbytes(fields: Fields) -> QuantizationScheme:
    bits = 4 if fields.boolean("load_in_4bit", False) else 8
    fields.require("bnb_4bit_quant_type", "nf4", "fp4")
    return QuantizationScheme("bitsandbytes", "bitsandbytes", bits, None)


def _mxfp4(_: Fields) -> QuantizationScheme:
    return QuantizationScheme("mxfp4", "mxfp4", 4, 32, symmetric=True)


def _fp8(fields: Fields) -> QuantizationScheme:
    fields.require("fmt", "e4m3")
    fields.require("expert_dtype", "fp8")
    fields.require("scale_fmt", "float")
    return QuantizationScheme(
        "fp8", "fp8", 8, None, True, block=_block(fields, "weight_block_size")
    )


def _modelopt(fields: Fields) -> QuantizationScheme:
    """Read files of NVIDIA ModelOpt."""
    algorithm = fields.choice("quant_algo", ("FP8", "NVFP4"), "")
    if algorithm == "FP8":
        return QuantizationScheme("modelopt", "fp8", 8, None, True)
    return QuantizationScheme("modelopt", "fp4", 4, _NVFP4, True)


def _block(fields: Fields, name: str) -> tuple[int, int] | None:
    """Return the rows and columns of a block, if a setting has them."""
    found = fields.get(name)
    if found is None:
        return None
    sizes = cast("list[object]", found) if isinstance(found, list) else []
    high, wide = sizes if len(sizes) == 2 else (0, 0)
    if not isinstance(high, int) or not isinstance(wide, int) or min(high, wide) < 1:
        raise fields.error(name, "must be two numbers of at least 1")
    return high, wide


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
    fields.require("bits", 2, 3, 4, 5, 6, 8)
    return fields.integer("bits"), fields.integer("group_size")


def _gptq(fields: Fields) -> QuantizationScheme:
    fields.require("bits", *GPTQ_BITS)
    version = fields.choice("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    return QuantizationScheme(
        "gptq",
        "gptq",
        fields.integer("bits"),
        _group_size(fields),
        zero_offset=1 if version == "gptq" else 0,
        centered=fields.boolean("sym", False),
        varied=bool(fields.get("dynamic")),
    )


def _awq(fields: Fields) -> QuantizationScheme:
    fields.require("bits", 4)
    fields.require("zero_point", True)
    fields.require("version", "gemm", "GEMM")
    return QuantizationScheme("awq", "awq", 4, _group_size(fields))


def _auto_round(fields: Fields) -> QuantizationScheme:
    """Read files of AutoRound, which have the layout of GPTQ or of AWQ."""
    fields.require("data_type", "int")
    fields.require("act_bits", 16)
    own, of_gptq, of_awq = (f"auto_round{end}" for end in ("", ":auto_gptq", ":auto_awq"))
    symmetric = fields.boolean("sym", True)
    # Older files do not say it, but zero points that are all in the middle tell.
    usual = own if symmetric else ""
    packing = fields.choice("packing_format", (own, of_gptq, of_awq), usual)
    if packing == of_awq:
        fields.require("bits", 4)
        return QuantizationScheme("auto-round", "awq", 4, _group_size(fields))
    fields.require("bits", *GPTQ_BITS)
    return QuantizationScheme(
        "auto-round",
        "gptq",
        fields.integer("bits"),
        _group_size(fields),
        zero_offset=1 if packing == of_gptq else 0,
        centered=symmetric,
        varied=bool(fields.get("extra_config")),
    )


def _group_size(fields: Fields) -> int | None:
    size = fields.integer("group_size", minimum=-1)
    if size == 0:
        raise fields.error("group_size", "must be -1 or at least 1")
    return None if size == -1 else size


def _compressed(fields: Fields) -> QuantizationScheme:
    _require_no_rotations(fields)
    groups = fields.get("config_groups")
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
    if layout == "fp8":
        own.require("type", "float")
        own.require("num_bits", 8)
        own.require("symmetric", True)
        own.choice("strategy", ("tensor", "channel", "block"), "tensor")
        block = _block(own, "block_structure")
        return QuantizationScheme("compressed-tensors", layout, 8, None, True, block=block)
    if layout == "fp4":
        size = _NVFP4 if fields.get("format") == "nvfp4-pack-quantized" else _MXFP4
        own.require("type", "float")
        own.require("num_bits", 4)
        own.require("symmetric", True)
        own.require("group_size", size)
        return QuantizationScheme("compressed-tensors", layout, 4, size, True)
    own.require("type", "int")
    own.require("num_bits", *((8,) if layout == "int8" else (4, 8)))
    strategy = own.choice("strategy", ("group", "channel"), "")
    size = own.integer("group_size") if strategy == "group" else None
    symmetric = own.boolean("symmetric", True)
    if layout == "int8" and not symmetric:
        raise own.error("symmetric", "must be true for `int-quantized`")
    bits = own.integer("num_bits")
    return QuantizationScheme("compressed-tensors", layout, bits, size, symmetric)


class _Rotation(Struct):
    location: str


class _Rotations(Struct):
    apply: list[_Rotation] = []


class _Transforms(Struct):
    config_groups: dict[str, _Rotations] = {}


def _require_no_rotations(fields: Fields) -> None:
    """ModelError for transforms of activations; those of weights are part of the stored numbers."""
    found = fields.get("transform_config", {})
    transforms = record_of(found, _Transforms, f"`transform_config` of `{KEY}`")
    for rotations in transforms.config_groups.values():
        for each in rotations.apply:
            if not each.location.startswith("weight_"):
                problem = f"turns what is at {quoted(each.location)}, which is not supported"
                raise fields.error("transform_config", problem)


_READERS: Mapping[str, Callable[[Fields], QuantizationScheme]] = {
    "compressed-tensors": _compressed,
    "gptq": _gptq,
    "awq": _awq,
    "auto-round": _auto_round,
    "mxfp4": _mxfp4,
    "fp8": _fp8,
    "modelopt": _modelopt,
    "bitsandbytes": _bitsandbytes,
}
"""What reads the settings of each `quant_method`."""

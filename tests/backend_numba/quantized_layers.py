"""Linear layers with quantized weights: programs, parts, and what comes of rounded activations."""

from __future__ import annotations

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from gptrs.checkpoint.formats.foreign_files import packed_bits
from gptrs.checkpoint.formats.gguf_types import E2M1, IQ4

N, K = 70, 256
"""Columns of panels, the last one partial, and values of k."""
_TYPES = {"uint8": "ui8", "int8": "si8", "float16": "f16", "float32": "f32", "int32": "si32"}


@dataclass
class Layer:
    """A weight: its parts, the instructions that decode it, and its values."""

    parts: dict[str, np.ndarray]
    steps: list[str]
    values: np.ndarray
    unit: int = 32
    n: int = field(default=N)
    k: int = field(default=K)

    def program(self, rows: int) -> str:
        """Return the text of `x @ weight.T` for so many rows."""
        types = [f"%{name}: {_type(array)}" for name, array in self.parts.items()]
        weight, x, y = f"f32[{N}, {K}]", f"f32[{rows}, {K}]", f"f32[{rows}, {N}]"
        steps = "\n".join(f"  {step}" for step in self.steps)
        head = f"func @main(%x: {x}, {', '.join(types)}) -> {y} {{"
        product = f"dot_general %x, %w {{contract_lhs = [1], contract_rhs = [1]}} : {y}"
        return f"ptir.v0.5\n{head}\n{steps} : {weight}\n  %y = {product}\n  return %y\n}}"

    def expected(self, x: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the results for rounded activations, and the largest sum of sizes."""
        units = x.reshape(len(x), -1, self.unit)
        top = np.abs(units).max(axis=2, keepdims=True)
        codes = np.rint(units * (np.float32(127) / top))
        rounded = (codes * (top / np.float32(127)).astype(np.float64)).reshape(x.shape)
        values = self.values.astype(np.float64)
        return rounded @ values.T, float((np.abs(rounded) @ np.abs(values).T).max())


def _type(array: np.ndarray) -> str:
    rows, columns = array.shape
    name = "bf16" if array.dtype == ml_dtypes.bfloat16 else _TYPES[array.dtype.name]
    return f"{name}[{rows}, {columns}]"


def _codes(bits: int) -> np.ndarray:
    return np.random.default_rng(bits).integers(0, 1 << bits, (N, K), np.uint8)


def _scales(size: int, seed: int, dtype: type = np.float16) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(N, K // size))
    return (drawn / 100).astype(dtype)


def _spread(values: np.ndarray) -> np.ndarray:
    return np.repeat(values.astype(np.float32), K // values.shape[1], axis=1)


def _unpack(bits: int) -> str:
    return f"%q = unpack_bits %codes {{bits = {bits}, axis = 1}} : ui8[{N}, {K}]"


def _decode(scale: str, zero: str, size: int, op: str = "dequantize") -> str:
    return f"%w = {op} %q, %{scale}, %{zero} {{dtype = f32, axis = 1, group_size = {size}}}"


def _plain(bits: int, zero: int, size: int, codes: np.ndarray | None = None) -> Layer:
    codes = _codes(bits) if codes is None else codes
    scale = _scales(size, 1)
    parts = {"codes": packed_bits(codes, bits), "scale": scale}
    steps = [
        _unpack(bits),
        f"%z = constant {{value = {zero}}} : si32[]",
        _decode("scale", "z", size),
    ]
    return Layer(parts, steps, (codes.astype(np.float32) - zero) * _spread(scale))


def _signed(size: int) -> Layer:
    codes, scale = _codes(8).view(np.int8), _scales(size, 2, ml_dtypes.bfloat16)
    steps = [
        "%z = constant {value = 0} : si32[]",
        _decode("scale", "z", size).replace("%q", "%codes"),
    ]
    return Layer({"codes": codes, "scale": scale}, steps, codes * _spread(scale))


def _affine(bits: int) -> Layer:
    codes, scale, bias = _codes(bits), _scales(32, 3), _scales(32, 4)
    parts = {"codes": packed_bits(codes, bits), "scale": scale, "bias": bias}
    steps = [_unpack(bits), _decode("scale", "bias", 32, "dequantize_affine")]
    return Layer(parts, steps, codes * _spread(scale) + _spread(bias))


def _zero_points(bits: int, size: int) -> Layer:
    codes, scale = _codes(bits), _scales(size, 5, np.float32)
    zeros = np.random.default_rng(6).integers(0, 1 << bits, scale.shape, np.int32)
    parts = {"codes": packed_bits(codes, bits), "scale": scale, "zeros": zeros}
    values = (codes.astype(np.float32) - _spread(zeros)) * _spread(scale)
    return Layer(parts, [_unpack(bits), _decode("scale", "zeros", size)], values)


def _two_levels(bits: int, size: int, *, bias: bool, zero: int = 32) -> Layer:
    groups, above = (N, K // size), 256 // size
    small = np.uint8 if bias else np.int8
    random = np.random.default_rng(7)
    parts: dict[str, np.ndarray] = {"codes": packed_bits(_codes(bits), bits)}
    steps = [_unpack(bits), "%none = constant {value = 0} : si32[]"]
    found: list[np.ndarray] = []
    for name in ("scale", "bias")[: 1 + bias]:
        parts[name] = random.integers(0, 64, groups).astype(small)
        parts[f"super_{name}"] = _scales(256, 8)
        attributes = f"{{dtype = f32, axis = 1, group_size = {above}}}"
        operands = f"%{name}, %super_{name}, %none {attributes}"
        steps.append(f"%{name}_32 = dequantize {operands} : f32[{groups[0]}, {groups[1]}]")
        found.append(_spread(parts[name]) * _spread(parts[f"super_{name}"]))
    codes = _codes(bits).astype(np.float32)
    if bias:
        steps.append(_decode("scale_32", "bias_32", size, "dequantize_affine"))
        return Layer(parts, steps, codes * found[0] + found[1], unit=min(size, 32))
    steps += [f"%z = constant {{value = {zero}}} : si32[]", _decode("scale_32", "z", size)]
    return Layer(parts, steps, (codes - zero) * found[0], unit=min(size, 32))


def _looked_up(layer: Layer, table: tuple[int, ...]) -> Layer:
    """Return a layer of 4 bits and no zero point whose codes are indices into a table."""
    steps = [
        _unpack(4).replace("%q", "%at"),
        f"%t = constant {{value = [{', '.join(map(str, table))}]}} : si8[16]",
        f"%q = take %t, %at : si8[{N}, {K}]",
        *layer.steps[1:],
    ]
    codes = _codes(4)
    with np.errstate(invalid="ignore"):
        scales = layer.values / codes
    scales = _spread(np.nanmax(scales.reshape(N, -1, 32), axis=2))
    return Layer(layer.parts, steps, np.array(table, np.int8)[codes] * scales)


def _mxfp4() -> Layer:
    layer = _plain(4, 0, 32)
    scale = layer.parts["scale"].astype(ml_dtypes.bfloat16)
    return _looked_up(
        Layer({**layer.parts, "scale": scale}, layer.steps, _codes(4) * _spread(scale)), E2M1
    )


FORMS = {
    "q4_0": _plain(4, 8, 32),
    "q5_0": _plain(5, 16, 32),
    "q8_0": _signed(32),
    "channels": _signed(K),
    "q4_1": _affine(4),
    "q4_k": _two_levels(4, 32, bias=True),
    "q6_k": _two_levels(6, 16, bias=False),
    "q2_k": _two_levels(2, 16, bias=True),
    "q3_k": _two_levels(3, 16, bias=False, zero=4),
    "iq4_nl": _looked_up(_plain(4, 0, 32), IQ4),
    "iq4_xs": _looked_up(_two_levels(4, 32, bias=False, zero=0), IQ4),
    "gptq": _zero_points(4, 128),
    "gptq_8": _zero_points(8, 64),
    "mxfp4": _mxfp4(),
}


def of_largest_codes(bits: int) -> Layer:
    """Return a layer whose codes are all the largest that there are."""
    return _plain(bits, 0, 32, np.full((N, K), (1 << bits) - 1, np.uint8))

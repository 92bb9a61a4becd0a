"""The weights of a model; some are quantized when they are loaded."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from typing_extensions import override

from gptrs.backend.weight_identity import WeightIdentity
from gptrs.checkpoint.formats.foreign_files import OutgoingTensor, packed_bits
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.formats.safetensors_header import TensorEntry
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.params import WeightUse
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs_runtime.quantizing.plan import WeightType
from gptrs_runtime.quantizing.tensor_rounding import RoundedTensor, Rounding

_RECIPE = "quantized 1"
"""Stands for all that is done here; another number where the same weights get other codes."""


class QuantizingSource(FileSource):
    """The tensors of `stored`; those in `plan` have the values and parts of their types."""

    def __init__(
        self,
        stored: FileSource,
        plan: Mapping[str, WeightType],
        uses: Mapping[str, WeightUse],
        rounding: Rounding = "search",
        threads: int | None = None,
    ) -> None:
        names = dict.fromkeys(stored.names(), "")
        super().__init__(names, lambda _: stored.open_files()[0], stored.origin)
        self._stored = stored
        self._rounded = {
            name: rounded_tensor(stored, name, uses[name], type, rounding, threads)
            for name, type in plan.items()
        }
        self._made: dict[str, dict[Part, np.ndarray]] = {}
        self._making = threading.Lock()
        self.recipe = f"{_RECIPE} {rounding} {sorted(plan.items(), key=lambda item: item[0])}"
        """Tells the weights from those that are stored."""

    @property
    @override
    def files(self) -> tuple[str, ...]:
        return self._stored.files

    @override
    def open_files(self) -> Sequence[MappedTensors]:
        return self._stored.open_files()

    @override
    def require_unchanged(self) -> None:
        self._stored.require_unchanged()

    @override
    def names(self) -> Sequence[str]:
        return self._stored.names()

    @override
    def type_of(self, name: str) -> TensorType:
        found = self.quantized(name)
        return self._stored.type_of(name) if found is None else found.type

    @override
    def load(self, name: str) -> np.ndarray:
        rounded = self._rounded.get(name)
        if rounded is None:
            return self._stored.load(name)
        values = np.empty(rounded.shape, np.float32)
        start = 0
        for _, rows in rounded.chunks():
            values[start : start + len(rows)] = rows
            start += len(rows)
        return np.ascontiguousarray(values.T) if rounded.turned else values

    @override
    def view(self, name: str) -> np.ndarray:
        return self.load(name) if name in self._rounded else self._stored.view(name)

    @override
    def parts(self, name: str) -> Iterator[np.ndarray]:
        if name in self._rounded:
            yield self.load(name).reshape(-1)
        else:
            yield from self._stored.parts(name)

    @override
    def identity_of(self, name: str) -> WeightIdentity | None:
        found = self._stored.identity_of(name)
        rounded = self._rounded.get(name)
        return found if found is None or rounded is None else found.computed(self._recipe(rounded))

    @override
    def locate(self, name: str) -> tuple[MappedTensors, TensorEntry]:
        return self._stored.locate(name)

    def quantized(self, name: str) -> QuantizedTensor | None:
        """Return how a tensor is quantized, None if it is not."""
        rounded = self._rounded.get(name)
        return None if rounded is None else rounded.described()

    def load_part(self, name: str, part: Part) -> np.ndarray:
        """Return a part of a quantized tensor; all are made when the first is asked for."""
        with self._making:
            parts = self._made.pop(name, None) or made_parts(self._rounded[name])
            found = parts.pop(part)
            if parts:
                self._made[name] = parts
        found.flags.writeable = False
        return found

    def identity_of_part(self, name: str, part: Part) -> WeightIdentity | None:
        """Return the identity of the part, unlike that of other arrays; None if unknown.

        For each part that a backend does not keep, all of the weight is made again.
        """
        found = self.identity_of(name)
        return found if found is None else found.computed(part).made_slowly()

    def _recipe(self, rounded: RoundedTensor) -> str:
        return f"{self.recipe.partition('[')[0]}{rounded.type} {rounded.turned}"


def rounded_tensor(
    stored: FileSource,
    name: str,
    use: WeightUse,
    type: WeightType,
    rounding: Rounding,
    threads: int | None = None,
) -> RoundedTensor:
    """Return a weight of `stored` on its way to `type`, rounded by so many threads."""
    rows, columns = stored.type_of(name).shape
    turned = use == "turned"
    shape = (columns, rows) if turned else (rows, columns)
    load = partial(stored.load, name)
    return RoundedTensor(name, load, shape, type, rounding, turned=turned, threads=threads)


def made_parts(rounded: RoundedTensor) -> dict[Part, np.ndarray]:
    """Return all parts of a weight as programs take them: codes packed."""
    described = rounded.described()
    made: dict[Part, list[np.ndarray]] = {part: [] for part in described.parts}
    for parts, _ in rounded.chunks():
        for part, array in parts.items():
            is_codes = part == "codes" and rounded.type.bits < 8
            made[part].append(packed_codes(array, rounded.type.bits) if is_codes else array)
    return {part: np.concatenate(arrays) for part, arrays in made.items()}


def packed_codes(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return codes [N, I], si8 around 0 or ui8, packed as `unpack_bits` reads them."""
    if codes.dtype == np.int8:
        codes = (codes.astype(np.int16) + (1 << bits - 1)).astype(np.uint8)
    return packed_bits(codes, bits)


# Quantized weights as compressed-tensors stores them, for transformers and this library.


_PACKED, _PLAIN = "pack-quantized", "int-quantized"


def compressed_config(type: WeightType, ignored: Sequence[str]) -> dict[str, object]:
    """Return the `quantization_config` of weights of `type` in all linear layers but `ignored`."""
    weights: dict[str, object] = {
        "num_bits": type.bits,
        "type": "int",
        "symmetric": type.offset == "none",
        "strategy": "channel" if type.group is None else "group",
        "group_size": type.group,
        "dynamic": False,
        "actorder": None,
        "block_structure": None,
        "observer": "minmax",
    }
    group: dict[str, object] = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
        "format": _form(type),
    }
    return {
        "quant_method": "compressed-tensors",
        "format": _form(type),
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "config_groups": {"group_0": group},
        "ignore": list(ignored),
    }


def compressed_tensors(rounded: RoundedTensor) -> list[OutgoingTensor]:
    """Return the tensors of a weight; it is rounded once, when its codes are written."""
    once = _Once(rounded)
    end = rounded.name.removesuffix(".weight")
    rows, columns = rounded.shape
    groups = columns // rounded.type.group_of(columns)
    scale = OutgoingTensor(
        f"{end}.weight_scale", TensorType(dtypes.f16, (rows, groups)), partial(once.part, "scale")
    )
    if _form(rounded.type) == _PLAIN:
        codes = TensorType(dtypes.si8, rounded.shape)
        return [OutgoingTensor(rounded.name, codes, once.codes), scale]
    words = TensorType(dtypes.si32, (rows, columns * rounded.type.bits // 32))
    shape = np.array(rounded.shape, np.int64)
    found = [
        OutgoingTensor(f"{end}.weight_packed", words, once.words),
        scale,
        OutgoingTensor.of(f"{end}.weight_shape", shape),
    ]
    if rounded.type.offset == "zero_point":
        packed = TensorType(dtypes.si32, (-(-rows * rounded.type.bits // 32), groups))
        found.append(OutgoingTensor(f"{end}.weight_zero_point", packed, once.zero_words))
    return found


def _form(type: WeightType) -> str:
    return _PLAIN if type.group is None and type.bits == 8 else _PACKED


class _Once:
    """The parts of a weight: its codes pass by, the smaller ones wait until they are written."""

    def __init__(self, rounded: RoundedTensor) -> None:
        self._rounded = rounded
        self._kept: Mapping[Part, np.ndarray] | None = None

    def codes(self) -> Iterator[np.ndarray]:
        kept: dict[Part, list[np.ndarray]] = {}
        for parts, _ in self._rounded.chunks():
            for part, array in parts.items():
                if part != "codes":
                    kept.setdefault(part, []).append(array)
            yield parts["codes"]
        self._kept = {part: np.concatenate(arrays) for part, arrays in kept.items()}

    def words(self) -> Iterator[np.ndarray]:
        for codes in self.codes():
            if self._rounded.type.bits == 8:
                octets = (codes.astype(np.int16) + 128).astype(np.uint8)
            else:
                octets = packed_codes(codes, self._rounded.type.bits)
            yield np.ascontiguousarray(octets).view(np.int32)

    def part(self, part: Part) -> Iterator[np.ndarray]:
        if self._kept is None:  # the codes have not been written yet
            for _ in self.codes():
                pass
        assert self._kept is not None, "it is there after the codes"
        yield self._kept[part]

    def zero_words(self) -> Iterator[np.ndarray]:
        """Yield the zero points packed along the rows."""
        (zeros,) = self.part("zero_point")
        bits = self._rounded.type.bits
        across = zeros.T.astype(np.uint8)
        padded = np.pad(across, ((0, 0), (0, -across.shape[1] % (32 // bits))))
        yield np.ascontiguousarray(packed_bits(padded, bits)).view(np.int32).T

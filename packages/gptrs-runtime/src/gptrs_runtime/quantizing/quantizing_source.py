"""The weights of a model, some of them quantized at load."""

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
from gptrs_runtime.sources.made_tensors import MadeTensor, MadeTensors

_RECIPE = "quantized 1"
"""Version of the quantization; increase it when the same weights get other codes."""


class QuantizingSource(MadeTensors):
    """The tensors of `stored`; those in `plan` have the values and parts of their types."""

    def __init__(
        self,
        stored: FileSource,
        plan: Mapping[str, WeightType],
        uses: Mapping[str, WeightUse],
        rounding: Rounding = "search",
        threads: int | None = None,
    ) -> None:
        made = (
            RoundedWeight(rounded_tensor(stored, name, uses[name], type, rounding, threads), stored)
            for name, type in plan.items()
        )
        super().__init__(stored, made)

    @override
    def is_copy(self, name: str, other: str) -> bool:
        # As before the rounding: a copy was left out of the plan.
        return self._stored.is_copy(name, other)


class RoundedWeight(MadeTensor):
    """A weight that is rounded when its values or parts are requested."""

    def __init__(self, rounded: RoundedTensor, stored: FileSource) -> None:
        super().__init__(stored, rounded.name, (rounded.name,))
        self.recipe = f"{_RECIPE} {rounded.rounding} {rounded.type} {rounded.turned}"
        self._rounded = rounded
        self._made: dict[Part, np.ndarray] = {}
        self._making = threading.Lock()

    @override
    def described(self) -> QuantizedTensor:
        return self._rounded.described()

    @override
    def load(self) -> np.ndarray:
        values = np.empty(self._rounded.shape, np.float32)
        start = 0
        for _, rows in self._rounded.chunks():
            values[start : start + len(rows)] = rows
            start += len(rows)
        return np.ascontiguousarray(values.T) if self._rounded.turned else values

    @override
    def load_part(self, part: Part) -> np.ndarray:
        """Return a part; the first request makes all parts."""
        with self._making:
            if part not in self._made:
                self._made = made_parts(self._rounded)
            return self._made.pop(part)

    @override
    def identity(self) -> WeightIdentity | None:
        found = self.stored.identity_of(self.name)
        return found if found is None else found.computed(self.recipe)

    @override
    def identity_of_part(self, part: Part) -> WeightIdentity | None:
        # Each part that a backend does not keep requires rounding the whole weight again.
        found = super().identity_of_part(part)
        return found if found is None else found.made_slowly()

    @override
    def locate(self) -> tuple[MappedTensors, TensorEntry]:
        return self.stored.locate(self.name)


def rounded_tensor(
    stored: FileSource,
    name: str,
    use: WeightUse,
    type: WeightType,
    rounding: Rounding,
    threads: int | None = None,
) -> RoundedTensor:
    """Return a weight of `stored`, to be rounded to `type` by so many threads."""
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
    """Return the `quantization_config` for weights of `type` in linear layers except `ignored`."""
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
    """The parts of a weight: codes are streamed, the smaller parts kept until they are written."""

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
        assert self._kept is not None, "it is available only after the codes"
        yield self._kept[part]

    def zero_words(self) -> Iterator[np.ndarray]:
        """Yield the zero points packed along the rows."""
        (zeros,) = self.part("zero_point")
        bits = self._rounded.type.bits
        across = zeros.T.astype(np.uint8)
        padded = np.pad(across, ((0, 0), (0, -across.shape[1] % (32 // bits))))
        yield np.ascontiguousarray(packed_bits(padded, bits)).view(np.int32).T

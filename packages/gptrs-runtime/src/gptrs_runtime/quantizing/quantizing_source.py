"""The weights of a model; some are quantized when they are loaded."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from typing_extensions import override

from gptrs.backend.weight_identity import WeightIdentity
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.formats.packed_bits import packed_bits
from gptrs.checkpoint.formats.safetensors_header import TensorEntry
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.params import WeightUse
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor
from gptrs.ir.tensor_type import TensorType
from gptrs_runtime.quantizing.group_rounding import Rounding
from gptrs_runtime.quantizing.tensor_rounding import RoundedTensor
from gptrs_runtime.quantizing.weight_types import WeightType

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

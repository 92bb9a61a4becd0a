"""A source of tensors that decodes some weights from the parts that a folder stores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
from typing_extensions import override

from gptrs.backend.weight_identity import WeightIdentity, identity_of_computed
from gptrs.checkpoint.formats.gguf_types import E2M1, mxfp4_scale
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.formats.safetensors_header import TensorEntry, refused
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType


class DecodedFolder(FileSource):
    """Tensors of a folder in which some weights are stored in parts: codes, scales, offsets.

    Such a weight has the name that the model gives it and is f32, decoded from its parts.
    """

    def __init__(self, stored: FileSource, recipe: str) -> None:
        """Take the tensors of `stored`; `recipe` names the way of decoding, for identities."""
        files = {name: stored.locate(name)[0] for name in stored.names()}
        opened = {str(file.path): file for file in files.values()}
        shards = {name: str(file.path) for name, file in files.items()}
        super().__init__(shards, opened.__getitem__, stored.origin)
        self._stored = stored
        self._recipe = recipe
        self._shown: Sequence[str] = tuple(files)

    @abstractmethod
    def _parts_of(self, name: str) -> Sequence[str]:
        """Return the stored tensors that a weight is made of, codes first; none of a plain one."""

    @abstractmethod
    def _described(self, name: str) -> QuantizedTensor | None:
        """Return the parts of a weight; CheckpointError if what is stored does not fit them."""

    @abstractmethod
    def _decoded(self, name: str, quantized: QuantizedTensor) -> np.ndarray:
        """Return the values of a weight that is stored in parts."""

    @abstractmethod
    def load_part(self, name: str, part: Part) -> np.ndarray:
        """Return a part of a quantized tensor; CheckpointError if it cannot be read."""

    @override
    def names(self) -> Sequence[str]:
        return self._shown

    @override
    def type_of(self, name: str) -> TensorType:
        found = self._described(name)
        return self._stored.type_of(name) if found is None else found.type

    @override
    def load(self, name: str) -> np.ndarray:
        found = self._described(name)
        return self._stored.load(name) if found is None else self._decoded(name, found)

    @override
    def view(self, name: str) -> np.ndarray:
        return self.load(name) if self._parts_of(name) else self._stored.view(name)

    @override
    def parts(self, name: str) -> Iterator[np.ndarray]:
        if self._parts_of(name):
            yield self.load(name).reshape(-1)
        else:
            yield from self._stored.parts(name)

    @override
    def read_slice(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        if self._parts_of(name):
            return self.load(name)[index]
        return self._stored.read_slice(name, index)

    @override
    def identity_of(self, name: str) -> WeightIdentity | None:
        stored = self._parts_of(name)
        if not stored:
            return self._stored.identity_of(name)
        return identity_of_computed(self._recipe, [self._stored.identity_of(e) for e in stored])

    @override
    def locate(self, name: str) -> tuple[MappedTensors, TensorEntry]:
        """Return the file of the codes; the entry is that of the whole weight with all parts."""
        quantized = self._described(name)
        if quantized is None:
            return self._stored.locate(name)
        places = [self._stored.locate(each) for each in self._parts_of(name)]
        file, codes = places[0]
        nbytes = sum(entry.nbytes for _, entry in places)
        shape = quantized.shape
        return file, TensorEntry(name, quantized.format, None, shape, codes.offset, nbytes)

    def quantized(self, name: str) -> QuantizedTensor | None:
        """Return how a tensor is quantized, None if it is not; CheckpointError for a misfit."""
        return self._described(name)

    def identity_of_part(self, name: str, part: Part) -> WeightIdentity | None:
        """Return the identity of the part, unlike that of other arrays; None if unknown."""
        found = self.identity_of(name)
        return found if found is None else found.computed(part)


# The experts of a folder in MXFP4, as gpt-oss has them, as quantized tensors.


_BLOCKS, _SCALES = "_blocks", "_scales"
_GROUP = 32


class Mxfp4Folder(DecodedFolder):
    """Tensors of a folder; `NAME_blocks` and `NAME_scales` are shown as the weight `NAME`.

    Blocks are ui8 [G, O, I / 32, 16], two codes a byte, scales ui8 [G, O, I / 32], exponents. The
    whole weight is f32 [G, I, O]. Codes are given as they lie, scales as bf16.
    """

    def __init__(self, stored: FileSource) -> None:
        super().__init__(stored, "MXFP4")
        names = stored.names()
        ends = [name.removesuffix(_BLOCKS) for name in names if name.endswith(_BLOCKS)]
        self._weights = {end for end in ends if f"{end}{_SCALES}" in names}
        hidden = {f"{end}{each}" for end in self._weights for each in (_BLOCKS, _SCALES)}
        self._shown = (*(name for name in names if name not in hidden), *sorted(self._weights))

    @override
    def _parts_of(self, name: str) -> Sequence[str]:
        return [f"{name}{each}" for each in (_BLOCKS, _SCALES)] if name in self._weights else []

    @override
    def _decoded(self, name: str, quantized: QuantizedTensor) -> np.ndarray:
        blocks = self._stored.load(f"{name}{_BLOCKS}")
        codes = np.stack([blocks & 15, blocks >> 4], axis=-1)
        columns = quantized.shape[-1]
        parts: dict[Part, np.ndarray] = {
            "codes": codes.reshape(-1, columns),
            "scale": self.load_part(name, "scale").reshape(-1, columns // _GROUP),
        }
        whole = quantized.values(parts).reshape(quantized.shape)
        return np.ascontiguousarray(np.swapaxes(whole, 1, 2))

    @override
    def _described(self, name: str) -> QuantizedTensor | None:
        if name not in self._weights:
            return None
        blocks, scales = (self._stored.type_of(f"{name}{each}") for each in (_BLOCKS, _SCALES))
        if (
            blocks.rank != 4
            or blocks.shape[3] != _GROUP // 2
            or scales.shape != blocks.shape[:3]
            or (blocks.dtype, scales.dtype) != (dtypes.ui8, dtypes.ui8)
        ):
            raise refused(
                self.origin,
                f"{name}{_BLOCKS}",
                f"is `{blocks}` with scales of `{scales}`",
                "config.json and the weights are not of one model",
            )
        experts, rows, groups, _ = blocks.shape
        parts: dict[Part, TensorType] = {
            "codes": TensorType(dtypes.ui8, (experts, rows, groups * _GROUP // 2)),
            "scale": TensorType(dtypes.bf16, (experts, rows, groups)),
        }
        shape = (experts, rows, groups * _GROUP)
        return QuantizedTensor("MXFP4", shape, parts, 4, _GROUP, table=E2M1, transposed=True)

    @override
    def load_part(self, name: str, part: Part) -> np.ndarray:
        if part == "codes":
            blocks = self._stored.load(f"{name}{_BLOCKS}")
            return blocks.reshape(*blocks.shape[:2], -1)
        scale = mxfp4_scale(self._stored.load(f"{name}{_SCALES}"))
        scale.flags.writeable = False
        return scale

"""Weights of `MatMulNBits` as quantized tensors, which backends multiply as they are stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs.api.backends import WeightIdentity
from gptrs.api.programs import TensorType, dtypes
from gptrs.backend.weight_identity import WeightFile, identity_of_computed
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor
from gptrs_onnx.element_types import dtype_of
from gptrs_onnx.node import stored_array
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.reading import InitializerSource
from gptrs_onnx.search import SMALL

_BITS: Final = (2, 4, 8)


class BlockWeight(Struct, frozen=True, dict=True):
    """The weight [N, K] of a `MatMulNBits`: codes in blocks of `block`, a scale for each.

    `zeros` are packed as the codes are; None stands for the middle of their range.
    """

    name: str
    shape: tuple[int, int]
    bits: int
    block: int
    scales: ir.TensorProtocol
    zeros: ir.TensorProtocol | None

    @cached_property
    def described(self) -> QuantizedTensor:
        """Return its parts."""
        rows, columns = self.shape
        blocks = rows, columns // self.block
        scale = dtype_of(self.scales.dtype, f"the scales of `{self.name}`")
        parts: dict[Part, TensorType] = {
            "codes": TensorType(dtypes.ui8, (rows, columns * self.bits // 8)),
            "scale": TensorType(scale, blocks),
        }
        if self.zeros is not None:
            parts["zero_point"] = TensorType(dtypes.si32, blocks)
        middle = 2 ** (self.bits - 1)
        return QuantizedTensor("MatMulNBits", self.shape, parts, self.bits, self.block, middle)

    def part(self, part: Part, codes: np.ndarray) -> np.ndarray:
        """Return a part; `codes` are those of the file."""
        wanted = self.described.parts[part]
        if part == "codes":
            return codes.reshape(wanted.shape)
        if part == "scale":
            return stored_array(self.scales, f"the scales of `{self.name}`").reshape(wanted.shape)
        assert self.zeros is not None, "without them there is no such part"
        packed = stored_array(self.zeros, f"the zero points of `{self.name}`")
        points = unpacked_array(packed.reshape(self.shape[0], -1), self.bits)
        # Rows of packed zero points are filled up to whole bytes.
        return points[:, : wanted.shape[1]].astype(np.int32)


def unpacked_array(packed: np.ndarray, bits: int) -> np.ndarray:
    """Return ui8 codes [rows, n] out of bytes [rows, m], the lowest bits of each byte first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return parts.reshape(len(packed), -1)


def block_weights(model: ir.Model) -> dict[str, BlockWeight]:
    """Return the weights of `MatMulNBits` by the names of their codes, where all is in the file.

    Weights in another order, or with a rest behind the last whole block, remain codes.
    """
    found: dict[str, BlockWeight] = {}
    other = set[str]()
    for node in model.graph.all_nodes():
        made = _block_weight(node)
        for position, each in enumerate(node.inputs):
            if each is None or each.const_value is None:
                continue
            if made is not None and position == 1:
                same = found.setdefault(made.name, made)
                if same != made:
                    # Two nodes that read the same codes in different ways: one described weight
                    # cannot serve both.
                    other.add(made.name)
            else:
                other.add(str(each.name))
    return {name: each for name, each in found.items() if name not in other}


def _block_weight(node: ir.Node) -> BlockWeight | None:
    if (node.domain, node.op_type) != ("com.microsoft", "MatMulNBits"):
        return None
    given = {name: each.value for name, each in node.attributes.items()}
    bits, block, columns, rows = (
        given.get(name, default)
        for name, default in (("bits", 4), ("block_size", 0), ("K", 0), ("N", 0))
    )
    sizes = (bits, block, columns, rows)
    if not all(isinstance(each, int) for each in sizes) or given.get("weight_prepacked"):
        return None
    inputs = [*node.inputs, *[None] * 5][:5]
    held = inputs[1]
    codes, scales, zeros = (None if each is None else each.const_value for each in inputs[1:4])
    if held is None or codes is None or scales is None:
        return None
    if any(each is not None and each.is_graph_input() for each in inputs[1:4]):
        return None  # a call may replace it
    if inputs[4] is not None or (inputs[3] is not None and zeros is None):
        return None
    if bits not in _BITS or block < 1 or columns % block:
        return None
    blocks = rows * (columns // block)
    # Zero points may also be floats, which quantized tensors do not have.
    is_packed = zeros is None or zeros.dtype == ir.DataType.UINT8
    fits = codes.size * 8 == rows * columns * bits and scales.size == blocks
    if not (fits and is_packed) or codes.size <= SMALL or codes.dtype != ir.DataType.UINT8:
        return None
    return BlockWeight(str(held.name), (rows, columns), bits, block, scales, zeros)


class BlockSource(InitializerSource):
    """Initializers; those in `blocks` are quantized weights, which `load` returns as floats."""

    def __init__(
        self,
        stored: dict[str, ir.TensorProtocol],
        own: WeightFile | None,
        blocks: Mapping[str, BlockWeight],
    ) -> None:
        super().__init__(stored, own)
        self._blocks = blocks

    @property
    @override
    def data_files(self) -> None:
        """Nothing: blocks are described by the nodes of the graph."""
        return

    @override
    def places(self) -> None:
        return

    def quantized(self, name: str) -> QuantizedTensor | None:
        """Return how a tensor is quantized, None if it is not."""
        found = self._blocks.get(name)
        return None if found is None else found.described

    def load_part(self, name: str, part: Part) -> np.ndarray:
        """Return a part of a quantized tensor; ModelError where the file does not hold it."""
        return self._blocks[name].part(part, super().load(name))

    def identity_of_part(self, name: str, part: Part) -> WeightIdentity | None:
        """Return the identity of the part; None if unknown."""
        found = self._computed(name)
        return None if found is None else found.computed(part)

    def _computed(self, name: str) -> WeightIdentity | None:
        block = self._blocks[name]
        parts = [
            name,
            *(str(each.name) for each in (block.scales, block.zeros) if each is not None),
        ]
        found = [super(BlockSource, self).identity_of(each) for each in parts if self.has(each)]
        return identity_of_computed(f"blocks {block.bits} {block.block}", found)

    @override
    def type_of(self, name: str) -> TensorType:
        found = self._blocks.get(name)
        return super().type_of(name) if found is None else found.described.type

    @override
    def identity_of(self, name: str) -> WeightIdentity | None:
        return super().identity_of(name) if name not in self._blocks else self._computed(name)

    @override
    def load(self, name: str) -> np.ndarray:
        found = self._blocks.get(name)
        if found is None:
            return super().load(name)
        described = found.described
        parts: dict[Part, np.ndarray] = {
            part: self.load_part(name, part) for part in described.parts
        }
        parts["codes"] = unpacked_array(parts["codes"], found.bits)
        return described.values(parts)

    @override
    def view(self, name: str) -> np.ndarray:
        return self.load(name) if name in self._blocks else super().view(name)

    @override
    def parts(self, name: str) -> Iterator[np.ndarray]:
        if name in self._blocks:
            yield self.load(name).reshape(-1)
        else:
            yield from super().parts(name)

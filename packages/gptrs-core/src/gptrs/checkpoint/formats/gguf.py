"""Reading GGUF files of llama.cpp through a memory mapping, quantized tensors part by part."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs.backend.weight_identity import WeightIdentity, file_digest
from gptrs.checkpoint.files.open_file import open_regular, resolved
from gptrs.checkpoint.formats.gguf_header import GgufHeader, GgufTensor, read_gguf_header
from gptrs.checkpoint.formats.gguf_types import BlockFormat
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.formats.safetensors_header import TensorEntry
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor
from gptrs.errors import CheckpointError
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import quoted

_ELEMENTS = 2**17
"""About how many elements of a tensor are decoded at a time. Intermediate arrays then remain in the
cache; arrays of 128 KiB and more would be fresh pages in each step, which takes twice as long.
"""


class RowOrder(Struct, frozen=True):
    """The order of the rows of `heads` in the file.

    Each head is in the order of interleaved rotary embeddings, in which its two halves alternate.
    With `kv_heads` whole heads are moved instead: all queries come first, then all keys, then all
    values; in the model the queries of a group, its key and its value come one after another.
    """

    heads: int
    kv_heads: int | None = None

    def of_model(self, rows: np.ndarray) -> np.ndarray:
        """Return stored rows [R, ..] in the order of the model."""
        if self.kv_heads is None:
            halves = rows.reshape(self.heads, -1, 2, *_row_of(rows))
            return halves.swapaxes(1, 2).reshape(rows.shape)
        size = len(rows) // (self.heads + 2 * self.kv_heads)
        parts = np.split(rows, [self.heads * size, (self.heads + self.kv_heads) * size])
        groups = [part.reshape(self.kv_heads, -1, *_row_of(rows)) for part in parts]
        return np.concatenate(groups, axis=1).reshape(rows.shape)

    def of_file(self, rows: np.ndarray) -> np.ndarray:
        """Return rows [R, ..] of the model in the order of the file."""
        if self.kv_heads is None:
            halves = rows.reshape(self.heads, 2, -1, *_row_of(rows))
            return halves.swapaxes(1, 2).reshape(rows.shape)
        size = len(rows) // (self.heads + 2 * self.kv_heads)
        groups = rows.reshape(self.kv_heads, -1, *_row_of(rows))
        parts = np.split(groups, [-2 * size, -size], axis=1)
        return np.concatenate([part.reshape(-1, *_row_of(rows)) for part in parts])


def _row_of(rows: np.ndarray) -> tuple[int, ...]:
    return rows.shape[1:]


class TensorMapping(Struct, frozen=True):
    """How a model knows a tensor of the file: its `name`, and what llama.cpp changed about it.

    `order` is the order of its rows, if it differs from the model's. `transposed` matrices are the
    other way round in the model. `offset` is how much larger unquantized values are in the file.
    `shape` is that in the model, if it differs. With `decay` the file has `-exp` of the model's
    values, as of the matrix A of state spaces.
    """

    name: str
    order: RowOrder | None = None
    transposed: bool = False
    offset: float = 0.0
    shape: tuple[int, ...] | None = None
    decay: bool = False


class GgufFile(MappedTensors):
    """An open GGUF file; its tensors have the names, shapes and rows that `mappings` gives them."""

    def __init__(
        self, path: Path, descriptor: int, header: GgufHeader, mappings: Mapping[str, TensorMapping]
    ) -> None:
        """Map the file of `descriptor`, which the caller still owns.

        `mappings` has all tensors of `header`. CheckpointError if the file cannot be mapped.
        """
        self._tensors = {mappings[each.name].name: each for each in header.tensors}
        self._mappings = {mapping.name: mapping for mapping in mappings.values()}
        self._cut: tuple[str, dict[Part, np.ndarray]] = "", {}
        """Parts of the last tensor read that have not been requested yet."""
        self._cutting = threading.Lock()
        entries = {name: self._entry(name, each) for name, each in self._tensors.items()}
        super().__init__(path, descriptor, header.size, entries)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mapped: Callable[[GgufHeader], Mapping[str, TensorMapping]],
        *,
        known: GgufHeader | None = None,
    ) -> GgufFile:
        """Map the file and check its whole header; CheckpointError describes any fault.

        `mapped` maps all tensors of a header. A `known` header that was read before is not read
        again where the file is still the same.
        """
        with open_header(path, known) as (descriptor, header):
            return cls(Path(path), descriptor, header, mapped(header))

    @override
    def type_of(self, name: str) -> TensorType:
        """Return dtype and shape, f32 where the tensor is quantized; CheckpointError if absent."""
        entry = self.entry(name)
        return TensorType(entry.dtype or dtypes.f32, entry.shape)

    @override
    def read(self, name: str) -> np.ndarray:
        type_ = self.type_of(name)
        if type_.size and (self.quantized(name) is not None or self._is_moved(name)):
            # Decoded in pieces of rows, which bounds the memory of intermediates.
            array = np.concatenate(list(self._stored_rows(name)))
            array = _transposed(array) if self._mappings[name].transposed else array
            array = np.ascontiguousarray(array).reshape(type_.shape)
            array.flags.writeable = False
            return array
        return super().read(name)

    @override
    def view(self, name: str) -> np.ndarray:
        if self.quantized(name) is not None or self._is_moved(name):
            return self.read(name)
        return super().view(name)

    @override
    def read_slice(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        if self.quantized(name) is not None or self._is_moved(name):
            return self.read(name)[index]
        return super().read_slice(name, index)

    @override
    def parts(self, name: str) -> Iterator[np.ndarray]:
        """Yield the elements in order, as flat arrays; raises the same errors as `read`."""
        if self.quantized(name) is None and not self._is_moved(name):
            yield from super().parts(name)
        elif self._mappings[name].transposed:
            yield self.read(name).reshape(-1)
        else:
            yield from (rows.reshape(-1) for rows in self._stored_rows(name))

    @override
    def identity_of(self, name: str) -> WeightIdentity | None:
        """Return the identity of the tensor as `read` returns it; None if the file is too new."""
        found = super().identity_of(name)
        return found if found is None else found.computed(f"read as {self._mappings[name]}")

    def quantized(self, name: str) -> QuantizedTensor | None:
        """Return how a tensor is quantized, None if it is not."""
        self.entry(name)
        tensor, mapping = self._tensors[name], self._mappings[name]
        form = tensor.type.format
        if form is None:
            return None
        blocks = tensor.shape[-1] // tensor.type.block
        outer = tensor.shape[:-1]
        types: dict[Part, TensorType] = {
            part: TensorType(each.dtype, (*outer, blocks * each.count))
            for part, each in form.parts.items()
        }
        codes = dtypes.si8 if form.signed else dtypes.ui8
        packed = TensorType(codes, (*outer, tensor.shape[-1] * form.bits // 8))
        return QuantizedTensor(
            tensor.type.name,
            tensor.shape,
            {"codes": packed, **types},
            form.bits,
            form.group_size,
            form.zero_point,
            form.super_group,
            form.table,
            mapping.transposed,
        )

    def read_part(self, name: str, part: Part) -> np.ndarray:
        """Return a part of a quantized tensor, cut out of its blocks; CheckpointError as `read`.

        The codes are mostly followed by the other parts, which are therefore extracted with them.
        """
        # The parts of one tensor are kept between calls; threads must not drop each other's.
        with self._cutting:
            of, parts = self._cut
            if of != name or part not in parts:
                quantized = self.quantized(name)
                assert quantized is not None, f"{name} is not quantized"
                wanted: Iterable[Part] = quantized.parts if part == "codes" else [part]
                parts = self._cut_out(name, quantized, wanted)
            found = parts.pop(part)
            self._cut = name, parts
            return found

    def _cut_out(
        self, name: str, quantized: QuantizedTensor, wanted: Iterable[Part]
    ) -> dict[Part, np.ndarray]:
        """Return parts of a tensor, read once for all of them."""
        tensor = self._tensors[name]
        form = tensor.type.format
        assert form is not None, f"{name} is not quantized"
        types: dict[Part, TensorType] = {part: quantized.parts[part] for part in wanted}
        rows = math.prod(tensor.shape[:-1])
        made: dict[Part, np.ndarray] = {
            part: np.empty((rows, type_.shape[-1]), type_.dtype.numpy)
            for part, type_ in types.items()
        }
        start = 0
        for blocks in self._blocks(name):
            for part, array in made.items():
                array[start : start + len(blocks)] = _part_of(blocks, part, form)
            start += len(blocks)
        for part, array in made.items():
            made[part] = self._in_order(name, array).reshape(types[part].shape)
            made[part].flags.writeable = False
        return made

    def identity_of_part(self, name: str, part: Part) -> WeightIdentity | None:
        """Return the identity of the part; None if the file is too new to have one."""
        found = self.identity_of(name)
        return found if found is None else found.computed(part)

    def _entry(self, name: str, tensor: GgufTensor) -> TensorEntry:
        shape = self._mappings[name].shape or tensor.shape
        if self._mappings[name].transposed:
            shape = (*shape[:-2], shape[-1], shape[-2])
        type_ = tensor.type
        return TensorEntry(name, type_.name, type_.dtype, shape, tensor.offset, tensor.nbytes)

    def _is_moved(self, name: str) -> bool:
        mapping = self._mappings[name]
        changed = mapping.offset != 0 or mapping.decay
        return mapping.order is not None or mapping.transposed or changed

    def _blocks(self, name: str) -> Iterator[np.ndarray]:
        """Yield the blocks of some rows at a time, ui8 [rows, blocks, bytes], as stored."""
        tensor = self._tensors[name]
        if not math.prod(tensor.shape):
            return
        row = (tensor.shape[-1] // tensor.type.block, tensor.type.block_bytes)
        rows = max(1, _ELEMENTS // tensor.shape[-1])
        for raw in self.byte_parts(name, rows * math.prod(row)):
            yield raw.reshape(-1, *row)

    def _stored_rows(self, name: str) -> Iterator[np.ndarray]:
        """Yield the values of rows, in the order of the model."""
        quantized, tensor = self.quantized(name), self._tensors[name]
        # Reordering moves rows across pieces, so all of them are needed before the first is known.
        if self._mappings[name].order is not None and math.prod(tensor.shape):
            whole = [self._values(blocks, quantized, tensor) for blocks in self._blocks(name)]
            yield self._in_order(name, np.concatenate(whole))
            return
        offset, decay = self._mappings[name].offset, self._mappings[name].decay
        for blocks in self._blocks(name):
            values = self._values(blocks, quantized, tensor)
            # llama.cpp's converter adds 1 to the norms of Gemma, which it multiplies without an
            # offset.
            values = values if not offset else (values - values.dtype.type(offset))
            yield self._logarithm(name, values) if decay else values

    def _logarithm(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return x of `-exp(x)`; CheckpointError for positive values."""
        if not (values <= 0).all():
            raise CheckpointError(f"{quoted(name)} must have no positive value in a GGUF file")
        with np.errstate(divide="ignore"):  # of no decay at all
            return np.log(-values)

    def _values(
        self, blocks: np.ndarray, quantized: QuantizedTensor | None, tensor: GgufTensor
    ) -> np.ndarray:
        form = tensor.type.format
        if quantized is None or form is None:
            dtype = tensor.type.dtype
            assert dtype is not None, "a type is plain or has a format"
            return np.ascontiguousarray(blocks).view(dtype.numpy).reshape(len(blocks), -1)
        fields: dict[Part, np.ndarray] = {
            part: _part_of(blocks, part, form, packed=False) for part in quantized.parts
        }
        return quantized.values(fields)

    def _in_order(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return rows in the order of the model; the rows of a vector are its elements."""
        order = self._mappings[name].order
        if order is None or not rows.size:
            return rows
        if len(self._tensors[name].shape) == 1:
            return order.of_model(rows.reshape(-1)).reshape(rows.shape)
        return order.of_model(rows)


@contextmanager
def open_header(
    path: str | os.PathLike[str], known: GgufHeader | None = None
) -> Generator[tuple[int, GgufHeader]]:
    """Scope of a descriptor of a GGUF file, and its header; CheckpointError if it is not sound."""
    descriptor = open_regular(resolved(path, CheckpointError), CheckpointError)
    try:
        same = known is not None and known.digest == file_digest(os.fstat(descriptor))
        yield descriptor, known if known and same else read_gguf_header(descriptor, str(path))
    except OSError as problem:
        raise CheckpointError(f"cannot read {quoted(str(path), 200)}: {problem}") from problem
    finally:
        os.close(descriptor)


def _part_of(
    blocks: np.ndarray, part: Part, form: BlockFormat, *, packed: bool = True
) -> np.ndarray:
    """Return a part of rows of blocks [rows, blocks, bytes], as [rows, ..]."""
    flat = blocks.reshape(-1, blocks.shape[-1])
    is_packed = packed and part == "codes"
    found = form.packed_codes(flat) if is_packed else form.cut(flat, part)
    return found.reshape(len(blocks), -1)


def _transposed(array: np.ndarray) -> np.ndarray:
    return array.swapaxes(-1, -2)

"""Weights quantized by bitsandbytes: 4-bit codes into a table, or int8 by rows.

4 bits: `W` holds two codes per byte, the first in the upper half, in memory order; `W.quant_map`
has the 16 values; `W.absmax` has the factor of each block. With a second level, `W.absmax` are
codes into `W.nested_quant_map`, with factors of blocks in `W.nested_absmax`.
`W.quant_state.bitsandbytes__nf4` (or fp4) is JSON: sizes, shape and type.

8 bits: `NAME.weight` si8, and `NAME.SCB`, f32, the largest value of each row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs.checkpoint.config_fields import Fields
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor
from gptrs.errors import CheckpointError, ModelError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import quoted
from gptrs.strict_json import parse_object
from gptrs_runtime.sources.made_tensors import MadeTensor

_STATE = ".quant_state.bitsandbytes__"
_TABLES = ("nf4", "fp4")
_MAP, _ABSMAX = ".quant_map", ".absmax"
_NESTED_MAP, _NESTED_ABSMAX = ".nested_quant_map", ".nested_absmax"
_ROWS, _ORDER = ".SCB", ".weight_format"
_TYPES = {"float32": dtypes.f32, "float16": dtypes.f16, "bfloat16": dtypes.bf16}
_STORAGE = (dtypes.ui8, dtypes.si8, *_TYPES.values())
_STATE_BYTES = 1 << 16
_STEP = np.float32(7.874015718698502e-3)
"""1 / 127, as the library has it."""
_SAVE = "load the model with transformers and save it again, or use the unquantized model"


class _State(Struct, frozen=True):
    """The JSON of a 4-bit weight."""

    kind: str
    block: int
    shape: tuple[int, ...]
    dtype: DType
    nested_block: int | None
    offset: float


class RowsWeight(MadeTensor):
    """An 8-bit weight: si8 rows, and the largest value of each row, f32."""

    recipe, hint = "bitsandbytes", _SAVE

    @property
    @override
    def hidden(self) -> Sequence[str]:
        return *self.parts, self._order

    @property
    def _order(self) -> str:
        return f"{self.name.removesuffix('.weight')}{_ORDER}"

    @override
    def described(self) -> QuantizedTensor:
        codes, rows = (self.stored.type_of(each) for each in self.parts)
        if self._order in self.stored.names() and self.stored.load(self._order).any():
            raise self.misfit(self.name, "is in the order of a GPU's kernels, not by rows")
        matrix = codes.dtype is dtypes.si8 and codes.rank == 2
        if not matrix or rows != TensorType(dtypes.f32, (codes.shape[0],)):
            raise self.misfit(self.name, f"is `{codes}` with scales of `{rows}`")
        scale = TensorType(dtypes.f32, (codes.shape[0], 1))
        parts: dict[Part, TensorType] = {"codes": codes, "scale": scale}
        return QuantizedTensor("bitsandbytes-int8", codes.shape, parts, 8, codes.shape[1])

    @override
    def load(self) -> np.ndarray:
        self.described()
        codes, rows = (self.stored.load(each) for each in self.parts)
        with np.errstate(over="ignore", invalid="ignore"):  # as floats of PTIR do
            return codes * rows.reshape(-1, 1) * _STEP

    @override
    def load_part(self, part: Part) -> np.ndarray:
        self.described()
        if part == "codes":
            return self.stored.load(self.parts[0])
        return self.stored.load(self.parts[1]).reshape(-1, 1) * _STEP


class TableWeight(MadeTensor):
    """A 4-bit weight, of the type before quantization: f32, f16 or bf16."""

    recipe, hint = "bitsandbytes", _SAVE

    @property
    @override
    def type(self) -> TensorType:
        state = self._checked_state()
        return TensorType(state.dtype, state.shape)

    @override
    def quantized(self) -> None:
        return None

    @override
    def described(self) -> QuantizedTensor:
        state = self._checked_state()
        parts: dict[Part, TensorType] = {
            "codes": self.stored.type_of(self.name),
            "scale": self.stored.type_of(self.name + _ABSMAX),
        }
        return QuantizedTensor(f"bitsandbytes-{state.kind}", state.shape, parts, 4, state.block)

    @override
    def load(self) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):  # as floats of PTIR do
            return self._decoded(self._checked_state())

    def _decoded(self, state: _State) -> np.ndarray:
        count = math.prod(state.shape)
        packed = np.ascontiguousarray(self.stored.load(self.name)).reshape(-1).view(np.uint8)
        codes = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)[:count]
        values = self.stored.load(self.name + _MAP)[codes]
        blocks = self._block_scales(state)
        whole = count // state.block * state.block
        values[:whole].reshape(-1, state.block)[...] *= blocks[: whole // state.block, None]
        values[whole:] *= blocks[-1] if whole < count else np.float32(1)
        return values.reshape(state.shape).astype(state.dtype.numpy, copy=False)

    def _block_scales(self, state: _State) -> np.ndarray:
        """Return the factor of each block, f32."""
        stored = self.stored.load(self.name + _ABSMAX)
        if state.nested_block is None:
            return stored
        table = self.stored.load(self.name + _NESTED_MAP)
        above = self.stored.load(self.name + _NESTED_ABSMAX)
        spread = above[np.arange(len(stored)) // state.nested_block]
        return table[stored] * spread + np.float32(state.offset)

    def _checked_state(self) -> _State:
        """Return the JSON of a weight; CheckpointError if its tensors do not fit each other."""
        state = self._read_state()
        codes = self.stored.type_of(self.name)
        count = math.prod(state.shape)
        if codes.dtype not in _STORAGE or codes.nbytes != (count + 1) // 2:
            raise self.misfit(self.name, f"is `{codes}`, and stands for {list(state.shape)}")
        blocks = -(-count // state.block)
        nested = state.nested_block
        wanted = {
            _MAP: (16, dtypes.f32),
            _ABSMAX: (blocks, dtypes.f32 if nested is None else dtypes.ui8),
        }
        if nested is not None:
            wanted[_NESTED_MAP] = (256, dtypes.f32)
            wanted[_NESTED_ABSMAX] = (-(-blocks // nested), dtypes.f32)
        known = self.stored.names()
        for end, (length, dtype) in wanted.items():
            if self.name + end not in known:
                raise self.misfit(self.name, f"comes without {quoted(self.name + end)}")
            found = self.stored.type_of(self.name + end)
            if found != TensorType(dtype, (length,)):
                raise self.misfit(self.name + end, f"is `{found}`, not `{dtype}[{length}]`")
        return state

    def _read_state(self) -> _State:
        stored = self.parts[1]
        found = self.stored.type_of(stored)
        if found.dtype is not dtypes.ui8 or found.rank != 1 or found.nbytes > _STATE_BYTES:
            raise self.misfit(stored, f"is `{found}`, not JSON")
        data = self.stored.load(stored).tobytes()
        where = f"{quoted(self.stored.origin, 200)}: tensor {quoted(stored)}"
        fields = Fields(parse_object(data, where, CheckpointError), f"of {where}")
        try:
            nested = fields.get("nested_blocksize") is not None
            fields.require("nested_dtype", "float32")
            offset = fields.get("nested_offset", 0.0)
            if isinstance(offset, bool) or not isinstance(offset, (int, float)):
                raise fields.error("nested_offset", "must be a number")
            return _State(
                fields.choice("quant_type", _TABLES, stored.removeprefix(self.name + _STATE)),
                fields.integer("blocksize"),
                fields.integers("shape", (), minimum=0),
                _TYPES[fields.choice("dtype", tuple(_TYPES), "")],
                fields.integer("nested_blocksize") if nested else None,
                float(offset),
            )
        except ModelError as error:
            raise CheckpointError(str(error), hint=_SAVE) from None


def weights(stored: FileSource) -> Iterator[MadeTensor]:
    """Yield the weights of 4 and of 8 bits."""
    names = dict.fromkeys(stored.names())
    for name in names:
        if name.endswith(_ROWS):
            end = name.removesuffix(_ROWS)
            yield RowsWeight(stored, f"{end}.weight", (f"{end}.weight", name))
        own, state, kind = name.partition(_STATE)
        if state and kind in _TABLES:
            others = (own + each for each in (_ABSMAX, _MAP, _NESTED_ABSMAX, _NESTED_MAP))
            yield TableWeight(stored, own, (own, name, *(each for each in others if each in names)))

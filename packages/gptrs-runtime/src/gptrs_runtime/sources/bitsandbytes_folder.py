"""The weights of a folder that bitsandbytes rounded: codes of 4 bits in a table, or int8 by rows.

4 bits: `W` holds two codes a byte, the first in the upper half, of the elements in order of memory;
`W.quant_map` the 16 numbers that codes stand for; `W.absmax` what a block of them is multiplied by.
With a second level `W.absmax` are codes in `W.nested_quant_map`, by blocks of
`W.nested_absmax`. `W.quant_state.bitsandbytes__nf4` (or fp4) is JSON: sizes, shape and type.

8 bits: `NAME.weight` si8, and `NAME.SCB`, f32, the largest value of each row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from gptrs.checkpoint.config_fields import Fields
from gptrs.checkpoint.formats.safetensors_header import refused
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor
from gptrs.errors import CheckpointError, ModelError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import TensorType
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import quoted
from gptrs.strict_json import parse_object
from gptrs_runtime.sources.decoded_folder import DecodedFolder

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
_SAVE = "load the model by transformers and save it again, or take it unquantized"


@dataclass(frozen=True, slots=True)
class _State:
    """How a weight of 4 bits is stored: its JSON."""

    kind: str
    block: int
    shape: tuple[int, ...]
    dtype: DType
    nested_block: int | None
    offset: float


class BitsAndBytesFolder(DecodedFolder):
    """Tensors of a folder; weights of 4 and 8 bits have the values that the library gives them.

    Those of 4 bits have the type that they were rounded from, f32, f16 or bf16; those of 8 are f32.
    """

    def __init__(self, stored: FileSource) -> None:
        super().__init__(stored, "bitsandbytes")
        names = set(self._shown)
        self._states: dict[str, str] = {}
        for kind in _TABLES:
            for name in names:
                weight = name.removesuffix(f"{_STATE}{kind}")
                if weight != name:
                    self._states[weight] = name
        ends = [name.removesuffix(_ROWS) for name in names if name.endswith(_ROWS)]
        self._rows = {f"{end}.weight": f"{end}{_ROWS}" for end in ends}
        hidden = {*self._states.values(), *self._rows.values()}
        hidden |= {f"{end}{_ORDER}" for end in ends}
        for weight in self._states:
            hidden |= {weight + each for each in (_MAP, _ABSMAX, _NESTED_MAP, _NESTED_ABSMAX)}
        self._shown = tuple(name for name in self._shown if name not in hidden)

    @override
    def type_of(self, name: str) -> TensorType:
        if name not in self._states:
            return super().type_of(name)
        state = self._checked_state(name)
        return TensorType(state.dtype, state.shape)

    @override
    def quantized(self, name: str) -> QuantizedTensor | None:
        """Return how a weight of 8 bits is quantized; those of 4 are decoded."""
        return self._described(name) if name in self._rows else None

    @override
    def load_part(self, name: str, part: Part) -> np.ndarray:
        self._described(name)
        if part == "codes":
            return self._stored.load(name)
        scale = self._stored.load(self._rows[name]).reshape(-1, 1) * _STEP
        scale.flags.writeable = False
        return scale

    @override
    def _parts_of(self, name: str) -> Sequence[str]:
        if name in self._rows:
            return [name, self._rows[name]]
        if name not in self._states:
            return []
        known = self._stored.names()
        others = (name + each for each in (_ABSMAX, _MAP, _NESTED_ABSMAX, _NESTED_MAP))
        return [name, self._states[name], *(each for each in others if each in known)]

    @override
    def _described(self, name: str) -> QuantizedTensor | None:
        if name in self._rows:
            return self._described_rows(name)
        if name not in self._states:
            return None
        state = self._checked_state(name)
        parts: dict[Part, TensorType] = {
            "codes": self._stored.type_of(name),
            "scale": self._stored.type_of(name + _ABSMAX),
        }
        return QuantizedTensor(f"bitsandbytes-{state.kind}", state.shape, parts, 4, state.block)

    @override
    def _decoded(self, name: str, quantized: QuantizedTensor) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):  # as floats of PTIR do
            if name in self._rows:
                rows = self._stored.load(self._rows[name]).reshape(-1, 1)
                return self._stored.load(name) * rows * _STEP
            return self._decoded_table(name, self._checked_state(name))

    def _described_rows(self, name: str) -> QuantizedTensor:
        codes, rows = self._stored.type_of(name), self._stored.type_of(self._rows[name])
        order = f"{name.removesuffix('.weight')}{_ORDER}"
        if order in self._stored.names() and self._stored.load(order).any():
            problem = "is in the order of a GPU's kernels, not by rows"
            raise refused(self.origin, name, problem, _SAVE)
        if (
            codes.dtype is not dtypes.si8
            or codes.rank != 2
            or rows != TensorType(dtypes.f32, (codes.shape[0],))
        ):
            raise self._misfit(name, f"is `{codes}` with scales of `{rows}`")
        scale = TensorType(dtypes.f32, (codes.shape[0], 1))
        parts: dict[Part, TensorType] = {"codes": codes, "scale": scale}
        return QuantizedTensor("bitsandbytes-int8", codes.shape, parts, 8, codes.shape[1])

    def _decoded_table(self, name: str, state: _State) -> np.ndarray:
        count = math.prod(state.shape)
        packed = np.ascontiguousarray(self._stored.load(name)).reshape(-1).view(np.uint8)
        codes = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)[:count]
        values = self._stored.load(name + _MAP)[codes]
        blocks = self._block_scales(name, state)
        whole = count // state.block * state.block
        values[:whole].reshape(-1, state.block)[...] *= blocks[: whole // state.block, None]
        values[whole:] *= blocks[-1] if whole < count else np.float32(1)
        return values.reshape(state.shape).astype(state.dtype.numpy, copy=False)

    def _block_scales(self, name: str, state: _State) -> np.ndarray:
        """Return what each block is multiplied by, f32."""
        stored = self._stored.load(name + _ABSMAX)
        if state.nested_block is None:
            return stored
        table = self._stored.load(name + _NESTED_MAP)
        above = self._stored.load(name + _NESTED_ABSMAX)
        spread = above[np.arange(len(stored)) // state.nested_block]
        return table[stored] * spread + np.float32(state.offset)

    def _checked_state(self, name: str) -> _State:
        """Return how a weight is stored; CheckpointError if its tensors do not fit one another."""
        state = self._read_state(name)
        codes = self._stored.type_of(name)
        count = math.prod(state.shape)
        if codes.dtype not in _STORAGE or codes.nbytes != (count + 1) // 2:
            raise self._misfit(name, f"is `{codes}`, and stands for {list(state.shape)}")
        blocks = -(-count // state.block)
        nested = state.nested_block
        wanted = {
            _MAP: (16, dtypes.f32),
            _ABSMAX: (blocks, dtypes.f32 if nested is None else dtypes.ui8),
        }
        if nested is not None:
            wanted[_NESTED_MAP] = (256, dtypes.f32)
            wanted[_NESTED_ABSMAX] = (-(-blocks // nested), dtypes.f32)
        known = self._stored.names()
        for end, (length, dtype) in wanted.items():
            if name + end not in known:
                raise self._misfit(name, f"comes without {quoted(name + end)}")
            found = self._stored.type_of(name + end)
            if found != TensorType(dtype, (length,)):
                raise self._misfit(name + end, f"is `{found}`, not `{dtype}[{length}]`")
        return state

    def _read_state(self, name: str) -> _State:
        stored = self._states[name]
        found = self._stored.type_of(stored)
        if found.dtype is not dtypes.ui8 or found.rank != 1 or found.nbytes > _STATE_BYTES:
            raise self._misfit(stored, f"is `{found}`, not JSON")
        data = self._stored.load(stored).tobytes()
        where = f"{quoted(self.origin, 200)}: tensor {quoted(stored)}"
        fields = Fields(parse_object(data, where, CheckpointError), f"of {where}")
        try:
            nested = fields.get("nested_blocksize") is not None
            fields.require("nested_dtype", "float32")
            offset = fields.get("nested_offset", 0.0)
            if isinstance(offset, bool) or not isinstance(offset, (int, float)):
                raise fields.error("nested_offset", "must be a number")
            return _State(
                fields.choice("quant_type", _TABLES, stored.removeprefix(name + _STATE)),
                fields.integer("blocksize"),
                fields.integers("shape", (), minimum=0),
                _TYPES[fields.choice("dtype", tuple(_TYPES), "")],
                fields.integer("nested_blocksize") if nested else None,
                float(offset),
            )
        except ModelError as error:
            raise CheckpointError(str(error), hint=_SAVE) from None

    def _misfit(self, name: str, problem: str) -> CheckpointError:
        return refused(self.origin, name, problem, _SAVE)

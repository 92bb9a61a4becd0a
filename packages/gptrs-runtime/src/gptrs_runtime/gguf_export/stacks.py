"""The matrices of experts as a GGUF file has them: those of a layer as one tensor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from gptrs.checkpoint.formats.gguf_writer import GgufOutgoing
from gptrs.checkpoint.formats.outgoing_tensor import OutgoingTensor
from gptrs.errors import ModelError
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import quoted

_EXPERT = re.compile(r"(blk\.[0-9]+\.ffn_[a-z]+)\.([0-9]+)\.(weight|bias)")
ROUTER = "ffn_gate_inp"
"""How the names of tensors start that choose experts, which files have in f32."""
_GATE = "ffn_gate_inp_shexp.weight"


def stacked(tensors: Sequence[GgufOutgoing]) -> list[GgufOutgoing]:
    """Return the tensors with those of experts `blk.N.ffn_up.E.weight` as stacks of all E.

    The gate of one output is a vector there. ModelError for experts of several types.
    """
    stacks: dict[str, list[tuple[int, GgufOutgoing]]] = {}
    for tensor in tensors:
        name = tensor.data.name
        found = _EXPERT.fullmatch(name)
        key = name if found is None else f"{found[1]}_exps.{found[3]}"
        stacks.setdefault(key, []).append((0 if found is None else int(found[2]), tensor))
    return [_joined(key, sorted(found, key=lambda each: each[0])) for key, found in stacks.items()]


def _joined(name: str, experts: Sequence[tuple[int, GgufOutgoing]]) -> GgufOutgoing:
    first = experts[0][1]
    if first.data.name == name:
        vector = name.endswith(f".{_GATE}")
        return GgufOutgoing(first.data, first.type_name, first.shape[1:]) if vector else first
    alike = {(tensor.type_name, tensor.shape) for _, tensor in experts}
    if len(alike) > 1 or [number for number, _ in experts] != list(range(len(experts))):
        raise ModelError(
            f"the experts of {quoted(name)} are not of one type and shape, or some are missing",
            hint="a pattern of `--keep` names all experts of a layer or none",
        )

    def parts() -> Iterator[np.ndarray]:
        for _, tensor in experts:
            yield from tensor.data.parts()

    nbytes = sum(tensor.data.type.size for _, tensor in experts)
    data = OutgoingTensor(name, TensorType(dtypes.ui8, (nbytes,)), parts)
    return GgufOutgoing(data, first.type_name, (len(experts), *first.shape))

"""Programs and models as ONNX files: the graph in one file, the weights in another one."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

import onnx

from gptrs.api import ModelError, UnsupportedError
from gptrs.api.importers import OutgoingModel, OutgoingTensor, atomic_file, write_data
from gptrs_onnx import writing
from gptrs_onnx.element_types import ONNX_TYPES
from gptrs_onnx.writing.model_proto import written_model

assert writing  # its modules register the writers
MAX_BYTES: Final = 2**31 - 1
"""The largest protobuf message."""
_ALIGNMENT: Final = 4096
"""Alignment of weights in their file: pages, which runtimes map."""


def export(model: OutgoingModel, path: Path) -> list[Path]:
    """Write a program as an ONNX file of operator set 21; return the files.

    Weights go to `NAME.data` beside it, one at a time. UnsupportedError, before anything is
    written, for what ONNX cannot say; ModelError for what cannot be written. Whatever happens
    meanwhile, there is no file at `path`, or the old one with its weights, or the new one.
    """
    if model.weights and not _is_text(path.name):
        raise ModelError(
            f"ONNX names the file of the weights in UTF-8, and `{ascii(path.name)[1:-1]}` is not",
            hint="choose another name",
        )
    made = written_model(model)
    proto, data = made.model, path.with_name(f"{path.name}.data")
    places = _places(model.weights)
    for name, weight, offset in zip(made.weights, model.weights, places, strict=True):
        proto.graph.initializer.append(_external(name, weight, data.name, offset))
    if proto.ByteSize() > MAX_BYTES:
        raise UnsupportedError(
            f"the constants of the program take {proto.ByteSize()} bytes, an ONNX file has at most"
            f" {MAX_BYTES}"
        )
    if not model.weights:
        with atomic_file(path, ModelError) as file:
            file.write(proto.SerializeToString())
        return [path]
    # The graph and the weights are of one model: without its weights, the old graph goes first.
    with atomic_file(data, ModelError) as file:
        _write_weights(file, model.weights, places)
        path.unlink(missing_ok=True)
    with atomic_file(path, ModelError) as file:
        file.write(proto.SerializeToString())
    return [path, data]


def to_proto(model: OutgoingModel) -> onnx.ModelProto:
    """Return a program as an ONNX model in memory, with its weights; errors as `export`."""
    made = written_model(model)
    for name, weight in zip(made.weights, model.weights, strict=True):
        tensor = _described(name, weight)
        held = BytesIO()
        write_data(held, weight)
        tensor.raw_data = held.getvalue()
        made.model.graph.initializer.append(tensor)
    return made.model


def _is_text(name: str) -> bool:
    """Return whether the bytes of a name of a file are UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _described(name: str, weight: OutgoingTensor) -> onnx.TensorProto:
    dtype = int(ONNX_TYPES[weight.type.dtype])
    return onnx.TensorProto(name=name, data_type=dtype, dims=weight.type.shape)


def _external(name: str, weight: OutgoingTensor, file: str, offset: int) -> onnx.TensorProto:
    """Return the entries that say where a weight lies."""
    tensor = _described(name, weight)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    length = _stored_bytes(weight)
    for key, value in (("location", file), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def _stored_bytes(weight: OutgoingTensor) -> int:
    type_ = weight.type
    return (type_.size + 1) // 2 if type_.dtype.bits == 4 else type_.nbytes


def _places(weights: Sequence[OutgoingTensor]) -> list[int]:
    """Return the offset of each weight in the file."""
    places: list[int] = []
    end = 0
    for weight in weights:
        end += -end % _ALIGNMENT
        places.append(end)
        end += _stored_bytes(weight)
    return places


def _write_weights(
    file: BinaryIO, weights: Sequence[OutgoingTensor], places: Sequence[int]
) -> None:
    end = 0
    for weight, place in zip(weights, places, strict=True):
        file.write(bytes(place - end))
        end = place + write_data(file, weight)

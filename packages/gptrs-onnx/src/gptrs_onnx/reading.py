"""An ONNX file as a model: bounded, and with external data only out of its own folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, cast

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from gptrs.api import ModelError, UnsupportedError
from gptrs.backend.weight_identity import WeightFile, file_digest
from gptrs.checkpoint.files.open_file import open_regular
from gptrs_onnx.node import DAMAGE, shown

MAX_BYTES: Final = 2**31 - 1
"""The largest protobuf message."""
MIN_OPSET: Final = 7
MAX_OPSET: Final = onnx.defs.onnx_opset_version()


def read_model(path: str | os.PathLike[str]) -> tuple[ir.Model, WeightFile | None]:
    """Return the model in a file, and the file as it was then: None if it was changed meanwhile.

    ModelError for what is no model, UnsupportedError for its version.
    """
    file = Path(path)
    if not file.is_file():
        raise ModelError(f"`{shown(file)}` is no file", hint="give the path of an .onnx file")
    if file.stat().st_size > MAX_BYTES:
        raise ModelError(
            f"`{shown(file)}` has {file.stat().st_size} bytes, more than a protobuf message can",
            hint="save the model with its weights as external data",
        )
    own = _stamp(file)
    model = parsed_model(file.read_bytes(), file.parent, str(file))
    return model, own if own is not None and own.unchanged() else None


def _stamp(file: Path) -> WeightFile | None:
    """Return a file as it is; what was read of it stays what it is, even if the file changes."""
    descriptor = open_regular(file)
    try:
        found = WeightFile.of(str(file), descriptor, lambda: True)
    finally:
        os.close(descriptor)
    if found is None:
        return None

    def unchanged() -> bool:
        try:
            return file_digest(os.stat(found.path)) == found.digest
        except OSError:
            return False

    return WeightFile(found.digest, found.path, unchanged)


def parsed_model(data: bytes, folder: Path | None, origin: str) -> ir.Model:
    """Return the model written in `data`, whose external data lies in `folder` or below."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(f"`{shown(origin)}` is no ONNX model: {error}") from None
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelError(f"`{shown(origin)}` is no ONNX model: it lacks a graph or operator sets")
    return model_of(proto, folder, origin)


def model_of(proto: onnx.ModelProto, folder: Path | None, origin: str = "the model") -> ir.Model:
    """Return a checked model; external data must lie in `folder` or below."""
    for each in proto.opset_import:
        if each.domain in ("", "ai.onnx") and not MIN_OPSET <= each.version <= MAX_OPSET:
            raise UnsupportedError(
                f"`{shown(origin)}` is written in operator set {each.version},"
                f" those from {MIN_OPSET} to {MAX_OPSET} are read",
                hint="convert it with `onnx.version_converter`",
            )
    # The library warns of names that a hostile file may have chosen; ours are errors.
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)
    try:
        model = ir.serde.deserialize_model(proto)
    except DAMAGE as error:
        raise ModelError(f"`{shown(origin)}` is no sound ONNX model: {shown(error)}") from error
    _bind_external(model, folder)
    return model


def _bind_external(model: ir.Model, folder: Path | None) -> None:
    for what, tensor in _external_tensors(model):
        try:
            _require_inside(what, tensor, folder)
        except (OSError, ValueError, TypeError) as error:
            raise ModelError(f"{what} cannot be read: {shown(error)}") from error
        tensor.base_dir = str(folder)


def _external_tensors(model: ir.Model) -> Iterator[tuple[str, ir.ExternalTensor]]:
    """Yield all tensors that lie in other files, and what they are: attributes have some, too."""
    for body in (model.graph, *model.functions.values()):
        root = body.graph if isinstance(body, ir.Function) else body
        for graph in (root, *root.subgraphs()):
            for name, value in graph.initializers.items():
                if isinstance(value.const_value, ir.ExternalTensor):
                    yield f"the initializer `{shown(name)}`", value.const_value
        for node in body.all_nodes():
            yield from _external_values(node.attributes.values(), shown(node.op_type))
        if isinstance(body, ir.Function):
            yield from _external_values(body.attributes.values(), shown(body.name))


def _external_values(
    attributes: Iterable[ir.Attr], owner: str
) -> Iterator[tuple[str, ir.ExternalTensor]]:
    for attribute in attributes:
        held: object = attribute.value
        several = isinstance(held, list | tuple)
        for value in cast("Sequence[object]", held) if several else (held,):
            if isinstance(value, ir.ExternalTensor):
                yield f"the attribute `{shown(attribute.name)}` of `{owner}`", value


def _require_inside(what: str, tensor: ir.ExternalTensor, folder: Path | None) -> None:
    """ModelError unless external data is a regular file in the folder that is long enough."""
    place = Path(os.fspath(cast("str", tensor.location)))
    if folder is None:
        raise ModelError(f"{what} is in another file, which is not here")
    target = (folder / place).resolve()
    if place.is_absolute() or not target.is_relative_to(folder.resolve()):
        raise ModelError(f"{what} is in `{shown(place)}`, outside the model's folder")
    if not target.is_file():
        raise ModelError(f"{what} is in `{shown(place)}`, which is no file")
    if any(size < 0 for size in tensor.shape.numpy()):
        raise ModelError(f"{what} has a negative size")
    end = (tensor.offset or 0) + (tensor.length if tensor.length is not None else tensor.nbytes)
    if end > target.stat().st_size or (tensor.offset or 0) < 0:
        raise ModelError(
            f"{what} ends at byte {end} of `{shown(place)}`, which has {target.stat().st_size}"
        )

"""An ONNX file as a model: of limited size, and with external data only from its own folder."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Final, cast

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from gptrs.api import CheckpointError, ModelError, UnsupportedError
from gptrs.api.backends import WeightIdentity
from gptrs.api.importers import DAMAGE
from gptrs.api.programs import TensorType
from gptrs.backend.weight_identity import WeightFile
from gptrs.checkpoint.files.open_file import open_regular, resolved
from gptrs.checkpoint.formats.foreign_files import require_no_pointer
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.formats.safetensors_header import TensorEntry
from gptrs_onnx.element_types import HELD_IN, is_read, stored_dtype
from gptrs_onnx.graph_file import Place, Places, identity_inside, place_in, stamp_of
from gptrs_onnx.node import MAX_COMPUTED, stored_array
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.search import SMALL, shown

MAX_BYTES: Final = 2**31 - 1
"""The largest protobuf message."""
MIN_OPSET: Final = 7
MAX_OPSET: Final = onnx.defs.onnx_opset_version()


def read_model(path: str | os.PathLike[str]) -> tuple[ir.Model, WeightFile | None]:
    """Return the model in a file, and the file as it was then: None if it was changed meanwhile.

    ModelError for anything else, UnsupportedError for its version.
    """
    file = _required_file(path)
    real = resolved(file)
    # The stamp is taken before the bytes: a file that is replaced in between gets no identity,
    # rather than that of the wrong bytes.
    own = stamp_of(real)
    # Caches of hubs hold links to files that lie together in a folder of their own.
    model = model_of(_proto_of(real.read_bytes(), str(file)), file.parent, str(file), real.parent)
    return model, own if own is not None and own.unchanged() else None


def read_any_model(path: str | os.PathLike[str]) -> ir.Model:
    """Return the model in a file, of whatever version, without the weights in other files.

    ModelError for anything else.
    """
    file = _required_file(path)
    return _deserialized(_proto_of(file.read_bytes(), str(file)), str(file))


def _required_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that a protobuf message can hold; ModelError for another one."""
    file = Path(path)
    if not file.is_file():
        raise ModelError(f"`{shown(file)}` is not a file", hint="give the path of an .onnx file")
    if file.stat().st_size > MAX_BYTES:
        raise ModelError(
            f"`{shown(file)}` has {file.stat().st_size} bytes, more than a protobuf message can",
            hint="save the model with its weights as external data",
        )
    return file


def parsed_model(data: bytes, folder: Path | None, origin: str) -> ir.Model:
    """Return the model written in `data`, whose external data lies in `folder` or below."""
    return model_of(_proto_of(data, origin), folder, origin)


def _proto_of(data: bytes, origin: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    require_no_pointer(origin, data, ModelError)
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(f"`{shown(origin)}` is not an ONNX model: {error}") from None
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelError(
            f"`{shown(origin)}` is not an ONNX model: it lacks a graph or operator sets"
        )
    return proto


def model_of(
    proto: onnx.ModelProto,
    folder: Path | None,
    origin: str = "the model",
    beside: Path | None = None,
) -> ir.Model:
    """Return a checked model; external data must lie in `folder` or below.

    Links in it may also lead to the folder `beside` or below, where data is looked for, too.
    """
    require_read_version({each.domain: each.version for each in proto.opset_import}, origin)
    model = _deserialized(proto, origin)
    _bind_external(model, [each for each in (folder, beside) if each is not None])
    _lift_weights(model.graph)
    _name_apart(tuple(model.graphs()))
    for graph in model.graphs():
        _put_in_order(graph)
    return model


def _name_apart(graphs: Sequence[ir.Graph]) -> None:
    """Rename initializers whose names an earlier graph has, as two branches of an `If` may.

    Weights are known by their names.
    """
    names = {name for graph in graphs for name in graph.initializers}
    taken: set[str] = set()
    for graph in graphs:
        for name, value in tuple(graph.initializers.items()):
            if name in taken:
                value.name = next(
                    each for number in count(2) if (each := f"{name}_{number}") not in names
                )
                names.add(value.name)
            taken.add(name)


def _put_in_order(graph: ir.Graph) -> None:
    """Sort nodes that read what comes later: float16 converters write them, runtimes sort them."""
    made: set[ir.Node] = set()
    for node in graph:
        for each in node.inputs:
            producer = None if each is None else each.producer()
            if producer is not None and producer.graph is graph and producer not in made:
                try:
                    graph.sort()
                except ValueError as error:
                    raise ModelError(f"the nodes form a cycle: {shown(error)}") from None
                return
        made.add(node)


def _lift_weights(graph: ir.Graph) -> None:
    """Make the large tensors of `Constant` nodes initializers: weights, as Paddle exports them.

    Backends keep a weight in the order of their kernels, but not a constant of a program.
    """
    for node in list(graph):
        held = node.attributes.get("value")
        is_constant = node.op_type == "Constant" and node.domain in ("", "ai.onnx")
        if not is_constant or held is None or len(node.outputs) != 1:
            continue
        output, tensor = node.outputs[0], held.value
        name = output.name
        if not isinstance(tensor, ir.TensorProtocol) or output.is_graph_output() or not name:
            continue
        if tensor.size <= SMALL or not is_read(tensor.dtype) or name in graph.initializers:
            continue
        weight = ir.Value(
            name=name,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        # A tuple, as replacing an input changes the uses.
        for user, index in tuple(output.uses()):
            user.replace_input_with(index, weight)
        graph.remove(node, safe=True)
        graph.initializers[name] = weight


def require_read_version(opsets: Mapping[str, int], origin: str) -> None:
    """UnsupportedError for unsupported operator sets of the standard."""
    for domain, version in opsets.items():
        if domain in ("", "ai.onnx") and not MIN_OPSET <= version <= MAX_OPSET:
            raise UnsupportedError(
                f"`{shown(origin)}` is written in operator set {version},"
                f" sets {MIN_OPSET} to {MAX_OPSET} are supported",
                hint="convert it with `onnx.version_converter`"
                if version < MIN_OPSET
                else "a newer `onnx` may have it: `pip install --upgrade onnx`",
            )


def _deserialized(proto: onnx.ModelProto, origin: str) -> ir.Model:
    # The library fails at types of maps, which are those of the results of `ZipMap`.
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        if value.type.HasField("map_type") or value.type.sequence_type.elem_type.HasField(
            "map_type"
        ):
            value.ClearField("type")
    proto = _without_sparse(proto, origin)
    # The library warns of names that a hostile file may have chosen; ours are errors.
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)
    try:
        return ir.serde.deserialize_model(proto)
    except DAMAGE as error:
        found: BaseException = error
        while found.__cause__ is not None:  # the library says first where it was, and last why
            found = found.__cause__
        raise ModelError(f"`{shown(origin)}` is not a valid ONNX model: {shown(found)}") from error


def _without_sparse(proto: onnx.ModelProto, origin: str) -> onnx.ModelProto:
    """Return a model whose sparse initializers and constants are dense ones, a copy if it has any.

    The library does not read sparse ones.
    """
    if not any(map(_has_sparse, _graphs_of(proto.graph))):
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    try:
        for graph in _graphs_of(made.graph):
            graph.initializer.extend(map(_dense, graph.sparse_initializer))
            del graph.sparse_initializer[:]
            for node in graph.node:
                for each in node.attribute:
                    if each.HasField("sparse_tensor"):
                        tensor = _dense(each.sparse_tensor)
                        each.CopyFrom(onnx.helper.make_attribute("value", tensor))
    except DAMAGE as error:
        raise ModelError(
            f"a sparse tensor of `{shown(origin)}` is damaged: {shown(error)}"
        ) from error
    return made


def _graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for each in node.attribute:
            if each.HasField("g"):
                yield from _graphs_of(each.g)


def _has_sparse(graph: onnx.GraphProto) -> bool:
    held = (each.HasField("sparse_tensor") for node in graph.node for each in node.attribute)
    return bool(graph.sparse_initializer) or any(held)


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """Return a sparse tensor with its zeros; UnsupportedError for a huge one."""
    shape = tuple(sparse.dims)
    if math.prod(shape) > MAX_COMPUTED:
        raise UnsupportedError(f"a sparse tensor has {math.prod(shape)} elements with its zeros")
    values = onnx.numpy_helper.to_array(sparse.values)
    places = onnx.numpy_helper.to_array(sparse.indices)
    if places.ndim > 1:
        places = np.ravel_multi_index(tuple(places.T), shape)
    made = np.zeros(math.prod(shape), values.dtype)
    made[places] = values
    return onnx.numpy_helper.from_array(made.reshape(shape), sparse.values.name)


def _bind_external(model: ir.Model, folders: Sequence[Path]) -> None:
    for what, tensor, owner in _external_tensors(model):
        try:
            folder, file = _data_file(what, tensor, folders)
        except (OSError, ValueError, TypeError) as error:
            raise ModelError(f"{what} cannot be read: {shown(error)}") from error
        if owner is None:
            tensor.base_dir = str(folder)
        else:  # by its real name: the library refuses links out of a folder
            owner.const_value = ir.ExternalTensor(
                file.name,
                tensor.offset,
                tensor.length,
                tensor.dtype,
                name=str(owner.name),
                shape=tensor.shape,
                base_dir=str(file.parent),
            )


def _external_tensors(
    model: ir.Model,
) -> Iterator[tuple[str, ir.ExternalTensor, ir.Value | None]]:
    """Yield all tensors that lie in other files, what they are, and their initializer.

    Those of attributes have none.
    """
    for body in (model.graph, *model.functions.values()):
        root = body.graph if isinstance(body, ir.Function) else body
        for graph in (root, *root.subgraphs()):
            for name, value in graph.initializers.items():
                if isinstance(value.const_value, ir.ExternalTensor):
                    yield f"the initializer `{shown(name)}`", value.const_value, value
        for node in body.all_nodes():
            yield from _external_values(node.attributes.values(), shown(node.op_type))
        if isinstance(body, ir.Function):
            yield from _external_values(body.attributes.values(), shown(body.name))


def _external_values(
    attributes: Iterable[ir.Attr], owner: str
) -> Iterator[tuple[str, ir.ExternalTensor, None]]:
    for attribute in attributes:
        # Not by the elements: ensembles of trees have lists of millions of numbers.
        if attribute.type not in (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS):
            continue
        held: object = attribute.value
        several = isinstance(held, list | tuple)
        for value in cast("Sequence[object]", held) if several else (held,):
            if isinstance(value, ir.ExternalTensor):
                yield f"the attribute `{shown(attribute.name)}` of `{owner}`", value, None


def _data_file(what: str, tensor: ir.ExternalTensor, folders: Sequence[Path]) -> tuple[Path, Path]:
    """Return the first of `folders` that has external data, and its file, without links.

    ModelError unless it is a regular file, long enough, and links lead to one of them or below.
    """
    place = Path(os.fspath(cast("str", tensor.location)))
    if not folders:
        raise ModelError(f"{what} is in another file, which is not here")
    # Resolved, as `..` and symbolic links would lead out of the folder: a downloaded model must not
    # read other files of the user.
    folder = next((each for each in folders if (each / place).is_file()), folders[0])
    target = (folder / place).resolve()
    if place.is_absolute() or not any(target.is_relative_to(each.resolve()) for each in folders):
        raise ModelError(f"{what} is in `{shown(place)}`, outside the model's folder")
    if not target.is_file():
        raise ModelError(f"{what} is in `{shown(place)}`, which is not a file")
    # Checked here, since the number of bytes of a negative size is negative, and would pass the
    # check of the end.
    if any(size < 0 for size in tensor.shape.numpy()):
        raise ModelError(f"{what} has a negative size")
    end = (tensor.offset or 0) + (tensor.length if tensor.length is not None else tensor.nbytes)
    if end > target.stat().st_size or (tensor.offset or 0) < 0:
        raise ModelError(
            f"{what} ends at byte {end} of `{shown(place)}`, which has {target.stat().st_size}"
        )
    return folder, target


# The initializers of an ONNX file that are parameters, as a source of these, read where they lie.
#
# External data is mapped as the weights of all files are, guarded against files that are cut. Each
# has an identity, under which what is made of a weight is kept for later processes: that of its
# file.


class InitializerSource:
    """Initializers by name; those in other files are mapped, others are views of the model.

    `own` is the file of the model as it was when it was read, None if that is not known.
    """

    def __init__(self, stored: dict[str, ir.TensorProtocol], own: WeightFile | None = None) -> None:
        self._stored = stored
        self._own = own
        self._files = _mapped(stored)

    def names(self) -> Sequence[str]:
        """Return the names of all initializers."""
        return tuple(self._stored)

    @property
    def data_files(self) -> Mapping[str, bytes] | None:
        """The digests of the files beside the model, by path.

        None if one was changed just now, or if the source has weights that lie nowhere.
        """
        files = {str(file.path): file.stamp for file in self._files.values()}
        known = {path: stamp.digest for path, stamp in files.items() if stamp is not None}
        return known if len(known) == len(files) else None

    def places(self) -> Places | None:
        """Return where all initializers are; None if one lies in no file as it is."""
        own, found = self._own, dict[str, tuple[bytes, dict[str, Place]]]()
        if own is None:
            return None
        data, end = Path(own.path).read_bytes(), 0
        for name, tensor in self._stored.items():
            type_, file = _type_of(name, tensor), self._files.get(name)
            if tensor.dtype in HELD_IN:
                return None
            if file is None:
                elements = tensor.tobytes()
                path, digest, start = own.path, own.digest, place_in(data, elements, end)
                if start < 0:
                    return None
                nbytes, end = len(elements), start + len(elements)
            else:
                if file.stamp is None:
                    return None
                entry = file.entry(name)
                path, digest = str(file.path), file.stamp.digest
                start, nbytes = entry.offset, entry.nbytes
            inside = found.setdefault(path, (digest, {}))[1]
            inside[name] = type_.dtype, type_.shape, start, nbytes
        return found if own.unchanged() else None

    def require_unchanged(self) -> None:
        """CheckpointError if a file with external data was cut or written to."""
        for file in dict.fromkeys(self._files.values()):
            file.require_unchanged()

    def has(self, name: str) -> bool:
        """Return whether there is an initializer of that name."""
        return name in self._stored

    def type_of(self, name: str) -> TensorType:
        """Return the element type and shape; CheckpointError if there is no such initializer."""
        return _type_of(name, self._tensor(name))

    def identity_of(self, name: str) -> WeightIdentity | None:
        """Return what tells an initializer from all others; None if its file is too new."""
        file = self._files.get(name)
        if file is not None:
            return file.identity_of(name)
        own = self._own
        return own and identity_inside(name, _type_of(name, self._tensor(name)), own)

    def load(self, name: str) -> np.ndarray:
        """Return the elements; ModelError where the file does not hold them."""
        file = self._files.get(name)
        return self._inner(name) if file is None else file.read(name)

    def view(self, name: str) -> np.ndarray:
        """Return what `load` does, as a view of the mapped file where it can be one."""
        file = self._files.get(name)
        return self._inner(name) if file is None else file.view(name)

    def parts(self, name: str) -> Iterator[np.ndarray]:
        """Yield the elements in order, as flat arrays; errors are those of `load`."""
        file = self._files.get(name)
        if file is None:
            yield self._inner(name).reshape(-1)
        else:
            yield from file.parts(name)

    def _inner(self, name: str) -> np.ndarray:
        """Return the elements of an initializer that the message itself holds."""
        wanted = _type_of(name, self._tensor(name))
        found = stored_array(self._tensor(name), f"the initializer `{shown(name)}`")
        if found.shape != wanted.shape:
            raise CheckpointError(f"the initializer `{shown(name)}` is {found.shape}, not {wanted}")
        is_narrow = self._tensor(name).dtype in HELD_IN
        return found.astype(wanted.dtype.numpy) if is_narrow else found

    def _tensor(self, name: str) -> ir.TensorProtocol:
        found = self._stored.get(name)
        if found is None:
            raise CheckpointError(f"the model has no initializer `{shown(name)}`")
        return found


def _type_of(name: str, tensor: ir.TensorProtocol) -> TensorType:
    sizes = tuple(int(size) for size in tensor.shape)  # pyright: ignore[reportArgumentType]
    return TensorType(stored_dtype(tensor.dtype, f"the initializer `{shown(name)}`"), sizes)


def _mapped(stored: Mapping[str, ir.TensorProtocol]) -> dict[str, MappedTensors]:
    """Return the mapped file of each initializer in another file; ModelError for a broken one."""
    entries: dict[Path, dict[str, TensorEntry]] = {}
    for name, tensor in stored.items():
        if isinstance(tensor, ir.ExternalTensor) and tensor.dtype not in HELD_IN:
            folder, file = cast("str", tensor.base_dir), cast("str", tensor.location)
            place = Path(os.fspath(folder)) / os.fspath(file)
            entries.setdefault(place.resolve(), {})[name] = _entry(name, tensor)
    found: dict[str, MappedTensors] = {}
    for path, inside in entries.items():
        descriptor = open_regular(path)
        try:
            file = MappedTensors(path, descriptor, os.fstat(descriptor).st_size, inside)
        finally:
            os.close(descriptor)
        _require_inside_file(file, inside)
        found.update(dict.fromkeys(inside, file))
    return found


def _entry(name: str, tensor: ir.ExternalTensor) -> TensorEntry:
    type_ = _type_of(name, tensor)
    # Two codes a byte, the last byte half used for an odd number.
    nbytes = (type_.size + 1) // 2 if type_.dtype.bits == 4 else type_.nbytes
    if tensor.length not in (None, nbytes):
        raise ModelError(
            f"the initializer `{shown(name)}` has {tensor.length} bytes, `{type_}` takes {nbytes}"
        )
    return TensorEntry(name, str(type_.dtype), type_.dtype, type_.shape, tensor.offset or 0, nbytes)


def _require_inside_file(file: MappedTensors, entries: Mapping[str, TensorEntry]) -> None:
    """ModelError for an initializer beyond the end of a file that was cut since it was checked."""
    for name, entry in entries.items():
        if entry.offset + entry.nbytes > file.size:
            raise ModelError(
                f"the initializer `{shown(name)}` ends at byte {entry.offset + entry.nbytes},"
                f" its file has {file.size}"
            )

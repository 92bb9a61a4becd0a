"""The reader of `.pt2` archives of torch.export, without torch: bounded JSON, mapped weights.

torch's own reader unpickles sample inputs and some weights, resolves any name inside `torch`, and
evaluates sizes as Python. Here nothing is unpickled, and names are checked against lists.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, cast

import numpy as np
import torch
from msgspec import Meta, Struct

from gptrs.api import ModelError, UnsupportedError
from gptrs.api.programs import DType, dtypes
from gptrs.strict_json import parse_object, record_of
from gptrs_torch.program_check import checked_program, require_path, shown_name

# Tensors of torch as NumPy arrays, and back, sharing memory.


_from_numpy = cast("Callable[[np.ndarray], torch.Tensor]", cast("Any", torch).from_numpy)
_VIEWED: Final = {
    torch.bfloat16: (torch.int16, dtypes.bf16.numpy),
    torch.float8_e4m3fn: (torch.uint8, dtypes.f8e4m3.numpy),
    torch.float8_e5m2: (torch.uint8, dtypes.f8e5m2.numpy),
}
"""Types that NumPy lacks: integers of their size, and the types of ml_dtypes."""
_VIEWED_AS: Final = {array: (bits, tensor) for tensor, (bits, array) in _VIEWED.items()}


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Return `tensor` as an array; the memory is shared if it is in row-major order, else copied.

    The bits of types that NumPy lacks are viewed as the types of ml_dtypes.
    """
    plain = tensor.detach() if tensor.requires_grad else tensor
    viewed = _VIEWED.get(plain.dtype)
    if viewed is not None:
        bits, array_type = viewed
        return plain.contiguous().view(bits).numpy().view(array_type)
    if plain.is_complex():
        plain = plain.resolve_conj()
    array = plain.resolve_neg().numpy()
    return array if array.flags.c_contiguous else array.copy()


def parts_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor as programs take it, both parts as its last axis; others as such."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def tensor_of(array: np.ndarray, *, of_parts: bool = False) -> torch.Tensor:
    """Return a tensor that shares the memory of `array`, which must be writable.

    `of_parts`: its last axis are the parts of complex numbers.
    """
    made = _on_memory_of(array, of_parts=of_parts)
    # An empty one gets torch's own memory, which `resize_` may enlarge.
    return made if array.size else made.clone()


def _on_memory_of(array: np.ndarray, *, of_parts: bool) -> torch.Tensor:
    if of_parts:
        whole = np.complex64 if array.dtype == np.float32 else np.complex128
        return _from_numpy(array.view(whole)[..., 0])
    viewed = _VIEWED_AS.get(array.dtype)
    if viewed is None:
        return _from_numpy(array)
    bits, tensor_type = viewed
    return _from_numpy(array.view(np.int16 if bits is torch.int16 else np.uint8)).view(tensor_type)


# Element types of torch and their counterparts in PTIR.


DTYPES: Final[Mapping[torch.dtype, DType]] = MappingProxyType(
    {
        torch.bool: dtypes.i1,
        torch.int8: dtypes.si8,
        torch.int16: dtypes.si16,
        torch.int32: dtypes.si32,
        torch.int64: dtypes.si64,
        torch.uint8: dtypes.ui8,
        torch.uint16: dtypes.ui16,
        torch.uint32: dtypes.ui32,
        torch.uint64: dtypes.ui64,
        torch.float8_e4m3fn: dtypes.f8e4m3,
        torch.float8_e5m2: dtypes.f8e5m2,
        torch.bfloat16: dtypes.bf16,
        torch.float16: dtypes.f16,
        torch.float32: dtypes.f32,
        torch.float64: dtypes.f64,
        torch.complex64: dtypes.cf32,
        torch.complex128: dtypes.cf64,
    }
)
"""The converted element types."""
PARTS: Final[Mapping[torch.dtype, torch.dtype]] = MappingProxyType(
    {torch.complex64: torch.float32, torch.complex128: torch.float64}
)
"""The types of the parts of complex numbers."""


def dtype_of(torch_type: torch.dtype, what: str) -> DType:
    """Return the PTIR type for one of torch; UnsupportedError, naming `what`, if there is none."""
    found = DTYPES.get(torch_type)
    if found is None:
        name = str(torch_type).removeprefix("torch.")
        raise UnsupportedError(f"{what} has the element type {name}, which is not converted")
    return found


MAX_JSON: Final = 256 * 2**20
"""Most bytes of a description in a file."""
MAX_ENTRIES: Final = 200_000
_EXPORT: Final = "torch.export.save(torch.export.export(model, inputs), FILE) writes what is read"
_CONVERT: Final = (
    "torch converts a file that you trust: torch.export.save(TS2EPConverter(torch.jit.load(SCRIPT),"
    " inputs).convert(), FILE) after `from torch._export.converter import TS2EPConverter`"
)


class Archive(Struct, frozen=True):
    """The parts of a file: the description of the program, weights and constants by name.

    `conditions` on sizes are Python code, which is left out of the description.
    """

    program: dict[str, Any]
    weights: dict[str, torch.Tensor]
    constants: dict[str, torch.Tensor]
    conditions: tuple[str, ...] = ()


def read_archive(path: str | os.PathLike[str]) -> Archive:
    """Return the contents of a `.pt2` file; its tensors are views of the mapped file.

    Raises ModelError for files that are damaged or no such archive; UnsupportedError for pickled
    tensors and objects, for several programs, and for names that are not listed.
    """
    shown = ascii(os.path.basename(path))[1:-1]
    if not Path(path).is_file():
        raise ModelError(f"{os.fspath(path)!a} is not a file")
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(Path(path), archive, shown)
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as error:
        problem = f"`{shown}` is not an archive of torch.export: {_line(error)}"
        raise ModelError(problem, hint=_EXPORT) from error
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        OverflowError,
    ) as error:
        raise ModelError(f"`{shown}` is damaged: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return ascii(" ".join(str(error).split())[:200])[1:-1]


def _read(path: Path, archive: zipfile.ZipFile, shown: str) -> Archive:
    if len(archive.infolist()) > MAX_ENTRIES:
        raise ModelError(f"`{shown}` has more than {MAX_ENTRIES} entries")
    entries = {name.partition("/")[2]: info for name, info in archive.NameToInfo.items()}
    programs = [name for name in entries if re.fullmatch(r"models/[^/]+\.json", name)]
    if not programs:
        raise _without_program(entries, shown)
    if len(programs) > 1:
        raise UnsupportedError(f"`{shown}` holds {len(programs)} programs of torch.export, not one")
    name = programs[0].removeprefix("models/").removesuffix(".json")
    program = _json(archive, entries, programs[0])
    conditions = tuple(map(str, program.get("guards_code") or ()))
    program = checked_program(program)
    payloads = _Payloads(path, archive, entries)
    weights = payloads.read("data/weights/", f"{name}_weights_config.json")
    constants = payloads.read("data/constants/", f"{name}_constants_config.json")
    return Archive(program, weights, constants, conditions)


def _without_program(entries: Iterable[str], shown: str) -> ModelError:
    """Return the error of an archive without a program, by the other formats that torch writes."""
    if "data.pkl" not in entries:
        return ModelError(f"`{shown}` holds no program of torch.export", hint=_EXPORT)
    if any(name.startswith("code/") for name in entries):
        wrote, hint = "TorchScript of torch.jit.save", _CONVERT
    else:
        wrote, hint = "a pickle of torch.save", _EXPORT
    return ModelError(f"`{shown}` is {wrote}, no program of torch.export", hint=hint)


def _json(
    archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], name: str
) -> dict[str, Any]:
    info = entries.get(name)
    if info is None:
        raise ModelError(
            f"the archive lacks `{shown_name(name)}`",
            hint="it may be from an older torch: save it again",
        )
    if info.file_size > MAX_JSON:
        raise ModelError(
            f"`{shown_name(name)}` has {info.file_size} bytes, at most {MAX_JSON} are read"
        )
    with archive.open(info) as file:
        return parse_object(file.read(MAX_JSON + 1), shown_name(name), hint=_EXPORT)


class _Size(Struct):
    as_int: Annotated[int, Meta(ge=0)]


class _Layout(Struct):
    dtype: int
    sizes: list[_Size]
    strides: list[_Size]
    storage_offset: _Size


class _Payload(Struct):
    path_name: str
    is_param: bool
    use_pickle: bool
    tensor_meta: _Layout | None = None


class _Table(Struct):
    """The file that describes the tensors of a folder, `PayloadConfig` of torch."""

    config: dict[str, _Payload]


class _Payloads:
    """The tensors of an archive, each a view of the file."""

    def __init__(
        self, path: Path, archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo]
    ) -> None:
        self._path = path
        self._archive = archive
        self._entries = entries
        self._mapped: dict[str, torch.Tensor] = {}

    def read(self, folder: str, name: str) -> dict[str, torch.Tensor]:
        """Return the tensors that the table `name` of a folder lists, by name."""
        table = _json(self._archive, self._entries, folder + name)
        found = record_of(table, _Table, f"`{shown_name(folder + name)}`")
        return {
            require_path(name): self._tensor(name, payload, folder)
            for name, payload in found.config.items()
        }

    def _tensor(self, name: str, payload: _Payload, folder: str) -> torch.Tensor:
        shown, entry, meta = shown_name(name), payload.path_name, payload.tensor_meta
        if payload.use_pickle or not entry.startswith(("weight_", "tensor_")):
            raise UnsupportedError(
                f"`{shown}` is pickled, which can run any code; nothing is unpickled",
                hint="it is an object, or a tensor of a custom class: export without it",
            )
        if meta is None or len(meta.sizes) != len(meta.strides):
            raise ModelError(f"the layout of `{shown}` is incomplete")
        dtype, offset = _dtype(meta.dtype, shown), meta.storage_offset.as_int
        sizes = [each.as_int for each in meta.sizes]
        strides = [each.as_int for each in meta.strides]
        flat = self._flat(folder + entry, dtype, shown)
        last = offset + sum(
            (size - 1) * stride for size, stride in zip(sizes, strides, strict=True)
        )
        if 0 not in sizes and last >= flat.numel():
            raise ModelError(f"`{shown}` ends at element {last} of {flat.numel()}")
        found = torch.as_strided(flat, sizes, strides, offset if flat.numel() else 0)
        return torch.nn.Parameter(found, requires_grad=False) if payload.is_param else found

    def _flat(self, entry: str, dtype: torch.dtype, shown: str) -> torch.Tensor:
        info = self._entries.get(entry)
        if info is None or info.compress_type != zipfile.ZIP_STORED:
            raise ModelError(f"the file lacks the elements of `{shown}`, or has them compressed")
        size, rest = divmod(info.file_size, dtype.itemsize)
        if rest:
            raise ModelError(f"`{shown}` has {info.file_size} bytes, no whole elements")
        if not size:
            return torch.empty(0, dtype=dtype)
        if entry not in self._mapped:
            with self._archive.open(info) as file:  # checks the local header
                file.read(1)
            self._mapped[entry] = self._map(info)
        return self._mapped[entry][: size * dtype.itemsize].view(dtype)

    def _map(self, info: zipfile.ZipInfo) -> torch.Tensor:
        with open(self._path, "rb") as file:
            file.seek(info.header_offset + 26)
            names = file.read(4)
            lengths = int.from_bytes(names[:2], "little") + int.from_bytes(names[2:], "little")
            start = info.header_offset + 30 + lengths
            if start + info.file_size > os.fstat(file.fileno()).st_size:
                raise ModelError(f"the file is cut: `{shown_name(info.filename)}` is not whole")
        # Copy-on-write: in-place operations of torch must never reach the file.
        mapped = np.memmap(self._path, np.uint8, "c", start, (info.file_size,))
        return tensor_of(mapped)


_SCALAR_TYPES: Final = (
    None,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    None,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.bfloat16,
)
"""Element types by the numbers of `torch._export.serde.schema.ScalarType`."""
_MORE_TYPES: Final = {28: torch.uint16, 29: torch.float8_e4m3fn, 30: torch.float8_e5m2}


def _dtype(number: int, shown: str) -> torch.dtype:
    found = _SCALAR_TYPES[number] if 0 <= number < len(_SCALAR_TYPES) else _MORE_TYPES.get(number)
    if found is None or found not in DTYPES:
        raise UnsupportedError(f"`{shown}` has the element type number {number}")
    return found


# The memory order of a torch tensor, from its strides.


def memory_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the axes of a dense tensor by decreasing stride.

    Free sizes count as the sizes of torch's example. None if elements overlap or leave gaps.
    """
    sizes, strides = _numbers(tensor.shape), _numbers(tensor.stride())
    if sizes is None or strides is None:
        return None
    axes = sorted(range(len(sizes)), key=lambda axis: -strides[axis])
    expected = 1
    for axis in reversed(axes):
        if sizes[axis] != 1 and strides[axis] != expected:
            return None
        expected *= sizes[axis]
    moved = [axis for axis in axes if sizes[axis] != 1]
    return tuple(range(len(sizes))) if moved == sorted(moved) else tuple(axes)


def result_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the memory order of a result in torch; None for row-major order."""
    order = memory_order(tensor)
    return None if order == tuple(range(tensor.ndim)) else order


def laid_out(tensor: torch.Tensor, order: Sequence[int] | None) -> torch.Tensor:
    """Return a tensor with the elements of a row-major one, in the memory order `order`."""
    if order is None:
        return tensor
    back = sorted(range(len(order)), key=lambda axis: order[axis])
    return tensor.permute(*order).contiguous().permute(*back)


def _numbers(values: Sequence[object]) -> list[int] | None:
    found: list[int] = []
    for value in values:
        number = getattr(cast("Any", value).node, "hint", None) if _is_free(value) else value
        if not isinstance(number, int):
            return None
        found.append(number)
    return found


def _is_free(value: object) -> bool:
    return isinstance(value, torch.SymInt)

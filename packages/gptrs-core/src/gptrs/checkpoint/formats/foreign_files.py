"""Model files of other programs, recognized by their first bytes or suffix, for error messages.

Only the first bytes are read, and the names of what is in a folder or an archive of torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Self

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.formats.tensor_index import stored_bytes
from gptrs.errors import CheckpointError, GptrsError
from gptrs.install_hints import install_own
from gptrs.ir.dtypes import pack_int4
from gptrs.ir.tensor_type import TensorType
from gptrs.lazy_module import lazy_module
from gptrs.quoting import quoted

if TYPE_CHECKING:
    import zipfile
else:
    zipfile = lazy_module("zipfile")  # most starts meet no foreign file

FIRST_BYTES: Final = 16
"""Number of bytes read to recognize a file."""


class ForeignFormat(Struct, frozen=True):
    """A format that tensors are not read from or written to, and what to do about it.

    `written_by` is the command that writes models in it, None without any; `package` is the
    distribution of gptrs for it. `has_graph` tells files of a graph from files of weights alone.
    """

    name: str
    otherwise: str | None = None
    written_by: str | None = None
    package: str | None = None
    has_graph: bool = False

    @property
    def hint(self) -> str | None:
        """The advice of an error: get the package, where it is not installed, else another way."""
        return self.missing or self.otherwise

    @property
    def missing(self) -> str | None:
        """How to install the package, None if there is none or it is installed."""
        if self.package is None or find_spec(self.package.replace("-", "_")) is not None:
            return None
        return f"`{self.package}` is for such files: {install_own(self.package)}"


_PICKLE: Final = ForeignFormat(
    "a pickle, which is never read: opening one can run any code",
    "where you trust the file, load the model with the program that wrote it, and save it with"
    " `save_pretrained(FOLDER)` of transformers, which writes safetensors",
)
_TORCH: Final = ForeignFormat(
    _PICKLE.name,
    f"{_PICKLE.otherwise}; torch converts TorchScript, whose code it runs:"
    " `torch.export.save(TS2EPConverter(torch.jit.load(FILE), inputs).convert(), 'model.pt2')`"
    " with `from torch._export.converter import TS2EPConverter`",
)
_FOLDER: Final = "take the model as a folder with `config.json` and safetensors"
_GGUF: Final = ForeignFormat(
    "a GGUF file of llama.cpp",
    "as a model it is read: `gptrs generate --model FILE.gguf`",
    written_by="gptrs quantize SRC FILE.gguf --type f16",
)
_NO_GGUF: Final = ForeignFormat(
    "called a GGUF file, but does not begin like one",
    "download it again, or give it the right suffix",
)
_ONNX: Final = ForeignFormat(
    "an ONNX model",
    _FOLDER,
    written_by="gptrs convert SRC FILE.onnx",
    package="gptrs-onnx",
    has_graph=True,
)
_EXPORTED: Final = ForeignFormat(
    "a program of torch.export", _FOLDER, package="gptrs-torch", has_graph=True
)
_HDF5: Final = ForeignFormat("an HDF5 file", _FOLDER)
_TFLITE: Final = ForeignFormat(
    "a TensorFlow Lite model",
    "make it an ONNX model, with the package `tf2onnx`:"
    " `python -m tf2onnx.convert --tflite FILE --output FILE.onnx`",
    has_graph=True,
)
_SAVED: Final = ForeignFormat(
    "a SavedModel of TensorFlow",
    "make it an ONNX model, with the package `tf2onnx`:"
    " `python -m tf2onnx.convert --saved-model FOLDER --output FILE.onnx`",
    has_graph=True,
)
_COREML: Final = ForeignFormat(
    "a Core ML model",
    "no program turns it back: make an ONNX model of the model in torch that it was made from,"
    ' `torch.onnx.export(model, inputs, "FILE.onnx")`',
    has_graph=True,
)
_SCRIPTED: Final = ForeignFormat(
    "TorchScript of torch.jit.save",
    "make it an ONNX model where you trust the file:"
    ' `torch.onnx.export(torch.jit.load(FILE), inputs, "FILE.onnx", dynamo=False)`',
    has_graph=True,
)

_POINTER: Final = ForeignFormat(
    "a pointer of Git LFS, not the file that it stands for",
    "`git lfs pull` in the folder of the model fetches the files",
)

_POINTER_START: Final = b"version https://"

_BY_START: Final[Mapping[bytes, ForeignFormat]] = {
    _POINTER_START: _POINTER,
    b"GGUF": _GGUF,
    b"\x89HDF\r\n\x1a\n": _HDF5,
    b"\x80\x02": _PICKLE,
    b"\x80\x04": _PICKLE,
    b"\x80\x05": _PICKLE,
}
_BY_SUFFIX: Final[Mapping[str, ForeignFormat]] = {
    ".gguf": _GGUF,
    ".onnx": _ONNX,
    ".pt2": _EXPORTED,
    ".h5": _HDF5,
    ".tflite": _TFLITE,
    ".mlmodel": _COREML,
    ".mlpackage": _COREML,
    ".mlmodelc": _COREML,
    ".torchscript": _SCRIPTED,
    ".ptl": _SCRIPTED,
    ".bin": _PICKLE,
    ".pt": _TORCH,
    ".pth": _TORCH,
    ".ckpt": _PICKLE,
    ".pkl": _PICKLE,
    ".pickle": _PICKLE,
}
PICKLE_SUFFIXES: Final = tuple(
    name for name, form in _BY_SUFFIX.items() if form in (_PICKLE, _TORCH)
)


def foreign_format(
    path: str | os.PathLike[str], start: bytes | None = None
) -> ForeignFormat | None:
    """Return the foreign format of a file that begins with `start`, else that of its suffix.

    Without `start` there is no file yet. None for unknown formats, and for those of gptrs.
    """
    begins = start or b""
    for magic, form in _BY_START.items():
        if begins.startswith(magic):
            return form
    # The mark of a FlatBuffer follows its first offset.
    if begins[4:8] == b"TFL3":
        return _TFLITE
    if begins.startswith(b"PK") and _is_scripted(path):
        return _SCRIPTED
    named = _BY_SUFFIX.get(Path(path).suffix.lower())
    return _NO_GGUF if named is _GGUF and start is not None else named


def _is_scripted(path: str | os.PathLike[str]) -> bool:
    """Return whether an archive of torch holds code beside its tensors."""
    try:
        with zipfile.ZipFile(path) as archive:
            # Only the directory is read: opening what is inside would be unpickling.
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False
    inside = {name.partition("/")[2] for name in names}
    return "data.pkl" in inside and any(name.startswith("code/") for name in inside)


def foreign_folder(path: str | os.PathLike[str]) -> ForeignFormat | None:
    """Return the foreign format of a folder, None for one that may be a model of gptrs."""
    if _BY_SUFFIX.get(Path(path).suffix.lower()) is _COREML:
        return _COREML
    return _SAVED if os.path.isfile(Path(path) / "saved_model.pb") else None


def require_no_pointer(path: str | os.PathLike[str], start: bytes, error: type[GptrsError]) -> None:
    """Raise `error` for a file whose first bytes are those of a pointer of Git LFS."""
    if start.startswith(_POINTER_START):
        raise error(f"{quoted(str(path), 200)} is {_POINTER.name}", hint=_POINTER.hint)


# A tensor to be written to a file: its type, which comes first, and its elements, part by part.


class OutgoingTensor(Struct, frozen=True):
    """`parts` gives the elements in order, as arrays of any shape; it may be called again.

    All parts but the last have an even number of elements.
    """

    name: str
    type: TensorType
    parts: Callable[[], Iterable[np.ndarray]]

    @classmethod
    def of(cls, name: str, array: np.ndarray) -> Self:
        """Return the outgoing tensor of an array in memory."""
        return cls(name, TensorType.of(array), lambda: (array,))

    def whole(self) -> np.ndarray:
        """Return the elements in one array."""
        parts = [np.ascontiguousarray(part).reshape(-1) for part in self.parts()]
        flat = parts[0] if len(parts) == 1 else np.concatenate([*parts, self._no_elements()])
        return flat.reshape(self.type.shape)

    def _no_elements(self) -> np.ndarray:
        return np.empty(0, self.type.dtype.numpy)


def write_data(file: BinaryIO, tensor: OutgoingTensor) -> int:
    """Write the elements, row-major, 4-bit integers packed two a byte, and return how many bytes.

    CheckpointError if the number of elements differs from the type, which a reader could not
    detect.
    """
    written = 0
    for part in tensor.parts():
        packed = pack_int4(part) if tensor.type.dtype.bits == 4 else part
        dense = np.ascontiguousarray(packed, TensorType.of(packed).dtype.numpy)
        written += file.write(dense.reshape(-1).view(np.uint8).data)
    if written != stored_bytes(tensor.type):
        raise CheckpointError(
            f"tensor {quoted(tensor.name)} takes {stored_bytes(tensor.type)} bytes as"
            f" `{tensor.type}`, {written} were there to write"
        )
    return written


# Packing codes of few bits into bytes, as `unpack_bits` of PTIR reads them.


_EVEN = {8: 0x00FF00FF00FF00FF, 16: 0x0000FFFF0000FFFF, 32: 0x00000000FFFFFFFF}
"""For each width of lanes the mask of every second lane of 64 bits."""


def packed_bits(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return ui8 [.., I * bits / 8] of codes ui8 [.., I], each below `2**bits`; I divides by 8.

    Eight codes are moved together within a word of 64 bits, in three steps.
    """
    if bits == 8:
        return codes
    words = np.array(codes, order="C").view("<u8")
    spare, width = np.empty_like(words), bits
    # Lanes of 8, 16 and 32 bits: each step closes the gap between two neighbors.
    for lane, mask in _EVEN.items():
        np.bitwise_and(words, np.uint64(mask), out=spare)
        np.right_shift(words, np.uint64(lane), out=words)
        np.bitwise_and(words, np.uint64(mask), out=words)
        np.left_shift(words, np.uint64(width), out=words)
        np.bitwise_or(words, spare, out=words)
        width *= 2
    size = (*codes.shape[:-1], codes.shape[-1] // 8 * bits)
    unit = np.uint8 if bits % 2 else np.uint16 if bits % 4 else np.uint32
    parts = words.reshape(-1, 1).view(unit)
    packed = np.empty((len(parts), bits // parts.itemsize), unit)
    for index in range(packed.shape[1]):  # many at a time, not the few of a word
        packed[:, index] = parts[:, index]
    return packed.view(np.uint8).reshape(size)


def packed_halves(bytes_: np.ndarray, run: int) -> np.ndarray:
    """Return ui8 [N, B] of codes of 4 bits in bytes [N, B], which hold them in another order.

    Of each `run` bytes, a multiple of 8, the low halves come first, then the high ones. Neighbors
    are swapped within words of 64 bits, in three steps, after which low halves precede high ones.
    """
    words = dense_rows(bytes_).copy().view(np.uint64)
    spare = np.empty_like(words)
    _exchange(words, 4, 0x00F000F000F000F0, spare)
    _exchange(words, 8, 0x0000FF000000FF00, spare)
    _exchange(words, 16, 0x00000000FFFF0000, spare)
    moved, count = words.view(np.uint32).reshape(-1, run // 4), run // 8
    packed = np.empty_like(moved)
    for index in range(count):
        packed[:, index] = moved[:, 2 * index]
        packed[:, count + index] = moved[:, 2 * index + 1]
    return packed.view(np.uint8).reshape(bytes_.shape)


def dense_rows(bytes_: np.ndarray) -> np.ndarray:
    """Return bytes [N, B] that are contiguous; rows are moved whole, which is 10 times as fast."""
    if bytes_.flags.c_contiguous:
        return bytes_
    return np.ascontiguousarray(bytes_.view(f"V{bytes_.shape[1]}")).view(np.uint8)


def _exchange(words: np.ndarray, distance: int, mask: int, spare: np.ndarray) -> None:
    """Swap the bits of `mask` with those `distance` above them in all words."""
    np.right_shift(words, np.uint64(distance), out=spare)
    np.bitwise_xor(spare, words, out=spare)
    np.bitwise_and(spare, np.uint64(mask), out=spare)
    np.bitwise_xor(words, spare, out=words)
    np.left_shift(spare, np.uint64(distance), out=spare)
    np.bitwise_xor(words, spare, out=words)

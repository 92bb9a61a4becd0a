"""Model files of other programs, told apart by their first bytes or suffix, so that errors can say.

Nothing is read but the first bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gptrs.errors import GptrsError
from gptrs.install_hints import install_own
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import quoted

FIRST_BYTES: Final = 16
"""How much of a file tells what it is."""


@dataclass(frozen=True)
class ForeignFormat:
    """A format that tensors are not read from or written to, and what to do about it.

    `written_by` is the command that writes models in it, None without any; `package` is the
    distribution of gptrs for it.
    """

    name: str
    otherwise: str | None = None
    written_by: str | None = None
    package: str | None = None

    @property
    def hint(self) -> str | None:
        """The advice of an error: get the package, where it is not installed, else another way."""
        return self.missing or self.otherwise

    @property
    def missing(self) -> str | None:
        """How to install the package, None where there is none or it is installed."""
        if self.package is None or find_spec(self.package.replace("-", "_")) is not None:
            return None
        return f"`{self.package}` is for such files: {install_own(self.package)}"


_PICKLE: Final = ForeignFormat(
    "a pickle, which is never read: opening one can run any code",
    "where you trust the file, load the model with the program that wrote it, and save it with"
    " `save_pretrained(FOLDER)` of transformers, which writes safetensors",
)
_FOLDER: Final = "take the model as a folder with `config.json` and safetensors"
_GGUF: Final = ForeignFormat(
    "a GGUF file of llama.cpp",
    "as a model it is read: `gptrs generate --model FILE.gguf`",
    written_by="gptrs quantize SRC FILE.gguf --type f16",
)
_NO_GGUF: Final = ForeignFormat(
    "called a GGUF file, but does not begin like one", "download it again, or call it what it is"
)
_ONNX: Final = ForeignFormat(
    "an ONNX model", _FOLDER, written_by="gptrs convert SRC FILE.onnx", package="gptrs-onnx"
)
_EXPORTED: Final = ForeignFormat("a program of torch.export", _FOLDER, package="gptrs-torch")
_HDF5: Final = ForeignFormat("an HDF5 file", _FOLDER)
_TFLITE: Final = ForeignFormat("a TensorFlow Lite model", _FOLDER)

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
    ".bin": _PICKLE,
    ".pt": _PICKLE,
    ".pth": _PICKLE,
    ".ckpt": _PICKLE,
    ".pkl": _PICKLE,
    ".pickle": _PICKLE,
}
PICKLE_SUFFIXES: Final = tuple(name for name, form in _BY_SUFFIX.items() if form is _PICKLE)


def foreign_format(
    path: str | os.PathLike[str], start: bytes | None = None
) -> ForeignFormat | None:
    """Return the foreign format of a file that begins with `start`, else that of its suffix.

    Without `start` there is no file yet. None for formats that are not known, those of gptrs among
    them.
    """
    begins = start or b""
    for magic, form in _BY_START.items():
        if begins.startswith(magic):
            return form
    if begins[4:8] == b"TFL3":
        return _TFLITE
    named = _BY_SUFFIX.get(Path(path).suffix.lower())
    return _NO_GGUF if named is _GGUF and start is not None else named


def require_no_pointer(path: str | os.PathLike[str], start: bytes, error: type[GptrsError]) -> None:
    """Raise `error` for a file whose first bytes are those of a pointer of Git LFS."""
    if start.startswith(_POINTER_START):
        raise error(f"{quoted(str(path), 200)} is {_POINTER.name}", hint=_POINTER.hint)

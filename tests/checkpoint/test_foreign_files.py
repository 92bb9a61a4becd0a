"""Files of other programs are called what they are, and nobody writes a file that only looks so."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from gptrs.checkpoint.formats.tensor_archive import open_archive
from gptrs.errors import CheckpointError, GptrsError, ModelError, ProgramError, UsageError
from gptrs_runtime.converting.convert import convert
from gptrs_runtime.programs import read_program
from gptrs_runtime.sources.find_model import find_model
from runtime.tiny_gpt2 import save_tiny_gpt2


def _torch_zip(*more: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("data.pkl", *more):
            archive.writestr(f"model/{name}", b"\x80\x02}.")
    return file.getvalue()


FILES = {
    "model.gguf": (b"GGUF\x03\0\0\0" + b"\xff" * 40, "is a GGUF file"),
    "renamed.bin": (b"GGUF\x03\0\0\0" + b"\xff" * 40, "is a GGUF file"),
    "model.onnx": (b"\x08\x07\x12\x04" + bytes(40), "is an ONNX model"),
    "model.h5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "is an HDF5 file"),
    "model": (b"\x1c\0\0\0TFL3" + bytes(40), "is a TensorFlow Lite model"),
    "old.pt": (b"\x80\x02}q\0." + bytes(40), "is a pickle"),
    "pytorch_model.bin": (_torch_zip(), "is a pickle"),
    "traced.pt": (_torch_zip("code/net.py"), r"is TorchScript .*; .*torch\.jit\.load"),
    "net.tflite": (b"\0" * 40, r"is a TensorFlow Lite model.*; .*tf2onnx\.convert --tflite"),
    "net.mlmodel": (b"\x08\x01\x12\x20\n\xff", r"is a Core ML model.*; .*torch\.onnx\.export"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_foreign_file_is_called_what_it_is(tmp_path: Path, name: str) -> None:
    content, message = FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        open_archive(tmp_path / name)
    if "GGUF" in message:
        message = "cannot read .* it declares"  # it is a model, and damaged
    with pytest.raises((ModelError, CheckpointError), match=message):
        find_model(tmp_path / name)
    if "TensorFlow" in message or "Core" in message or "Script" in message:
        with pytest.raises(ProgramError, match=message):
            read_program(tmp_path / name)


@pytest.mark.parametrize(
    ("folder", "file", "message"),
    [
        ("net.mlpackage", "Manifest.json", "is a Core ML model"),
        ("saved", "saved_model.pb", r"is a SavedModel .*; .*tf2onnx\.convert --saved-model"),
    ],
)
def test_a_foreign_folder_is_called_what_it_is(
    tmp_path: Path, folder: str, file: str, message: str
) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / file).write_bytes(b"{}")
    with pytest.raises(ModelError, match=message):
        find_model(tmp_path / folder)


@pytest.mark.parametrize("content", [b"", b"GGU", b"\x08\x07\x12\x04 an ONNX model"])
def test_a_file_that_is_only_called_gguf_is_told_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    for read in (find_model, open_archive):
        with pytest.raises(ModelError, match=r"called a GGUF file, but .*; download it again"):
            read(tmp_path / "m.gguf")


def test_what_is_no_model_and_no_foreign_file_names_the_folder(tmp_path: Path) -> None:
    folder = save_tiny_gpt2(tmp_path / "tiny")
    with pytest.raises(ModelError, match="is a file of tensors") as found:
        find_model(folder / "model.safetensors")
    assert str(folder) in str(found.value.hint)
    (tmp_path / "empty").touch()
    with pytest.raises(CheckpointError, match="is not a file of tensors: it is empty"):
        open_archive(tmp_path / "empty")
    (tmp_path / "notes.txt").write_text("# notes, not a model")
    with pytest.raises(ModelError, match="is a file, but not in the format"):
        find_model(tmp_path / "notes.txt")


@pytest.mark.parametrize("name", ["copy.gguf", "copy.onnx", "copy.bin", "copy.PT"])
def test_a_copy_is_not_called_like_a_foreign_file(tmp_path: Path, name: str) -> None:
    folder = save_tiny_gpt2(tmp_path / "tiny")
    by_command = name in ("copy.gguf", "copy.onnx")
    who = "another command writes" if by_command else "gptrs does not write"
    with pytest.raises(UsageError, match=rf"would be an? [^,]*, which {who}") as refused:
        convert(folder, tmp_path / name)
    assert ("gptrs quantize SRC FILE.gguf" in str(refused.value.hint)) == (name == "copy.gguf")
    assert not (tmp_path / name).exists()
    assert convert(folder, tmp_path / name, to="hf").form == "hf"


@pytest.mark.parametrize(("name", "package"), [("m.onnx", "gptrs-onnx"), ("m.pt2", "gptrs-torch")])
def test_a_format_of_a_package_that_is_missing_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setattr("gptrs.checkpoint.formats.foreign_files.find_spec", lambda _: None)
    (tmp_path / name).write_bytes(b"\x08\x07\x12\x04\xff" + bytes(40))
    for read in (find_model, read_program, open_archive):
        with pytest.raises(GptrsError, match=r"is (an ONNX model|a program of torch.export)") as no:
            read(tmp_path / name)
        assert f"`{package}` is for such files: run `" in str(no.value.hint)


def test_a_copy_in_the_format_of_a_package_that_is_missing_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gptrs.checkpoint.formats.foreign_files.find_spec", lambda _: None)
    with pytest.raises(UsageError, match="which `gptrs-onnx` writes"):
        convert(save_tiny_gpt2(tmp_path / "tiny"), tmp_path / "copy.onnx")

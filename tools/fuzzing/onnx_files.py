"""ONNX files: their protobuf messages mutated."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from onnx import parser

import gptrs_onnx
from fuzzing import byte_mutations
from fuzzing.file_formats import FileFormat
from fuzzing.import_formats import run_on_ones
from gptrs.backend.contract import Backend
from gptrs_conformance.program_generator.dice import Dice

_ONNX_WORDS = (
    b"Conv", b"Reshape", b"MaxPool", b"Resize", b"Loop", b"If", b"Einsum", b"SequenceEmpty",
    b"../x", b"/etc/passwd", b"location", b"\x0a\xff\xff\xff\xff\x7f", b"\x08\x01", b"x", b"y",
)  # fmt: skip
_CONV = """conv (float[n, 2, 6, 6] x) => (float[a, b, c, d] y)
<float[4] scales = {1, 1, 2, 2}, float[1, 2, 3, 3] w =
 {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9}> {
  a = Conv <pads = [1, 1, 1, 1]> (x, w)
  b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
  y = Resize <mode = "linear"> (b, , scales)
}"""
_SHAPES = """shapes (float[n, 6] x) => (float[a, b, c] y)
<int64[1] zero = {0}, int64[1] one = {2}, int64[1] two = {2}, int64[6] pads = {0, 0, 1, 0, 1, 0}> {
  k = Constant <value_ints = [-1, 2, 3]> ()
  r = Reshape (x, k)
  z = Slice (r, zero, one, two)
  y = Pad (z, pads)
}"""
_ROWS = """rows (float[3, 2, 4] x) => (float[t, d, b, h] y)
<float[1, 4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}, float[1, 4, 1] r =
 {1, 2, 3, 4}> {
  y = LSTM <hidden_size = 1> (x, w, r)
}"""


def _prepare_onnx(folder: Path, backend: Backend) -> Sequence[bytes]:
    header = '<ir_version: 10, opset_import: ["" : 21]>'
    return [
        parser.parse_model(f"{header} {text}").SerializeToString()
        for text in (_CONV, _SHAPES, _ROWS)
    ]


def _mutate_onnx(dice: Dice, data: bytes, other: bytes) -> bytes:
    if dice.chance(0.02):
        return data
    return byte_mutations.mutated(dice, data, other, _ONNX_WORDS)


def _read_onnx(path: Path, dice: Dice) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, about values that a mutation made
        run_on_ones(gptrs_onnx.load(path, "ref"))


FORMAT = FileFormat("model.onnx", _prepare_onnx, _mutate_onnx, _read_onnx)

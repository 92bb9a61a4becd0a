"""Mutated ONNX files: a one-line error of ours, or a result; nothing else ever comes out."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")

from onnx import parser  # noqa: E402

from gptrs.errors import GptrsError  # noqa: E402
from gptrs_onnx.graph import Graph  # noqa: E402
from gptrs_onnx.model import OnnxModel  # noqa: E402
from gptrs_onnx.reading import parsed_model  # noqa: E402

SOUND = (
    """conv (float[1, 2, 6, 6] x) => (float[a, b, c, d] y)
    <float[3, 2, 3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6,
     7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9}> {
      a = Conv <pads = [1, 1, 1, 1]> (x, w)
      b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
      y = Resize <mode = "linear"> (b, , scales)
    }""".replace("float[3, 2, 3, 3] w", "float[4] scales = {1, 1, 2, 2}, float[3, 2, 3, 3] w"),
    """shapes (float[n, 6] x) => (float[a, b, c] y) {
      s = Shape (x)
      k = Constant <value_ints = [-1, 2, 3]> ()
      r = Reshape (x, k)
      z = Slice (r, zero, one, two)
      y = Pad (z, pads)
    }""".replace(
        "y) {",
        "y) <int64[1] zero = {0}, int64[1] one = {2}, int64[1] two = {2},"
        " int64[6] pads = {0, 0, 1, 0, 1, 0}> {",
    ),
    """rows (float[3, 2, 4] x) => (float[t, d, b, h] y)
    <float[1, 8, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7,
     8, 9, 1, 2, 3, 4, 5}, float[1, 8, 2] r = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}> {
      y = LSTM <hidden_size = 2> (x, w, r)
    }""",
)
INPUTS = ((1, 2, 6, 6), (4, 6), (3, 2, 4))


def mutated(data: bytes, dice: random.Random) -> bytes:
    """Return `data` with bytes changed, cut out, doubled or exchanged."""
    made = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5))):
        place = dice.randrange(len(made))
        match dice.randrange(5):
            case 0:
                made[place] = dice.randrange(256)
            case 1:
                made[place] = dice.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del made[place : place + dice.randrange(1, 9)]
            case 3:
                made[place:place] = made[place : place + dice.randrange(1, 20)]
            case _:
                other = dice.randrange(len(made))
                made[place], made[other] = made[other], made[place]
        if not made:
            return b""
    return bytes(made)


@pytest.mark.parametrize(
    "count", [80, pytest.param(700, marks=pytest.mark.exhaustive)], ids=["few", "many"]
)
@pytest.mark.parametrize("number", range(len(SOUND)))
def test_nothing_but_our_errors_comes_out(number: int, count: int) -> None:
    header = '<ir_version: 10, opset_import: ["" : 21]>'
    sound = parser.parse_model(f"{header} {SOUND[number]}").SerializeToString()
    x = np.ones(INPUTS[number], np.float32)
    dice = random.Random(number + count)
    said: list[str] = []
    read = 0
    for _ in range(count):
        data = mutated(sound, dice)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of NumPy, about values that a mutation made
                model = OnnxModel(
                    Graph(parsed_model(data, None, "mutated")).declared(), "ref", "mutated"
                )
                slots = model.inputs.values()
                model(*([x] if len(slots) == 1 else []))
            read += 1
        except GptrsError as error:
            said.append(error.message)
    assert not any("\n" in message for message in said)
    assert read, "some mutations change nothing that matters"

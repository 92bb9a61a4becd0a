"""Texts made to exhaust time or memory: one error, at once."""

from __future__ import annotations

import time

import pytest

from gptrs.errors import ParseError
from gptrs.ir import parse_program
from gptrs.ir.parser import MAX_SPLAT_BYTES

HEAD = "ptir.v0.5\nfunc @main(%x: f32[2]) -> f32[2] {\n  %0 = constant {value = "
LARGE = 10_000_000


@pytest.mark.parametrize(
    "text",
    [
        "(" * LARGE,
        HEAD + "[" * LARGE,
        HEAD + "(" * LARGE,
        HEAD + "splat(" * (LARGE // 6),
        HEAD + "1" * LARGE,
        HEAD + "{" * LARGE,
        HEAD + '"' + "a" * LARGE,
        "ptir.v0.5\nfunc @main" + "(" * LARGE,
        "ptir.v0.5\nfunc @main(%x: f32[" + "2," * (LARGE // 2),
        "ptir.v0.5" + "//" * (LARGE // 2),
        "ptir.v0.5" + "\n" * LARGE + ";",
        "a" * LARGE,
    ],
    ids=range(12),
)
def test_hostile_texts_cost_little(text):
    started = time.process_time()
    with pytest.raises(ParseError) as caught:
        parse_program(text)
    assert time.process_time() - started < 5
    assert len(str(caught.value)) < 600


def test_splats_share_one_budget():
    half = MAX_SPLAT_BYTES // 4 + 1
    line = "  %{} = constant {{value = splat(0.0)}} : f32[" + str(half // 4) + "]\n"
    body = "".join(line.format(index) for index in range(9))
    with pytest.raises(ParseError, match="the splats of the text exceed") as caught:
        parse_program(f"ptir.v0.5\nfunc @main() -> () {{\n{body}  return\n}}")
    assert caught.value.line > 3

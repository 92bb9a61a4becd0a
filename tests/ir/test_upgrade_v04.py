"""Programs of ptir.v0.4, as text and as JSON, become programs of today or are refused by name."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gptrs.errors import ParseError, ProgramError
from gptrs.ir import (
    Literal,
    dtypes,
    parse_json,
    parse_program,
    print_program,
    program_to_json,
    verify,
)
from gptrs.ir.literal_text import literal_to_json
from gptrs.ir.v04.upgrade import ROWS
from gptrs.ir.versions import VERSIONS

PARAMS = (
    "%x: f32[2, 3], %h: f16[2, 3], %r: f32[3], %i: si64[2, 3], %n: si32[2], %s: ui64[2], "
    "%q: si8[2, 3], %one: f32[], %zero: si32[], %p: i1[], %nhwc: f32[1, 4, 4, 2]"
)

# In each row the instruction as written in v0.4, and as printed today, each without its results.
TABLE = [
    ("argmax %x {axis = -1, output_dtype = si32} : si32[2]",
     "argmax %x {axis = 1, dtype = si32} : si32[2]"),
    ("transpose %x {perm = [-1, 0]} : f32[3, 2]",
     "transpose %x {permutation = [1, 0]} : f32[3, 2]"),
    ("layer_norm %x, %r, %r {epsilon = 0.5, feature_axis = -1} : f32[2, 3]",
     "layer_norm %x, %r, %r {epsilon = 0.5, axis = 1} : f32[2, 3]"),
    ("reshape %x {new_shape = [3, -1]} : f32[3, 2]", "reshape %x {shape = [3, -1]} : f32[3, 2]"),
    ("broadcast_to %r {result_shape = [2, 3]} : f32[2, 3]",
     "broadcast_to %r {shape = [2, 3]} : f32[2, 3]"),
    ("pad %r {low = [1], high = [0], interior = [1], pad_value = -inf} : f32[6]",
     "pad %r {low = [1], high = [0], interior = [1], value = -inf} : f32[6]"),
    ("scatter_reduce %x, %i, %x {axis = -2, reduce = max} : f32[2, 3]",
     "scatter_reduce %x, %i, %x {axis = 0, kind = max} : f32[2, 3]"),
    ("scatter_add %x, %i, %x {axis = 1} : f32[2, 3]",
     "scatter_reduce %x, %i, %x {axis = 1, kind = add} : f32[2, 3]"),
    ("gather %x, %i {axis = -1} : f32[2, 3]", "gather %x, %i {axis = 1} : f32[2, 3]"),
    ("concat %x, %x {axis = -2} : f32[4, 3]", "concat %x, %x {axis = 0} : f32[4, 3]"),
    ("iota {shape = [2, 3], axis = -1, dtype = f32} : f32[2, 3]",
     "iota {shape = [2, 3], axis = 1, dtype = f32} : f32[2, 3]"),
    ("quantize %x, %one, %zero {output_dtype = si8} : si8[2, 3]",
     "quantize %x, %one, %zero {dtype = si8} : si8[2, 3]"),
    ("dequantize %q, %one, %zero {output_dtype = f16} : f16[2, 3]",
     "dequantize %q, %one, %zero {dtype = f16} : f16[2, 3]"),
    ("dequantize %q, %one, %zero {output_dtype = none} : f32[2, 3]",
     "dequantize %q, %one, %zero {dtype = f32} : f32[2, 3]"),
    ("dequantize %q, %one, %zero : f32[2, 3]",
     "dequantize %q, %one, %zero {dtype = f32} : f32[2, 3]"),
    ("requantize %q, %one, %zero, %one, %zero {output_dtype = ui8, axis = none} : ui8[2, 3]",
     "requantize %q, %one, %zero, %one, %zero {dtype = ui8} : ui8[2, 3]"),
    ("reduce_window %r {window_dims = [2], strides = [1], padding = [0, 0], base_dilation = [1], "
     "window_dilation = [2], reduce = max, accum_dtype = f64} : f32[1]",
     "reduce_window %r {kind = max, window = [2], strides = [1], padding = [0, 0], "
     "dilation = [2]} : f32[1]"),
    ("extract_patches %nhwc {window = [2, 2], pad_value = 1.0} : f32[1, 3, 3, 8]",
     "extract_patches %nhwc {window = [2, 2], value = 1.0} : f32[1, 3, 3, 8]"),
    ("reduce %x {kind = sum, axes = [-1, 0], accum_dtype = f64} : f32[]",
     "reduce %x {kind = sum, axes = [0, 1], accum_dtype = f64} : f32[]"),
    ("reduce %h {kind = max, axes = [-1], accum_dtype = f32, out_dtype = f32} : f32[2]",
     "reduce %h {kind = max, axes = [1], out_dtype = f32} : f32[2]"),
    ("reduce_sum %x {axes = [-1]} : f32[2]", "reduce %x {kind = sum, axes = [1]} : f32[2]"),
    ("reduce_max %x {axes = [1], keepdims = true, accum_dtype = f32} : f32[2, 1]",
     "reduce %x {kind = max, axes = [1], keepdims = true} : f32[2, 1]"),
    ("reduce_min %x {axes = []} : f32[2, 3]", "reduce %x {kind = min, axes = []} : f32[2, 3]"),
    ("dynamic_update_slice %r, %r, %n1 {sizes = [3]} : f32[3]",
     "dynamic_update_slice %r, %r, %n1 : f32[3]"),
    ("segment_reduce %x, %n {kind = sum, num_segments = 4, accum_dtype = f32, "
     "indices_are_sorted = true, unique = false} : f32[4, 3]",
     "segment_reduce %x, %n {kind = sum, num_segments = 4} : f32[4, 3]"),
    ("segment_reduce %x, %n {kind = max, num_segments = 4, accum_dtype = f64} : f32[4, 3]",
     "segment_reduce %x, %n {kind = max, num_segments = 4} : f32[4, 3]"),
    ("compare %x, %x {op = greater_equal} : i1[2, 3]",
     "compare %x, %x {direction = ge} : i1[2, 3]"),
    ("compare %x, %x {direction = ne} : i1[2, 3]", "compare %x, %x {direction = ne} : i1[2, 3]"),
    ("dot_general %x, %x {contract_lhs = [-1], contract_rhs = [-1], batch_lhs = [-2], "
     "batch_rhs = [-2]} : f32[2]",
     "dot_general %x, %x {contract_lhs = [1], contract_rhs = [1], batch_lhs = [0], "
     "batch_rhs = [0]} : f32[2]"),
    ("cast %x {dtype = fp8_e4m3} : fp8_e4m3[2, 3]", "cast %x {dtype = f8e4m3} : f8e4m3[2, 3]"),
    ("cast %x {dtype = fp8_e5m2} : fp8_e5m2[2, 3]", "cast %x {dtype = f8e5m2} : f8e5m2[2, 3]"),
    ("rng_normal %s {shape = [4], dtype = f32} : f32[4]",
     "rng_normal %s {shape = [4], dtype = f32} : f32[4]"),
    ("tanh %x : f32[2, 3]", "tanh %x : f32[2, 3]"),
]  # fmt: skip


def program_of(instruction: str, version: str, results: str = "%0") -> str:
    types = instruction.rpartition(" : ")[2]
    return (
        f"{version}\nfunc @main({PARAMS}, %n1: si32[1]) -> {types} {{\n"
        f"  {results} = {instruction}\n  return {results}\n}}\n"
    )


@pytest.mark.parametrize(("old", "today"), TABLE)
def test_text_is_upgraded(old, today):
    program = parse_program(program_of(old, "ptir.v0.4"))
    assert print_program(program) == program_of(today, "ptir.v0.5")


@pytest.mark.parametrize(("old", "today"), TABLE)
def test_the_json_form_is_upgraded(old, today):
    """The names of v0.4 in the JSON form: attributes as the kinds of today write them."""
    value = program_to_json(parse_program(program_of(today, "ptir.v0.5")))
    value["version"] = "ptir.v0.4"
    instruction = value["functions"][0]["instructions"][0]
    instruction["op"] = old.split()[0]
    instruction["attributes"] = written_attributes(old)
    assert print_program(parse_json(json.dumps(value))) == program_of(today, "ptir.v0.5")


def written_attributes(instruction: str) -> dict[str, object]:
    """The attributes of an instruction in the text form as JSON values."""
    found = re.findall(r"(\w+) = (\[[^\]]*\]|[^,}]+)", instruction)
    scalars = {"none": None, "true": True, "false": False}
    attributes: dict[str, object] = {}
    for name, text in found:
        if name == "pad_value":
            attributes[name] = literal_to_json(Literal.full(float(text), dtypes.f32))
        elif re.fullmatch(r"-?[0-9.]+|\[.*\]", text):
            attributes[name] = json.loads(text)
        else:
            attributes[name] = scalars.get(text, text)
    return attributes


def test_every_row_is_tried():
    tried = {old.split()[0] for old, _ in TABLE}
    assert set(ROWS) - tried == {"scan", "while", "rng_uniform"}


LOOPS = """\
ptir.v0.4
func @main(%n: si32[], %xs: f32[4]) -> (si32[], f32[], f32[4]) {
  %a = while %n
    condition(%i: si32[]) {
      %c = compare %i, si32[] 10 {direction = lt} : i1[]
      return %c, %i
    }
    body(%i: si32[]) {
      %j = add %i, %i : si32[]
      return %j
    } : si32[]
  %sum, %sums = scan f32[] 0.0, %xs {carry_count = 1, scan_output_count = 1}
    body(%total: f32[], %x: f32[]) {
      %next = add %total, %x : f32[]
      return %next, %next
    } : (f32[], f32[4])
  return %a, %sum, %sums
}
"""


def test_loops_are_upgraded():
    program = parse_program(LOOPS)
    condition = program.main.body.instructions[0].regions[0]
    assert [str(value.type) for value in condition.results] == ["i1[]"]
    text = print_program(program)
    assert "scan_output_count" not in text
    assert print_program(parse_program(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            LOOPS.replace("return %c, %i", "%k = neg %i : si32[] return %c, %k"),
            "the condition of a `while` returns only the predicate in this version; compute its "
            "other results in the body",
        ),
        (
            LOOPS.replace("scan_output_count = 1", "scan_output_count = 2"),
            "`scan` stacks 2 results",
        ),
        (LOOPS.replace("ptir.v0.4", "ptir.v0.5"), "`while` needs results of `condition` (i1[])"),
    ],
)
def test_loops_that_have_no_counterpart(text, message):
    with pytest.raises(ParseError) as caught:
        parse_program(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        ("scatter_add %x, %i, %x {update_window_dims = [1], inserted_window_dims = [0], "
         "scatter_dims_to_operand_dims = [0], index_vector_dim = none} : f32[2, 3]",
         "`scatter_add` with dimension numbers has no counterpart in this version; write it with "
         "`axis` and indices of the shape of the updates"),
        ("reduce_window %r {window_dims = [2], base_dilation = [2], reduce = sum} : f32[4]",
         "`reduce_window` cannot dilate the operand by [2] any more; insert the elements by `pad`"),
        ("reduce_max %x {axes = [1], accum_dtype = f16} : f32[2]",
         "`reduce_max` of kind max rounds each element to f16; `cast` the operand instead"),
        ("segment_reduce %h, %n {kind = sum, num_segments = 4, accum_dtype = f64} : f16[4, 3]",
         "`segment_reduce` accumulates in f32, not f64; `cast` the operand to f64 instead"),
        ("dynamic_update_slice %r, %r, %n1 {sizes = [2]} : f32[3]",
         "`dynamic_update_slice` needs an update of [2], its `sizes`, got `f32[3]`"),
        ("rng_uniform {shape = [4], dtype = f32} : f32[4]",
         "`rng_uniform` has no seed, its numbers were up to the backend; write it with an operand"),
        ("argmax %x {axis = -3, output_dtype = si32} : si32[2]", "`argmax` of f32[2, 3] has no ax"),
        ("argmax %x {axis = 0, dtype = si32, output_dtype = si32} : si32[3]",
         "`dtype` is given twice, once as `output_dtype`"),
        ("reduce_prod %x {axes = [0]} : f32[3]", "unknown op `reduce_prod`"),
        ("tanh %x {fast = true} : f32[2, 3]", "`tanh` has no attribute `fast`; it has none"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused(instruction, message):
    with pytest.raises(ParseError) as caught:
        parse_program(program_of(instruction, "ptir.v0.4"))
    assert message in str(caught.value)
    assert caught.value.line == 3


@pytest.mark.parametrize(("old", "today"), [row for row in TABLE if row[0] != row[1]])
def test_old_names_are_not_read_in_programs_of_today(old, today):
    with pytest.raises(ParseError):
        parse_program(program_of(old, "ptir.v0.5"))


@pytest.mark.parametrize("version", ["ptir.v0.3", "ptir.v0.6", "ptir.v1", "ptir.v0.50"])
def test_other_versions_are_refused_by_name(version):
    message = re.escape(
        f"version `{version}` is not supported, this release reads `ptir.v0.5` and `ptir.v0.4`"
    )
    with pytest.raises(ParseError, match=message):
        parse_program(f"{version}\nfunc @main() -> () {{ return }}")
    with pytest.raises(ProgramError, match=message):
        parse_json(json.dumps({"version": version, "functions": []}))
    with pytest.raises(ProgramError, match=message):
        parse_json(json.dumps({"spec_version": version, "entry": "main", "functions": []}))
    assert list(VERSIONS) == ["ptir.v0.5", "ptir.v0.4"]


@pytest.mark.long
@given(
    st.sampled_from([LOOPS, *(program_of(old, "ptir.v0.4") for old, _ in TABLE)]),
    st.integers(0, 1000),
    st.integers(0, 12),
    st.text(alphabet="%@xf32[](){}=:,->0.1 -9", max_size=8),
)
@settings(deadline=None, max_examples=400)
def test_damaged_texts_are_read_or_refused(text, at, length, junk):
    start = len(text) - at % len(text)
    try:
        program = parse_program(text[:start] + junk + text[start + length :])
    except ParseError:
        return
    verify(program)

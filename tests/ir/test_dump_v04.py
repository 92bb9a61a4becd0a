"""Dumps of ptir.v0.4 programs in JSON: read and upgraded, or refused with the path."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings

from gptrs.errors import ProgramError
from gptrs.ir import parse_json, print_program, verify
from ir.json_damage import damaged


def tensor(dtype: str, *dims: int) -> dict[str, object]:
    return {"Tensor": spec(dtype, *dims)}


def spec(dtype: str, *dims: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape(*dims)}


def shape(*dims: int) -> dict[str, object]:
    return {"dims": [{"Static": dim} for dim in dims]}


def value(number: int) -> dict[str, object]:
    return {"Value": number}


def instruction(number: int, op: object, operands: list[object], output: object) -> object:
    return {"id": number, "op": op, "operands": operands, "output": output}


def dump(params: list[object], body: list[object], *results: int) -> dict[str, object]:
    function = {
        "name": "forward",
        "parameters": params,
        "parameter_ids": list(range(len(params))),
        "results": [],
        "body": body,
        "hints": [{"id": 1, "kind": "DotEpilogue", "policy": "Optional", "body": body}],
        "result_ids": list(results),
    }
    return {
        "spec_version": "ptir.v0.4",
        "entry": "forward",
        "functions": [function],
        "regions": [],
    }


X = tensor("F32", 2, 3)
ONE = {"spec": spec("F32", 2, 3), "bytes": [0, 0, 128, 63] * 6}

WHOLE = dump(
    [X, tensor("F32", 3, 4), tensor("Fp8E4M3", 3)],
    [
        instruction(
            3,
            {
                "DotGeneral": {
                    "batch_lhs": [],
                    "batch_rhs": [],
                    "contract_lhs": [1],
                    "contract_rhs": [0],
                    "accum_dtype": "F64",
                    "out_dtype": None,
                }
            },
            [value(0), value(1)],
            tensor("F32", 2, 4),
        ),
        instruction(4, {"ElementwiseUnary": "Rsqrt"}, [value(3)], tensor("F32", 2, 4)),
        instruction(
            5, {"ElementwiseBinary": "Maximum"}, [value(0), {"Literal": ONE}], X
        ),
        instruction(6, {"Constant": ONE}, [], X),
        instruction(7, {"Compare": {"op": "LessEqual"}}, [value(5), value(6)], tensor("I1", 2, 3)),
        instruction(8, "Select", [value(7), value(5), value(6)], X),
        instruction(
            9,
            {"TopK": {"k": 2, "axis": -1, "largest": True, "indices_dtype": "Si32"}},
            [value(8)],
            {"Tuple": [tensor("F32", 2, 2), tensor("Si32", 2, 2)]},
        ),
        instruction(
            10,
            {"ReduceWindow": {
                "window_dims": [1, 2], "strides": [1, 1], "padding": [[0, 0], [1, 0]],
                "base_dilation": [1, 1], "window_dilation": [1, 1], "reduce": "Max",
                "accum_dtype": None,
            }},
            [{"TupleElement": {"tuple": 9, "index": 0}}],
            tensor("F32", 2, 2),
        ),
        instruction(
            11,
            {"Reshape": {"new_shape": [{"Explicit": {"Static": 4}}, "Infer"]}},
            [value(10)],
            tensor("F32", 4, 1),
        ),
        instruction(
            12,
            {"Pad": {
                "low": [0, 0], "high": [0, 1], "interior": [0, 0], "pad_value": {"Float": -1.5},
            }},
            [value(11)],
            tensor("F32", 4, 2),
        ),
        instruction(13, {"Cast": {"dtype": "Fp8E5M2"}}, [value(2)], tensor("Fp8E5M2", 3)),
        instruction(
            14,
            {"ArgMax": {"axis": -1, "keepdims": False, "output_dtype": "Si64"}},
            [value(12)],
            tensor("Si64", 4),
        ),
        instruction(
            15,
            {"CustomCall": {"target": "vendor.kernel.f32.v1", "attrs": {
                "eps": {"kind": "F64", "value": 1e-5},
                "flag": {"kind": "Bool", "value": True},
                "n": {"kind": "I64", "value": 2},
                "name": {"kind": "String", "value": "a"},
                "sizes": {"kind": "I64Array", "value": [1, 2]},
            }}},
            [value(12)],
            tensor("F32", 2),
        ),
    ],
    4, 9, 13, 14, 15,
)  # fmt: skip

WHOLE_TODAY = """\
ptir.v0.5
func @main(%0: f32[2, 3], %1: f32[3, 4], %2: f8e4m3[3]) -> \
(f32[2, 4], f32[2, 2], si32[2, 2], f8e5m2[3], si64[4], f32[2]) {
  %3 = dot_general %0, %1 {contract_lhs = [1], contract_rhs = [0], accum_dtype = f64} : f32[2, 4]
  %4 = rsqrt %3 : f32[2, 4]
  %5 = constant {value = splat(1.0)} : f32[2, 3]
  %6 = maximum %0, %5 : f32[2, 3]
  %7 = constant {value = splat(1.0)} : f32[2, 3]
  %8 = compare %6, %7 {direction = le} : i1[2, 3]
  %9 = select %8, %6, %7 : f32[2, 3]
  %10, %11 = top_k %9 {k = 2, axis = 1} : (f32[2, 2], si32[2, 2])
  %12 = reduce_window %10 {kind = max, window = [1, 2], strides = [1, 1], padding = [0, 0, 1, 0], \
dilation = [1, 1]} : f32[2, 2]
  %13 = reshape %12 {shape = [4, -1]} : f32[4, 1]
  %14 = pad %13 {low = [0, 0], high = [0, 1], interior = [0, 0], value = -1.5} : f32[4, 2]
  %15 = cast %2 {dtype = f8e5m2} : f8e5m2[3]
  %16 = argmax %14 {axis = 1} : si64[4]
  %17 = custom_call %14 {target = "vendor.kernel.f32.v1", results = [f32[2]], attrs = \
{eps = 1e-05, flag = true, n = 2, name = "a", sizes = [1, 2]}} : f32[2]
  return %4, %10, %11, %15, %16, %17
}
"""


def test_a_dump_is_upgraded():
    assert print_program(parse_json(json.dumps(WHOLE))) == WHOLE_TODAY


@pytest.mark.parametrize("version", ["", None])
def test_the_version_of_a_dump_may_be_left_out(version):
    root = copy.deepcopy(WHOLE)
    root["spec_version"] = version
    if version is None:
        del root["spec_version"]
    assert print_program(parse_json(json.dumps(root))) == WHOLE_TODAY


@pytest.mark.parametrize(
    ("dtype", "pad_value", "text"),
    [
        ("F32", {"Float": 2}, "2.0"),
        ("Bf16", {"Float": 0.1}, "0.1"),
        ("F64", {"Float": 0.1}, "0.1"),
        ("Si4", {"Signed": -8}, "-8"),
        ("Ui64", {"Unsigned": 2**64 - 1}, str(2**64 - 1)),
        ("I1", {"I1": True}, "true"),
        ("Cf32", {"Complex": {"re": 1.0, "im": -0.0}}, "(1.0, -0.0)"),
    ],
)
def test_scalars_are_of_the_element_type(dtype, pad_value, text):
    pad = {"low": [1], "high": [0], "interior": [0], "pad_value": pad_value}
    body = [instruction(1, {"Pad": pad}, [value(0)], tensor(dtype, 3))]
    written = print_program(parse_json(json.dumps(dump([tensor(dtype, 2)], body, 1))))
    assert f"value = {text}}}" in written


def test_dims_with_names_become_symbols():
    x = {"Tensor": {"dtype": "F32", "shape": {"dims": [{"Dynamic": "B"}, {"Static": 3}]}}}
    wide = {"dims": [{"Static": 2}, {"Dynamic": "B"}, {"Static": 3}]}
    y = {"Tensor": {"dtype": "F32", "shape": wide}}
    body = [instruction(2, {"BroadcastTo": {"result_shape": wide}}, [value(0)], y)]
    program = parse_json(json.dumps(dump([x, tensor("I1")], body, 2)))
    line = "%2 = broadcast_to %0 {shape = [2, ?0, 3]} : f32[2, ?0, 3]"
    assert line in print_program(program)


def body_of(op: object, operands: list[object] | None = None, output: object = X) -> object:
    return [instruction(1, op, [value(0)] if operands is None else operands, output)]


PAD = {"low": [0, 0], "high": [0, 0], "interior": [0, 0]}
SCATTER = {
    "update_window_dims": [1],
    "inserted_window_dims": [0],
    "scatter_dims_to_operand_dims": [0],
    "index_vector_dim": None,
}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (body_of({"Cond": {"true_region": 0, "false_region": 1}}),
         "functions[0].body[0].op: a dump does not say which values the regions of `Cond` take and "
         "give; write the program as text"),
        (body_of({"While": {}}), "the regions of `While`"),
        (body_of({"Scan": {}}), "the regions of `Scan`"),
        (body_of({"ScatterAdd": SCATTER}, [value(0)] * 3), "`scatter_add` with dimension numbers"),
        (body_of({"RngUniform": {"shape": shape(2, 3), "dtype": "F32"}}, []), "has no seed"),
        (body_of({"Warp": {}}), "unknown op `warp`"),
        (body_of("Select", None), "`select` takes 3 operands"),
        (body_of({"A": 1, "B": 2}), "op: expected a word or an object with one key, found an obje"),
        (body_of(7), "functions[0].body[0].op: expected an object, found `7`"),
        (body_of({"ElementwiseUnary": "Cbrt"}), "unknown op `cbrt`"),
        (body_of({"ElementwiseUnary": "Neg"}, [{"Value": 5}]), "operands[0]: value `%5` is not"),
        (body_of({"ElementwiseUnary": "Neg"}, [{"Value": -1}]), "expected the number of a value"),
        (body_of({"ElementwiseUnary": "Neg"}, ["Value"]), "expected `Value`, `TupleElement` or"),
        (body_of({"ElementwiseUnary": "Neg"}, None, {"Tuple": [{"Tuple": []}]}),
         "output.Tuple[0]: a tuple of tuples has no counterpart"),
        (body_of({"ElementwiseUnary": "Neg"}, None, {"List": []}), 'expected `{"Tensor": ...}`'),
        (body_of({"ElementwiseUnary": "Neg"}, None, tensor("F33", 2)), "unknown dtype `f33`"),
        (body_of({"ElementwiseUnary": "Neg"}, None, tensor("F32", -1)), "expected a dim, found `-"),
        (body_of({"Constant": {"spec": spec("F32", 2), "bytes": [0] * 7}}, []),
         "op.Constant.bytes: a literal of `f32[2]` needs 8 bytes, got 7"),
        (body_of({"Constant": {"spec": spec("F32", 1), "bytes": [0, 0, 0, 256]}}, []),
         "op.Constant.bytes: expected a list of integers from 0 to 255"),
        (body_of({"Constant": {"spec": spec("Ui4", 1), "bytes": [1]}}, []),
         "v0.4 does not say how the elements of a literal of ui4 are stored"),
        (body_of({"Pad": {**PAD, "pad_value": {"Float": None}}}),
         "pad_value.Float: a number that is not finite was written as `null`; give it as text"),
        (body_of({"Pad": {**PAD, "pad_value": {"Signed": 1}}}),
         "pad_value.Signed: expected an element of f32, found `1`"),
        (body_of({"CustomCall": {"target": "a.b.v1", "attrs": {
            "x": {"kind": "F64Array", "value": [1.0]}}}}),
         "attrs.x: an attribute of the kind `F64Array` has no counterpart"),
        (body_of({"Tile": {"repeats": [1, 1], "by": 1}}), "`tile` has no attribute `by`"),
    ],
)  # fmt: skip
def test_refuses(body, message):
    with pytest.raises(ProgramError) as caught:
        parse_json(json.dumps(dump([X], body, 1)))
    assert message in str(caught.value)


def test_a_tuple_is_no_operand():
    root = copy.deepcopy(WHOLE)
    root["functions"][0]["body"][7]["operands"] = [value(9)]
    with pytest.raises(ProgramError, match=r"operands\[0\]: a tuple is not an operand"):
        parse_json(json.dumps(root))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entry": "other"}, "a program needs a function called `@main`"),
        ({"entry": 1}, "entry: expected the name of the main function, found `1`"),
        ({"spec_version": "ptir.v0.3"}, "spec_version: version `ptir.v0.3` is not supported"),
        ({"functions": None}, "functions: expected a list, found `null`"),
        ({"more": 1}, "unknown key `more`; the keys are `entry`, `functions`, `spec_version`"),
    ],
)
def test_refuses_dumps(change, message):
    with pytest.raises(ProgramError) as caught:
        parse_json(json.dumps({**WHOLE, **change}))
    assert message in str(caught.value)


@pytest.mark.long
@given(damaged(WHOLE))
@settings(deadline=None, max_examples=200)
def test_damaged_dumps_are_read_or_refused(root):
    try:
        program = parse_json(json.dumps(root))
    except ProgramError:
        return
    verify(program)

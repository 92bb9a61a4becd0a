"""JSON that is no program: one error with the path of the value, in bounded time and memory."""

from __future__ import annotations

import copy
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gptrs.errors import ProgramError
from gptrs.ir import parse_json, parse_program, print_json, program_to_json, verify
from gptrs.ir.bounds import MAX_NESTING
from gptrs.ir.json_form import MAX_DEPTH
from gptrs.ir.parser import MAX_SPLAT_BYTES
from ir.json_damage import damaged
from ir.program_texts import CONTRACTION, CONTROL_FLOW, CUSTOM_CALL, LITERALS, TEXTS

FIRST = "functions[0].instructions[0]"
BODY = "regions.body"
NO_PARAM = "unknown key `name`; the keys are `id`, `type`"


def program_of(text: str) -> dict:
    return copy.deepcopy(program_to_json(parse_program(text)))


def replaced(text: str, path: str, value: object) -> str:
    """The JSON of a program with the value at `path`, `a[0].b` or `a.0.b`, replaced."""
    root = program_of(text)
    parts = path.replace("[", ".").replace("]", "").split(".")
    *parents, last = [int(part) if part.isdigit() else part for part in parts]
    inner = root
    for part in parents:
        inner = inner[part]
    inner[last] = value
    return json.dumps(root)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        # structure
        ("version", 5, "version: expected a version, found `5`"),
        (
            "version",
            "ptir.v0.6",
            "version: version `ptir.v0.6` is not supported, this release reads `ptir.v0.5` and "
            "`ptir.v0.4`",
        ),
        ("more", 1, "unknown key `more`; the keys are `version`, `functions`"),
        ("functions", {}, "functions: expected a list, found an object of 0 keys"),
        ("functions", [], "a program needs a function called `@main`"),
        ("functions.0", None, "functions[0]: expected an object, found `null`"),
        ("functions.0.name", "", "functions[0].name: a name is letters, digits"),
        ("functions.0.name", "mine", "a program needs a function called `@main`"),
        ("functions.0.name", "n" * 2000, "functions[0].name: a string of 2000 characters"),
        ("functions.0.body", [], "functions[0]: unknown key `body`; the keys are `name`, `params`"),
        ("functions.0.params.0", {}, "functions[0].params[0]: the key `id` is missing"),
        ("functions.0.params.0.name", "x", f"functions[0].params[0]: {NO_PARAM}"),
        ("functions.0.params.1.id", "x", "params[1].id: value `%x` is defined twice"),
        ("functions.0.params.0.id", "a b", "params[0].id: an id is all digits, or letters"),
        ("functions.0.params.0.id", "²", "params[0].id: an id is all digits, or letters"),
        ("functions.0.params.0.id", 0, "params[0].id: expected the id of a value, found `0`"),
        ("functions.0.results.0", "w2", "functions[0].results[0]: value `%w2` is not defined"),
        ("functions.0.results.0", "2 ", "functions[0].results[0]: an id is all digits"),
        ("functions.0.results", "1", '[0].results: expected a list, found the string `"1"`'),
        # types
        ("functions.0.params.0.type", "f33[2]", "params[0].type: unknown dtype `f33`"),
        ("functions.0.params.0.type", "f32[2", "params[0].type: expected `,` or `]`"),
        ("functions.0.params.0.type", "f32[2] x", "params[0].type: expected the end of the type"),
        ("functions.0.params.0.type", "f32[-1]", "params[0].type: expected a dim"),
        ("functions.0.params.0.type", "\x00", "params[0].type: unexpected character U+0000"),
        ("functions.0.params.0.type", "f32[99999999999, 99999999999]", "more than 2^48 elements"),
        ("functions.0.params.0.type", "[" * 9000, "params[0].type: a string of 9000 characters"),
        ("functions.0.params.0.type", 7, 'type: expected a type such as `"f32[2, 3]"`, found `7`'),
        # instructions
        (f"{FIRST}.op", "dot_generl", f"{FIRST}.op: unknown op `dot_generl`; did you mean `dot_g"),
        (f"{FIRST}.op", ["add"], f"{FIRST}.op: expected the name of an op, found a list of 1"),
        (f"{FIRST}.op", "tanh", "has no attribute `contract_lhs`; it has none"),
        (f"{FIRST}.operands", ["x"], f"{FIRST}.op: `dot_general` takes 2 operands (lhs, rhs)"),
        (f"{FIRST}.operands", ["x", "1"], f"{FIRST}.operands[1]: value `%1` is not defined"),
        (f"{FIRST}.operands", ["x", 1], f"{FIRST}.operands[1]: expected the id of a value"),
        (f"{FIRST}.results", [], f"{FIRST}.results: an instruction has at least one result"),
        (f"{FIRST}.results.0.id", "x", f"{FIRST}.results[0].id: value `%x` is defined twice"),
        (
            f"{FIRST}.results.0.type",
            "f32[2, 5]",
            f"{FIRST}.results[0].type: `dot_general` gives `f32[2, 4]` here, not `f32[2, 5]`",
        ),
        (f"{FIRST}.regions", {}, f"{FIRST}.regions: an instruction with this op has no regions"),
        # attributes
        (f"{FIRST}.attributes", [], f"{FIRST}.attributes: expected an object, found a list of 0"),
        (f"{FIRST}.attributes", {}, f"{FIRST}.op: `dot_general` needs attribute `contract_lhs`"),
        (f"{FIRST}.attributes.axis", 1, f"{FIRST}.attributes.axis: `dot_general` has no attribute"),
        (f"{FIRST}.attributes.contract_lhs", [1.0], "contract_lhs[0]: expected an integer of 64 b"),
        (f"{FIRST}.attributes.contract_lhs", [True], "contract_lhs[0]: expected an integer of 64"),
        (f"{FIRST}.attributes.contract_lhs", [2**63], "contract_lhs[0]: expected an integer of 64"),
        (f"{FIRST}.attributes.contract_lhs", 1, "contract_lhs: expected a list, found `1`"),
        (f"{FIRST}.attributes.contract_lhs", [0] * 1025, "contract_lhs: expected a list of at mos"),
        (f"{FIRST}.attributes.contract_lhs", None, "contract_lhs: expected a list, found `null`"),
        (f"{FIRST}.attributes.out_dtype", "f33", "out_dtype: expected one of the dtypes i1, si4"),
        (f"{FIRST}.attributes.out_dtype", 32, "out_dtype: expected the name of a dtype, found"),
        (f"{FIRST}.attributes.contract_lhs", [9], f"{FIRST}.op: `dot_general` of f32[2, 3], f32"),
    ],
)  # fmt: skip
def test_refuses(path, value, message):
    with pytest.raises(ProgramError) as caught:
        parse_json(replaced(CONTRACTION, path, value))
    assert message in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("", {"type": "si4[3]"}, ": a literal has either `data` or `splat`"),
        ("", {"type": "si4[3]", "data": "CAAH", "splat": "CA=="}, ": a literal has either"),
        ("", [1, 2, 3], ": expected an object, found a list of 3"),
        (".data", "CAA", ".data: 3 bytes take 4 characters of base64, got 3"),
        (".data", "CAAHCAAH", ".data: 3 bytes take 4 characters of base64, got 8"),
        (".data", "CA==", ".data: expected 3 bytes in base64, found 1"),
        (".data", "C\nAH", ".data: not base64: letters, digits, `+` and `/`"),
        (".data", "====", ".data: not base64"),
        (".data", "CA-_", ".data: not base64"),
        (".data", "CAÄH", ".data: not base64"),
        (".data", "CAAQ", ".data: a literal of `si4[3]` has an element of more than 4 bits"),
        (".data", 5, ".data: expected 3 bytes in base64, found `5`"),
        (".type", "si4[2]", ".data: expected 2 bytes in base64, found 3"),
        (".type", "si4[?0]", ".type: a literal has no symbolic dims, got `si4[?0]`"),
        (".type", "si8[3]", ".results[0].type: `constant` gives `si8[3]` here, not `si4[3]`"),
    ],
)
def test_refuses_literals(path, value, message):
    with pytest.raises(ProgramError) as caught:
        parse_json(replaced(LITERALS, f"{FIRST}.attributes.value{path}", value))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("regions", {}, "instructions[0].regions: the key `body` is missing"),
        (f"{BODY}.results", ["total", "x"], "results[1]: value `%x` is not defined"),
        (f"{BODY}.instructions.0.attributes.function", "row.sum", "a function such as `@name`"),
        (f"{BODY}.instructions.0.attributes.function", "@main", "needs `@main`, no function"),
        ("regions.body.params", [], "body.instructions[0].operands[0]: value `%row` is not"),
        ("regions.then", {}, "instructions[0].regions: unknown key `then`; the keys are `body`"),
        ("attributes.carry_count", 2, "instructions[0].op: `scan`"),
        ("attributes.reverse", 1, "attributes.reverse: expected `true` or `false`, found `1`"),
        ("attributes.length", 6, "instructions[0].op: `scan`"),
    ],
)  # fmt: skip
def test_refuses_regions(path, value, message):
    with pytest.raises(ProgramError) as caught:
        parse_json(replaced(CONTROL_FLOW, f"functions.1.instructions.0.{path}", value))
    assert message in str(caught.value)


def test_refuses_missing_regions():
    value = program_of(CONTROL_FLOW)
    del value["functions"][1]["instructions"][1]["regions"]
    with pytest.raises(ProgramError, match="`regions` is missing, with condition and body"):
        parse_json(json.dumps(value))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("attrs.a", None, "attrs.a: expected a flag, an integer, a string, a list of"),
        ("attrs.a", 1.5, "attrs.a: expected a flag, an integer, a string, a list of"),
        (
            "attrs.a",
            {"float": 1.0, "dtype": "f32"},
            "attrs.a: expected a flag, an integer, a string",
        ),
        ("attrs.a", {"float": "Infinity"}, "attrs.a.float: expected a number, `inf`, `-inf` or"),
        ("attrs.a", {"float": 2**53 + 1}, "attrs.a.float: expected a number"),
        ("attrs.a", {"dtype": "f33"}, "attrs.a.dtype: expected one of the dtypes"),
        ("attrs.a", [1, None], "attrs.a[1]: expected an integer of 64 bits"),
        ("attrs.a b", 1, "attrs: needs at most 1024 names, each an identifier"),
        ("kind", "vendor", "needs a kind of dotted words and a version"),
        ("kind", 'a"b', "kind: expected a string in double quotes"),
        ("operands", "x y", "needs 1 distinct names of operands, got `x y`"),
        ("decomposition", "@none", "needs `@none`, no function above has the name"),
        ("decomposition", "@a b", "decomposition: expected a function such as `@name`"),
    ],
)
def test_refuses_composites(path, value, message):
    with pytest.raises(ProgramError) as caught:
        parse_json(replaced(CUSTOM_CALL, f"functions.1.instructions.0.attributes.{path}", value))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("target", "vendor", "needs a target of dotted words and a version"),
        ("results", ["f32"], "results[0]: expected `[` and the dims of the type"),
    ],
)
def test_refuses_custom_calls(path, value, message):
    with pytest.raises(ProgramError) as caught:
        parse_json(replaced(CUSTOM_CALL, f"functions.1.instructions.1.attributes.{path}", value))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "`the program` is not usable JSON: Expecting value"),
        ("[]", "it must be an object, found `[]`"),
        ("nul", "Expecting value"),
        ('{"version": "ptir.v0.5", "version": "ptir.v0.4"}', "the key `version` occurs twice"),
        ('{"version": NaN}', "`NaN` is not a JSON number"),
        ('{"version": 1e999}', "the number `1e999` is out of range"),
        ('{"version": "\ud800"}', "is not UTF-8"),
        ('{"version": "\\ud800"}', "unpaired surrogate"),
        (b"\xff\xfe{\x00}\x00", "byte 0 is not UTF-8"),
        ("ptir.v0.5\nfunc", "see docs/ptir.schema.json"),
    ],
)
def test_refuses_what_is_no_json(text, message):
    with pytest.raises(ProgramError) as caught:
        parse_json(text)
    assert message in str(caught.value)


LARGE = 10_000_000
HEAD = '{"version": "ptir.v0.5", "functions": '


@pytest.mark.sample(16)
@pytest.mark.parametrize(
    "made",
    [
        lambda: "(" * LARGE,
        lambda: "[" * LARGE,
        lambda: '{"a":' * (LARGE // 5),
        lambda: HEAD + "[" * LARGE,
        lambda: HEAD + "1" * LARGE + "}",
        lambda: HEAD + '"' + "a" * LARGE + '"}',
        lambda: HEAD + '"' + "\\" * LARGE,
        lambda: HEAD + "[" + "0," * (LARGE // 2) + "0]}",
        lambda: HEAD + "[" + "[]," * (LARGE // 8) + "[]]}",
        lambda: HEAD + '[{"name": "' + "a" * LARGE + '"}]}',
        lambda: HEAD + "[{" + ",".join(f'"{index}": 0' for index in range(500_000)) + "}]}",
        lambda: '{"' + "a" * LARGE + '": 1}',
    ],
    ids=range(12),
)
def test_hostile_texts_cost_little(made):
    text = made()  # large: not kept while other tests run
    started = time.process_time()
    with pytest.raises(ProgramError) as caught:
        parse_json(text)
    assert time.process_time() - started < 5
    assert len(str(caught.value)) < 600


def test_splats_share_one_budget():
    size = MAX_SPLAT_BYTES // 4 + 1
    splat = {"type": f"i1[{size}]", "splat": "AA=="}
    constant = {
        "op": "constant",
        "operands": [],
        "attributes": {"value": splat},
    }
    instructions = [
        {**constant, "results": [{"id": str(index), "type": f"i1[{size}]"}]} for index in range(5)
    ]
    function = {"name": "main", "params": [], "instructions": instructions, "results": []}
    with pytest.raises(ProgramError, match=r"instructions\[3\].*the splats of the program unfold"):
        parse_json(json.dumps({"version": "ptir.v0.5", "functions": [function]}))


def nested(levels: int) -> dict[str, object]:
    """A program with `cond` in `cond`, so many deep."""
    params = [{"id": "p", "type": "i1[]"}]
    region: dict[str, object] = {"params": params, "instructions": [], "results": ["p"]}
    for _ in range(levels):
        cond = {
            "op": "cond",
            "operands": ["p", "p"],
            "regions": {"then": region, "else": {**region, "instructions": [], "results": ["p"]}},
            "results": [{"id": "0", "type": "i1[]"}],
        }
        region = {"params": params, "instructions": [cond], "results": ["0"]}
    return {"version": "ptir.v0.5", "functions": [{"name": "main", **region}]}


def test_the_deepest_nesting_that_the_verifier_allows_is_read():
    program = parse_json(json.dumps(nested(MAX_NESTING)))
    verify(program)
    assert parse_json(print_json(program)).main.body.results
    with pytest.raises(ProgramError, match=f"regions are nested deeper than {MAX_NESTING}"):
        parse_json(json.dumps(nested(MAX_NESTING + 1)))
    with pytest.raises(ProgramError, match=f"nested more than {MAX_DEPTH} levels deep"):
        parse_json(json.dumps(nested(2 * MAX_NESTING)))


@pytest.mark.long
@given(st.sampled_from(TEXTS).flatmap(lambda text: damaged(program_of(text))))
@settings(deadline=None, max_examples=250)
def test_damaged_programs_are_read_or_refused(root):
    try:
        program = parse_json(json.dumps(root))
    except ProgramError:
        return
    verify(program)

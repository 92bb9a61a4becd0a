"""`gptrs list patterns`: the calls that are found in programs, and what they look like."""

from __future__ import annotations

from gptrs.ir import parse_program, verify


def test_each_way_of_calling_has_a_line(gptrs):
    result = gptrs("list", "patterns")
    assert (result.code, result.err) == (0, "")
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert lines[0] == "FUNCTION OPERANDS FORMS SETTINGS"
    assert "softmax x 2 axis=any" in lines
    assert "query, key, value, offset 4 causal=True, scale=any" in lines


def test_as_json_every_form_has_an_example_that_is_a_program(gptrs):
    listed = gptrs("list", "patterns", "--json").json["patterns"]
    by_name = {each["name"]: each["variants"] for each in listed}
    assert {"attention", "conv2d", "gelu", "layer_norm", "linear_activation"} <= by_name.keys()
    for variants in by_name.values():
        for variant in variants:
            program = parse_program(variant["example"])
            verify(program)
            ops = [made.op.name for made in program.main.body.instructions]
            assert variant["ops"] == ops
            assert len(program.inputs) == len(variant["operands"])

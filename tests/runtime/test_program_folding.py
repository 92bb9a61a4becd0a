"""Pictures fold equal layers, name fused ops, and are colored by the times of a profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gptrs.errors import UsageError
from gptrs.ir import parse_program
from gptrs.ir.attributes import Dictionary
from gptrs.ir.dtypes import f32
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.program import Program
from gptrs.ir.tensor_type import TensorType
from gptrs_observe.programs.diagram import Repeat, diagrams_of, repeats_of
from gptrs_observe.programs.op_work import kernel_name, op_title, read_times
from gptrs_observe.programs.picture.svg import to_svg


def layers(count: int) -> Program:
    """`tanh(x @ w + b) + x`, `count` times, after a negation and before another one."""
    weights = "".join(f", %w{i}: f32[2, 2], %b{i}: f32[1, 2]" for i in range(count))
    lines, x = ["%0 = neg %x : f32[1, 2]"], "%0"
    for i in range(count):
        n = 4 * i
        lines += [
            f"%{n + 1} = dot_general {x}, %w{i} {{contract_lhs = [1], contract_rhs = [0]}}"
            " : f32[1, 2]",
            f"%{n + 2} = add %{n + 1}, %b{i} : f32[1, 2]",
            f"%{n + 3} = tanh %{n + 2} : f32[1, 2]",
            f"%{n + 4} = add %{n + 3}, {x} : f32[1, 2]",
        ]
        x = f"%{n + 4}"
    lines.append(f"%{4 * count + 1} = neg {x} : f32[1, 2]")
    body = "\n  ".join(lines)
    return parse_program(
        f"ptir.v0.5\nfunc @main(%x: f32[1, 2]{weights}) -> f32[1, 2] {{\n  {body}\n"
        f"  return %{4 * count + 1}\n}}\n"
    )


CALLS = parse_program("""
ptir.v0.5
func @layer(%x: f32[2], %w: f32[2]) -> (f32[2], f32[2]) {
  %0 = mul %x, %w : f32[2]
  %1 = exp %0 : f32[2]
  return %1, %0
}
func @main(%x: f32[2], %a: f32[2], %b: f32[2], %c: f32[2]) -> (f32[2], f32[2], f32[2], f32[2]) {
  %0, %1 = call %x, %a {function = @layer} : (f32[2], f32[2])
  %2, %3 = call %0, %b {function = @layer} : (f32[2], f32[2])
  %4, %5 = call %2, %c {function = @layer} : (f32[2], f32[2])
  return %4, %1, %3, %5
}
""")


def test_equal_layers_are_found():
    assert repeats_of(layers(5).main.body) == [Repeat(1, 4, 5)]
    assert repeats_of(layers(2).main.body) == []
    assert repeats_of(CALLS.main.body) == [Repeat(0, 1, 3)]


def test_a_chain_of_one_op_is_no_layer():
    lines = "\n".join(f"  %{i + 1} = neg %{i} : f32[1]" for i in range(40))
    text = f"ptir.v0.5\nfunc @main(%0: f32[1]) -> f32[1] {{\n{lines}\n  return %40\n}}\n"
    assert repeats_of(parse_program(text).main.body) == []


def test_layers_that_are_wired_otherwise_differ():
    text = str(layers(4)).replace("%11 = tanh %10", "%11 = tanh %9")
    assert repeats_of(parse_program(text).main.body) == []


def test_layers_become_one_box_with_the_first_of_them_in_it():
    (diagram,) = diagrams_of(layers(12))
    titles = [node.title for node in diagram.nodes]
    assert titles == [
        "%x",
        "24 inputs of the layers",
        "%0 = neg",
        "4 instructions x12",
        "%49 = neg",
        "result 0",
    ]
    (inner,) = diagram.nodes[3].inner
    named = [node.title for node in inner.nodes if node.kind == "instruction"]
    assert named == ["%1 = dot_general", "%2 = add", "%3 = tanh", "%4 = add"]
    assert diagram.nodes[1].types == ("12 x f32[2, 2]", "12 x f32[1, 2]")


def test_calls_become_one_box_and_so_do_their_results():
    main, function = diagrams_of(CALLS)
    titles = [node.title for node in main.nodes]
    assert "@layer x3" in titles
    assert "4 results of the layers" in titles
    assert "4 inputs of the layers" in titles
    assert function.name == "@layer"


def test_fused_ops_have_the_name_of_what_they_compute():
    attrs = Dictionary.of(activation="gelu_tanh", bias=True, residual=False)
    op = CustomCall("acme.fast.linear.f32.v1", (TensorType(f32, (2,)),), attrs)
    assert op_title(op) == "linear + bias + gelu_tanh"
    plain = CustomCall("vendor.kernel.v1", (TensorType(f32, (2,)),))
    assert op_title(plain) == "vendor.kernel.v1"
    assert kernel_name("acme.fast.linear.f32.v1 + add") == "linear + add"


def profile(tmp_path: Path, kernels: list[tuple[str, str, float]]) -> Path:
    rows = [{"kernel": k, "operands": o, "seconds": s} for k, o, s in kernels]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"format": "gptrs-profile", "version": 1, "kernels": rows}))
    return path


def test_times_of_a_profile_color_the_boxes(tmp_path: Path):
    program = layers(4)
    kernels = [
        ("dot_general", "f32[1, 2], f32[2, 2] -> f32[1, 2]", 6.0),
        ("tanh + neg", "f32[1, 2] -> f32[1, 2]", 2.0),
        ("sort", "f32[9] -> f32[9]", 2.0),
    ]
    times = read_times(profile(tmp_path, kernels), program)
    assert times.elsewhere == pytest.approx(0.2)
    assert sum(times.shares.values()) == pytest.approx(0.8)
    (diagram,) = diagrams_of(program, times.shares)
    folded = next(node for node in diagram.nodes if node.inner)
    assert folded.share == pytest.approx(0.6)
    assert "60.0% of the time" in folded.details
    assert to_svg([diagram]) != to_svg(diagrams_of(program))


def test_calls_share_the_time_of_their_function(tmp_path: Path):
    kernels = [("exp", "f32[2] -> f32[2]", 3.0), ("mul", "f32[2], f32[2] -> f32[2]", 1.0)]
    times = read_times(profile(tmp_path, kernels), CALLS)
    calls = [times.shares[each] for each in CALLS.main.body.instructions]
    assert calls == pytest.approx([1 / 3] * 3)


def test_symbols_stand_for_the_sizes_of_the_run(tmp_path: Path):
    text = "ptir.v0.5\nfunc @main(%x: f32[?0, 2]) -> f32[?0, 2] {\n  %0 = tanh %x : f32[?0, 2]\n"
    program = parse_program(text + "  return %0\n}\n")
    path = profile(tmp_path, [("tanh", "f32[7, 2] -> f32[7, 2]", 1.0)])
    assert list(read_times(path, program).shares.values()) == [1.0]


@pytest.mark.parametrize("content", ["{}", "[]", "no json", '{"format": "gptrs-profile"}'])
def test_what_is_no_profile_is_refused(tmp_path: Path, content: str):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(UsageError):
        read_times(path, layers(3))


def test_a_profile_of_another_program_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="none of the kernels"):
        read_times(profile(tmp_path, [("sort", "f32[9] -> f32[9]", 1.0)]), layers(3))


def test_a_notebook_shows_the_picture_unless_it_is_too_large():
    picture = layers(3)._repr_svg_()
    assert picture is not None
    assert picture.startswith("<svg")
    lines = "\n".join(f"  %{i + 1} = neg %{i} : f32[1]" for i in range(1001))
    text = f"ptir.v0.5\nfunc @main(%0: f32[1]) -> f32[1] {{\n{lines}\n  return %1001\n}}\n"
    assert parse_program(text)._repr_svg_() is None

"""Patterns find the calls that they were derived from, in any surroundings, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from functionals.canonical_programs import canonical, found_calls, one
from fuzzing.differential import evaluate
from gptrs import functionals as F
from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import ProgramError, UsageError
from gptrs.functionals.dispatch.examples import pattern_names
from gptrs.functionals.matching import FunctionalPattern, pattern
from gptrs.ir import print_program, verify
from gptrs.ir.ops.custom_call import CustomCall, Declined
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.type_text import parse_type
from gptrs.optimizer import recording
from gptrs.optimizer.fusion import FoundCall, FusionPass, find_calls

EXAMPLES = [
    pytest.param(name, example, id=f"{name}-{number}")
    for name in pattern_names()
    for number, example in enumerate(pattern(name)._examples)
]


@pytest.mark.sample(40)
@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_every_example_is_found_between_other_ops(name: str, example: dict[str, object]):
    found = pattern(name).evaluated_by(evaluate)
    tensors = {key: given for key, given in example.items() if isinstance(given, TensorType)}

    def surrounded(*given: Tensor) -> Tensor:
        inner = [F.exp(x) if x.dtype.is_float else x for x in given]
        others = {key: value for key, value in example.items() if key not in tensors}
        return F.exp(found._function(**dict(zip(tensors, inner, strict=True)), **others))

    region = canonical(surrounded, *map(str, tensors.values())).main.body
    matches = [
        call
        for call in find_calls(found, region)
        if {key: bound.type for key, bound in call.operands.items()} == tensors
    ]
    assert matches
    call = matches[-1]
    assert set(call.operands) == set(tensors)
    for key, value in example.items():
        if key not in tensors:
            assert (
                call.attributes[key] == pytest.approx(value)
                if isinstance(value, float)
                else (call.attributes[key] == value)
            )


@pytest.mark.parametrize("axis", [0, 2, 3])
def test_both_kinds_of_softmax_are_told_apart(axis: int):
    for name, other in (("softmax", "safe_softmax"), ("safe_softmax", "softmax")):
        function = getattr(F, name)
        call = one(name, lambda x, f=function: f(x, axis), "f32[5, 3, 7, 2]")
        assert call.attributes["axis"] == axis
        assert not found_calls(other, lambda x, f=function: f(x, axis), "f32[5, 3, 7, 2]")


def test_types_and_numbers_may_be_others():
    call = one("softmax", lambda x: F.softmax(x, 1), "f16[5, 3, 7, 2]")
    assert call.attributes == {"axis": 1}
    assert str(call.operands["x"].type) == "f16[5, 3, 7, 2]"
    call = one(
        "layer_norm",
        lambda x, w, b: F.layer_norm(x, w, b, 0.25),
        "f32[2, 4, 8]",
        "f32[8]",
        "f32[8]",
    )
    assert call.attributes == {"epsilon": 0.25}
    types = "bf16[1, 1, 64]", "bf16[32, 64]", "bf16[32]"
    call = one("linear", lambda x, w, b: F.linear(x, w, b), *types)
    assert call.attributes == {"layout": "out_in"}
    assert str(call.operands["bias"].type) == "bf16[32]"


def test_operands_of_commutative_ops_may_have_changed_places():
    def gelu_written_backwards(x: Tensor) -> Tensor:
        cube = x * (x * x)
        inner = F.tanh((cube * 0.044715 + x) * float(np.sqrt(2 / np.pi)))
        return (inner + 1.0) * (0.5 * x)

    call = one("gelu", gelu_written_backwards, "f32[3, 4]")
    assert call.attributes == {"approximate": "tanh"}


def test_shared_parts_do_not_hide_a_call():
    def softmax_and_its_parts(x: Tensor) -> Tensor:
        peak = F.max(x, -1, keepdims=True)
        powers = F.exp(x - peak)
        return F.softmax(x) + powers * peak

    call = one("softmax", softmax_and_its_parts, "f32[3, 4]")
    assert len(call.made) >= 5


def test_calls_that_share_everything_are_found_each():
    found = found_calls("softmax", lambda x: F.softmax(x, 0) + F.softmax(x, 1), "f32[3, 4]")
    assert [call.attributes["axis"] for call in found] == [0, 1]


def test_a_transpose_that_the_product_took_in_is_given_back():
    def attention_over_split_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = (F.transpose(x, (0, 2, 1, 3)) for x in (q, k, v))
        return F.transpose(F.attention(*heads, causal=True), (0, 2, 1, 3))

    call = one("attention", attention_over_split_heads, *["f32[2, 6, 3, 4]"] * 3)
    assert call.attributes["causal"] is True
    assert call.attributes["scale"] == pytest.approx(0.5)
    for name in ("query", "key", "value"):
        bound = call.operands[name]
        assert str(bound.value.type) == "f32[2, 6, 3, 4]"
        assert bound.permutation == (0, 2, 1, 3)
        assert str(bound.type) == "f32[2, 3, 6, 4]"


def test_one_value_may_be_several_operands():
    call = one("attention", lambda x: F.attention(x, x, x, scale=2.0), "f32[2, 3, 6, 4]")
    assert len({bound.value for bound in call.operands.values()}) == 1


NEAR_MISSES = {
    "another constant": (
        "gelu",
        lambda x: x * 0.5 * (F.erf(x * 0.7) + 1.0),
        ["f32[3, 4]"],
    ),
    "another axis": (
        "softmax",
        lambda x: F.exp(x - F.max(x, 1, keepdims=True)) / F.sum(F.exp(x), 0, keepdims=True),
        ["f32[3, 3]"],
    ),
    "two values for one": (
        "softmax",
        lambda x, y: (
            F.exp(x - F.max(y, 1, keepdims=True))
            / F.sum(F.exp(x - F.max(x, 1, keepdims=True)), 1, keepdims=True)
        ),
        ["f32[3, 4]", "f32[3, 4]"],
    ),
    "another count": (
        "layer_norm",
        lambda x: (
            (x - F.sum(x, -1, keepdims=True) / 5.0)
            / F.sqrt(F.sum(x * x, -1, keepdims=True) / 4.0 + 1e-5)
        ),
        ["f32[3, 4]"],
    ),
    "a bias of every row": (
        "linear",
        lambda x, w, b: F.matmul(x, w) + b,
        ["f32[2, 3]", "f32[3, 4]", "f32[2, 4]"],
    ),
}


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_what_only_looks_alike_is_not_found(case: str):
    name, function, types = NEAR_MISSES[case]
    found = found_calls(name, function, *types)
    assert [call for call in found if "bias" in call.operands or name != "linear"] == []


def test_an_unknown_pattern():
    with pytest.raises(UsageError, match="there is no pattern `attentoin`; there are: "):
        pattern("attentoin")


def test_examples_must_tell_numbers_apart():
    def scaled(x: Tensor, factor: float, unused: float) -> Tensor:
        return x * factor

    examples = [
        {"x": parse_type("f32[2]"), "factor": 3.0, "unused": 1.0},
        {"x": parse_type("f32[2]"), "factor": 5.0, "unused": 2.0},
    ]
    with pytest.raises(UsageError, match="`scaled` cannot read `unused` off a program"):
        _ = FunctionalPattern("scaled", scaled, examples).variants


def test_a_pattern_is_derived_in_eager_mode_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPTRS_EAGER", "1")

    def numbered(x: Tensor) -> Tensor:
        return x + primitives.iota((3,), 0, x.dtype)

    found = FunctionalPattern("numbered", numbered, [{"x": parse_type("f32[3]")}])
    assert len(found.variants) == 1


def test_a_fusion_pass_puts_a_kernel_in_place_of_each_call():
    def replacement(call: FoundCall) -> CustomCall | None:
        if call.attributes["axis"] != 1:
            return None
        return CustomCall("test.softmax.f32.v1", (call.result.type,))

    fuse = FusionPass("softmax-fusion", pattern("softmax"), replacement)
    program = canonical(lambda x: F.softmax(F.softmax(x, 1), 0) * F.exp(x), "f32[3, 4]")
    fused = fuse.apply(program)
    verify(fused)
    names = [made.op.name for made in fused.main.body.instructions]
    assert names.count("custom_call") == 1
    assert names.count("reduce") == 2
    assert "test.softmax.f32.v1" in print_program(fused)
    assert fuse.apply(fused) is fused


def test_a_fusion_pass_takes_operands_in_its_own_order_and_says_why_it_declines():
    def replacement(call: FoundCall):
        if call.attributes["epsilon"] > 1e-4:
            return Declined("the kernel has one epsilon")
        return CustomCall("test.shifted.f32.v1", (call.result.type,)), ("bias", "x")

    fuse = FusionPass("norms", pattern("layer_norm"), replacement)
    program = canonical(
        lambda x, w, b: F.layer_norm(F.layer_norm(x, w, b), w, b, 1e-3),
        "f32[2, 3]", "f32[3]", "f32[3]",
    )  # fmt: skip
    with recording() as journal:
        fused = fuse.apply(program)
    verify(fused)
    (call,) = [made for made in fused.main.body.instructions if made.op.name == "custom_call"]
    assert [str(operand.type) for operand in call.operands] == ["f32[3]", "f32[2, 3]"]
    assert journal.fired == {"norms": 1}
    reasons = list(map(str, journal.refused))  # of the call, then of smaller ones without a bias
    assert reasons[0] == (
        "norms at layer_norm of f32[2, 3], f32[3], f32[3]: the kernel has one epsilon"
    )
    wrong = FusionPass("norms", pattern("layer_norm"), lambda c: (call.op, ("biass",)))
    with pytest.raises(ProgramError, match="takes the operand 'biass' of `layer_norm`, which has"):
        wrong.apply(program)


def test_a_fusion_pass_transposes_what_the_product_had_taken_in():
    def replacement(call: FoundCall) -> CustomCall:
        return CustomCall("test.attention.f32.v1", (call.result.type,))

    def heads(x: Tensor) -> Tensor:
        return F.transpose(x, (0, 2, 1, 3))

    program = canonical(lambda x: F.attention(heads(x), heads(x), heads(x)), "f32[2, 6, 3, 4]")
    fused = FusionPass("attention-fusion", pattern("attention"), replacement).apply(program)
    verify(fused)
    call = fused.main.body.instructions[-1]
    assert isinstance(call.op, CustomCall)
    assert [str(operand.type) for operand in call.operands] == ["f32[2, 3, 6, 4]"] * 3

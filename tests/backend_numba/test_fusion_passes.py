"""Which calls of functionals become kernels of this backend, in small programs and in a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.backend.contract import InputRole
from gptrs.capture.graph import Argument, GraphSlice
from gptrs.capture.tensor import Tensor
from gptrs.ir import Program, parse_program, verify
from gptrs.ir.attributes import Dictionary, FunctionName
from gptrs.ir.ops.custom_call import Composite, CustomCall, Declined
from gptrs.ir.size_guards import SizeGuards
from gptrs.ir.type_text import parse_type
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs.optimizer.pipeline import Pipeline
from gptrs_backend_numba.backend import NumbaBackend, create
from gptrs_backend_numba.evaluation import evaluate
from gptrs_backend_numba.fusion.claims import claim
from gptrs_backend_numba.fusion.passes import FUSE, LEGALIZE
from gptrs_backend_numba.fusion.quantized import (
    DECODE_IN_PRODUCTS,
    FUSE_QUANTIZED,
    FUSE_QUANTIZED_GROUPED,
)
from gptrs_backend_numba.run.executable import NumbaExecutable
from gptrs_backend_numba.views import MemorySpace
from gptrs_runtime.generation.sampling_options import Sampling

CLAIMS = Inlining(claim)

GREEDY = Sampling(temperature=0)


def fused(function: Callable[..., Tensor], *types: str) -> Program:
    """The program of a function of tensors, as the backend gets to compile it."""
    leaves = [Argument(parse_type(text), place, None) for place, text in enumerate(types)]
    result = function(*map(Tensor, leaves))
    program = GraphSlice([result.source]).lower(leaves)
    pipeline = Pipeline(CLAIMS, LEGALIZE, FUSE, evaluate=evaluate, verify=True)
    return pipeline.run(program)


def calls(program: Program) -> list[CustomCall]:
    verify(program)
    return [made.op for made in program.main.body.instructions if isinstance(made.op, CustomCall)]


def kernels(program: Program) -> Counter[str]:
    return Counter(call.target.removeprefix("gptrs.numba.") for call in calls(program))


def heads(x: Tensor) -> Tensor:
    return F.transpose(x, (0, 2, 1, 3))


KEYS = ["f32[2, 9, 3, 8]", "f32[2, 9, 3, 8]"]
ATTENTIONS = {
    "plain": (lambda q, k, v: F.attention(heads(q), heads(k), heads(v)), []),
    "mask": (
        lambda q, k, v, m: F.attention(heads(q), heads(k), heads(v), mask=m),
        ["i1[4, 9]"],
    ),
    "causal": (lambda q, k, v: F.attention(heads(q), heads(k), heads(v), causal=True), []),
    "offset": (
        lambda q, k, v, o: F.attention(heads(q), heads(k), heads(v), causal=True, offset=o),
        ["si64[]"],
    ),
}


def written_out(q: Tensor, k: Tensor, v: Tensor, *seen: Tensor, case: str) -> Tensor:
    """Attention in the ops of a file, with a plain softmax."""
    q, k, v = map(heads, (q, k, v))
    k, v = (F.repeat_interleave(x, q.shape[1] // 3, 1) if q.shape[1] > 3 else x for x in (k, v))
    scores = F.matmul(q, F.swap_axes(k, 2, 3)) * 8**-0.5
    if case != "plain":
        visible = seen[0] if case == "mask" else F.causal_mask(4, 9, *(seen or (5,)))
        scores = F.where(visible, scores, -np.inf)
    return F.matmul(F.softmax(scores), v)


@pytest.mark.parametrize("query", ["f32[2, 4, 3, 8]", "f32[2, 4, 6, 8]"])
@pytest.mark.parametrize("case", ATTENTIONS)
@pytest.mark.parametrize("guard", ["blind", "none"])
def test_attention_becomes_one_call(case: str, query: str, guard: str):
    function, extra = ATTENTIONS[case]
    if guard == "none":
        function = partial(written_out, case=case)
    program = fused(function, query, *KEYS, *extra)
    assert kernels(program) == {"attention.f32.v1": 1}
    (call,) = calls(program)
    assert call.attrs["causal"] is (case in ("causal", "offset"))
    assert call.attrs["mask"] is (case == "mask")
    assert call.attrs["offset"] is (case == "offset")
    assert call.attrs["guard"] == guard
    names = {made.op.name for made in program.main.body.instructions}
    assert names <= {"custom_call", "transpose", "reshape", *(["broadcast_to"] * (guard == "none"))}


def test_attention_whose_scores_are_read_elsewhere_stays():
    def with_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = F.matmul(q, F.transpose(k, (0, 1, 3, 2))) * 0.5
        return F.matmul(F.safe_softmax(scores), v) + F.sum(scores)

    program = fused(with_scores, *["f32[1, 2, 8, 8]"] * 3)
    assert kernels(program) == {"safe_softmax.f32.v1": 1}


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_normalizations_and_softmax_become_calls(dtype: str):
    vectors = f"{dtype}[3, 8]", f"{dtype}[8]", f"{dtype}[8]"
    for function, types, kernel in (
        (F.layer_norm, vectors, "layer_norm"),
        (F.layer_norm, vectors[:1], "layer_norm"),
        (F.rms_norm, vectors[:2], "rms_norm"),
        (F.rms_norm, vectors[:1], "rms_norm"),
        (F.softmax, vectors[:1], "softmax"),
        (F.safe_softmax, vectors[:1], "safe_softmax"),
    ):
        program = fused(function, *types)
        assert kernels(program) == {f"{kernel}.{dtype}.v1": 1}
        assert len(program.main.body.instructions) == 1


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (lambda x, *vectors: F.group_norm(x, 2, *vectors), "8"),
        (F.instance_norm, "8"),
        (lambda x, *vectors: F.layer_norm(x, *vectors, axes=(-2, -1)), "5, 8"),
    ],
)
def test_norms_of_other_axes_become_a_call_with_a_weight_and_bias_behind_it(
    norm: Callable[..., Tensor], shape: str, affine: bool, dtype: str
):
    vectors = [f"{dtype}[{shape}]"] * (2 if affine else 0)
    program = fused(norm, f"{dtype}[2, 3, 5, 8]", *vectors)
    assert kernels(program) == {"standardize.f32.v1": 1}
    names = Counter(made.op.name for made in program.main.body.instructions)
    assert (names["mul"], names["add"]) == (affine, affine)
    assert names["cast"] == (2 + 2 * affine if dtype == "f16" else 0)


def test_an_offset_is_added_to_the_weight_of_a_norm():
    norm = partial(F.rms_norm, weight_offset=1)
    program = fused(norm, "f32[3, 8]", "f32[8]")
    assert kernels(program) == {"rms_norm.f32.v1": 1}
    assert {made.op.name for made in program.main.body.instructions} <= {
        *("constant", "broadcast_to", "add", "custom_call")
    }


def test_what_there_is_no_kernel_for_stays():
    assert not calls(fused(lambda x: F.softmax(x, 0), "f32[3, 4]"))
    assert not calls(fused(F.softmax, "f64[3, 4]"))
    assert not calls(fused(F.softmax, "f32[0, 4]"))
    assert not calls(fused(F.layer_norm, "f64[3, 8]"))
    assert not calls(fused(F.linear, "f64[3, 64]", "f64[64, 64]"))
    assert not calls(fused(F.linear, "f32[3, 4]", "f32[4, 4]", "f32[4]"))


IMAGES = "f32[2, 8, 8, 64]"


@pytest.mark.parametrize(
    ("weight", "layout", "groups", "kernel"),
    [
        ("f32[64, 64, 3, 3]", "oihw", 1, "conv2d"),
        ("f32[3, 3, 64, 32]", "hwio", 1, "conv2d"),
        ("f32[64, 1, 3, 3]", "oihw", 64, "depthwise_conv2d"),
        ("f32[3, 3, 1, 64]", "hwio", 64, "depthwise_conv2d"),
        ("f32[64, 32, 3, 3]", "oihw", 2, "grouped_conv2d"),
    ],
)
@pytest.mark.parametrize("first", [False, True])
def test_convolutions_take_in_zeros_around_images_and_what_follows(
    weight: str, layout: Literal["oihw", "hwio"], groups: int, kernel: str, first: bool
):
    def network(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        if first:
            x = F.transpose(F.pad(x, [(0, 0), (0, 0), (1, 0), (1, 2)]), (0, 2, 3, 1))
        else:
            x = F.pad(x, [(0, 0), (1, 0), (1, 2), (0, 0)])
        return F.relu(F.conv2d(x, w, b, 2, ((0, 1), (0, 0)), groups=groups, layout=layout))

    outputs = parse_type(weight).shape[0 if layout == "oihw" else 3]
    images = "f32[2, 64, 8, 8]" if first else IMAGES
    program = fused(network, images, weight, f"f32[{outputs}]")
    (call,) = calls(program)
    assert call.target == f"gptrs.numba.{kernel}.f32.v1"
    assert call.attrs["padding"] == (1, 1, 1, 2)
    assert (call.attrs["shift"], call.attrs["activation"]) == (True, "relu")
    names = {made.op.name for made in program.main.body.instructions}
    assert names <= {"custom_call", "transpose", "reshape"}


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (
            lambda: F.conv2d(zeros("f16", 1, 8, 8, 4), zeros("f16", 4, 4, 3, 3)),
            "not f16",
        ),
        (lambda: F.conv2d(zeros("f32", 1, 3, 3, 4), zeros("f32", 4, 4, 3, 3)), "fewer than 4"),
        (
            lambda: F.conv2d(zeros("f32", 1, 8, 8, 4), zeros("f32", 4, 2, 3, 3), groups=2),
            "multiples of 32",
        ),
        (
            lambda: F.depthwise_conv2d(zeros("f32", 1, 8, 8, 4), zeros("f32", 8, 1, 3, 3)),
            "one window for each channel",
        ),
        (lambda: F.conv1d(zeros("f32", 1, 8, 4), zeros("f32", 4, 4, 3)), "takes? images"),
        (lambda: F.linear(zeros("f32", 3, 8), zeros("f32", 8, 8)), "fewer than 1024"),
        (lambda: F.linear(zeros("f64", 3, 64), zeros("f64", 64, 64)), "not f64"),
        (
            lambda: F.linear(zeros("f32", 1, 8, 8, 64), zeros("f32", 64, 64), layout="in_out"),
            "convolution of one position",
        ),
        (
            lambda: F.conv2d(zeros("f32", 1, 8, 8, 4), zeros("f32", 4, 1, 3, 3), groups=4),
            "is a `depthwise_conv2d`",
        ),
    ],
)
def test_what_is_not_claimed_has_a_reason(call: Callable[[], Tensor], reason: str):
    slice_ = GraphSlice([call().source])
    for made in slice_.lower(slice_.leaves).main.body.walk():
        if isinstance(made.op, Composite):
            operands = [value.type for value in made.operands]
            declined = claim(made.op, operands, [value.type for value in made.results])
            assert isinstance(declined, Declined)
            assert re.search(reason, declined.reason)
            return
    pytest.fail("there is no composite")


def zeros(dtype: str, *shape: int) -> Tensor:
    return F.zeros(shape, dtype)


LAYER = "f32[3, 64]", "f32[32, 64]", "f32[32]"


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("activation", "name"),
    [
        (None, "none"),
        (F.relu, "relu"),
        (F.relu6, "relu6"),
        (F.silu, "silu"),
        (F.gelu, "gelu_erf"),
        (lambda x: F.gelu(x, "tanh"), "gelu_tanh"),
        (lambda x: F.gelu(x, "quick"), "gelu_quick"),
    ],
)
def test_layers_take_activation_and_residual(
    activation: Callable[[Tensor], Tensor] | None, name: str, rows: int
):
    def layer(x: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
        inner = F.linear(x, w, b)
        return y + (inner if activation is None else activation(inner))

    program = fused(layer, f"f32[{rows}, 64]", *LAYER[1:], f"f32[{rows}, 32]")
    assert len(program.main.body.instructions) == 1
    (call,) = calls(program)
    assert call.attrs["activation"] == name
    assert call.attrs["bias"] is call.attrs["residual"] is True


@pytest.mark.parametrize(
    ("function", "types", "layout"),
    [
        (lambda x, w: F.linear(x, F.transpose(w)), ["f32[3, 64]", "f32[64, 32]"], "in_out"),
        (
            lambda x, w: F.linear(x, F.transpose(w), layout="in_out"),
            ["f32[3, 64]", "f32[32, 64]"],
            "out_in",
        ),
        (lambda x, w: F.matmul(x, F.transpose(w)), ["f32[3, 64]", "f32[32, 64]"], "out_in"),
    ],
)
def test_a_layer_reads_a_transposed_weight_where_it_lies(
    function: Callable[..., Tensor], types: Sequence[str], layout: str
):
    program = fused(function, *types)
    (call,) = calls(program)
    assert len(program.main.body.instructions) == 1
    assert call.attrs["layout"] == layout


def test_a_product_written_out_is_a_layer_with_a_bias_and_rows_that_are_turned():
    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.relu(b + F.matmul(F.swap_axes(x, 1, 2), w))

    program = fused(layer, "f16[2, 64, 5]", "f16[64, 32]", "f16[32]")
    assert [made.op.name for made in program.main.body.instructions] == ["transpose", "custom_call"]
    (call,) = calls(program)
    assert call.attrs["bias"] is True
    assert call.attrs["activation"] == "relu"


def test_a_product_that_is_read_elsewhere_is_not_computed_twice():
    def twice(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        inner = F.linear(x, w, b)
        return F.gelu(inner) * inner

    (call,) = calls(fused(twice, *LAYER))
    assert call.attrs["activation"] == "none"
    assert call.attrs["residual"] is False
    (call,) = calls(fused(lambda x, w, b: F.linear(x, w, b) + F.linear(x, w, b), *LAYER))
    assert call.attrs["residual"] is False


def test_a_residual_that_would_have_to_be_spread_is_added_afterwards():
    (call,) = calls(fused(lambda x, w, y: F.linear(x, w) + y, *LAYER[:2], "f32[3, 1]"))
    assert call.attrs["residual"] is False


def test_a_program_without_the_ops_is_the_same_object():
    leaf = Argument(parse_type("f32[3]"), 0, None)
    program = GraphSlice([F.abs(Tensor(leaf)).source]).lower([leaf])
    for each in FUSE:
        assert each.apply(program) is program


def test_fusing_can_be_switched_off(monkeypatch: pytest.MonkeyPatch):
    assert create(1).with_precision("int8").fuse() == FUSE
    rounding = (*FUSE_QUANTIZED, *FUSE_QUANTIZED_GROUPED)
    exact = tuple(each for each in FUSE if each not in rounding)
    assert create(1).fuse() == (*exact, DECODE_IN_PRODUCTS)
    monkeypatch.setenv("GPTRS_NUMBA_FUSE", "0")
    assert create(1).fuse() == create(1).legalize() == ()


def generated(threads: int, monkeypatch: pytest.MonkeyPatch, tokens: int):
    """The greedy tokens of the bundled model, and the executables of its steps."""
    compiled: list[tuple[Program, Sequence[InputRole], NumbaExecutable]] = []
    compile_ = NumbaBackend.compile_symbolic

    def spy(
        self: NumbaBackend, program: Program, roles: Sequence[InputRole], guards: SizeGuards
    ) -> NumbaExecutable:
        executable = compile_(self, program, roles, guards)
        assert isinstance(executable, NumbaExecutable)
        if InputRole.DONATED in roles:
            compiled.append((program, roles, executable))
        return executable

    with monkeypatch.context() as patch:
        patch.setattr(NumbaBackend, "compile_symbolic", spy)
        model = gptrs.load_model(backend="numba", threads=threads)
        result = gptrs.generate(model, "def f(x):", max_tokens=tokens, sampling=GREEDY)
    return result, compiled


def test_a_language_model_runs_on_fused_kernels_alone(monkeypatch: pytest.MonkeyPatch):
    result, compiled = generated(1, monkeypatch, 24)
    assert len(compiled) == 2, "many rows and one row"
    for program, roles, executable in compiled:
        whole = Inlining().apply(program)  # equal layers call one function
        assert kernels(whole) == {
            "paged_attention.v1": 6,
            "update_pages.v1": 12,
            "layer_norm.f32.v1": 13,
            "linear.f32.v1": 25,
        }
        names = {made.op.name for made in whole.main.body.instructions}
        assert names.isdisjoint({"dot_general", "reduce", "exp", "tanh", "select", "compare"})
        require_caches_in_place(roles, executable)
    reference = gptrs.generate(
        gptrs.load_model(backend="ref"), "def f(x):", max_tokens=24, sampling=GREEDY
    )
    assert result.token_ids == reference.token_ids


def require_caches_in_place(roles: Sequence[InputRole], executable: NumbaExecutable) -> None:
    """Each cache is returned in the buffer in which it came, and written to once."""
    donated = {i for i, role in enumerate(roles) if role is InputRole.DONATED}
    schedule = executable.schedule
    assert {result.donated for result in schedule.results} - {None} == donated
    written = [call.write.storage.root for call in schedule.calls]
    inputs = Counter(storage.index for storage in written if storage.space is MemorySpace.INPUT)
    assert inputs == dict.fromkeys(donated, 1)


def test_the_logits_do_not_depend_on_the_threads():
    tokens = np.arange(40, dtype=np.int64)[None] + 300
    logits = [
        gptrs.load_model(backend="numba", threads=threads).forward(tokens) for threads in (1, 2, 3)
    ]
    assert logits[0].tobytes() == logits[1].tobytes() == logits[2].tobytes()


@pytest.mark.parametrize(
    "attrs",
    [
        {"stride": 1, "padding": -3},
        {"stride": "wide", "padding": 0},
        {"stride": 1, "padding": 0, "groups": 0},
        {"stride": 1, "padding": 2},
        {"stride": 1, "padding": 4},
    ],
)
def test_a_convolution_whose_result_is_another_is_declined(attrs: dict[str, int | str]):
    given = Dictionary.of({"layout": "oihw", "dilation": 1, "groups": 1} | attrs)
    op = Composite("conv2d.v1", FunctionName("meaning"), "x weight", given)
    types = [parse_type(text) for text in ("f32[1, 8, 8, 4]", "f32[4, 4, 3, 3]")]
    assert isinstance(claim(op, types, [parse_type("f32[1, 12, 12, 4]")]), Declined)


@pytest.mark.parametrize(
    ("kind", "operands", "attrs"),
    [
        ("softmax.v1", "x", ""),
        ("softmax.v1", "y", ", attrs = {axis = -1}"),
        ("rms_norm.v1", "x", ', attrs = {epsilon = "small"}'),
        ("rotary.v1", "x", ", attrs = {heads_axis = 1, interleaved = false}"),
        ("attention.v1", "query", ", attrs = {causal = false}"),
        ("layer_norm.v1", "x", ", attrs = {axes = [7], epsilon = 0.5}"),
        ("group_norm.v1", "x", ", attrs = {groups = 0, epsilon = 0.5}"),
        ("conv2d.v1", "x", ', attrs = {layout = "oihw"}'),
        ("linear.v1", "x", ', attrs = {layout = "out_in"}'),
    ],
)
def test_composites_that_are_not_those_of_a_functional_are_inlined(kind, operands, attrs):
    given = f'kind = "{kind}", decomposition = @meaning, operands = "{operands}"{attrs}'
    program = parse_program(f"""ptir.v0.5
func @meaning(%x: f32[2, 3]) -> f32[2, 3] {{
  %0 = tanh %x : f32[2, 3]
  return %0
}}
func @main(%x: f32[2, 3]) -> f32[2, 3] {{
  %0 = composite %x {{{given}}} : f32[2, 3]
  return %0
}}
""")
    (made,) = CLAIMS.apply(program).main.body.instructions
    assert made.op.name == "tanh"
    op = program.main.body.instructions[0].op
    assert isinstance(op, Composite)
    types = [value.type for value in program.main.body.params]
    assert isinstance(claim(op, types, types), Declined)

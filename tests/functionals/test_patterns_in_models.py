"""Patterns are found in what whole models are captured as: a residual network, a language model."""

from __future__ import annotations

import gptrs
from fuzzing.differential import evaluate
from gptrs import functionals as F
from gptrs.capture.events import CompileStart, ExecutionTraceSink, tracing
from gptrs.capture.graph import Argument, GraphSlice
from gptrs.capture.tensor import Tensor
from gptrs.functionals.matching import pattern
from gptrs.ir import Program
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.type_text import parse_type
from gptrs.optimizer.fusion import find_calls
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs.optimizer.pipeline import Pipeline


def residual_block(x: Tensor, weights: dict[str, Tensor], name: str, stride: int) -> Tensor:
    def conv(x: Tensor, part: str, stride: int, padding: int) -> Tensor:
        own = {key: weights[f"{name}.{part}.{key}"] for key in ("w", "m", "v", "g", "b")}
        y = F.conv2d(x, own["w"], stride=stride, padding=padding)
        return F.batch_norm(y, own["m"], own["v"], own["g"], own["b"])

    shortcut = conv(x, "down", stride, 0) if f"{name}.down.w" in weights else x
    y = F.relu(conv(x, "conv1", stride, 1))
    return F.relu(conv(y, "conv2", 1, 1) + shortcut)


def small_resnet(images: str) -> tuple[Program, int]:
    """ResNet-18 with a quarter of its channels, and the number of its convolutions."""
    leaves: list[Argument] = []
    weights: dict[str, Tensor] = {}

    def leaf(type_: TensorType) -> Tensor:
        leaves.append(Argument(type_, len(leaves), None))
        return Tensor(leaves[-1])

    def add(name: str, outputs: int, inputs: int, kernel: int) -> None:
        f32 = parse_type("f32[1]").dtype
        weights[f"{name}.w"] = leaf(TensorType(f32, (outputs, inputs, kernel, kernel)))
        for key in "mvgb":
            weights[f"{name}.{key}"] = leaf(TensorType(f32, (outputs,)))

    x = leaf(parse_type(images))
    add("stem", 16, 3, 7)
    widths = [16, 16, 32, 64, 128]
    blocks: list[tuple[str, int]] = []
    for stage in range(4):
        for block in range(2):
            name, inputs = f"{stage}.{block}", widths[stage] if block == 0 else widths[stage + 1]
            stride = 2 if stage and not block else 1
            add(f"{name}.conv1", widths[stage + 1], inputs, 3)
            add(f"{name}.conv2", widths[stage + 1], widths[stage + 1], 3)
            if stride == 2:
                add(f"{name}.down", widths[stage + 1], inputs, 1)
            blocks.append((name, stride))
    stem = {key: weights[f"stem.{key}"] for key in "wmvgb"}
    x = F.conv2d(x, stem["w"], stride=2, padding=3)
    x = F.relu(F.batch_norm(x, stem["m"], stem["v"], stem["g"], stem["b"]))
    x = F.max_pool(x, 3, stride=2, padding=1)
    for name, stride in blocks:
        x = residual_block(x, weights, name, stride)
    head = leaf(parse_type("f32[10, 128]")), leaf(parse_type("f32[10]"))
    x = F.linear(F.global_average_pool(x), *head)
    program = GraphSlice([x.source]).lower(leaves)
    return Pipeline(evaluate=evaluate).before_folding(program), 20


def test_a_residual_network_is_seen_through():
    program, convolutions = small_resnet("f32[1, 64, 64, 3]")
    region = program.main.body
    found = {
        name: find_calls(pattern(name).evaluated_by(evaluate), region)
        for name in ("conv2d", "batch_norm", "relu", "linear")
    }
    assert len(found["conv2d"]) == convolutions
    assert len(found["batch_norm"]) == convolutions
    assert len(found["relu"]) == 17
    assert len([call for call in found["linear"] if "bias" in call.operands]) == 1
    strides = [call.attributes["stride"] for call in found["conv2d"]]
    assert strides.count((2, 2)) == 7
    stem = found["conv2d"][0].attributes
    assert stem["padding"] == ((3, 3), (3, 3))
    assert stem["layout"] == "oihw"


class Captured(ExecutionTraceSink):
    def __init__(self) -> None:
        self.programs: list[Program] = []

    def before_program(self, event: CompileStart) -> None:
        self.programs.append(event.program)


def test_a_language_model_is_seen_through():
    """Six layers, each with two norms, two residual sums, one MLP, in one program for all sizes."""
    captured = Captured()
    with tracing(captured):
        model = gptrs.load_model(backend="ref")
        gptrs.generate(model, "def f(x):", max_tokens=2)
    program, *_of_sizes = captured.programs
    whole = Inlining().apply(program)  # equal layers call one function
    region = Pipeline(evaluate=evaluate).before_folding(whole).main.body
    found = {
        name: find_calls(pattern(name).evaluated_by(evaluate), region)
        for name in ("gelu", "layer_norm", "linear", "linear_activation")
    }
    counts = {name: len(calls) for name, calls in found.items()}
    assert counts["gelu"] == counts["linear_activation"] == 6
    assert counts["layer_norm"] == 13
    assert len([call for call in found["linear"] if "bias" in call.operands]) == 24
    assert {call.attributes["activation"] for call in found["linear_activation"]} == {"gelu_tanh"}

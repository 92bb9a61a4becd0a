"""Faults of backends in composites that they claim: `gptrs bisect` names the composite."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import gptrs as gptrs_package
from functionals.temporary import defined
from gptrs import functionals as F
from gptrs.api.backends import CustomCall, OpTable
from gptrs.api.passes import FusionPass, pattern, pattern_example
from gptrs.functionals.dispatch.examples import EXAMPLES
from gptrs.ir import print_program
from gptrs.ir.attributes import FunctionName
from gptrs.ir.builder import Builder
from gptrs.ir.ops.control_flow import Call
from gptrs.ir.ops.custom_call import Composite, functional_arguments
from gptrs.ir.program import Function
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs_backend_ref.backend import RefBackend
from gptrs_backend_ref.kernels import TABLE
from gptrs_cli.dumped_programs import ProgramInputs, cases
from gptrs_observe.bisection.search import Search, TrustedSide
from gptrs_observe.bisection.sides import Here, side

REF = gptrs_package.get_backend("ref")


def block(x, image, gain, codes, scale, tables, kernel):
    """The result hides a wrong scale of the first norm, and of the convolution."""
    y = F.layer_norm(F.rms_norm(x, gain), gain, gain)
    y = y + F.linear(F.gelu(y), F.cast(codes, "f32") * scale)
    heads = F.transpose(F.reshape(y, (1, 6, 2, 8)), (0, 2, 1, 3))
    heads = F.rotary(heads, tables, tables)
    y = y + F.softmax(F.reshape(F.attention(heads, heads, heads), (6, 16)))
    seen = F.group_norm(F.conv2d(image, kernel, padding=1), 2)
    return F.tanh(y), F.global_average_pool(F.sigmoid(seen))


def arguments() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    x, image, gain, scale, tables, kernel = (
        rng.standard_normal(shape, np.float32)
        for shape in ((6, 16), (1, 8, 8, 4), (16,), (16, 1), (1, 6, 4), (6, 4, 3, 3))
    )
    return [x, image, gain, rng.integers(-8, 8, (16, 16)).astype("i1"), scale, tables, kernel]


def wrong(kind: str, spoil):
    """The reference with a kernel for one functional, whose result is spoiled."""

    def claim(op, operands, results):
        if op.title != kind:
            return None

        def body(*tensors):
            return spoil(getattr(F, kind)(**functional_arguments(op, tensors)))

        zeros = [gptrs_package.tensor(np.zeros(each.shape, each.dtype.numpy)) for each in operands]
        return Inlining().apply(gptrs_package.jit(body).lower(*zeros)).main.body

    backend = copy.copy(REF)
    backend.claim = claim
    return backend


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """Of a run on a backend without symbols: its program for these sizes has the inputs."""
    folder = tmp_path_factory.mktemp("claims") / "dump"
    step = gptrs_package.jit(block, dynamic={"image": ("n", None, None, None)})
    with (
        gptrs_package.use_backend(wrong("gelu", lambda y: y)),
        gptrs_package.dumping(folder, inputs=True),
    ):
        step(*arguments())[0].numpy()
    return folder


@pytest.fixture(scope="module")
def case(dump):
    (found,) = cases(dump, ProgramInputs())
    return found


@pytest.mark.parametrize(
    "kind",
    ["rms_norm", "linear", "rotary", "attention", "conv2d"],
)
def test_a_wrong_claim_is_named_in_the_dump_of_another_run(case, kind):
    found = search(case, Here("wrong", wrong(kind, lambda y: y * 1.01))).find()
    assert found is not None
    (made,) = found.program.main.body.instructions
    assert isinstance(made.op, Composite)
    assert made.op.title == kind
    assert found.claims == [f"{kind}.v1"]
    assert not found.passes
    assert "composite" in found.instructions[0]


def search(case, suspect) -> Search:
    return Search(case.program, suspect, TrustedSide(side("ref:optimizer=off"), case.arrays))


def test_a_claim_that_is_right_agrees_and_one_can_be_left_out(case):
    assert search(case, Here("right", wrong("softmax", lambda y: y))).find() is None
    spoiled = Here("wrong", wrong("softmax", lambda y: y + 1), without=frozenset({"softmax.v1"}))
    assert search(case, spoiled).find() is None
    here = side("ref:without=softmax.v1,without=canonicalization")
    assert isinstance(here, Here)
    assert here.without == {"softmax.v1", "canonicalization"}


def test_the_symbolic_program_of_a_dump_is_not_missed(gptrs, dump):
    result = gptrs("bisect", dump, "ref")
    assert (result.code, result.err) == (0, ""), result.err
    assert "on 1 program" in result.out


def test_a_program_with_calls_of_one_backend_tells_where_there_are_none(gptrs, tmp_path):
    path = tmp_path / "p.ptir"
    path.write_text(
        "ptir.v0.5\nfunc @main(%x: f32[2]) -> f32[2] {\n"
        '  %0 = custom_call %x {target = "acme.norm.v1", results = [f32[2]]} : f32[2]\n'
        "  return %0\n}\n"
    )
    result = gptrs("bisect", path, "ref", "--random-seed", "1")
    assert result.code == 1
    assert "is trusted, but cannot run the program" in result.err
    assert "`program.ptir` beside it has none" in result.err


def test_a_claim_inside_a_function_is_found_though_what_it_returns_is_right():
    """Blocks of models are functions; the norm behind it hides a wrong scale."""
    x, gain = arguments()[0], arguments()[2]
    layer = gptrs_package.jit(lambda x, gain: F.layer_norm(F.rms_norm(x, gain))).lower(x, gain)
    *others, main = layer.functions
    functions = (*others, Function("layer", main.body))
    builder = Builder(functions)
    first, weight = map(builder.param, (param.type for param in main.body.params))
    call = Call(FunctionName("layer"))
    program = builder.program(builder.emit(call, builder.emit(call, first, weight), weight))
    suspect = Here("wrong", wrong("rms_norm", lambda y: y * 1.01))
    trusted = TrustedSide(side("ref"), {"arg0": x, "arg1": gain})
    found = Search(program, suspect, trusted).find()
    assert found is not None
    assert (found.number, found.claims) == (0, ["rms_norm.v1"])
    assert "call" in found.instructions[0]
    assert ["rms_norm.v1" in line for line in found.inside] == [True]


@pytest.fixture
def shifted_tanh():
    def bisected_tanh(x: gptrs_package.Tensor, shift: gptrs_package.Tensor) -> gptrs_package.Tensor:
        return F.tanh(x + shift)

    with defined(bisected_tanh) as functional:
        pattern_example(x="f32[2, 3]", shift="f32[3]")(functional)
        yield functional.__name__
        del EXAMPLES[functional.__name__]


def test_a_wrong_kernel_for_a_functional_of_ones_own_is_found(shifted_tanh):
    """A pass of the backend replaces its ops by the call."""
    table: OpTable = TABLE.changed({})

    def kernel(call, x, shift):
        return np.tanh(x - shift)

    table.composite("tanh_shifted.v1")(kernel)

    class Fusing(RefBackend):
        def __init__(self):
            super().__init__(table)

        def fuse(self):
            def replaced(call):
                target = "gptrs.ref.tanh_shifted.v1"
                return CustomCall(target, (call.result.type,)), ("x", "shift")

            return [FusionPass("own-tanh", pattern(shifted_tanh), replaced)]

    x = gptrs_package.tensor(np.arange(12, dtype=np.float32).reshape(4, 3))
    shift = gptrs_package.tensor(np.ones(3, np.float32))
    program = gptrs_package.jit(lambda x, shift: F.exp(F.tanh(x * 0.5 + shift)) * 2).lower(x, shift)
    arrays = dict(zip(program.inputs, (x.numpy(), shift.numpy()), strict=True))
    found = Search(program, Here("own", Fusing()), TrustedSide(side("ref"), arrays)).find()
    assert found is not None
    assert len(found.program.main.body.instructions) <= 3
    assert "tanh" in print_program(found.program)
    assert found.passes == ["own-tanh"]

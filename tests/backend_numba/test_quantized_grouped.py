"""Rows with a quantized matrix of their own choice: the bits of a linear layer, for any company."""

from __future__ import annotations

import numpy as np
import pytest

from backend_numba.quantized_layers import FORMS, K, Layer, N
from backend_numba.test_quantized_linear import compiled as compiled_layer
from gptrs.backend.contract import InputRole
from gptrs.errors import ExecutionError
from gptrs.ir import parse_program
from gptrs.ir.type_text import parse_type
from gptrs.optimizer.pipeline import Pipeline
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.fusion.passes import FUSE
from gptrs_backend_numba.lowering.quantization import QUANTIZED_GROUPED
from gptrs_backend_numba.run.executable import NumbaExecutable

OUTPUTS = 64
STARTS = (0, 6, 3, 1)
"""The first rows of the matrices among those of a layer."""
RNG = np.random.default_rng(8)


def stacked(part: np.ndarray) -> np.ndarray:
    return np.stack([part[start : start + OUTPUTS] for start in STARTS])


def program(layer: Layer, rows: int) -> str:
    """Return the text of the loop over rows that models have."""
    stacks = {name: stacked(part) for name, part in layer.parts.items()}
    types = {name: str(_type(part)) for name, part in stacks.items()}
    one = {name: str(_type(part[0])) for name, part in stacks.items()}
    x, y = f"f32[{rows}, {K}]", f"f32[{rows}, {OUTPUTS}]"
    params = ", ".join(f"%all_{name}: {type_}" for name, type_ in types.items())
    inner = ", ".join(f"%own_{name}: {type_}" for name, type_ in types.items())
    taken = [f"%{name} = take %own_{name}, %group : {type_}" for name, type_ in one.items()]
    steps = [step.replace(f"[{N}, ", f"[{OUTPUTS}, ") for step in layer.steps]
    product = f"dot_general %w, %row {{contract_lhs = [1], contract_rhs = [0]}} : f32[{OUTPUTS}]"
    body = [*taken, *steps[:-1], f"{steps[-1]} : f32[{OUTPUTS}, {K}]", f"%v = {product}"]
    left = ", ".join(f"%left_{name}" for name in types)
    kept = ", ".join(f"%own_{name}" for name in types)
    operands = ", ".join(f"%all_{name}" for name in types)
    lines = "\n".join(f"      {line}" for line in body)
    return f"""ptir.v0.5
func @main(%x: {x}, {params}, %groups: si64[{rows}]) -> {y} {{
  {left}, %y = scan {operands}, %x, %groups {{carry_count = {len(types)}}}
    body({inner}, %row: f32[{K}], %group: si64[]) {{
{lines}
      return {kept}, %v
    }} : ({", ".join(types.values())}, {y})
  return %y
}}"""


def _type(array: np.ndarray) -> object:
    names = {"uint8": "ui8", "int8": "si8", "float16": "f16", "float32": "f32", "int32": "si32"}
    name = names.get(array.dtype.name, "bf16")
    return parse_type(f"{name}[{', '.join(map(str, array.shape))}]")


def fused(layer: Layer, rows: int) -> str:
    return str(Pipeline(fuse=FUSE, verify=True).run(parse_program(program(layer, rows))))


def compiled(
    layer: Layer, rows: int, threads: int = 1, role: InputRole = InputRole.PARAMETER
) -> NumbaExecutable:
    text = fused(layer, rows)
    assert text.count(QUANTIZED_GROUPED) == 1
    assert "dequantize" not in text
    roles = [InputRole.ARGUMENT, *[role] * len(layer.parts), InputRole.ARGUMENT]
    executable = create(threads).with_precision("int8").compile(parse_program(text), roles)
    assert isinstance(executable, NumbaExecutable)
    return executable


@pytest.mark.sample(4)
@pytest.mark.paths
@pytest.mark.parametrize("name", FORMS)
def test_results_are_those_of_linear_layers(name: str) -> None:
    layer = FORMS[name]
    x = RNG.normal(size=(27, K)).astype(np.float32)
    groups = RNG.integers(0, 3, len(x))  # nobody chose the last matrix
    parts = list(layer.parts.values())
    stacks = [stacked(part) for part in parts]
    alone = compiled_layer(layer, 1)
    single = np.concatenate([alone.run([x[i : i + 1], *parts])[0] for i in range(len(x))])
    wanted = np.stack([single[i, (at := STARTS[groups[i]]) : at + OUTPUTS] for i in range(len(x))])
    for rows, threads in ((1, 1), (27, 2)):
        found = compiled(layer, rows, threads).run([x[:rows], *stacks, groups[:rows]])[0]
        assert np.asarray(found).tobytes() == wanted[:rows].tobytes(), (rows, threads)


def test_parts_may_be_computed_by_the_program() -> None:
    layer = FORMS["q4_k"]
    x, groups = RNG.normal(size=(5, K)).astype(np.float32), np.array([3, 0, 3, 1, 2])
    given = [x, *(stacked(part) for part in layer.parts.values()), groups]
    passing = compiled(layer, 5, 1, InputRole.ARGUMENT).run(given)[0]
    kept = compiled(layer, 5).run(given)[0]
    assert np.asarray(passing).tobytes() == np.asarray(kept).tobytes()


def test_matrices_take_the_memory_of_their_bits() -> None:
    for name, bits in (("q4_0", 4.5), ("q8_0", 8.5)):
        packings = compiled(FORMS[name], 1).schedule.packings
        taken = 8 * sum(packing.layout.nbytes for packing in packings)
        assert taken == bits * len(STARTS) * OUTPUTS * K, name


def test_a_group_out_of_range_is_an_error() -> None:
    layer = FORMS["q8_0"]
    given = [np.ones((2, K), np.float32), *(stacked(part) for part in layer.parts.values())]
    with pytest.raises(ExecutionError, match="index 4 is out of range for 4 matrices"):
        compiled(layer, 2).run([*given, np.array([1, 4])])


def test_partial_panels_and_exact_precisions_have_the_ops() -> None:
    layer = FORMS["q4_0"]
    text = program(layer, 3)
    narrow = text.replace(f"{OUTPUTS},", "60,").replace(f"[{OUTPUTS}]", "[60]")
    narrow = narrow.replace(f", {OUTPUTS}]", ", 60]")
    assert QUANTIZED_GROUPED not in str(Pipeline(fuse=FUSE).run(parse_program(narrow)))
    exact = create(1).fuse()
    assert QUANTIZED_GROUPED not in str(Pipeline(fuse=exact).run(parse_program(text)))
    codes = parse_program(text).main.body.params[1].type
    rounding = create(1).with_precision("int8")
    assert rounding.reads_quantized(codes, 4, 32)
    assert not rounding.reads_quantized(codes.with_shape((4, 60, K // 2)), 4, 32)
    assert not create(1).reads_quantized(codes, 4, 32)

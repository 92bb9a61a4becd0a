"""Linear layers that read quantized weights as they are, with activations of 8 bits."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from backend_numba.quantized_layers import FORMS, Layer, of_largest_codes
from fuzzing import tiny_gguf
from gptrs import get_backend
from gptrs.backend.contract import Executable, InputRole
from gptrs.errors import UsageError
from gptrs.ir import parse_program
from gptrs.optimizer.pipeline import Pipeline
from gptrs_backend_numba.backend import NumbaBackend, create
from gptrs_backend_numba.fusion.passes import FUSE
from gptrs_backend_numba.lowering.quantized_linear import TARGET
from gptrs_backend_numba.run.executable import NumbaExecutable
from gptrs_runtime.load import load_model

TINY = 64


def fused(layer: Layer, rows: int) -> str:
    """Return the program of a layer, in which one call must be all that reads the weight."""
    program = Pipeline(fuse=FUSE, verify=True).run(parse_program(layer.program(rows)))
    text = str(program)
    assert text.count(TARGET) == 1, text
    assert "dequantize" not in text
    return text


def compiled(
    layer: Layer, rows: int, threads: int = 1, role: InputRole = InputRole.PARAMETER
) -> NumbaExecutable:
    roles = [InputRole.ARGUMENT, *[role] * len(layer.parts)]
    backend = create(threads).with_precision("int8")
    executable = backend.compile(parse_program(fused(layer, rows)), roles)
    assert isinstance(executable, NumbaExecutable)
    return executable


@pytest.mark.sample(4)
@pytest.mark.paths
@pytest.mark.parametrize("name", FORMS)
def test_results_are_those_of_rounded_activations(name: str) -> None:
    """Sums of integers are exact; what is left is the rounding of f32. Rows do not mix."""
    layer = FORMS[name]
    x = np.random.default_rng(3).normal(size=(15, layer.k)).astype(np.float32)
    parts = list(layer.parts.values())
    alone = compiled(layer, 1)
    single = np.concatenate([alone.run([x[i : i + 1], *parts])[0] for i in range(len(x))])
    wanted, most = layer.expected(x)
    assert np.abs(single - wanted).max() <= 2e-6 * most
    for rows, threads in ((2, 1), (15, 2)):
        found = np.asarray(compiled(layer, rows, threads).run([x[-rows:], *parts])[0])
        assert found.tobytes() == single[-rows:].tobytes(), (rows, threads)
    passing = compiled(layer, 2, 1, InputRole.ARGUMENT).run([x[:2], *parts])[0]
    assert np.asarray(passing).tobytes() == single[:2].tobytes()


@pytest.mark.paths
@pytest.mark.parametrize("bits", [4, 5, 6, 7, 8])
def test_sums_of_the_largest_codes_do_not_saturate(bits: int) -> None:
    """Where products are added as 16 bits, these are the largest sums."""
    layer = of_largest_codes(bits)
    x = np.ones((3, layer.k), np.float32)
    x[1], x[2, ::2] = -1, -1
    found = np.asarray(compiled(layer, len(x)).run([x, *layer.parts.values()])[0])
    wanted, most = layer.expected(x)
    assert np.abs(found - wanted).max() <= 2e-6 * most


def side_by_side(layers: list[Layer], rows: int) -> str:
    """Return the program of layers of one x."""
    texts = [
        re.sub(r"%(?!x\b)(\w+)", rf"%\1_{place}", layer.program(rows)).splitlines()
        for place, layer in enumerate(layers)
    ]
    x = texts[0][1].split("], ")[0]
    parts = ", ".join(text[1].split("], ", 1)[1].split(") ->")[0] for text in texts)
    results = ", ".join(f"f32[{rows}, {layer.n}]" for layer in layers)
    body = "\n".join(line for text in texts for line in text[2:-2])
    returned = ", ".join(f"%y_{place}" for place in range(len(layers)))
    return f"ptir.v0.5\n{x}], {parts}) -> ({results}) {{\n{body}\n  return {returned}\n}}"


@pytest.mark.paths
@pytest.mark.parametrize(("names", "roundings"), [(("q8_0", "q8_0"), 1), (("q8_0", "q4_0"), 2)])
def test_layers_of_one_x_share_its_rounding(names: tuple[str, str], roundings: int) -> None:
    """A record also holds the sum times the zero of the codes, so that forms can differ."""
    layers = [FORMS[name] for name in names]
    x = np.random.default_rng(3).normal(size=(15, layers[0].k)).astype(np.float32)
    program = Pipeline(fuse=FUSE).run(parse_program(side_by_side(layers, len(x))))
    parts = [part for layer in layers for part in layer.parts.values()]
    roles = [InputRole.ARGUMENT, *[InputRole.PARAMETER] * len(parts)]
    executable = create(2).with_precision("int8").compile(program, roles)
    assert isinstance(executable, NumbaExecutable)
    assert len(executable.schedule.calls) == roundings + len(layers)
    for layer, found in zip(layers, executable.run([x, *parts]), strict=True):
        (wanted,) = compiled(layer, len(x)).run([x, *layer.parts.values()])
        assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()


def test_weights_take_the_memory_of_their_bits() -> None:
    for name, bits in (("q4_0", 4.5), ("q8_0", 8.5), ("q4_k", 4.7), ("mxfp4", 4.5)):
        layer = FORMS[name]
        packings = compiled(layer, 1).schedule.packings
        taken = 8 * sum(packing.layout.nbytes for packing in packings)
        padded = -(-layer.n // 32) * 32 * layer.k
        assert taken <= bits * padded, name


def test_what_is_not_finite_spoils_its_row_alone() -> None:
    layer = FORMS["q8_0"]
    x = np.zeros((4, layer.k), np.float32)
    x[0, 5], x[1, 7], x[2] = np.inf, np.nan, 1e-38
    found = np.asarray(compiled(layer, 4).run([x, *layer.parts.values()])[0])
    assert np.isnan(found[:2]).all()
    np.testing.assert_array_equal(found[2:], 0)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_a_model_reads_its_file_as_it_is(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layers are one function, which takes the parts; the table of tokens is the head, too."""
    programs: list[str] = []
    compile_ = NumbaBackend.compile_symbolic

    def spy(self: NumbaBackend, program, roles, guards) -> Executable:
        programs.append(str(program))
        return compile_(self, program, roles, guards)

    monkeypatch.setattr(NumbaBackend, "compile_symbolic", spy)
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gguf.llama((kind,), width=TINY))
    tokens = np.array([[3, 1, 4, 1, 5, 9, 2, 6]])
    wanted = load_model(path, "ref").forward(tokens)
    model = load_model(path, "numba")
    found = model.forward(tokens)
    text = max(programs, key=len)
    assert text.count(TARGET) == 8  # 7 of each layer, and the head
    assert f"f32[{TINY}, {TINY}]" not in text
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.99
    assert np.abs(found - wanted).max() > 0


def test_precisions() -> None:
    backend = create(1)
    rounding = backend.with_precision("int8")
    assert isinstance(rounding, NumbaBackend)
    assert rounding is backend.with_precision("int8")
    assert rounding.with_precision("f32") is backend
    with pytest.raises(UsageError, match="has no precision `int8`"):
        get_backend("ref").with_precision("int8")
    layer = FORMS["q4_0"]
    program = parse_program(layer.program(1))
    assert TARGET not in str(Pipeline(fuse=create(1).fuse()).run(program))  # programs are exact
    assert TARGET in str(Pipeline(fuse=rounding.fuse()).run(program))
    codes = program.main.body.params[1].type
    assert rounding.reads_quantized(codes, 4, 32)
    assert not create(1).reads_quantized(codes, 4, 32)


def test_the_variable_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPTRS_NUMBA_PRECISION", "f32")
    backend = create(1)
    assert backend.with_precision(backend.quantized_precision()) is backend
    monkeypatch.setenv("GPTRS_NUMBA_PRECISION", "f64")
    with pytest.raises(UsageError, match="must be a precision, got `f64`"):
        create(1).with_precision(create(1).quantized_precision())

"""What the patterns of functionals find in Llama, and which kernels of the CPU backend it runs."""

from __future__ import annotations

from collections import Counter

import pytest

import gptrs
from fuzzing.differential import evaluate
from gptrs.capture.events import CompileEnd, CompileStart, ExecutionTraceSink, tracing
from gptrs.functionals.matching import pattern
from gptrs.ir import Program
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.elementwise import Logistic
from gptrs.nn import PagedTexts
from gptrs.optimizer.fusion import find_calls
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs.optimizer.pipeline import Pipeline
from models.llama_support import VARIANTS, save_llama

pytest.importorskip("transformers", reason="the models are saved by transformers")

WIDE = {"hidden_size": 64, "intermediate_size": 96}
"""Wide enough for every product to be worth a kernel."""

LAYERS = 2


class Programs(ExecutionTraceSink):
    def __init__(self) -> None:
        self.captured: list[Program] = []
        self.optimized: list[Program] = []

    def before_program(self, event: CompileStart) -> None:
        self.captured.append(event.program)

    def after_program(self, event: CompileEnd) -> None:
        assert event.optimized is not None
        self.optimized.append(event.optimized)


def _programs(folder, variant: str, backend: str) -> Programs:
    """Those of a prefill, and of a decoding step."""
    kind, settings = VARIANTS[variant]
    save_llama(folder, kind, **{**settings, **WIDE, "head_dim": 16})
    programs = Programs()
    with tracing(programs):
        model = gptrs.load_model(folder, backend=backend)
        texts = PagedTexts(model.causal_lm(), 1, 10)
        texts.append([[3] * 9])
        texts.append([[4]])
    return programs


def whole(program: Program) -> Program:
    """The program with its blocks in the place of their calls."""
    return Inlining().apply(program)


@pytest.mark.parametrize("variant", ["plain", "mistral", "qwen2", "qwen3"])
def test_llama_is_seen_through(tmp_path, variant):
    program, *_of_sizes = _programs(tmp_path / "model", variant, "ref").captured
    region = Pipeline(evaluate=evaluate).before_folding(whole(program)).main.body
    counts = {
        name: len(find_calls(pattern(name).evaluated_by(evaluate), region))
        for name in ("rms_norm", "silu", "linear", "linear_activation", "apply_rotary")
    }
    assert counts == {
        "rms_norm": (4 if variant == "qwen3" else 2) * LAYERS + 1,
        "silu": LAYERS,
        "linear": 7 * LAYERS + 1,
        "linear_activation": LAYERS,
        "apply_rotary": 2 * LAYERS,
    }


@pytest.mark.parametrize("variant", ["plain", "mistral", "qwen2", "qwen3"])
def test_kernels_of_the_cpu_backend(tmp_path, variant):
    pytest.importorskip("gptrs_backend_numba", reason="it is the backend in question")
    programs = _programs(tmp_path / "model", variant, "numba").optimized
    assert len(programs) == 2, "many rows and one row"
    for program in programs:
        ops = [made.op for made in whole(program).main.body.walk()]
        kernels = Counter(op.target.split(".")[2] for op in ops if isinstance(op, CustomCall))
        assert kernels == {
            "paged_attention": LAYERS,
            "update_pages": 2 * LAYERS,
            "rms_norm": (4 if variant == "qwen3" else 2) * LAYERS + 1,
            "linear": 7 * LAYERS + 1,
            "rotary": 2 * LAYERS,
        }
        layers = [op for op in ops if isinstance(op, CustomCall) and ".linear." in op.target]
        assert sum(op.attrs["activation"] == "silu" for op in layers) == LAYERS
        assert sum(op.attrs["residual"] is True for op in layers) == 2 * LAYERS
        assert sum(op.attrs["bias"] is True for op in layers) == 3 * LAYERS * (variant == "qwen2")
        assert not any(isinstance(op, DotGeneral | Logistic) for op in ops)

"""What language models have in common: names of states, and how much of a prompt is normalized."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest

import gptrs
from fuzzing.differential import evaluate
from gptrs.capture.events import CompileStart, ExecutionTraceSink, tracing
from gptrs.functionals.matching import pattern
from gptrs.ir import Program
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.symbolic_dim import symbol
from gptrs.nn import CausalLMModule, PagedTexts
from gptrs.optimizer.fusion import find_calls
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs.optimizer.pipeline import Pipeline
from models.llama_support import save_llama
from models.models_support import save_gpt2

pytest.importorskip("torch", reason="the models are saved by transformers")
pytest.importorskip("transformers", reason="the models are saved by transformers")

LAYERS = 12
WIDTH, VOCABULARY = 32, 97
ROWS, TEXTS = symbol(0), symbol(1)
"""N and B, whose sizes are no part of a program."""
NORMS = {"gpt2": "layer_norm", "llama": "rms_norm"}


@pytest.fixture(scope="module", params=NORMS)
def folder(request, tmp_path_factory) -> Path:
    """A model with more layers than one digit can count, and width 32."""
    folder = tmp_path_factory.mktemp("causal_lm") / request.param
    if request.param == "gpt2":
        return save_gpt2(folder, n_layer=LAYERS, n_embd=WIDTH)
    return save_llama(folder, "Llama", num_hidden_layers=LAYERS, hidden_size=WIDTH)


class Captured(ExecutionTraceSink):
    def __init__(self) -> None:
        self.programs: list[Program] = []

    def before_program(self, event: CompileStart) -> None:
        inlined = Inlining().apply(event.program)
        self.programs.append(inlined)


def norms(program: Program, name: str) -> list[tuple[object, ...]]:
    """The shapes of what is normalized, in program order."""
    region = Pipeline(evaluate=evaluate).before_folding(program).main.body
    calls = find_calls(pattern(name).evaluated_by(evaluate), region)
    return [call.result.type.shape for call in calls]


def test_a_step_normalizes_and_unembeds_the_last_token_of_a_prompt_only(folder):
    model = gptrs.load_model(folder, backend="ref")
    captured = Captured()
    with tracing(captured):
        lm = model.causal_lm()
        PagedTexts(lm, 2, 9).append(np.arange(18).reshape(2, 9))
    program, *_of_sizes = captured.programs
    shapes = norms(program, NORMS[folder.name])
    assert shapes == [(ROWS, WIDTH)] * 2 * LAYERS + [(TEXTS, WIDTH)]
    products = [made for made in program.main.body.walk() if isinstance(made.op, DotGeneral)]
    assert products[-1].results[0].type.shape == (TEXTS, VOCABULARY)


def test_all_logits_are_of_normalized_states(folder):
    model = gptrs.load_model(folder, backend="ref")
    captured = Captured()
    with tracing(captured):
        model.forward(np.arange(18).reshape(2, 9))
    program, *_of_sizes = captured.programs
    assert norms(program, NORMS[folder.name]) == [(ROWS, WIDTH)] * (2 * LAYERS + 1)


def test_states_are_named_in_the_order_in_which_they_are_computed(folder):
    model = gptrs.load_model(folder, backend="ref")
    tokens = np.arange(18).reshape(2, 9)
    states = model.hidden_states(tokens)
    assert list(states) == ["embeddings", *(f"layer.{index}" for index in range(LAYERS))]
    assert {state.shape for state in states.values()} == {(2, 9, WIDTH)}
    if folder.name == "llama":  # where embeddings are those of the tokens and of nothing else
        alone = model.hidden_states(tokens[:, 4:5])["embeddings"]
        np.testing.assert_array_equal(states["embeddings"][:, 4:5], alone)
    # The head, applied to the last state, gives the logits: it has been through the final norm.
    lm = cast("CausalLMModule", model.causal_lm())
    names = dict(lm.named_tensors())
    head = names.get("lm_head.weight", names.get("wte.weight"))
    assert head is not None
    logits = states[f"layer.{LAYERS - 1}"] @ head.numpy().T
    np.testing.assert_allclose(logits, model.forward(tokens), rtol=1e-4, atol=1e-4)

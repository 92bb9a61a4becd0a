"""Texts that models write on JAX: those of numba, in programs of few sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gptrs
from gptrs.api import UsageError
from gptrs.backend.contract import Backend
from gptrs.ir import dtypes
from runtime.generation.tiny_lms import save_tiny_lm

PROMPTS = ([1, 2, 3, 4, 5], [7, 8, 9, 10, 11, 12], [5] * 7, [4, 3, 2, 1, 9, 8, 7, 6])
"""Of 5 to 8 tokens, all padded to 8."""


def _texts(folder: Path, backend: str) -> list[tuple[int, ...]]:
    model = gptrs.load_model(folder, backend=backend)
    options = gptrs.GenerationOptions(max_tokens=4, ignore_eos=True)
    return [
        tuple(gptrs.generate(model, prompt, options, temperature=0).token_ids) for prompt in PROMPTS
    ]


def test_prompts_of_any_length(
    jax_backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gptrs_backend_jax.executable import JaxExecutable

    compiled: list[int] = []
    make = JaxExecutable.__init__

    def counted(self: JaxExecutable, *arguments: Any, **settings: Any) -> None:
        compiled.append(len(compiled))
        make(self, *arguments, **settings)

    monkeypatch.setattr(JaxExecutable, "__init__", counted)
    folder = save_tiny_lm(tmp_path / "m", "llama", dtypes.f32, num_hidden_layers=1)
    assert _texts(folder, jax_backend.name) == _texts(folder, "numba")
    # A prompt, a run of single tokens, and what makes constants.
    assert len(compiled) <= 5, f"{len(compiled)} programs were compiled for 4 prompts"


@pytest.mark.exhaustive
def test_several_steps_at_once(jax_backend: Backend) -> None:
    options = gptrs.GenerationOptions(max_tokens=21, ignore_eos=True)
    model = gptrs.load_model("demo", backend=jax_backend)
    prompts = [list(prompt) for prompt in PROMPTS]
    by_one, together = (
        [made.token_ids for made in gptrs.generate_batch(model, prompts, each, temperature=0)]
        for each in (options.for_stream(), options)
    )
    assert together == by_one


def test_how_many_steps(jax_backend: Backend) -> None:
    assert jax_backend.steps_at_once == 8
    given = gptrs.get_backend("jax", options={"steps_at_once": "3"})
    assert given.steps_at_once == 3
    with pytest.raises(UsageError, match="`steps_at_once` is a number from 1 to 256, got `0`"):
        gptrs.get_backend("jax", options={"steps_at_once": "0"})

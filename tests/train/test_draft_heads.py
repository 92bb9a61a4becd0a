"""Draft heads that `gptrs finetune --draft-head` makes: what they guess, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gptrs
from gptrs.errors import UsageError
from gptrs_train import runs
from gptrs_train.commands import _what
from gptrs_train.draft_learner import DraftLearner, NewDraftHead
from gptrs_train.learner import Batch
from gptrs_train.runs import Data, Outputs
from gptrs_train.trainer import Settings
from support.guesses import guess_any_length

CONFIGS: dict[str, dict[str, object]] = {
    "llama": {
        **{"vocab_size": 40, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 128},
    },
    "gpt2": {"vocab_size": 40, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 128},
}
PERIOD = np.random.default_rng(3).permutation(np.arange(3, 23))


def _settings(length: int) -> Settings:
    return Settings(steps=80, length=min(length, 32), batch=4, rate=1e-2, warmup=5)


@pytest.fixture(params=sorted(CONFIGS))
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model that has learnt a text of one sequence again and again, beside its data."""
    (tmp_path / "config").mkdir()
    config = {"model_type": request.param, **CONFIGS[request.param]}
    (tmp_path / "config" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    np.tile(PERIOD, 200).astype(np.uint16).tofile(tmp_path / "data.bin")
    data = Data(tmp_path / "data.bin", held_out=0.0)
    runs.train(tmp_path / "config", data, Outputs(tmp_path / "base"), _settings)
    return tmp_path / "base"


@pytest.mark.long
def test_a_head_guesses_what_its_model_writes(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guess_any_length(monkeypatch, 2)
    data, out = Data(base.parent / "data.bin", held_out=0.1), base.parent / "head"
    result = runs.finetune(base, data, Outputs(out), NewDraftHead(), _settings)
    assert result.loss < 0.2
    assert result.valid_loss is not None
    assert result.trained + result.frozen > result.trained > 10_000
    model, head = gptrs.load_model(base), gptrs.load_model(out)
    fields = {"max_tokens": 60, "ignore_eos": True, "temperature": 0.0, "logprobs": 1}
    prompt = PERIOD[:10].tolist()
    plain = gptrs.generate(model, prompt, **fields)
    guessed = gptrs.generate(model, prompt, **fields, draft=head)
    assert (guessed.token_ids, guessed.logprobs) == (plain.token_ids, plain.logprobs)
    assert guessed.guesses.accepted > 0.8 * guessed.guesses.proposed > 10
    assert not list(out.glob("tokenizer*")), "the model has none"


def test_packed_texts_do_not_see_each_other(base: Path) -> None:
    """The loss of two texts in a row is that of each alone, weighted."""
    model = gptrs.load_model(base, backend="ref")
    learner = DraftLearner(model.files, model.backend)
    trained = {name: gptrs.tensor(array) for name, array in learner.trained.items()}
    rng = np.random.default_rng(1)
    rows = [rng.integers(0, 40, count) for count in (7, 5)]

    def loss(parts: list[np.ndarray]) -> float:
        tokens = np.concatenate([row[:-1] for row in parts])[None]
        targets = np.concatenate([row[1:] for row in parts])[None]
        places = np.concatenate([np.arange(len(row) - 1) for row in parts])[None]
        weights = np.ones(tokens.shape, np.float32)
        batch = Batch(*map(gptrs.tensor, (tokens, targets, weights, places)))
        return float(learner.loss(trained, batch).numpy())

    both = loss(rows)
    np.testing.assert_allclose(both, sum(loss([row]) for row in rows), rtol=1e-5)


def test_a_head_is_one_of_the_things_to_train() -> None:
    assert isinstance(_what(None, False, None, True, None, None), NewDraftHead)
    with pytest.raises(UsageError, match="--lora and --draft-head exclude each other"):
        _what(8, False, None, True, None, None)
    with pytest.raises(UsageError, match="--alpha and --target are for adapters"):
        _what(None, False, None, True, 2.0, None)

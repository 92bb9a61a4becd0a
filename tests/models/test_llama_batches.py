"""Batches of Llama and its relatives: unequal texts as if alone, prompts in chunks as if whole."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from models.llama_support import assert_close, fresh_model, save_variant, some_tokens

torch = pytest.importorskip("torch", reason="parity needs torch")
pytest.importorskip("transformers", reason="parity needs transformers")

NAMES = ["plain", "ministral", "ministral3_scaled", "qwen3_switches"]
LENGTHS = (33, 9, 20, 1)


@pytest.fixture(scope="module", params=NAMES)
def folder(request, tmp_path_factory):
    return save_variant(tmp_path_factory.mktemp("llama") / request.param, request.param)


@pytest.fixture
def lm(folder, backend_name):
    return gptrs.load_model(folder, backend=backend_name).causal_lm()


def _padded() -> tuple[np.ndarray, np.ndarray]:
    """Texts of unequal length behind padding of one token or another, and how much of it."""
    longest = max(LENGTHS)
    tokens = some_tokens(len(LENGTHS), longest)
    return tokens, np.array([longest - length for length in LENGTHS])


def test_unequal_texts_are_as_if_alone(lm):
    tokens, left_padding = _padded()
    together = lm.forward(tokens, left_padding)
    assert np.isfinite(together).all()
    for row, start in enumerate(left_padding):
        alone = lm.forward(tokens[row : row + 1, start:])
        assert_close(together[row : row + 1, start:], alone)


def test_unequal_texts_with_a_cache(lm):
    """Prefill in two steps, then twenty tokens one by one, past every window."""
    tokens, left_padding = _padded()
    more = some_tokens(len(LENGTHS), 20)
    cache = lm.new_cache(len(LENGTHS), left_padding)
    lm.step(tokens[:, :17], cache)
    steps = [lm.step(tokens[:, 17:], cache)]
    steps += [lm.step(more[:, position : position + 1], cache) for position in range(20)]
    for row, start in enumerate(left_padding):
        text = np.concatenate([tokens[row : row + 1, start:], more[row : row + 1]], 1)
        alone = lm.forward(text)[0, LENGTHS[row] - 1 :]
        assert_close(np.stack([step[row] for step in steps]), alone)


def test_unequal_texts_agree_with_transformers(folder, lm):
    tokens, left_padding = _padded()
    mask = np.arange(tokens.shape[1]) >= left_padding[:, None]
    places = np.maximum(np.cumsum(mask, 1) - 1, 0)
    with torch.no_grad():
        theirs = fresh_model(folder)(
            torch.from_numpy(tokens),
            attention_mask=torch.from_numpy(mask.astype(np.int64)),
            position_ids=torch.from_numpy(places),
        ).logits.numpy()
    assert_close(lm.forward(tokens, left_padding)[mask], theirs[mask])


@pytest.mark.parametrize("chunk", [7, 64, 200])
def test_chunked_prefill_equals_whole(lm, chunk):
    tokens = some_tokens(2, 130)
    cache = lm.new_cache(2)
    steps = [lm.step(tokens[:, at : at + chunk], cache) for at in range(0, 130, chunk)]
    assert cache.length == 130
    assert_close(steps[-1], lm.forward(tokens)[:, -1])


def test_a_ring_keeps_the_window_only(tmp_path, backend_name):
    folder = save_variant(tmp_path / "m", "ministral")
    lm = gptrs.load_model(folder, backend=backend_name).causal_lm()
    cache = lm.new_cache(1)
    lm.step(some_tokens(1, 150), cache)
    ring, whole = (keys.shape[2] for keys, _ in cache.buffers)
    assert 12 <= ring < 64
    assert whole >= 150

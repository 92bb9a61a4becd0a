"""Dropout as a function of (seed, step): beside torch with the same zeros, and after a resume."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError, UsageError
from gptrs.plugins.manager import backend_of
from gptrs_runtime.sources.find_model import find_model
from gptrs_train import trained_modules as dropping
from gptrs_train.batches import Windows
from gptrs_train.data import Source
from gptrs_train.learner import Learner, LowRank
from gptrs_train.trained_modules import Dropout, seed_of
from train.runs_support import run, save_lm, settings, stream, torch_lm


def kept(seed, site, shape, probability):
    """Return where the numbers of a place keep an element."""
    own = np.array([int(seed[0]) + site, int(seed[1])], np.uint64)
    with gptrs.use_backend("ref"):
        ones = gptrs.functionals.ones(shape)
        found = gptrs.functionals.dropout(ones, probability, gptrs.tensor(own), training=True)
        return found.numpy() != 0


@pytest.mark.long
@pytest.mark.parametrize("on", ["ref", "numba"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_losses_are_those_of_torch_with_the_same_zeros(kind, on, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch", reason="the oracle is torch")
    model = torch_lm(tmp_path / "model", kind).train()
    hidden, attention = 0.2, 0.3
    seed, sites = seed_of(7, 3), iter(range(1000))

    def of_torch(x, p=0.5, training=True, inplace=False):
        if not p:
            return x
        keep = kept(seed, next(sites), tuple(x.shape), p)
        return x * torch.tensor(keep) / (1 - p)

    monkeypatch.setattr(torch.nn.functional, "dropout", of_torch)
    monkeypatch.setattr(torch.nn.Dropout, "forward", lambda self, x: of_torch(x, self.p))
    model.set_attn_implementation("eager")
    for name, module in model.named_modules():
        if name.endswith(("self_attn", "attn")):
            module.attention_dropout = attention
            module.attn_dropout = torch.nn.Dropout(attention)
        if name.endswith((".resid_dropout", "mlp.dropout")):
            module.p = hidden
        if name.endswith(("o_proj", "down_proj")):
            module.register_forward_hook(lambda _m, _x, y: of_torch(y, hidden))
    backend = backend_of(on, None)
    learner = Learner(find_model(tmp_path / "model"), backend, ["*"])
    learner.dropout = Dropout(hidden, attention)
    batch = Windows(Source("", stream=stream()), 16, 3, 0).batch(0)
    with gptrs.use_backend(backend):
        loss, grads = gptrs.jit(gptrs.value_and_grad(learner.loss))(learner.trained, batch, seed)
    logits = model(input_ids=torch.tensor(batch.tokens)).logits
    rows = torch.tensor(batch.targets).reshape(-1)
    expected = torch.nn.functional.cross_entropy(
        logits.reshape(len(rows), -1), rows, reduction="sum"
    )
    expected.backward()
    assert next(sites) == 6  # attention, its output and the inner layer, twice
    np.testing.assert_allclose(loss.numpy(), expected.item(), rtol=1e-6)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(grads[name].numpy(), parameter.grad.numpy(), atol=2e-4)


@pytest.mark.long
def test_runs_with_dropout_resume_with_the_same_bits(tmp_path):
    save_lm(tmp_path / "model", "llama")
    what = LowRank(2, 4.0)
    chosen = settings(steps=6, dropout=0.1, attention_dropout=0.1, lora_dropout=0.3, save_every=3,
                      accumulate=2)  # fmt: skip
    _, whole, losses = run(tmp_path / "model", tmp_path / "a", what, "ref", chosen)

    class Killed(BaseException):
        pass

    def killing(status):
        if status.step == 4:
            raise Killed

    with pytest.raises(Killed):
        run(tmp_path / "model", tmp_path / "b", what, "ref", chosen, tell=killing)
    _, again, resumed = run(tmp_path / "model", tmp_path / "b", what, "ref", chosen, resume=True)
    assert losses == resumed
    for name, value in whole.items():
        assert value.tobytes() == again[name].tobytes()
    _, _, others = run(
        tmp_path / "model", tmp_path / "c", what, "ref", settings(steps=6, accumulate=2)
    )
    assert others[0] != losses[0]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_layers_that_are_computed_again_give_the_same_gradients(kind, tmp_path):
    save_lm(tmp_path / "model", kind)
    backend, found = backend_of("numba", None), {}
    batch = Windows(Source("", stream=stream()), 16, 3, 0).batch(0)
    for again in (False, True):
        learner = Learner(find_model(tmp_path / "model"), backend, ["*"])
        learner.dropout, learner.recomputes = Dropout(0.1, 0.1), again
        with gptrs.use_backend(backend):
            step = gptrs.jit(gptrs.value_and_grad(learner.loss))
            loss, grads = step(learner.trained, batch, seed_of(1, 2))
            found[again] = loss.numpy(), {name: grad.numpy() for name, grad in grads.items()}
    np.testing.assert_allclose(found[True][0], found[False][0], rtol=1e-6)
    for name, grad in found[False][1].items():
        np.testing.assert_allclose(found[True][1][name], grad, rtol=1e-4, atol=1e-4)


def test_what_has_no_place_for_dropout_is_told(tmp_path):
    save_lm(tmp_path / "model", "llama")
    chosen = settings(steps=1, lora_dropout=0.1)
    with pytest.raises(ModelError, match="has no place for dropout of `low_rank`"):
        run(tmp_path / "model", tmp_path / "a", ["*"], "ref", chosen)
    with pytest.raises(UsageError, match=r"`dropout` must be from 0 to 0\.99, got"):
        settings(dropout=1.0)
    assert dropping.seed_of(3, 2).tolist() != dropping.seed_of(2, 3).tolist()

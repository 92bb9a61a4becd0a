"""Optimizers step by step beside those of torch and transformers; schedules by their formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture.execute import use_backend
from gptrs_train import optimizers, schedules

SHAPES = {"w": (3, 4), "b": (4,), "conv": (2, 3, 5), "big": (1, 6)}
STEPS = 12


def gradients(seed):
    rng = np.random.default_rng(seed)
    scales = (1.0, 1e-3, 30.0)
    return {
        name: rng.normal(0, scales[seed % 3], shape).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def ours(optimizer, backend):
    """Return the parameters after each of some updates in a program that donates its state."""

    def step(state, grads):
        updates, inner = optimizer.update(grads, state["inner"], state["params"])
        return {"params": optimizers.apply_updates(state["params"], updates), "inner": inner}

    with use_backend(backend):
        params = {name: gptrs.tensor(value) for name, value in gradients(100).items()}
        state = {"params": params, "inner": optimizer.init(params)}
        compiled = gptrs.jit(step, donate=["state"])
        found = []
        for number in range(STEPS):
            state = compiled(state, gradients(number))
            found.append({name: value.numpy().copy() for name, value in state["params"].items()})
    return found


def torchs(make):
    torch = pytest.importorskip("torch", reason="the oracle is torch.optim")
    params = {name: torch.tensor(value) for name, value in gradients(100).items()}
    optimizer = make(torch, list(params.values()))
    found = []
    for number in range(STEPS):
        for name, value in gradients(number).items():
            params[name].grad = torch.tensor(value)
        optimizer.step()
        found.append({name: value.numpy().copy() for name, value in params.items()})
    return found


def transformers_adafactor(**settings):
    def make(torch, params):
        transformers = pytest.importorskip("transformers", reason="the oracle is its Adafactor")
        return transformers.Adafactor(params, relative_step=False, **settings)

    return make


RATE = schedules.constant(0.05)
CASES = {
    "sgd": (optimizers.sgd(RATE), lambda t, p: t.optim.SGD(p, 0.05)),
    "sgd momentum, decay": (
        optimizers.sgd(RATE, 0.9, weight_decay=0.1),
        lambda t, p: t.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.1),
    ),
    "sgd nesterov": (
        optimizers.sgd(RATE, 0.8, nesterov=True),
        lambda t, p: t.optim.SGD(p, 0.05, momentum=0.8, nesterov=True),
    ),
    "adamw": (optimizers.adamw(RATE), lambda t, p: t.optim.AdamW(p, 0.05)),
    "adamw others": (
        optimizers.adamw(RATE, (0.8, 0.95), 1e-4, 0.2),
        lambda t, p: t.optim.AdamW(p, 0.05, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.2),
    ),
    "adamw without moments": (
        optimizers.adamw(RATE, (0.0, 0.0), 0.0, 0.0),
        lambda t, p: t.optim.AdamW(p, 0.05, betas=(0.0, 0.0), eps=0.0, weight_decay=0.0),
    ),
    "adafactor": (optimizers.adafactor(RATE), transformers_adafactor(lr=0.05)),
    "adafactor others": (
        optimizers.adafactor(
            RATE, -0.6, 0.5, (1e-20, 1e-2), scale_parameter=False, weight_decay=0.1
        ),
        transformers_adafactor(
            lr=0.05, decay_rate=-0.6, clip_threshold=0.5, eps=(1e-20, 1e-2), scale_parameter=False,
            weight_decay=0.1,
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_step_is_that_of_the_peer(case, backend):
    optimizer, make = CASES[case]
    for one, other in zip(ours(optimizer, backend), torchs(make), strict=True):
        for name, value in one.items():
            np.testing.assert_allclose(value, other[name], rtol=2e-5, atol=1e-6, err_msg=name)


def test_lion_takes_the_sign_of_its_moment(reference):
    params, moments = gradients(100), {name: np.zeros(s) for name, s in SHAPES.items()}
    found = ours(optimizers.lion(RATE, (0.9, 0.99), 0.1, optimizers.matrices), reference)
    for number, after in enumerate(found):
        for name, g in gradients(number).items():
            decay = 0.1 * params[name] if params[name].ndim > 1 else 0
            change = np.sign(0.9 * moments[name] + 0.1 * g) + decay
            params[name] = params[name] - 0.05 * change
            moments[name] = 0.99 * moments[name] + 0.01 * g
            np.testing.assert_allclose(after[name], params[name], rtol=1e-5, atol=1e-6)


MATRICES = {"w": (3, 4), "tall": (9, 2), "stack": (2, 5, 3), "table": (6, 4), "b": (4,)}


def numpy_muon(p, g, mean, rate, decay):
    """Return a matrix and its moment after an update of Muon, by NumPy in f64."""
    mean = 0.95 * mean + 0.05 * g
    x = 0.95 * mean + 0.05 * g
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / np.linalg.norm(x)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    x = x.T if tall else x
    return p - rate * (0.2 * np.sqrt(max(p.shape)) * x + decay * p), mean


def test_muon_moves_hidden_matrices_as_in_numpy_and_torch(reference, monkeypatch):
    torch = pytest.importorskip("torch", reason="an oracle is torch.optim")
    monkeypatch.setitem(globals(), "SHAPES", MATRICES)
    hidden = ("w", "tall", "stack")
    optimizer = optimizers.divided(
        optimizers.muon(RATE, weight_decay=0.1), optimizers.adamw(RATE), hidden.__contains__
    )
    found = ours(optimizer, reference)
    rest = torchs(lambda t, p: t.optim.AdamW(p, 0.05))
    settings = {"weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    for name in ("table", "b"):
        np.testing.assert_allclose(found[-1][name], rest[-1][name], rtol=2e-5, atol=1e-6)
    for name in hidden:
        parts = [n if MATRICES[name][:-2] else () for n in range(2 if name == "stack" else 1)]
        for part in parts:
            p = gradients(100)[name][part]
            mean, peer = np.zeros(p.shape), torch.nn.Parameter(torch.tensor(p))
            muon = torch.optim.Muon([peer], lr=0.05, **settings)
            for number, after in enumerate(found):
                g = gradients(number)[name][part]
                peer.grad = torch.tensor(g)
                muon.step()
                p, mean = numpy_muon(p, g, mean, 0.05, 0.1)
                np.testing.assert_allclose(after[name][part], p, rtol=1e-4, atol=1e-4)
            # torch iterates in bf16: 8 bits of each of 12 updates.
            np.testing.assert_allclose(p, peer.detach().numpy(), atol=0.02)


def test_either_part_of_a_divided_optimizer_may_be_empty(reference):
    for takes in (lambda name: True, lambda name: False):
        optimizer = optimizers.divided(optimizers.sgd(RATE), optimizers.sgd(RATE), takes)
        for one, other in zip(ours(optimizer, reference), ours(optimizers.sgd(RATE), reference),
                              strict=True):  # fmt: skip
            assert all(np.array_equal(one[name], other[name]) for name in SHAPES)


@pytest.mark.parametrize("most", [1e-3, 1.0, 1e6])
def test_clipping_is_that_of_torch(most, reference):
    torch = pytest.importorskip("torch", reason="the oracle is its clip_grad_norm_")
    arrays = gradients(2)
    params = [torch.nn.Parameter(torch.zeros(value.shape)) for value in arrays.values()]
    for parameter, value in zip(params, arrays.values(), strict=True):
        parameter.grad = torch.tensor(value)
    expected = torch.nn.utils.clip_grad_norm_(params, most)
    with use_backend(reference):
        found, norm = gptrs.jit(lambda g: optimizers.clip_by_global_norm(g, most))(arrays)
        assert norm.item() == pytest.approx(expected.item(), rel=1e-6)
        for name, parameter in zip(arrays, params, strict=True):
            np.testing.assert_allclose(found[name].numpy(), parameter.grad.numpy(), rtol=1e-6)


FORMULAS = {
    "constant": lambda n: 1.0,
    "linear": lambda n: 1 + (0.1 - 1) * min(n / 80, 1),
    "cosine": lambda n: 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(n / 80, 1))),
    "inverse_sqrt": lambda n: math.sqrt(20 / (20 + n)),
}


@pytest.mark.parametrize("form", schedules.FORMS)
def test_schedules_rise_then_follow_their_formula(form, reference):
    schedule = schedules.schedule_of(form, 3.0, 100, 20, 0.3)
    counts = range(0, 130, 5)
    with use_backend(reference):
        found = [
            gptrs.jit(lambda n: F.ones(()) * schedule(F.cast(n, "f32")))(np.int32(n))
            for n in counts
        ]
        for count, rate in zip(counts, found, strict=True):
            expected = (count + 1) / 21 if count < 20 else FORMULAS[form](count - 20)
            assert float(rate.numpy()) == pytest.approx(3 * expected, rel=1e-5), count


def test_the_time_scale_of_inverse_sqrt_without_a_warm_up_is_that_of_transformers(reference):
    schedule = schedules.schedule_of("inverse_sqrt", 3.0, 100, 0)
    with use_backend(reference):
        rate = F.ones(()) * schedule(gptrs.tensor(np.float32(30_000)))
        assert rate.item() == pytest.approx(1.5)

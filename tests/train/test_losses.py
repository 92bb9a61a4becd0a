"""Cross-entropy and its derivative beside torch's; logits in parts as in one."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.capture.execute import use_backend
from gptrs_train import losses

ROWS, WIDTH, CLASSES = 23, 5, 11


def given(seed=0):
    rng = np.random.default_rng(seed)
    states, head = rng.normal(0, 3, (ROWS, WIDTH)), rng.normal(0, 2, (CLASSES, WIDTH))
    targets, weights = rng.integers(0, CLASSES, ROWS), rng.integers(0, 2, ROWS)
    return states.astype("f4"), head.astype("f4"), targets, weights.astype("f4")


@pytest.mark.parametrize("most", [10**6, 4 * CLASSES, 1])
def test_losses_and_gradients_are_those_of_torch(most, backend, monkeypatch):
    torch = pytest.importorskip("torch", reason="the oracle is its cross_entropy")
    monkeypatch.setattr(losses, "MOST_LOGITS", most)
    states, head, targets, weights = given()

    def loss(states, head):
        return losses.token_loss(
            lambda x, parts: gptrs.functionals.linear(x, head), [], states, gptrs.tensor(targets),
            gptrs.tensor(weights), CLASSES,
        )  # fmt: skip

    with use_backend(backend):
        value, grads = gptrs.jit(gptrs.value_and_grad(loss, (0, 1)))(states, head)
        found = [each.numpy() for each in grads]
    leaves = [torch.tensor(each, requires_grad=True) for each in (states, head)]
    costs = torch.nn.functional.cross_entropy(
        leaves[0] @ leaves[1].T, torch.tensor(targets), reduction="none"
    )
    expected = (costs * torch.tensor(weights)).sum()
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    for one, other in zip(found, leaves, strict=True):
        np.testing.assert_allclose(one, other.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("most", [10**6, 4 * CLASSES])
def test_the_derivative_that_comes_with_the_loss_of_a_frozen_head_is_the_same(
    most, backend, monkeypatch
):
    """Its parts are arguments; beyond a factor, the states come from what is learnt."""
    monkeypatch.setattr(losses, "MOST_LOGITS", most)
    states, head, targets, weights = given()

    def gradient(frozen):
        def loss(factor, head):
            return 3 * losses.token_loss(
                lambda x, parts: gptrs.functionals.linear(x, *parts), [head],
                gptrs.tensor(states) * factor, gptrs.tensor(targets), gptrs.tensor(weights),
                CLASSES, frozen=frozen,
            )  # fmt: skip

        with use_backend(backend):
            value, grad = gptrs.jit(gptrs.value_and_grad(loss))(np.ones(WIDTH, "f4"), head)
            return value.item(), grad.numpy()

    (one, first), (other, second) = gradient(frozen=True), gradient(frozen=False)
    assert one == pytest.approx(other, rel=1e-6)
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-5)


def test_large_logits_overflow_nowhere(reference):
    logits, targets = np.float32([[1e4, -1e4, 0], [3e38, 0, 0]]), np.array([1, 0])

    def loss(x):
        return gptrs.functionals.sum(losses.cross_entropy(x, gptrs.tensor(targets)))

    with use_backend(reference):
        value, grad = gptrs.jit(gptrs.value_and_grad(loss))(logits)
    assert value.item() == 2e4
    assert grad.numpy().tolist() == [[1, -1, 0], [0, 0, 0]]

"""Norms of torch models compiled by gptrs beside the same norms in f64: constants, large means."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run models of torch")

from torch import nn  # noqa: E402

from gptrs.backend.contract import Backend  # noqa: E402

pytestmark = pytest.mark.long
ULP = 2.0**-23

NORMS: dict[str, Callable[[], Any]] = {
    "LayerNorm": lambda: nn.LayerNorm(36),
    "LayerNorm of two axes": lambda: nn.LayerNorm([20, 36]),
    "GroupNorm": lambda: nn.GroupNorm(3, 12),
    "GroupNorm of one group": lambda: nn.GroupNorm(1, 12),
    "BatchNorm2d in training": lambda: nn.BatchNorm2d(12),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(12, affine=True),
    "RMSNorm": lambda: nn.RMSNorm(36, eps=1e-6),
}
ROUNDED_MEAN = ("BatchNorm2d in training", "InstanceNorm2d")
"""Those that torch takes apart around `var_mean`, so that the mean is rounded, as in torch."""


def inputs() -> dict[str, Any]:
    random = torch.Generator().manual_seed(0)
    values = {f"equal {value}": torch.full((2, 12, 20, 36), value) for value in (12345.678, 0.1)}
    values["equal 1e37"] = torch.full((2, 12, 20, 36), 1e37)
    for mean in (0.0, 1000.0, -1e5):
        values[f"mean {mean}"] = torch.randn(2, 12, 20, 36, generator=random) + mean
    return values


@pytest.mark.whole
@pytest.mark.parametrize("name", NORMS)
def test_norm(name: str, backend: Backend) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = NORMS[name]().train()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        nn.init.normal_(model.weight)
        if getattr(model, "bias", None) is not None:
            nn.init.normal_(model.bias)
        fast = torch.compile(model, backend="gptrs", options={"backend": backend.name})
        for what, x in inputs().items():
            if name == "RMSNorm" and what == "equal 1e37":
                continue  # its squares are infinite in torch, too
            wanted = NORMS[name]().train().double()
            wanted.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
            equal = what.startswith("equal") and name != "RMSNorm"  # f64 rounds their mean, too
            exact = wanted(torch.zeros_like(x).double() if equal else x.double())
            # Beside the rounding of what has the size 1, that of the mean if it is stored.
            error = 2 * ULP * (3 + exact.abs()) * model.weight.abs().max().clamp(min=1)
            if name in ROUNDED_MEAN and "equal" not in what:
                error += ULP * x.abs().max() * model.weight.abs().max()
            worst = ((fast(x).double() - exact).abs() / error).max().item()
            assert worst <= 1, f"{what}: {worst:.3g} of what is allowed"


def test_variance_and_mean() -> None:
    torch._dynamo.reset()

    def function(x: Any) -> Any:
        return (*torch.var_mean(x, -1), torch.std(x, (0, 1)), *torch.std_mean(x, 0, correction=0))

    fast = torch.compile(function, backend="gptrs", options={"backend": "ref"})
    for what, x in inputs().items():
        if what == "equal 1e37":
            continue  # f64 rounds its mean
        for found, wanted in zip(fast(x), function(x.double()), strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=4e-7, atol=2e-7)

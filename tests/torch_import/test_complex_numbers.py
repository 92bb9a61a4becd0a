"""Complex numbers, which programs hold as two real tensors, against torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="these tests run functions of torch")

import gptrs_torch  # noqa: E402
from gptrs.api import UsageError  # noqa: E402
from gptrs_torch.conversion import NotConvertedError  # noqa: E402


def drawn(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))


class Applies(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def reals(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def check(function: Callable[..., Any], *calls: tuple[Any, ...]) -> None:
    """Compare a compiled function with torch for the arguments of each call."""
    torch._dynamo.reset()
    options = {"backend": "ref"}
    compiled = torch.compile(
        function, backend="gptrs", options=options, fullgraph=True, dynamic=len(calls) > 1
    )
    with torch.inference_mode():
        for given in calls:
            torch.testing.assert_close(
                compiled(*given), function(*given), rtol=1e-4, atol=1e-5, equal_nan=True
            )


def turned(x: Any, turns: Any) -> Any:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


def arithmetic(x: Any, y: Any, real: Any) -> list[Any]:
    plain = [x + y, 1 - x, torch.add(x, y, alpha=2j), x * real, x * 2j, x.conj() * y, real / x]
    powers = [x / y, x / 2, x**2, x**-1, x**0.5, x**y, x.exp(), x.log(), x.sin(), x.cos(), x.sgn()]
    parts = [x.real, x.conj().imag, x.abs(), x.angle(), torch.polar(real, real), x == x, x.isnan()]
    return [*plain, *powers, *parts]


def layouts(x: Any) -> list[Any]:
    moved = [
        x.T.reshape(-1),
        x[1:, ::2],
        torch.cat([x, x.real, x.real.long()]),
        x.unbind(0)[1],
        x.roll(1, 0),
    ]
    made = [torch.full_like(x, 1 + 2j), torch.ones_like(x), torch.zeros_like(x, dtype=torch.float)]
    chosen = [torch.where(x.real > 0, x, 0), x.masked_fill(x.imag > 0, 3j), x.norm(dim=1), x.bool()]
    return [*moved, *made, *chosen, x.sum(0), torch.nn.functional.pad(x, (1, 2), value=1.0)]


def products(x: Any, y: Any) -> list[Any]:
    convolved = torch.nn.functional.conv1d(x, x[:, :, :3], y[0, 0, :2], padding=1)
    mixed = torch.einsum("bik,bkj->bij", x.real + 0j, y)
    return [
        x @ y,
        mixed,
        torch.addmm(y[0, :2], x[0], y[0]),
        torch.vdot(x[0, 0], x[0, 1]),
        convolved,
    ]


def transforms(x: Any, real: Any) -> list[Any]:
    fft = torch.fft
    plain = [fft.fft(real), fft.ifft(x, norm="ortho"), fft.fft2(x), fft.fftn(real, dim=(0, 2))]
    halves = [fft.rfft2(real, norm="forward"), fft.irfft(x, n=9), fft.irfft2(x), fft.hfft(x)]
    return [*plain, *halves, fft.rfft(real, dim=1, n=5), fft.fftshift(x)]


def spectra(x: Any, window: Any) -> list[Any]:
    found = torch.stft(x, 16, 6, window=window, return_complex=True)
    again = torch.istft(found * 0.5, 16, 6, window=window, length=x.shape[-1])
    return [found, found.abs(), again]


def filtered(x: Any) -> Any:
    """Return the cyclic convolution with itself, of a length that is computed by its factors."""
    return torch.fft.irfft(torch.fft.rfft(x, n=1100) ** 2, n=1100)[..., :7], torch.fft.fft(x)


def running(x: Any) -> tuple[Any, ...]:
    rows = (
        x.prod(1),
        x.prod(0, keepdim=True),
        x.prod(),
        x.cumprod(1),
        x.real.cumprod(0, dtype=x.dtype),
    )
    return (*rows, (x * 9).tanh(), x.sigmoid())


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (turned, [(reals(2, n, 3, 8), drawn(n, 1, 4)) for n in (3, 4)]),
        (arithmetic, [(drawn(3, 4), drawn(4), reals(4))]),
        (layouts, [(drawn(4, 4),)]),
        (running, [(drawn(3, 4),)]),
        (products, [(drawn(2, 2, 4), drawn(2, 4, 4))]),
        (transforms, [(drawn(2, 3, 6), reals(2, 3, 6))]),
        (spectra, [(reals(2, n), torch.hann_window(16)) for n in (40, 51)]),
        (filtered, [(reals(2, 1026),)]),
    ],
)
def test_complex_numbers_are_those_of_torch(function: Any, calls: list[tuple[Any, ...]]) -> None:
    check(function, *calls)


def test_zeros_infinities_and_nan_are_those_of_torch() -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([0, inf, nan, -1, complex(-1, -0.0), complex(-0.0, 0), complex(3e38, 3e38)])
    y = torch.tensor([0, 1, 1, 1j, 1j, 1, 2], dtype=torch.complex64)
    check(lambda x, y: (x * y, x / y, x.abs(), x.sqrt(), x.exp(), x.log(), x.sgn()), (x, y))


class Turns(torch.nn.Module):
    """A layer whose table is complex, and one of its results."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", drawn(6, 4))

    def forward(self, x: Any) -> dict[str, Any]:
        found = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * self.table[: x.shape[1]]
        return {"real": found.real.sum(-1), "turned": found}


def test_files_have_complex_weights_inputs_and_results(tmp_path: Path) -> None:
    sizes = {"x": {1: torch.export.Dim("n", max=6)}}
    model, path = Turns().eval(), tmp_path / "m.pt2"
    torch.export.save(torch.export.export(model, (reals(2, 3, 8),), dynamic_shapes=sizes), path)
    loaded = gptrs_torch.load(path, "ref")
    for length in (3, 5):
        given = reals(2, length, 8)
        torch.testing.assert_close(loaded.module(given), model(given))
        assert loaded(given.numpy())["turned"].dtype == np.complex64


def test_a_complex_input_takes_complex_arrays_only() -> None:
    loaded = gptrs_torch.load(
        torch.export.export(Applies(lambda x: x.conj() * 2), (drawn(2, 3),)), "ref"
    )
    given = drawn(2, 3)
    (found,) = loaded(given.numpy()).values()
    assert np.array_equal(found, given.numpy().conj() * 2)
    with pytest.raises(UsageError, match=r"cf32.* got an array of float32"):
        loaded(np.ones((2, 3), np.float32))


def test_an_operator_without_complex_numbers_runs_in_torch() -> None:
    torch._dynamo.reset()
    function = torch.compile(
        lambda x: (x * 2).tanh() + 1, backend="gptrs", options={"backend": "ref"}
    )
    x = drawn(3)
    with torch.inference_mode():
        torch.testing.assert_close(function(x), (x * 2).tanh() + 1)


def test_lengths_with_large_prime_factors_are_refused() -> None:
    program = torch.export.export(Applies(torch.fft.fft), (torch.zeros(5003),))
    with pytest.raises(NotConvertedError, match=r"5003 elements.*prime"):
        gptrs_torch.load(program, "ref")(np.zeros(5003, np.float32))

"""Inverses, determinants and factors of matrices are those of torch, in programs for all sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run operators of torch")

from torch import linalg  # noqa: E402

import gptrs_torch  # noqa: E402
from gptrs.errors import UnsupportedError, UsageError  # noqa: E402

pytestmark = pytest.mark.long


class Applies(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, a: Any, b: Any) -> Any:
        """Return what the function gives."""
        return self.function(a, b)


def everything(a: Any, b: Any) -> tuple[Any, ...]:
    symmetric = a @ a.mT + torch.eye(a.shape[-1])
    factor, upper = (linalg.cholesky(symmetric, upper=each) for each in (False, True))
    return (
        *(torch.inverse(a), linalg.solve(a, b.mT, left=False), linalg.det(a)),
        *(factor, torch.cholesky_solve(b, upper, True)),
        linalg.solve_triangular(a.triu(), b, upper=True),
        linalg.solve_triangular(a, b.mT, upper=False, left=False, unitriangular=True),
        torch.matrix_exp(a * 3),
    )


def matrices(count: int, size: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(size)
    # Rows turned around, so that each column has its pivot elsewhere.
    a = torch.randn(count, size, size, generator=generator) / 4 + torch.eye(size).flip(0)
    return a, torch.randn(count, size, 2, generator=generator)


def test_matrices_of_all_sizes_are_those_of_one_file(tmp_path: Path) -> None:
    count, size = torch.export.Dim("count", min=1), torch.export.Dim("size", min=1)
    free = {"a": {0: count, 1: size, 2: size}, "b": {0: count, 1: size}}
    program = torch.export.export(Applies(everything), matrices(2, 4), dynamic_shapes=free)
    torch.export.save(program, tmp_path / "m.pt2")
    loaded = gptrs_torch.load(tmp_path / "m.pt2", "ref")
    for shape in ((2, 4), (3, 3)):
        given = matrices(*shape)
        for found, wanted in zip(loaded.module(*given), everything(*given), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    assert "?0" in str(loaded.program(*given))


def test_singular_matrices_have_a_determinant_of_zero_and_no_inverse() -> None:
    a = torch.tensor([[[1.0, 2, 3], [2, 4, 6], [0, 1, 5]], [[2.0, 0, 0], [0, 0, 1], [0, 3, 0]]])
    for function, told in (
        (lambda a, b: linalg.inv(a), "has no inverse"),
        (lambda a, b: linalg.cholesky(a), "is not positive definite"),
    ):
        loaded = gptrs_torch.load(torch.export.export(Applies(function), (a, a)), "ref")
        with pytest.raises(UsageError, match=told):
            loaded.module(a, a)
    program = torch.export.export(Applies(lambda a, b: (linalg.det(a), linalg.slogdet(b))), (a, a))
    found, (sign, size) = gptrs_torch.load(program, "ref").module(a, a)
    torch.testing.assert_close(found, linalg.det(a))
    torch.testing.assert_close((sign, size), tuple(linalg.slogdet(a)))


def test_matrices_under_compile_raise_the_errors_of_torch() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(linalg.inv, backend="gptrs", options={"backend": "ref"})
    a, _ = matrices(2, 3)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(a), linalg.inv(a))
        with pytest.raises(RuntimeError, match="singular"):
            compiled(torch.zeros(2, 3, 3))


def test_other_factors_are_refused_with_what_is_converted() -> None:
    program = torch.export.export(Applies(lambda a, b: linalg.qr(a)[0]), matrices(1, 3))
    with pytest.raises(UnsupportedError, match=r"`linalg_qr.*`inv`, `solve`, `det`"):
        gptrs_torch.load(program, "ref").module(*matrices(1, 3))

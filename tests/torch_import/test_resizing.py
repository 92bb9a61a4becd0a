"""Axes whose size a factor does not change stay as they are, as in torch's kernels."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run operators of torch")


from gptrs_torch.dynamo import table  # noqa: E402

pytestmark = pytest.mark.long
CASES = [
    ("linear", (1, 2, 5), 1.1),
    ("bilinear", (1, 2, 3, 4), (1.3, 1.5)),
    ("trilinear", (1, 1, 2, 3, 2), 1.3),
    ("nearest", (1, 1, 3, 4), (1.3, 1.5)),
    ("nearest", (1, 2, 2, 2), (1.3, 2.2)),
    ("nearest", (1, 2, 5), 1.1),  # only kernels of planes keep them
    ("nearest-exact", (1, 1, 3, 4), (1.3, 1.5)),
]


def resized(x: Any, mode: str, factor: Any) -> Any:
    return torch.nn.functional.interpolate(x, scale_factor=factor, mode=mode)


@pytest.mark.parametrize(("mode", "shape", "factor"), CASES)
def test_an_axis_that_a_factor_does_not_change_is_kept(
    mode: str, shape: tuple[int, ...], factor: Any
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = resized(x, mode, factor)
    run = torch.compile(resized, backend="gptrs", dynamic=False, options={"backend": "ref"})
    with torch.no_grad():
        torch.testing.assert_close(run(x, mode, factor), expected)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # of torch itself
@pytest.mark.parametrize(("mode", "shape", "factor"), CASES)
def test_decompositions_of_exported_programs_keep_it_too(
    mode: str, shape: tuple[int, ...], factor: Any
) -> None:
    class Resize(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return resized(x, mode, factor)

    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(Resize(), (x,)).run_decompositions(table())
    torch.testing.assert_close(program.module()(x), resized(x, mode, factor))

"""Images and volumes are read at positions as torch reads them, also where these are no numbers."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run operators of torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from gptrs import get_backend  # noqa: E402
from gptrs_torch.dynamo import table  # noqa: E402
from gptrs_torch.graph import GraphFunction  # noqa: E402

pytestmark = pytest.mark.long
INFINITY = float("inf")


@pytest.mark.parametrize(
    ("padding", "align"), [("zeros", False), ("border", True), ("reflection", False)]
)
@pytest.mark.parametrize(
    ("mode", "sizes"),
    [
        ("bilinear", (4, 5)),
        ("nearest", (4, 5)),
        ("bilinear", (4, 5, 3)),
        ("nearest", (1, 5, 3)),
    ],
)
def test_positions_inside_beyond_and_of_no_number(
    mode: str, sizes: tuple[int, ...], padding: str, align: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((2, 2, *sizes), generator=generator)
    grid = torch.rand((2, *sizes, len(sizes)), generator=generator) * 4 - 2
    positions = grid.view(-1, len(sizes))
    positions[0, 0] = positions[1, 1] = float("nan")
    positions[2], positions[3], positions[4, 0] = INFINITY, -INFINITY, INFINITY
    positions[5] = float("nan")

    def sampled(x: Any, grid: Any) -> Any:
        return torch.nn.functional.grid_sample(x, grid, mode, padding, align)

    traced = make_fx(sampled, table(), "fake")(x, grid)
    (found,) = GraphFunction(traced, get_backend("ref"))(x, grid)
    torch.testing.assert_close(found, sampled(x, grid), equal_nan=True, rtol=1e-5, atol=1e-5)

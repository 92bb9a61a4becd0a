"""Results of compiled functions have the strides that torch's kernels give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run functions of torch")
F = torch.nn.functional


def turned(x: Any) -> list[Any]:
    """Return results in row-major order of images in the order of their last axis."""
    x = x.permute(0, 3, 1, 2).transpose(2, 3)
    rows = x.flatten(2)
    normed = [F.batch_norm(x, None, None, training=True), F.layer_norm(x, x.shape[-1:])]
    joined = [torch.cat([rows, rows], 1), torch.stack([rows, rows], 1)]
    padded = [F.pad(rows, (1, 1), mode="reflect"), rows.softmax(-1), rows.log_softmax(1)]
    return [*normed, *joined, *padded, x.roll((1, 1), (1, 2))]


def images(x: Any) -> list[Any]:
    """Return results for images in row-major order."""
    sized = [F.interpolate(x, scale_factor=2, mode="bilinear"), F.avg_pool2d(x, 2)]
    spectra = [torch.fft.rfft2(x), torch.fft.rfftn(x, dim=(0, 1))]
    return [*sized, *spectra, F.pixel_shuffle(x, 2), F.adaptive_avg_pool2d(x, 2)]


def channels_last(x: Any) -> list[Any]:
    """Return results for images with their channels last, which keep them there."""
    x = x.to(memory_format=torch.channels_last)
    normed = [F.batch_norm(x, None, None, training=True), x.softmax(1)]
    rolled = [x.roll((1, 1), (1, 2)), x.roll(1, 3), x.roll(3)]
    stacked = [torch.stack([x, x], axis) for axis in (0, 2, -1)]
    return [*normed, *rolled, *stacked, torch.cat([x, x], 1), torch.channel_shuffle(x, 2)]


@pytest.mark.whole
@pytest.mark.parametrize("function", [turned, images, channels_last])
def test_strides_are_those_of_torch(function: Callable[[Any], list[Any]]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="gptrs", options={"backend": "ref"}, fullgraph=True)
    x = torch.randn(2, 4, 6, 8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for made, wanted in zip(compiled(x), function(x), strict=True):
            torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-5, check_stride=True)

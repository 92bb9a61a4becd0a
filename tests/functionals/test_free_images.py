"""Convolution, pooling, resizing and means of images whose sizes are free: one program for all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gptrs
from functionals.calls import running_on
from gptrs import Tensor
from gptrs import functionals as F
from gptrs.backend.contract import Backend

WEIGHT = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
AXES = {"x": ("n", "h", "w", None)}
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "conv": lambda x: F.conv2d(x, gptrs.tensor(WEIGHT), None, 2, 1),
    "depthwise": lambda x: F.depthwise_conv2d(
        x, gptrs.tensor(np.ascontiguousarray(WEIGHT[:3, :1])), None, 2, 1
    ),
    "same": lambda x: F.conv2d(x, gptrs.tensor(WEIGHT), None, 3, "same"),
    "same, twice": lambda x: F.max_pool(
        F.conv2d(x, gptrs.tensor(WEIGHT), None, 2, "same"), 3, 2, "same"
    ),
    "padding of sizes": lambda x: F.average_pool(
        x, 2, 2, [(0, 2 * ((size + 1) // 2) - size) for size in x.shape[1:3]]
    ),
    "a pyramid": lambda x: F.mean(
        F.max_pool(F.conv2d(x, gptrs.tensor(WEIGHT), None, 2, 1), 3, 2, 1), [1, 2]
    ),
    "max pool": lambda x: F.max_pool(x, 3, 2, 1),
    "max pool, rounded up": lambda x: F.max_pool(x, 2, 3, ceil_mode=True),
    "average pool": lambda x: F.average_pool(x, 3, 2, 1),
    "average pool of elements": lambda x: F.average_pool(x, 3, 2, 1, count_include_pad=False),
    "average pool, rounded up": lambda x: F.average_pool(x, 2, 3, 1, ceil_mode=True),
    "average of all": lambda x: F.global_average_pool(x),
    "mean of squares": lambda x: F.mean(x * x, [1, 2]),
    "variance": lambda x: F.variance(x, [1, 2]),
    "twice, nearest": lambda x: F.resize(x, (2 * x.shape[1], 2 * x.shape[2]), (1, 2)),
    "half, nearest": lambda x: F.resize(
        x, (x.shape[1] // 2, x.shape[2] // 2), (1, 2), "nearest", "asymmetric", "floor"
    ),
    "beside, linear": lambda x: F.resize(x, (x.shape[2], x.shape[1]), (1, 2), "linear"),
    "ends to ends": lambda x: F.resize(
        x, (x.shape[1] + 3, x.shape[2] // 2), (1, 2), "linear", "align_corners"
    ),
    "squeezed": lambda x: F.squeeze(F.max_pool(x, (4, 1), (20, 1)), 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_program_computes_images_of_all_sizes(name: str, backend: Backend) -> None:
    step = gptrs.jit(lambda x: CALLS[name](x), dynamic=AXES)
    with running_on(backend):
        for size in ((2, 12, 17), (3, 9, 8), (2, 5, 6), (2, 12, 17)):
            x = np.random.default_rng(sum(size)).normal(size=(*size, 3)).astype(np.float32)
            found, wanted = step(gptrs.tensor(x)).numpy(), CALLS[name](gptrs.tensor(x)).numpy()
            np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6, err_msg=str(size))
    # A last window that hangs over may begin in the padding, and is no window then.
    assert step.compiled <= (2 if "rounded up" in name else 1)

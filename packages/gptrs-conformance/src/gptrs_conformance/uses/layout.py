"""Uses of functionals that move and convert elements."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import numpy as np

from gptrs import functionals as F
from gptrs.ir import dtypes
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal

X = normal(1, 3, 4)
CUBE = normal(2, 2, 3, 4)
THIN = normal(3, 1, 3, 1)

SLICES = {
    "inner": ((0, 1), (2, 3), None),
    "open": ((None, -2), (-1, None), None),
    "steps": ((None, 0), (None, 4), (2, 3)),
    "backward": ((None, 3), (None, 0), (-1, -2)),
    "clipped": ((-9, 1), (9, 99), None),
    "nothing": ((2, 3), (1, 3), None),
    "nothing backward": ((0, None), (2, None), (-1, None)),
}


def _sliced(x, starts, stops, steps):  # pyright: ignore
    return x[tuple(slice(*walk) for walk in zip(starts, stops, steps or (None,) * 2))]  # noqa: B905


USES = (
    Use("reshape", (X,), lambda x: F.reshape(x, (2, -1)), lambda x: x.reshape(2, 6),
        torch=lambda torch, x: x.reshape(2, 6)),
    Use("reshape", (normal(4),), lambda x: F.reshape(x, (1, 1)), lambda x: x.reshape(1, 1),
        "rank 0", torch=lambda torch, x: x.reshape(1, 1)),
    Use("flatten", (CUBE,), F.flatten, lambda x: x.reshape(-1),
        torch=lambda torch, x: torch.flatten(x)),
    Use("flatten", (CUBE,), lambda x: F.flatten(x, 1), lambda x: x.reshape(2, 12), "from 1",
        torch=lambda torch, x: torch.flatten(x, 1)),
    Use("flatten", (normal(4),), F.flatten, lambda x: x.reshape(1), "rank 0",
        torch=lambda torch, x: torch.flatten(x)),
    Use("squeeze", (THIN,), F.squeeze, np.squeeze, torch=lambda torch, x: torch.squeeze(x)),
    Use("squeeze", (THIN,), lambda x: F.squeeze(x, -1), lambda x: x[..., 0], "one axis",
        torch=lambda torch, x: torch.squeeze(x, -1)),
    Use("expand_dims", (X,), lambda x: F.expand_dims(x, 1), lambda x: x[:, None],
        torch=lambda torch, x: x[:, None]),
    Use("expand_dims", (X,), lambda x: F.expand_dims(x, (0, -1)), lambda x: x[None, ..., None],
        "several", torch=lambda torch, x: x[None, ..., None]),
    Use("transpose", (normal(3, 2, 2, 4, 8),), lambda x: F.transpose(x, (0, 2, 1, 3)),
        lambda x: x.transpose(0, 2, 1, 3), torch=lambda torch, x: x.permute(0, 2, 1, 3)),
    Use("transpose", (CUBE,), F.transpose, np.transpose, "reversed",
        torch=lambda torch, x: x.permute(2, 1, 0)),
    Use("swap_axes", (CUBE,), lambda x: F.swap_axes(x, 0, -1), lambda x: x.swapaxes(0, -1),
        torch=lambda torch, x: x.swapaxes(0, -1)),
    Use("broadcast_to", (THIN,), lambda x: F.broadcast_to(x, (2, 2, 3, 5)),
        lambda x: np.broadcast_to(x, (2, 2, 3, 5)),
        torch=lambda torch, x: torch.broadcast_to(x, (2, 2, 3, 5))),
    Use("cast", (X * 10,), lambda x: F.cast(x, dtypes.si32), lambda x: np.trunc(x).astype(int),
        torch=lambda torch, x: x.int()),
    Use("stop_gradient", (X,), F.stop_gradient, lambda x: x),
    Use("cast", (X > 0,), lambda x: F.cast(x, dtypes.f32), lambda x: x.astype(float), "i1",
        torch=lambda torch, x: x.float()),
    *(
        Use("slice", (X,), lambda x, w=walk: F.slice(x, *w), lambda x, w=walk: _sliced(x, *w),
            label)
        for label, walk in SLICES.items()
    ),
    Use("slice", (normal(4),), lambda x: F.slice(x, (), ()), lambda x: x, "rank 0"),
    Use("slice_axis", (X,), lambda x: F.slice_axis(x, -1, 1, 2), lambda x: x[:, 1:3],
        torch=lambda torch, x: x.narrow(-1, 1, 2)),
    Use("flip", (CUBE,), F.flip, np.flip, torch=lambda torch, x: torch.flip(x, (0, 1, 2))),
    Use("flip", (CUBE,), lambda x: F.flip(x, (0, -1)), lambda x: np.flip(x, (0, -1)), "two axes",
        torch=lambda torch, x: torch.flip(x, (0, -1))),
)  # fmt: skip

"""Uses of functionals that split, join, repeat and pad tensors."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import numpy as np

from gptrs import functionals as F
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal

X, Y = normal(1, 3, 4), normal(2, 3, 4)
HEADS = normal(3, 2, 2, 3, 4)
IMAGE = normal(4, 2, 3, 4, 1)
TRUTHS = np.array([True, False])

USES = (
    Use("split", (X,), lambda x: F.split(x, 2), lambda x: [x[:, :2], x[:, 2:]],
        torch=lambda torch, x: x.split(2, -1)),
    Use("split", (X,), lambda x: F.split(x, (1, 0, 2), 0),
        lambda x: [x[:1], x[1:1], x[1:]], "sizes",
        torch=lambda torch, x: x.split((1, 0, 2), 0)),
    Use("concat", (X, Y), lambda x, y: F.concat([x, y], 1),
        lambda x, y: np.concatenate([x, y], 1), torch=lambda torch, x, y: torch.cat([x, y], 1)),
    Use("concat", (X, Y[:0], Y[:1]), lambda *parts: F.concat(parts),
        lambda *parts: np.concatenate(parts), "three, one empty",
        torch=lambda torch, *parts: torch.cat(parts)),
    Use("concat", (X,), lambda x: F.concat([x], -1), lambda x: x, "one"),
    Use("stack", (X, Y), lambda x, y: F.stack([x, y]), lambda x, y: np.stack([x, y]),
        torch=lambda torch, x, y: torch.stack([x, y])),
    Use("stack", (X, Y), lambda x, y: F.stack([x, y], -1), lambda x, y: np.stack([x, y], -1),
        "last axis", torch=lambda torch, x, y: torch.stack([x, y], -1)),
    Use("stack", (normal(5), normal(6)), lambda x, y: F.stack([x, y]),
        lambda x, y: np.stack([x, y]), "rank 0", torch=lambda torch, x, y: torch.stack([x, y])),
    Use("tile", (X,), lambda x: F.tile(x, (2, 1)), lambda x: np.tile(x, (2, 1)),
        torch=lambda torch, x: torch.tile(x, (2, 1))),
    Use("tile", (X,), lambda x: F.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3)),
        "more repeats than axes", torch=lambda torch, x: torch.tile(x, (2, 1, 3))),
    Use("tile", (X,), lambda x: F.tile(x, (2,)), lambda x: np.tile(x, (2,)),
        "fewer repeats than axes", torch=lambda torch, x: torch.tile(x, (2,))),
    Use("repeat_interleave", (HEADS,), lambda x: F.repeat_interleave(x, 3, 1),
        lambda x: np.repeat(x, 3, 1),
        torch=lambda torch, x: torch.repeat_interleave(x, 3, 1)),
    Use("repeat_interleave", (X,), lambda x: F.repeat_interleave(x, 0, -1),
        lambda x: np.repeat(x, 0, -1), "nothing"),
    *(
        Use("roll", (X,), lambda x, s=shift, a=axis: F.roll(x, s, a),
            lambda x, s=shift, a=axis: np.roll(x, s, a), f"{shift} on {axis}",
            torch=lambda torch, x, s=shift, a=axis: torch.roll(x, s, a))
        for shift, axis in ((1, 0), (-1, 1), (7, -1), (4, 1))
    ),
    Use("roll", (X[:0],), lambda x: F.roll(x, 1, 0), lambda x: x, "empty axis"),
    Use("pad", (X,), lambda x: F.pad(x, ((1, 0), (2, 3)), value=1.5),
        lambda x: np.pad(x, ((1, 0), (2, 3)), constant_values=1.5),
        torch=lambda torch, x: torch.nn.functional.pad(x, (2, 3, 1, 0), value=1.5)),
    Use("pad", (X,), lambda x: F.pad(x, ((-1, 1), (0, -2))),
        lambda x: np.pad(x[1:, :-2], ((0, 1), (0, 0))), "trims",
        torch=lambda torch, x: torch.nn.functional.pad(x, (0, -2, -1, 1))),
    Use("pad", (TRUTHS,), lambda x: F.pad(x, ((1, 1),)), lambda x: np.pad(x, 1), "i1"),
    Use("pad", (IMAGE,), lambda x: F.pad(x, ((0, 0), (2, 1), (0, 3), (0, 0)), "reflect"),
        lambda x: np.pad(x, ((0, 0), (2, 1), (0, 3), (0, 0)), "reflect"), "reflect",
        torch=lambda torch, x: torch.nn.functional.pad(
            x.permute(0, 3, 1, 2), (0, 3, 2, 1), "reflect").permute(0, 2, 3, 1)),
    Use("pad", (IMAGE,), lambda x: F.pad(x, ((0, 0), (2, 4), (5, 0), (0, 0)), "edge"),
        lambda x: np.pad(x, ((0, 0), (2, 4), (5, 0), (0, 0)), "edge"), "edge",
        torch=lambda torch, x: torch.nn.functional.pad(
            x.permute(0, 3, 1, 2), (5, 0, 2, 4), "replicate").permute(0, 2, 3, 1)),
)  # fmt: skip

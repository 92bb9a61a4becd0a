"""Uses of convolution: kernels, strides, dilations, paddings, groups and layouts."""

# The tables below are of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs_conformance.functional_use import Arrays, Use
from gptrs_conformance.running import normal

Pairs = tuple[tuple[int, int], ...]


def same_padding(dim: int, size: int, stride: int, dilation: int) -> tuple[int, int]:
    """Return the padding for `ceil(dim / stride)` positions, the odd element above."""
    reach, positions = (size - 1) * dilation + 1, -(-dim // stride)
    total = max((positions - 1) * stride + reach - dim, 0)
    return total // 2, (total + 1) // 2


def convolve(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | float,
    stride: Sequence[int],
    padding: Pairs,
    dilation: Sequence[int],
    groups: int,
) -> np.ndarray:
    """A loop over the positions; x [N, spatial.., C], weight [O, C / groups, spatial..]."""
    padded = np.pad(x, ((0, 0), *padding, (0, 0)))
    size, outputs, inputs = weight.shape[2:], weight.shape[0], weight.shape[1]
    counts = [
        (dim - (k - 1) * d - 1) // s + 1
        for dim, k, s, d in zip(padded.shape[1:-1], size, stride, dilation, strict=True)
    ]
    out = np.zeros((x.shape[0], *counts, outputs))
    for position in np.ndindex(*counts):
        for offset in np.ndindex(*size):
            at = tuple(
                p * s + k * d for p, s, k, d in zip(position, stride, offset, dilation, strict=True)
            )
            seen = padded[(slice(None), *at)]
            for o in range(outputs):
                first = o // (outputs // groups) * inputs
                kernel = weight[(o, slice(None), *offset)]
                out[(slice(None), *position, o)] += seen[:, first : first + inputs] @ kernel
    return out + bias


class Conv2d(Struct, frozen=True):
    """A row of the grid."""

    kernel: tuple[int, int]
    stride: int | tuple[int, int] = 1
    padding: Any = 0
    dilation: int | tuple[int, int] = 1
    groups: int = 1
    batch: int = 2
    bias: bool = True
    image: tuple[int, int] = (9, 8)
    outputs: int = 8
    layout: Literal["oihw", "hwio"] = "oihw"
    small_floats: bool = False

    @property
    def label(self) -> str:
        """The values that are not the default."""
        default = asdict(Conv2d((0, 0)))
        shown = {name: value for name, value in asdict(self).items() if value != default[name]}
        return ", ".join(f"{name} {value}" for name, value in shown.items() if name != "image")

    @property
    def moves(self) -> tuple[tuple[int, int], Pairs, tuple[int, int]]:
        """Stride, padding and dilation axis by axis."""
        stride, dilation = _pair(self.stride), _pair(self.dilation)
        if self.padding == "same":
            axes = zip(self.image, self.kernel, stride, dilation, strict=True)
            return stride, tuple(same_padding(*axis) for axis in axes), dilation
        sides = _pair(0 if self.padding == "valid" else self.padding)
        return stride, tuple(_pair(side) for side in sides), dilation

    def inputs(self) -> Arrays:
        """Images of 4 channels, and kernels small enough for sums of about 1."""
        x = normal(1, self.batch, *self.image, 4)
        weight = normal(2, self.outputs, 4 // self.groups, *self.kernel) / 4
        if self.layout == "hwio":
            weight = np.ascontiguousarray(weight.transpose(2, 3, 1, 0))
        return (x, weight, normal(3, self.outputs)) if self.bias else (x, weight)

    def call(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """By the functional."""
        moves = (self.stride, self.padding, self.dilation)
        return F.conv2d(x, weight, bias, *moves, self.groups, self.layout)

    def expected(self, x: np.ndarray, weight: np.ndarray, bias: Any = 0.0) -> np.ndarray:
        """By loops."""
        oihw = weight.transpose(3, 2, 0, 1) if self.layout == "hwio" else weight
        return convolve(x, oihw, bias, *self.moves, self.groups)

    def torch(self, torch: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        """By torch."""
        stride, ((top, bottom), (left, right)), dilation = self.moves
        oihw = weight.permute(3, 2, 0, 1) if self.layout == "hwio" else weight
        padded = torch.nn.functional.pad(x.permute(0, 3, 1, 2), (left, right, top, bottom))
        out = torch.nn.functional.conv2d(padded, oihw, bias, stride, 0, dilation, self.groups)
        return out.permute(0, 2, 3, 1)

    def use(self) -> Use:
        """As a use."""
        return Use(
            "conv2d", self.inputs(), self.call, self.expected, self.label,
            small_floats=self.small_floats, torch=self.torch if self.outputs else None,
        )  # fmt: skip


def _pair(value: Any) -> tuple[Any, Any]:
    return (value, value) if isinstance(value, int) else value


def _grid() -> list[Conv2d]:
    """Kernels, strides and groups; the other choices take turns, in cycles of coprime lengths."""
    rows = itertools.product((1, 3, 5, (7, 3)), (1, 2, (1, 2)), (1, 2, 4))
    paddings = itertools.cycle([0, 1, "same", (2, 1), ((0, 2), (1, 0)), "valid", "same"])
    dilations = itertools.cycle([1, 2, (2, 1), 1, 1])
    sizes = itertools.cycle([(2, True), (1, False), (1, True), (2, False)])
    return [
        Conv2d(_pair(kernel), stride, padding, dilation, groups, *size, image=(15, 13))
        for (kernel, stride, groups), padding, dilation, size in zip(
            rows, paddings, dilations, sizes, strict=False
        )
    ]


ROWS = [
    *_grid(),
    Conv2d((3, 3), padding=1, small_floats=True),
    Conv2d((3, 3), 2, "same", groups=2, small_floats=True),
    Conv2d((3, 3), padding=((1, 1), (0, 2)), groups=4, small_floats=True),
    Conv2d((3, 3), groups=2, outputs=64),
    Conv2d((1, 1), small_floats=True),
    Conv2d((3, 2), layout="hwio"),
    Conv2d((3, 2), groups=2, layout="hwio"),
    Conv2d((3, 2), groups=4, layout="hwio"),
    Conv2d((2, 2), padding="same", image=(4, 7)),
    Conv2d((3, 3), padding=2, image=(1, 1)),
    Conv2d((9, 8), image=(9, 8)),
    Conv2d((3, 3), batch=0),
    Conv2d((3, 3), groups=4, batch=0),
    Conv2d((3, 3), outputs=0),
]


def depthwise(x: np.ndarray, weight: np.ndarray, bias: Any = 0.0) -> np.ndarray:
    """At stride (2, 1), padding 1, without dilation; weight [C * M, 1, KH, KW]."""
    return convolve(x, weight, bias, (2, 1), ((1, 1), (1, 1)), (1, 1), x.shape[-1])


def _torch_depthwise(torch: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    images, groups = x.permute(0, 3, 1, 2), x.shape[-1]
    out = torch.nn.functional.conv2d(images, weight, bias, (2, 1), 1, 1, groups)
    return out.permute(0, 2, 3, 1)


def spread(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | float,
    stride: Sequence[int],
    padding: Pairs,
    more: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> np.ndarray:
    """Each element of x times the kernel [C, O / groups, spatial..], added where it falls."""
    size, inputs, outputs = weight.shape[2:], weight.shape[0] // groups, weight.shape[1]
    dims = [
        (n - 1) * s + (k - 1) * d + 1 + m
        for n, s, k, d, m in zip(x.shape[1:-1], stride, size, dilation, more, strict=True)
    ]
    out = np.zeros((x.shape[0], *dims, groups * outputs))
    for position in np.ndindex(*x.shape[1:-1]):
        for offset in np.ndindex(*size):
            at = tuple(
                p * s + k * d for p, s, k, d in zip(position, stride, offset, dilation, strict=True)
            )
            for g in range(groups):
                seen = x[(slice(None), *position, slice(g * inputs, (g + 1) * inputs))]
                kernel = weight[(slice(g * inputs, (g + 1) * inputs), slice(None), *offset)]
                out[(slice(None), *at, slice(g * outputs, (g + 1) * outputs))] += seen @ kernel
    lows = [max(-low, 0) for low, _ in padding], [max(-high, 0) for _, high in padding]
    out = np.pad(out, ((0, 0), *zip(*lows, strict=True), (0, 0)))
    ends = [slice(max(low, 0), dim - max(high, 0)) for dim, (low, high) in
            zip(out.shape[1:-1], padding, strict=True)]  # fmt: skip
    return out[(slice(None), *ends)] + bias


def _torch_spread(torch: Any, x: Any, weight: Any, bias: Any, *moves: Any) -> Any:
    """Stride, padding, output padding, groups, dilation by torch, channels last."""
    name = f"conv_transpose{x.ndim - 2}d"
    first = x.permute(0, x.ndim - 1, *range(1, x.ndim - 1))
    out = getattr(torch.nn.functional, name)(first, weight, bias, *moves)
    return out.permute(0, *range(2, x.ndim), 1)


def _transposed() -> list[Use]:
    """Ranks, strides, paddings and groups of transposed convolutions."""
    rows: list[tuple[str, tuple[int, ...], tuple[int, ...], int, int, int, int, int, bool]] = [
        ("1 axis", (2, 7, 4), (4, 3, 5), 2, 1, 1, 1, 1, True),
        ("2 axes", (2, 4, 5, 4), (4, 3, 3, 2), 2, 1, 0, 1, 1, True),
        ("3 axes", (1, 3, 2, 4, 4), (4, 2, 2, 3, 2), 2, 0, 1, 1, 1, False),
        ("dilation", (1, 4, 5, 4), (4, 3, 3, 2), 1, 2, 0, 2, 1, True),
        ("groups", (2, 4, 5, 4), (4, 3, 3, 2), 2, 0, 0, 1, 2, True),
        ("as many groups as channels", (2, 4, 5, 4), (4, 1, 3, 3), 3, 1, 2, 1, 4, False),
        ("side by side", (2, 4, 5, 4), (4, 3, 2, 2), 2, 0, 0, 1, 1, True),
        ("padding beyond the kernel", (1, 6, 4), (4, 3, 2), 2, 3, 0, 1, 1, False),
    ]

    def use(
        label: str, x: tuple[int, ...], weight: tuple[int, ...],
        stride: int, padding: int, more: int, dilation: int, groups: int, with_bias: bool,
    ) -> Use:  # fmt: skip
        count = len(x) - 2
        arrays = (normal(1, *x), normal(2, *weight) / 3)
        arrays = (*arrays, normal(3, weight[1] * groups)) if with_bias else arrays
        pairs = ((padding, padding),) * count
        lists = [[each] * count for each in (stride, more, dilation)]
        return Use(
            "conv_transpose", arrays,
            lambda x, w, b=None: F.conv_transpose(
                x, w, b, stride, padding, more, dilation, groups),
            lambda x, w, b=0.0: spread(x, w, b, lists[0], pairs, lists[1], lists[2], groups),
            label, small_floats=label == "2 axes",
            torch=lambda torch, x, w, b=None: _torch_spread(
                torch, x, w, b, stride, padding, more, groups, dilation),
        )  # fmt: skip

    return [use(*row) for row in rows]


IMAGES = normal(1, 2, 7, 6, 3)
VOLUMES = normal(1, 2, 5, 4, 6, 4)
SEQUENCES = normal(1, 2, 11, 4)

USES = (
    *(row.use() for row in ROWS),
    Use("depthwise_conv2d", (IMAGES, normal(2, 3, 1, 3, 3) / 2, normal(3, 3)),
        lambda x, w, b: F.depthwise_conv2d(x, w, b, (2, 1), 1), depthwise,
        torch=_torch_depthwise),
    Use("depthwise_conv2d", (IMAGES, normal(2, 6, 1, 3, 5) / 2),
        lambda x, w: F.depthwise_conv2d(x, w, None, (2, 1), 1), depthwise, "2 kernels a channel",
        torch=_torch_depthwise),
    Use("depthwise_conv2d", (IMAGES, normal(2, 3, 3, 3, 2) / 2, normal(3, 6)),
        lambda x, w, b: F.depthwise_conv2d(x, w, b, (2, 1), 1, layout="hwio"),
        lambda x, w, b: depthwise(x, w.reshape(3, 3, 6, 1).transpose(2, 3, 0, 1), b), "hwio",
        torch=lambda torch, x, w, b: _torch_depthwise(
            torch, x, w.reshape(3, 3, 6, 1).permute(2, 3, 0, 1), b)),
    Use("depthwise_conv2d", (IMAGES, normal(2, 6, 1, 1, 1)),
        lambda x, w: F.depthwise_conv2d(x, w),
        lambda x, w: convolve(x, w, 0.0, (1, 1), ((0, 0), (0, 0)), (1, 1), 3), "kernel 1"),
    Use("depthwise_conv2d", (IMAGES, normal(2, 3, 1, 3, 2) / 2),
        lambda x, w: F.depthwise_conv2d(x, w, padding=1, dilation=(2, 1)),
        lambda x, w: convolve(x, w, 0.0, (1, 1), ((1, 1), (1, 1)), (2, 1), 3), "dilated"),
    Use("conv1d", (SEQUENCES, normal(2, 6, 4, 3) / 3, normal(3, 6)),
        lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=1),
        lambda x, w, b: convolve(x, w, b, (2,), ((1, 1),), (1,), 1),
        torch=lambda torch, x, w, b: torch.nn.functional.conv1d(
            x.permute(0, 2, 1), w, b, 2, 1).permute(0, 2, 1)),
    Use("conv1d", (SEQUENCES, normal(2, 6, 2, 3) / 3),
        lambda x, w: F.conv1d(x, w, None, 1, "same", 2, 2),
        lambda x, w: convolve(x, w, 0.0, (1,), ((2, 2),), (2,), 2), "groups",
        torch=lambda torch, x, w: torch.nn.functional.conv1d(
            x.permute(0, 2, 1), w, None, 1, "same", 2, 2).permute(0, 2, 1)),
    Use("conv1d", (SEQUENCES, normal(2, 8, 1, 4) / 2),
        lambda x, w: F.conv1d(x, w, padding=((3, 0),), groups=4),
        lambda x, w: convolve(x, w, 0.0, (1,), ((3, 0),), (1,), 4), "causal, depthwise",
        torch=lambda torch, x, w: torch.nn.functional.conv1d(
            torch.nn.functional.pad(x.permute(0, 2, 1), (3, 0)), w, groups=4).permute(0, 2, 1)),
    Use("conv1d", (SEQUENCES, normal(2, 3, 4, 6) / 3),
        lambda x, w: F.conv1d(x, w, layout="wio"),
        lambda x, w: convolve(x, w.transpose(2, 1, 0), 0.0, (1,), ((0, 0),), (1,), 1), "wio"),
    Use("conv", (VOLUMES, normal(2, 6, 4, 3, 2, 3) / 5, normal(3, 6)),
        lambda x, w, b: F.conv(x, w, b, (2, 1, 1), ((1, 1), (0, 1), (1, 1)), (1, 2, 1)),
        lambda x, w, b: convolve(
            x, w, b, (2, 1, 1), ((1, 1), (0, 1), (1, 1)), (1, 2, 1), 1), "3 axes",
        small_floats=True,
        torch=lambda torch, x, w, b: torch.nn.functional.conv3d(
            torch.nn.functional.pad(x.permute(0, 4, 1, 2, 3), (1, 1, 0, 1, 1, 1)), w, b,
            (2, 1, 1), 0, (1, 2, 1)).permute(0, 2, 3, 4, 1)),
    Use("conv", (VOLUMES, normal(2, 8, 2, 2, 2, 2) / 3),
        lambda x, w: F.conv(x, w, groups=2, padding="same"),
        lambda x, w: convolve(x, w, 0.0, (1, 1, 1), ((0, 1),) * 3, (1, 1, 1), 2), "3 axes, groups",
        torch=lambda torch, x, w: torch.nn.functional.conv3d(
            torch.nn.functional.pad(x.permute(0, 4, 1, 2, 3), (0, 1) * 3), w,
            groups=2).permute(0, 2, 3, 4, 1)),
    Use("conv", (IMAGES, normal(2, 4, 3, 3, 2) / 3),
        lambda x, w: F.conv(x, w, padding=((-2, 1), (0, -1))),
        lambda x, w: convolve(x[:, 2:, :-1], w, 0.0, (1, 1), ((0, 1), (0, 0)), (1, 1), 1),
        "negative padding"),
    Use("conv", (np.arange(56).reshape(2, 7, 4) % 11 - 5, np.arange(48).reshape(4, 4, 3) - 9),
        lambda x, w: F.conv(x, w, None, 2, 1),
        lambda x, w: convolve(x, w, 0, (2,), ((1, 1),), (1,), 1).astype(np.int64), "integers"),
    *_transposed(),
    Use("conv_transpose", (IMAGES, normal(2, 3, 2, 3, 2) / 3),
        lambda x, w: F.conv_transpose(x, w, None, 2, ((-1, 1), (2, -2)), (1, 0)),
        lambda x, w: spread(x, w, 0.0, (2, 2), ((-1, 1), (2, -2)), (1, 0), (1, 1), 1),
        "negative padding"),
)  # fmt: skip

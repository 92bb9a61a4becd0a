"""Functions of torch that are compiled and compared with themselves, and inputs at their edges."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

Shape: TypeAlias = tuple[int, ...]
Function: TypeAlias = Callable[..., Any]
X: Final[tuple[Shape, ...]] = ((3, 4, 6),)
XY: Final[tuple[Shape, ...]] = ((3, 4, 6), (4, 6))
IMAGE: Final[tuple[Shape, ...]] = ((2, 3, 6, 5),)
LINE: Final[tuple[Shape, ...]] = ((2, 3, 8),)
SPACE: Final[tuple[Shape, ...]] = ((1, 2, 4, 6, 5),)
_index = torch.tensor([2, 0, 0, 2, 1])
"""Duplicates among indices, along an axis of 3."""
_places = torch.tensor([[0, 2, 0, 1, 1, 0]] * 4).expand(3, 4, 6)

ELEMENTWISE: Final[dict[str, Function]] = {
    name: getattr(torch, name)
    for name in (
        *("abs", "neg", "sign", "floor", "ceil", "round", "trunc", "frac", "exp", "exp2", "expm1"),
        *("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan"),
        *("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid"),
        *("erf", "erfc", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "logical_not"),
        *("signbit", "square", "nan_to_num", "deg2rad", "sgn", "lgamma", "digamma", "erfinv"),
    )
} | {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "elu": F.elu,
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.5),
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "tanhshrink": F.tanhshrink,
    "logsigmoid": F.logsigmoid,
    "threshold": lambda x: F.threshold(x, 0.1, -3.0),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_min": lambda x: x.clamp(min=0.5),
    "clamp_tensor": lambda x: torch.clamp(x, min=x.flip(-1) - 1, max=x.flip(0) + 1),
    "round_decimals": lambda x: torch.round(x, decimals=2),
    "logit": lambda x: torch.logit(x, 1e-3),
    "pow_number": lambda x: (x**2, x**3, x**-1, x**0.5, 2**x, x**0),
    "to_int": lambda x: x.nan_to_num(0, 9, -9).clamp(-99, 99).to(torch.int32),
    "to_bool": lambda x: x.bool(),
    "to_half": lambda x: (x.half(), x.bfloat16(), x.double()),
    "copysign": lambda x: torch.copysign(x, x.flip(-1)),
    "heaviside": lambda x: torch.heaviside(x, torch.tensor(0.5, dtype=x.dtype)),
    "where": lambda x: torch.where(x > 0, x, -x.flip(-1)),
    "masked_fill": lambda x: x.masked_fill(x < 0, -math.inf),
    "glu": lambda x: F.glu(x, -1),
    "normalize": lambda x: F.normalize(x, dim=-1),
}

BINARY: Final[dict[str, Function]] = {
    name: getattr(torch, name)
    for name in (
        *("add", "sub", "mul", "div", "maximum", "minimum", "fmax", "fmin", "fmod", "remainder"),
        *("pow", "atan2", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or"),
        *("logical_xor", "hypot", "floor_divide", "copysign", "xlogy", "logaddexp", "logaddexp2"),
        "nextafter",
    )
} | {
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, y, y, value=2),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, y.abs() + 1, value=0.5),
    "rsub": lambda x, y: torch.rsub(x, y, alpha=2),
    "bitwise": lambda x, y: (x & y, x | y, x ^ y, ~x),
    "shifts": lambda x, y: (x << (y.abs() % 4), x >> (y.abs() % 4)),
    "isclose": lambda x, y: torch.isclose(x, y, equal_nan=True),
    "cdist": lambda x, y: torch.cdist(x, y.expand(x.shape[0], *y.shape)),
    "cosine_similarity": lambda x, y: F.cosine_similarity(x, y, -1),
    "losses": lambda x, y: (F.mse_loss(x, y), F.l1_loss(x, y), F.smooth_l1_loss(x, y)),
    "searchsorted": lambda x, y: torch.bucketize(x, y.flatten().nan_to_num(0).sort().values),
}

REDUCTIONS: Final[dict[str, Function]] = {
    "sum": lambda x: (x.sum(), x.sum(1), x.sum((0, 2), keepdim=True)),
    "mean": lambda x: (x.mean(), x.mean(-1)),
    "prod": lambda x: (x.prod(), x.prod(1)),
    "amax": lambda x: (x.amax(), x.amax(1), x.amin((0, 2))),
    "aminmax": lambda x: tuple(torch.aminmax(x, dim=1)),
    "max_of_axis": lambda x: tuple(x.max(1)),
    "min_of_axis": lambda x: tuple(x.min(-1)),
    "max": lambda x: (x.max(), x.min()),
    "argmax": lambda x: (x.argmax(), x.argmax(1), x.argmax(-1, keepdim=True)),
    "argmin": lambda x: (x.argmin(), x.argmin(0)),
    "any": lambda x: ((x > 0).any(), x.any(1), x.all(-1)),
    "var": lambda x: (x.var(), x.var(1), x.std(-1, unbiased=False)),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "norm": lambda x: (x.norm(), x.norm(dim=1), x.norm(p=1, dim=-1), x.norm(p=math.inf, dim=0)),
    "cumsum": lambda x: (x.cumsum(1), x.cumsum(-1)),
    "cumprod": lambda x: x.cumprod(1),
    "cummax": lambda x: tuple(torch.cummax(x, 1)),
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 1),
    "softmax": lambda x: (x.softmax(-1), x.softmax(0)),
    "log_softmax": lambda x: x.log_softmax(1),
    "softmin": lambda x: F.softmin(x, 1),
    "sort": lambda x: tuple(torch.sort(x, 1, stable=True)),
    "sort_descending": lambda x: tuple(torch.sort(x, -1, descending=True, stable=True)),
    "argsort": lambda x: torch.argsort(x, 1, stable=True),
    "topk_values": lambda x: (x.topk(2, 1).values, x.topk(2, -1, largest=False).values),
    "kthvalue": lambda x: x.kthvalue(2, 1).values,
    "median": lambda x: (x.median(), x.median(1).values, x.nanmedian()),
    "quantile": lambda x: torch.quantile(x, 0.3, 1),
    "nansum": lambda x: (x.nansum(), x.nanmean(1)),
    "count_nonzero": lambda x: torch.count_nonzero(x, 1),
    "diff": lambda x: torch.diff(x, dim=1),
    "dot": lambda x: torch.dot(x.flatten(), x.flip(0).flatten()),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x),
    "matmul": lambda x: (x @ x.mT, x @ x[0].T, x[0] @ x[0, 0]),
    "baddbmm": lambda x: torch.baddbmm(x @ x.mT, x, x.mT, beta=0.5, alpha=2),
    "linear": lambda x: F.linear(x, x[0], x[0, :, 0]),
    "outer": lambda x: torch.outer(x[0, 0], x[0, 1]),
    "cross": lambda x: torch.linalg.cross(x[..., :3], x[..., 3:6]),
}

LAYOUTS: Final[dict[str, Function]] = {
    "gather": lambda x: x.gather(0, _places),
    "index_select": lambda x: x.index_select(0, _index),
    "index": lambda x: (x[_index], x[:, [1, 0]], x[_index[:, None], _index], x[..., None, 2]),
    "index_put": lambda x: x.index_put((_index,), x[:1].expand(5, *x.shape[1:]) * 0 + 1),
    "index_put_add": lambda x: x.index_put((_index,), x[_index] + 1, accumulate=True),
    "index_add": lambda x: x.index_add(0, _index, x[_index], alpha=2),
    "index_copy": lambda x: x.index_copy(0, _index[3:], x[:2]),
    "index_fill": lambda x: x.index_fill(0, _index, 7),
    "scatter": lambda x: x.scatter(0, _places[:1], x[1:2] * 2),
    "scatter_number": lambda x: x.scatter(0, _places, 5),
    "scatter_add": lambda x: x.scatter_add(0, _places, x),
    "scatter_sum": lambda x: x.scatter_reduce(0, _places, x, "sum", include_self=False),
    "scatter_max": lambda x: x.scatter_reduce(0, _places, x, "amax"),
    "scatter_min": lambda x: x.scatter_reduce(0, _places, x, "amin", include_self=False),
    "scatter_prod": lambda x: x.scatter_reduce(0, _places, x, "prod"),
    "scatter_mean": lambda x: x.scatter_reduce(0, _places, x, "mean"),
    "take": lambda x: x.take(_index),
    "take_along": lambda x: torch.take_along_dim(x, x.argsort(1, stable=True), 1),
    "flip": lambda x: (x.flip(0), x.flip((1, 2)), x.rot90(1, (0, 1))),
    "roll": lambda x: (x.roll(2), x.roll((1, -1), (0, 2))),
    "pad_constant": lambda x: (F.pad(x, (1, 2)), F.pad(x, (-1, 1, 0, -1), value=3)),
    "cat": lambda x: (torch.cat([x, x * 2], 1), torch.stack([x, -x], -1), torch.hstack([x, x])),
    "split": lambda x: (*x.split(2, 1), *x.chunk(2, -1), *torch.tensor_split(x, 3, 2)),
    "tile": lambda x: (x.tile(2, 1), x.repeat(2, 1, 1), x.repeat_interleave(2, 1)),
    "triangles": lambda x: (x.tril(), x.triu(1), x.tril(-1)),
    "diagonal": lambda x: (x.diagonal(0, 1, 2), torch.diag_embed(x), x[0].diag()),
    "reshape": lambda x: (x.reshape(-1), x.reshape(x.shape[0], -1), x.flatten(1), x.unsqueeze(1)),
    "transpose": lambda x: (x.mT, x.permute(2, 0, 1).contiguous(), x.movedim(0, 2) + 0),
    "expand": lambda x: (x[:1].expand(4, -1, -1) + 1, x[:, :1].expand_as(x) * x),
    "slices": lambda x: (x[1:], x[:, ::2], x[..., -2:], x[:, 1:3, :1]),
    "unfold": lambda x: x.unfold(1, 2, 1) + 0,
    "as_strided": lambda x: x.contiguous().as_strided((2, 2), (1, 2)) * 2,
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:, :2] * 3, 1, 1, 3),
    "select_scatter": lambda x: torch.select_scatter(x, x[:, 0] * 3, 1, 2),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x[0], x[0, :, 0][:4] * 0),
    "masked_scatter": lambda x: x.masked_fill(x.isnan(), 0).where(x > 0, x * 2),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, 1], indexing="ij"),
    "one_hot": lambda x: F.one_hot(_index, 4) * x.sum(),
    "embedding": lambda x: F.embedding(_index, x[:, 0], padding_idx=1),
    "embedding_bag": lambda x: F.embedding_bag(
        _index, x[:, 0], torch.tensor([0, 2, 2]), mode="sum"
    ),
    "bincount_like": lambda x: torch.zeros(3, dtype=x.dtype).index_add(0, _index, x[0, 0, :5]),
    "made": lambda x: (
        torch.arange(5) + x.sum(),
        torch.full_like(x, 3),
        torch.ones(2, 3) * x[0, 0, 0],
    ),
    "linspace": lambda x: (torch.linspace(0, 1, 7) + x[0, 0, 0], torch.eye(3, 4) * x[0, 0, 0]),
    "int_division": lambda x: (
        _index // 2,
        _index % -2,
        -_index // 2,
        torch.div(-_index, 2),
        x + 0,
    ),
    "view_dtype": lambda x: x.float().view(torch.int32),
}


def changed(x: Any) -> Any:
    """Change an argument and views of it in place."""
    x[0].mul_(2)
    y = x.view(-1)
    y[:3] += 1
    x[:, 1].copy_(x[:, 2])
    x.clamp_(min=-3)
    return y[1:5], x


def aliased(x: Any) -> Any:
    """Return an argument, a view of it, a value twice."""
    y = x + 1
    return x, x[1:], y, y, y.view(-1)[2:]


MUTATIONS: Final[dict[str, Function]] = {
    "changed": changed,
    "aliased": aliased,
    "filled": lambda x: (x.fill_(3), x.zero_())[0] + 1,
    "put": lambda x: x.index_put_((_index,), torch.ones((), dtype=x.dtype), accumulate=True),
    "swapped": lambda x: x.copy_(x.flip(0).clone()),
    "masked": lambda x: x.masked_fill_(x > 0, 2).add_(1),
    "into": lambda x: torch.add(x, 1, out=torch.empty_like(x)),
}


def _layer(make: Callable[[], nn.Module]) -> Function:
    torch.manual_seed(0)
    layer = make().eval()
    return lambda *given: layer(*given)


torch.manual_seed(0)
_grid = torch.rand(1, 4, 3, 2) * 2 - 1

IMAGES: Final[dict[str, Function]] = (
    {
        "conv2d": _layer(lambda: nn.Conv2d(3, 4, 3, padding=1, stride=2)),
        "conv2d_same": _layer(
            lambda: nn.Conv2d(3, 6, (3, 2), padding="same", groups=3, dilation=2)
        ),
        "conv2d_reflect": _layer(lambda: nn.Conv2d(3, 4, 3, padding=2, padding_mode="reflect")),
        "conv2d_circular": _layer(lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")),
        "conv2d_replicate": _layer(lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="replicate")),
        "conv_transpose2d": _layer(
            lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1)
        ),
        "max_pool2d": lambda x: (F.max_pool2d(x, 2), F.max_pool2d(x, 3, 1, 1, ceil_mode=True)),
        "max_pool2d_indices": lambda x: F.max_pool2d(x, 2, 1, return_indices=True),
        "max_pool2d_dilated": lambda x: F.max_pool2d(x, 2, 2, 1, 2),
        "avg_pool2d": lambda x: (
            F.avg_pool2d(x, 2),
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
            F.avg_pool2d(x, 2, divisor_override=3),
        ),
        "adaptive_avg_pool2d": lambda x: (
            F.adaptive_avg_pool2d(x, 1),
            F.adaptive_avg_pool2d(x, (4, 2)),
        ),
        "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, (2, 3)),
        "lp_pool2d": lambda x: F.lp_pool2d(x, 2, 2),
        "pad_reflect": lambda x: F.pad(x, (2, 1, 1, 3), mode="reflect"),
        "pad_replicate": lambda x: F.pad(x, (2, 1, 1, 3), mode="replicate"),
        "pad_circular": lambda x: F.pad(x, (2, 1, 1, 3), mode="circular"),
        "pixel_shuffle": lambda x: (
            F.pixel_shuffle(torch.cat([x] * 4, 1), 2),
            F.pixel_unshuffle(x[..., :4], 2),
            F.channel_shuffle(torch.cat([x, x], 1), 3),
        ),
        "image_unfold": lambda x: F.unfold(x, 2, padding=1, stride=2),
        "image_fold": lambda x: F.fold(F.unfold(x, 2), x.shape[-2:], 2),
        "batch_norm": _layer(lambda: nn.BatchNorm2d(3)),
        "group_norm": _layer(lambda: nn.GroupNorm(3, 3)),
        "instance_norm": _layer(lambda: nn.InstanceNorm2d(3, affine=True)),
        "local_response_norm": lambda x: F.local_response_norm(x, 3),
        "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
        "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-5),
        "prelu": _layer(lambda: nn.PReLU(3)),
    }
    | {
        f"resize_{mode}_{'corners' if corners else 'centres'}_{size}": (
            lambda x, mode=mode, corners=corners, size=size: F.interpolate(
                x, size=size, mode=mode, align_corners=corners
            )
        )
        for mode in ("bilinear", "bicubic")
        for corners in (False, True)
        for size in ((9, 4), (1, 1))
    }
    | {
        "resize_nearest": lambda x: F.interpolate(x, scale_factor=(1.7, 0.6)),
        "resize_nearest_exact": lambda x: F.interpolate(x, size=(4, 9), mode="nearest-exact"),
        "resize_area": lambda x: F.interpolate(x, size=(4, 2), mode="area"),
        "resize_scales": lambda x: F.interpolate(
            x, scale_factor=1.3, mode="bilinear", recompute_scale_factor=False
        ),
        "resize_antialias": lambda x: F.interpolate(
            x, size=(3, 3), mode="bilinear", antialias=True
        ),
    }
    | {
        f"grid_sample_{mode}_{padding}_{'corners' if corners else 'centres'}": (
            lambda x, mode=mode, padding=padding, corners=corners: F.grid_sample(
                x, (_grid * 1.4).to(x.dtype).expand(x.shape[0], -1, -1, -1), mode, padding, corners
            )
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for corners in (False, True)
    }
)
LINES: Final[dict[str, Function]] = {
    "conv1d": _layer(lambda: nn.Conv1d(3, 4, 3, padding=2, dilation=2)),
    "conv1d_causal": lambda x: F.conv1d(
        F.pad(x, (2, 0)), torch.ones(3, 1, 3, dtype=x.dtype), groups=3
    ),
    "conv_transpose1d": _layer(lambda: nn.ConvTranspose1d(3, 2, 4, stride=2, padding=1)),
    "max_pool1d": lambda x: F.max_pool1d(x, 3, 2, 1),
    "avg_pool1d": lambda x: F.avg_pool1d(x, 3, 2, 1),
    "adaptive_pool1d": lambda x: (F.adaptive_avg_pool1d(x, 3), F.adaptive_max_pool1d(x, 5)),
    "resize_linear": lambda x: F.interpolate(x, size=5, mode="linear"),
    "lstm": _layer(lambda: nn.LSTM(8, 4, 2, batch_first=True, bidirectional=True)),
    "gru": _layer(lambda: nn.GRU(8, 4, batch_first=True)),
    "rnn": _layer(lambda: nn.RNN(8, 4, nonlinearity="relu")),
    "lstm_cell": lambda x: _cell(x[:, 0]),
    "attention_layer": lambda x: _mha(x, x, x),
    "encoder_layer": _layer(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    ),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "attention_bias": lambda x: F.scaled_dot_product_attention(x, x, x, torch.eye(3) * 2),
    "cross_entropy": lambda x: F.cross_entropy(
        x.flatten(0, 1), torch.tensor([0, 7, 3, 3, 1, -100])
    ),
    "kl_div": lambda x: F.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="batchmean"),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy_with_logits(x, (x > 0).to(x.dtype)),
}
_cell: Any = _layer(lambda: nn.LSTMCell(8, 4))
_mha: Any = _layer(lambda: nn.MultiheadAttention(8, 2, batch_first=True))

SPACES: Final[dict[str, Function]] = {
    "conv3d": _layer(lambda: nn.Conv3d(2, 3, 2, padding=1)),
    "conv_transpose3d": _layer(lambda: nn.ConvTranspose3d(2, 3, 2, stride=2)),
    "max_pool3d": lambda x: F.max_pool3d(x, 2, 2, 1),
    "avg_pool3d": lambda x: F.avg_pool3d(x, 2, ceil_mode=True),
    "adaptive_pool3d": lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2)),
    "resize_trilinear": lambda x: F.interpolate(x, size=(3, 4, 7), mode="trilinear"),
    "grid_sample3d": lambda x: F.grid_sample(
        x, torch.linspace(-1.2, 1.2, 36, dtype=x.dtype).view(1, 2, 3, 2, 3), align_corners=False
    ),
    "pad3d": lambda x: F.pad(x, (1, 1, 2, 0, 1, 1), mode="replicate"),
}

FUNCTIONS: Final[dict[str, tuple[Function, Sequence[Shape]]]] = {
    **{name: (function, X) for name, function in ELEMENTWISE.items()},
    **{f"{name}_of_two": (function, XY) for name, function in BINARY.items()},
    **{name: (function, X) for name, function in REDUCTIONS.items()},
    **{name: (function, X) for name, function in LAYOUTS.items()},
    **{name: (function, X) for name, function in MUTATIONS.items()},
    **{name: (function, IMAGE) for name, function in IMAGES.items()},
    **{name: (function, LINE) for name, function in LINES.items()},
    **{name: (function, SPACE) for name, function in SPACES.items()},
}
"""Every function by name, with the shapes of its arguments."""


def plain(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return normal numbers."""
    return torch.randn(shape, generator=generator) * 2


def ties(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return few different numbers, zeros of both signs among them."""
    numbers = torch.tensor([-1.5, -1.0, -0.0, 0.0, 0.5, 1.0, 2.5])
    return numbers[torch.randint(len(numbers), shape, generator=generator)]


def _some(shape: Shape, generator: torch.Generator, *values: float) -> torch.Tensor:
    made = plain(shape, generator)
    for value in values:
        made[torch.rand(shape, generator=generator) < 0.5 / len(values) / 2] = value
    return made


def nans(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return numbers, and NaN."""
    return _some(shape, generator, math.nan)


def infinities(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return numbers, and infinities of both signs."""
    return _some(shape, generator, math.inf, -math.inf)


def extremes(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return numbers, NaN, infinities, zeros, some that are tiny and some that are large."""
    values = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-30, -1e-30, 3e4, -3e4)
    return _some(shape, generator, *values)


def strided(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return numbers with the axes in another order in memory, and gaps between them."""
    wide = plain((*shape[::-1], 2), generator)[..., 0]
    return wide.permute(*range(len(shape))[::-1])


def expanded(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return numbers that repeat along the first axis, in the same memory."""
    return plain((1, *shape[1:]), generator).expand(shape)


def empty(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return nothing: the first axis has the size 0."""
    return plain((0, *shape[1:]), generator)


def empty_last(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return nothing: the last axis has the size 0."""
    return plain((*shape[:-1], 0), generator)


def _of(dtype: torch.dtype) -> Callable[[Shape, torch.Generator], torch.Tensor]:
    def made(shape: Shape, generator: torch.Generator) -> torch.Tensor:
        found = plain(shape, generator) * 2
        return (found.abs() if dtype is torch.uint8 else found).to(dtype)

    return made


KINDS: Final[dict[str, Callable[[Shape, torch.Generator], torch.Tensor]]] = {
    "plain": plain,
    "ties": ties,
    "nans": nans,
    "infinities": infinities,
    "extremes": extremes,
    "strided": strided,
    "expanded": expanded,
    "empty": empty,
    "empty_last": empty_last,
    "f64": _of(torch.float64),
    "bf16": _of(torch.bfloat16),
    "f16": _of(torch.float16),
    "i64": _of(torch.int64),
    "i32": _of(torch.int32),
    "u8": _of(torch.uint8),
    "i1": _of(torch.bool),
}
"""What the arguments hold, by name."""

"""Uses of rotary embeddings: frequencies, tables, and the rotation itself."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import math

import numpy as np

from gptrs import functionals as F
from gptrs.ir import dtypes
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal

DEPTH, LONG, SHORT = 8, 64, 16


def unscaled(theta: float = 10000.0) -> np.ndarray:
    """theta^(-2i / DEPTH)."""
    return theta ** (-np.arange(0, DEPTH, 2) / DEPTH)


def _llama3() -> np.ndarray:
    """The formula of Llama 3.1 with factor 8, 1 and 4, one frequency at a time."""
    frequencies: list[float] = []
    for frequency in unscaled():
        turns = LONG * frequency / (2 * math.pi)
        share = min(max((turns - 1) / 3, 0), 1)
        frequencies.append(frequency * (share + (1 - share) / 8))
    return np.array(frequencies)


def _yarn() -> np.ndarray:
    """The formula of YaRN with factor 4, the ramp not widened."""
    low, high = (
        DEPTH * math.log(LONG / (turns * 2 * math.pi)) / (2 * math.log(10000)) for turns in (4, 1)
    )
    share = np.clip((np.arange(DEPTH // 2) - max(low, 0)) / (high - max(low, 0)), 0, 1)
    return unscaled() * (1 - share + share / 4)


def turned(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    """x [B, H, T, D] as complex numbers times cos + i sin [T, R / 2] or [B, T, R / 2]."""
    half = cos.shape[-1]
    pairs = x[..., : 2 * half].reshape(*x.shape[:3], *((half, 2) if interleaved else (2, half)))
    a, b = np.moveaxis(pairs, -1 if interleaved else -2, 0)
    table = cos + 1j * sin
    z = (a + 1j * b) * (table[:, None] if table.ndim == 3 else table)
    flat = np.stack([z.real, z.imag], -1 if interleaved else -2).reshape(*x.shape[:3], 2 * half)
    return np.concatenate([flat, x[..., 2 * half :]], -1)


def _tables(positions: np.ndarray, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    angles = positions[..., None] * unscaled()
    return factor * np.cos(angles), factor * np.sin(angles)


def _torch_halves(torch, x, cos, sin):  # pyright: ignore
    """Rotate halves as transformers does, with tables of all of `head_dim`."""
    cos, sin = (torch.cat([table, table], -1) for table in (cos, sin))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def _torch_pairs(torch, x, cos, sin):  # pyright: ignore
    """Rotate pairs as GPT-J does."""
    cos, sin = (torch.repeat_interleave(table, 2, -1) for table in (cos, sin))
    swapped = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
    return x * cos + swapped * sin


X = normal(1, 2, 3, 5, DEPTH)
AT = np.arange(5) + 7
ANGLES = AT[:, None] * unscaled()
WHOLE = tuple(np.asarray(table, np.float32) for table in (np.cos(ANGLES), np.sin(ANGLES)))
PART = tuple(table[:, :3] for table in WHOLE)
EACH = tuple(np.stack([table, table[::-1]]) for table in WHOLE)
YARN = F.YarnScaling(4.0, LONG, beta_fast=4.0, truncate=False)
LLAMA3 = F.Llama3Scaling(8.0, 1.0, 4.0, LONG)
DYNAMIC = F.DynamicScaling(2.0, SHORT)
GROWN = unscaled(10000.0 * (2 * 40 / SHORT - 1) ** (DEPTH / (DEPTH - 2)))

USES = (
    Use("rotary_frequencies", (), lambda: F.rotary_frequencies(DEPTH, 500.0),
        lambda: unscaled(500.0)),
    Use("rotary_frequencies", (), lambda: F.rotary_frequencies(DEPTH, scaling=F.LinearScaling(4.0)),
        lambda: unscaled() / 4, "linear"),
    Use("rotary_frequencies", (),
        lambda: F.rotary_frequencies(DEPTH, scaling=DYNAMIC, length=40), lambda: GROWN, "dynamic"),
    Use("rotary_frequencies", (np.array(40),),
        lambda length: F.rotary_frequencies(DEPTH, scaling=DYNAMIC, length=length),
        lambda length: GROWN, "dynamic, length of a tensor"),
    Use("rotary_frequencies", (np.array([40, 3], np.int32),),
        lambda lengths: F.rotary_frequencies(DEPTH, scaling=DYNAMIC, length=lengths),
        lambda lengths: np.stack([GROWN, unscaled()]), "dynamic, a length for each row"),
    Use("rotary_frequencies", (), lambda: F.rotary_frequencies(DEPTH, scaling=YARN), _yarn, "yarn"),
    Use("rotary_frequencies", (), lambda: F.rotary_frequencies(DEPTH, scaling=LLAMA3), _llama3,
        "llama3"),
    Use("rotary_tables", (AT,), lambda at: F.rotary_tables(at, DEPTH), _tables),
    Use("rotary_tables", (AT.reshape(1, 5),), lambda at: F.rotary_tables(at, DEPTH, scaling=YARN),
        lambda at: tuple(
            (0.1 * math.log(4) + 1) * f(at[..., None] * _yarn()) for f in (np.cos, np.sin)),
        "yarn"),
    Use("rotary_tables", (AT, np.array([40, 3, 3, 40, 3])),
        lambda at, lengths: F.rotary_tables(at, DEPTH, scaling=DYNAMIC, length=lengths),
        lambda at, lengths: tuple(
            f(at[:, None] * np.where(lengths[:, None] == 40, GROWN, unscaled()))
            for f in (np.cos, np.sin)),
        "a length for each row"),
    Use("rotary", (X, *WHOLE), F.rotary, lambda x, c, s: turned(x, c, s, False),
        torch=_torch_halves),
    Use("rotary", (X, *WHOLE), lambda x, c, s: F.rotary(x, c, s, interleaved=True),
        lambda x, c, s: turned(x, c, s, True), "interleaved", torch=_torch_pairs),
    Use("rotary", (X, *PART), F.rotary, lambda x, c, s: turned(x, c, s, False), "partial"),
    Use("rotary", (X, *PART), lambda x, c, s: F.rotary(x, c, s, interleaved=True),
        lambda x, c, s: turned(x, c, s, True), "partial, interleaved"),
    Use("rotary", (X, *EACH), F.rotary, lambda x, c, s: turned(x, c, s, False),
        "positions of each sequence"),
    Use("rotary", (np.swapaxes(X, 1, 2), *EACH), lambda x, c, s: F.rotary(x, c, s, heads_axis=2),
        lambda x, c, s: np.swapaxes(turned(np.swapaxes(x, 1, 2), c, s, False), 1, 2),
        "heads after positions"),
    Use("rotary", (X, AT), lambda x, at: F.rotary(x, *F.rotary_tables(at, DEPTH, dtype=dtypes.f32)),
        lambda x, at: turned(x, *_tables(at), False), "tables of f32"),
)  # fmt: skip

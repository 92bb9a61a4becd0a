"""Calls of the attention kernels, what they should give in f64, and how they are run."""

from __future__ import annotations

import numpy as np

from gptrs.backend.contract import InputRole
from gptrs.ir import dtypes, parse_program
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.run.executable import NumbaExecutable

TOLERANCE = {"f32": 3e-6, "f16": 2e-3, "bf16": 1.5e-2}
"""For results of a few units, rounded once."""


def compiled(
    arrays: list[np.ndarray], dtype: str, attrs: str, threads: int = 1, transposed: bool = False
) -> NumbaExecutable:
    """A call of the kernel; with `transposed`, the first three come as [B, T, H, D]."""
    types = [
        f"{'i1' if a.dtype == bool else 'si64' if a.dtype == np.int64 else dtype}{list(a.shape)}"
        for a in arrays
    ]
    params = ", ".join(f"%x{place}: {type_}" for place, type_ in enumerate(types))
    operands = [f"%x{place}" for place in range(len(arrays))]
    lines: list[str] = []
    shapes = [list(a.shape) for a in arrays[:3]]
    if transposed:
        for place, shape in enumerate(shapes):
            shape[1], shape[2] = shape[2], shape[1]
            lines.append(
                f"  %{place} = transpose %x{place} {{permutation = [0, 2, 1, 3]}} : {dtype}{shape}"
            )
            operands[place] = f"%{place}"
    result = f"{dtype}{[*shapes[0][:3], shapes[2][3]]}"
    lines.append(
        f"  %9 = custom_call {', '.join(operands)}"
        f' {{target = "gptrs.numba.attention.{dtype}.v1", results = [{result}],'
        f" attrs = {{{attrs}}}}} : {result}"
    )
    body = "\n".join(lines)
    text = f"ptir.v0.5\nfunc @main({params}) -> {result} {{\n{body}\n  return %9\n}}\n"
    return create(threads).compile(parse_program(text), [InputRole.ARGUMENT] * len(arrays))


def attend(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    dtype: str = "f32",
    scale: float = 0.3,
    causal: bool = False,
    mask: np.ndarray | None = None,
    offset: int | None = None,
    threads: int = 1,
    transposed: bool = False,
    guard: str = "blind",
) -> np.ndarray:
    arrays = [query, key, value]
    arrays += [] if mask is None else [mask]
    arrays += [] if offset is None else [np.array(offset, np.int64)]
    flags = {"causal": causal, "mask": mask is not None, "offset": offset is not None}
    words = [f"{name} = {str(flag).lower()}" for name, flag in flags.items()]
    attrs = ", ".join([*words, f"scale = {scale!r}", f'guard = "{guard}"'])
    executable = compiled(arrays, dtype, attrs, threads, transposed)
    return np.asarray(executable.run(arrays)[0])


def wanted(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    scale: float = 0.3,
    causal: bool = False,
    mask: np.ndarray | None = None,
    offset: int | None = None,
    guard: str = "blind",
) -> np.ndarray:
    query, key, value = (x.astype(np.float64) for x in (query, key, value))
    key, value = (np.repeat(x, query.shape[1] // x.shape[1], axis=1) for x in (key, value))
    scores = np.einsum("bhtd,bhsd->bhts", query, key) * scale
    length, keys = scores.shape[2:]
    seen = np.ones(scores.shape, bool)
    if causal:
        ahead = keys - length if offset is None else offset
        seen &= np.arange(keys) <= ahead + np.arange(length)[:, None]
    if mask is not None:
        seen &= mask
    scores = np.where(seen, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = powers / powers.sum(axis=-1, keepdims=True)
    if guard == "blind":
        weights[(scores == -np.inf).all(axis=-1)] = 0
    return np.einsum("bhts,bhse->bhte", weights, value)


def operands(
    random: np.random.Generator, shape: tuple[int, int, int, int, int, int, int], dtype: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    batch, n_kv_heads, group, length, keys, head_dim, value_dim = shape
    shapes = (
        (batch, n_kv_heads * group, length, head_dim),
        (batch, n_kv_heads, keys, head_dim),
        (batch, n_kv_heads, keys, value_dim),
    )
    type_ = getattr(dtypes, dtype).numpy
    query, key, value = (random.standard_normal(s).astype(np.float32).astype(type_) for s in shapes)
    return query, key, value


def require_close(found: np.ndarray, want: np.ndarray, dtype: str = "f32") -> None:
    bound = TOLERANCE[dtype]
    np.testing.assert_allclose(found.astype(np.float64), want, atol=bound, rtol=bound)

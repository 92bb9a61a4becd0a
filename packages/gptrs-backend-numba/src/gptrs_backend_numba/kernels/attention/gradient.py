"""The kernel of the derivative of attention, whose products are of bf16, in AMX or `vdpbf16ps`.

A task computes a matrix: the keys and values of one head, and all queries that share them. It goes
through blocks of queries. Scores and the derivatives of probabilities of a panel, a row for each
key, are products of keys and values with queries and cotangents; they become probabilities and
derivatives of scores, whose products are the three results. Both sides of all products are rounded
to bf16, sums, exponentials and all else are f32.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gptrs_backend_numba.codegen.inlining import intrinsic, types
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import keep_alive, pointer
from gptrs_backend_numba.codegen.vector_ir import WIDTH, ZERO, VectorEmitter, splat
from gptrs_backend_numba.kernels.attention.attention_ir import (
    hide_from_panel,
    load_row,
    softmax_panel,
    store_row,
)
from gptrs_backend_numba.kernels.attention.geometry import (
    CAUSAL,
    DEFAULT_OFFSET,
    GROUP,
    HEAD_DIM,
    KB,
    KH,
    KS,
    KV_HEADS,
    MASK,
    MB,
    MH,
    MT,
    QB,
    QH,
    QT,
    SCALE,
    TASKS,
    VALUE,
    VALUE_DIM,
    VB,
    VH,
    VS,
    S,
    T,
    visible_keys,
)
from gptrs_backend_numba.kernels.matmul.bf16 import TileForm
from gptrs_backend_numba.kernels.matmul.bf16_ir import (
    STEP,
    STEP_BYTES,
    pair_columns,
    pair_rows,
    round_columns,
    round_step,
    store_rounded,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

COTANGENT = MASK
"""The field with the address of the cotangent of the result; its strides stand for a mask's."""
PANELS = 4
"""Panels of queries in a block: their products with keys are summed in registers."""
_ROW = 4 * PANEL
"""Bytes of a row of a panel, of f32."""
_SQUARE = STEP * _ROW
_LEFT_ROW = 2 * STEP
"""Bytes of a row of a left side: of a key, a value, or the queries of a panel."""


class Sizes(NamedTuple):
    """The sizes of a matrix, and its numbers in steps of `STEP`."""

    keys: int
    steps: int
    value_steps: int


class Memory(NamedTuple):
    """Addresses in the memory of a task."""

    zeros: int
    state: int
    """Rows of a panel: the keys that queries see, maxima, totals, factors."""
    keys: int
    """Rows of a left side."""
    values: int
    """Rows of a left side."""
    pairs: int
    """Keys, as a right side whose pairs are keys."""
    queries: int
    """Queries of a block, as a right side whose pairs are their numbers."""
    query_pairs: int
    """Queries of a block, as a right side whose pairs are queries."""
    cotangents: int
    cotangent_pairs: int
    scores: int
    """A row of a panel for each key."""
    slopes: int
    """Derivatives of the probabilities, then of the scores."""
    probabilities: int
    """Rows of a left side: the queries of a block for each key."""
    left_slopes: int
    """The same of the derivatives of scores."""
    by_query: int
    """Rows of a left side: the derivatives of the scores of all keys for each query of a panel."""
    tile: int
    by_keys: int
    """Sums of the derivatives of keys."""
    by_values: int
    end: int


@kernel_part
def memory_at(start, sizes):
    """Return where all is; all addresses are those of cache lines."""
    rows = _LEFT_ROW * sizes.keys
    zeros = (start + 63) // 64 * 64
    state = zeros + _ROW
    keys = state + 4 * _ROW
    values = keys + rows * sizes.steps
    pairs = values + rows * sizes.value_steps
    queries = pairs + rows * sizes.steps
    query_pairs = queries + PANELS * sizes.steps * STEP_BYTES
    cotangents = query_pairs + PANELS * sizes.steps * STEP_BYTES
    cotangent_pairs = cotangents + PANELS * sizes.value_steps * STEP_BYTES
    scores = cotangent_pairs + PANELS * sizes.value_steps * STEP_BYTES
    slopes = scores + _ROW * sizes.keys
    probabilities = slopes + _ROW * sizes.keys
    left_slopes = probabilities + PANELS * rows
    by_query = left_slopes + PANELS * rows
    tile = by_query + rows
    by_keys = tile + _ROW * PANEL
    by_values = by_keys + sizes.steps * sizes.keys * _ROW
    end = by_values + sizes.value_steps * sizes.keys * _ROW
    return Memory(
        zeros, state, keys, values, pairs, queries, query_pairs, cotangents, cotangent_pairs,
        scores, slopes, probabilities, left_slopes, by_query, tile, by_keys, by_values, end,
    )  # fmt: skip


@kernel_part
def round_rows(source, row_step, rows, steps, target, *, HEIGHT, round_step):
    """Round rows, `row_step` bytes apart, to tiles of a left side."""
    for i in range(rows):
        tile, row = i // HEIGHT, i % HEIGHT
        for step in range(steps):
            at = (tile * steps + step) * HEIGHT + row
            round_step(source + i * row_step + 4 * STEP * step, target + at * _LEFT_ROW)


@kernel_part
def pair_both(source, row_step, panels, steps, whole, across, *, pair_rows, pair_columns):
    """Round panels of rows to right sides: with pairs of their numbers, and of rows."""
    for panel in range(panels):
        rows = source + panel * PANEL * row_step
        for step in range(steps):
            numbers = rows + 4 * STEP * step
            target = whole + (panel * steps + step) * STEP_BYTES
            for j in range(0, PANEL, WIDTH):
                pair_columns(numbers + j * row_step, row_step, target + 4 * j)
            pair_rows(numbers, row_step, across + (step * panels + panel) * STEP_BYTES)


@kernel_part
def score(left, right, steps, end, memory, target, *, HEIGHT, multiply):
    """Multiply `end` keys or values with a panel, a row of sums each."""
    for first in range(0, end, HEIGHT):
        multiply(HEIGHT, left + first * steps * _LEFT_ROW, right, steps, memory.zeros, 0,
                 target + first * _ROW, right, 0)  # fmt: skip


@kernel_part
def weigh(G, sizes, memory, token, panel, panels, end, most, scale, *, HEIGHT):
    """Turn the scores of a panel into probabilities, and their derivatives into those of scores.

    Both become rows of left sides, up to `most` keys: zeros from `end` on.
    """
    L, F = pointer(memory.state, np.int32), pointer(memory.state, np.float32)
    W, n_keys = pointer(memory.scores, np.float32), sizes.keys
    unused = pointer(memory.state, np.int64)
    for i in range(PANEL):
        L[i] = visible_keys(G[CAUSAL], 0, G[DEFAULT_OFFSET], unused, token + i, n_keys)
        F[PANEL + i], F[2 * PANEL + i] = -np.float32(np.inf), np.float32(0.0)
    for i in range(end * PANEL):
        W[i] = W[i] * scale
    least = np.int64(L[0]) // PANEL * PANEL  # the first query sees the fewest keys
    if least < end:
        hide_from_panel(memory.scores + least * _ROW, end - least, memory.state, least)
    totals = memory.state + 2 * _ROW
    softmax_panel(memory.scores, end, memory.state + _ROW, totals, totals + _ROW)
    sum_products(memory.scores, memory.slopes, end, totals + _ROW)
    for first in range(0, most, HEIGHT):
        at = (first * panels + panel * HEIGHT) * _LEFT_ROW
        if first < end:
            derive_scores(memory.scores + first * _ROW, memory.slopes + first * _ROW, HEIGHT,
                          totals, scale, memory.probabilities + at,
                          memory.left_slopes + at)  # fmt: skip
        else:
            X = pointer(memory.probabilities + at, np.int64)
            Y = pointer(memory.left_slopes + at, np.int64)
            for i in range(HEIGHT * _LEFT_ROW // 8):
                X[i], Y[i] = 0, 0


@kernel_part
def derive_queries(sizes, memory, end, out, out_step, *, HEIGHT, TOGETHER, round_columns, multiply):
    """Write the derivatives of the queries of a panel: of their scores, times keys."""
    steps = end // STEP
    for step in range(steps):
        for i in range(0, PANEL, TOGETHER):
            at = (i // HEIGHT * steps + step) * HEIGHT + i % HEIGHT
            round_columns(memory.slopes + step * _SQUARE + 4 * i, _ROW, TOGETHER, STEP,
                          memory.by_query + at * _LEFT_ROW, TOGETHER)  # fmt: skip
    for first in range(0, PANEL, HEIGHT):
        for part in range(sizes.steps):
            right = memory.pairs + part * (sizes.keys // STEP) * STEP_BYTES
            multiply(HEIGHT, memory.by_query + first * steps * _LEFT_ROW, right, steps,
                     memory.zeros, 0, memory.tile, right, 0)  # fmt: skip
            copy_rows(memory.tile, HEIGHT, out + first * out_step + 4 * PANEL * part, out_step)


@kernel_part
def add_to_keys(left, right, panels, steps, most, keys, sums, *, HEIGHT, multiply):
    """Add the products of a block of queries to the sums of `most` keys or values."""
    for first in range(0, most, HEIGHT):
        for part in range(steps):
            total = sums + (part * keys + first) * _ROW
            multiply(HEIGHT, left + first * panels * _LEFT_ROW, right + part * panels * STEP_BYTES,
                     panels, total, _ROW, total, right, 0)  # fmt: skip


@kernel_part
def block_of_queries(
    G, sizes, memory, query, cotangent, out, first, panels, scale,
    *, pair_both, score, weigh, derive_queries, add_to_keys,
):  # fmt: skip
    """Derive the queries of a block, and add to the derivatives of keys and values."""
    offset, n_keys = G[DEFAULT_OFFSET], sizes.keys
    q_step, c_step, out_step = 4 * G[QT], 4 * G[MT], 4 * STEP * sizes.steps
    out_step = out_step * G[KV_HEADS] * G[GROUP]
    pair_both(query + first * q_step, q_step, panels, sizes.steps, memory.queries,
              memory.query_pairs)  # fmt: skip
    pair_both(cotangent + first * c_step, c_step, panels, sizes.value_steps, memory.cotangents,
              memory.cotangent_pairs)  # fmt: skip
    most = n_keys
    if G[CAUSAL]:
        seen = min(max(offset + first + panels * PANEL, np.int64(0)), n_keys)
        most = (seen + PANEL - 1) // PANEL * PANEL
    for panel in range(panels):
        token, end = first + panel * PANEL, most
        if G[CAUSAL]:
            seen = min(max(offset + token + PANEL, np.int64(0)), n_keys)
            end = (seen + PANEL - 1) // PANEL * PANEL
        right = memory.queries + panel * sizes.steps * STEP_BYTES
        score(memory.keys, right, sizes.steps, end, memory, memory.scores)
        right = memory.cotangents + panel * sizes.value_steps * STEP_BYTES
        score(memory.values, right, sizes.value_steps, end, memory, memory.slopes)
        weigh(G, sizes, memory, token, panel, panels, end, most, scale)
        derive_queries(sizes, memory, end, out + token * out_step, out_step)
    add_to_keys(memory.probabilities, memory.cotangent_pairs, panels, sizes.value_steps, most,
                n_keys, memory.by_values)  # fmt: skip
    add_to_keys(memory.left_slopes, memory.query_pairs, panels, sizes.steps, most, n_keys,
                memory.by_keys)  # fmt: skip


@kernel
def attention_gradient_task(
    query, key, out, geometry, task,
    *, begin_product, end_product, round_rows, pair_rows, block_of_queries,
):  # fmt: skip
    """Compute the derivatives of one matrix; see `attention.geometry` for the operands.

    The results lie one after another, contiguous: those of queries [B, T, H, D], of keys
    [B, S, K, D] and of values [B, S, K, E].
    """
    G = pointer(geometry, np.int64)
    sizes = Sizes(G[S], G[HEAD_DIM] // STEP, G[VALUE_DIM] // STEP)
    n_keys, n_queries, heads, group = G[S], G[T], G[KV_HEADS], G[GROUP]
    scale = pointer(geometry + 8 * SCALE, np.float32)[0]
    batch, head = task // heads, task % heads
    needed = memory_at(np.int64(0), sizes)
    held = np.zeros(needed.end // 4 + 16, np.float32)
    memory = memory_at(np.int64(held.ctypes.data), sizes)
    keys = key + 4 * (batch * G[KB] + head * G[KH])
    values = G[VALUE] + 4 * (batch * G[VB] + head * G[VH])
    round_rows(keys, 4 * G[KS], n_keys, sizes.steps, memory.keys)
    round_rows(values, 4 * G[VS], n_keys, sizes.value_steps, memory.values)
    for part in range(sizes.steps):
        for step in range(n_keys // STEP):
            target = memory.pairs + (part * (n_keys // STEP) + step) * STEP_BYTES
            pair_rows(keys + 4 * (step * STEP * G[KS] + part * PANEL), 4 * G[KS], target)
    begin_product()
    width, value_width = 4 * STEP * sizes.steps, 4 * STEP * sizes.value_steps
    for member in range(group):
        at = head * group + member
        own = out + (batch * n_queries * heads * group + at) * width
        for first in range(0, n_queries, PANELS * PANEL):
            panels = min(np.int64(PANELS), (n_queries - first) // PANEL)
            block_of_queries(G, sizes, memory, query + 4 * (batch * G[QB] + at * G[QH]),
                             G[COTANGENT] + 4 * (batch * G[MB] + at * G[MH]), own, first, panels,
                             scale)  # fmt: skip
    end_product()
    by_keys = out + G[TASKS] * n_queries * group * width
    by_values = by_keys + G[TASKS] * n_keys * width
    by_keys += (batch * n_keys * heads + head) * width
    by_values += (batch * n_keys * heads + head) * value_width
    for part in range(sizes.steps):
        copy_rows(memory.by_keys + part * n_keys * _ROW, n_keys, by_keys + part * _ROW,
                  heads * width)  # fmt: skip
    for part in range(sizes.value_steps):
        copy_rows(memory.by_values + part * n_keys * _ROW, n_keys, by_values + part * _ROW,
                  heads * value_width)  # fmt: skip
    keep_alive(held)
    return 0


@intrinsic
def copy_rows(typing_context, source, rows, target, step):
    """Copy `rows` rows of a panel to rows that are `step` bytes apart."""

    def generate(context, builder, signature, arguments):
        source, rows, target, step = arguments
        emit = VectorEmitter(builder)

        def body(_, state):
            source, target = state
            store_row(emit, load_row(emit, source), target)
            return [emit.moved(source, _ROW), emit.moved(target, (step, 1))]

        emit.loop(rows, 1, [emit.pointer(source), emit.pointer(target)], body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic
def sum_products(typing_context, one, other, rows, sums):
    """Store the sums of the products of two panels of `rows` rows, of each column."""

    def generate(context, builder, signature, arguments):
        emit = VectorEmitter(builder)
        one, other, sums = (emit.pointer(arguments[at]) for at in (0, 1, 3))

        def body(_, state):
            one, other, *sums = state
            pairs = zip(load_row(emit, one), load_row(emit, other), sums, strict=True)
            return [
                *(emit.moved(each, _ROW) for each in (one, other)),
                *(emit.multiply_add(*pair) for pair in pairs),
            ]

        found = emit.loop(arguments[2], 1, [one, other, *[ZERO] * (PANEL // WIDTH)], body)
        store_row(emit, found[2:], sums)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic
def derive_scores(typing_context, powers, slopes, rows, totals, scale, probabilities, left_slopes):
    """Derive `rows` rows of scores of a panel, for those of probabilities, at `slopes`.

    `powers` are exponentials of scores; `totals` has their sums, and behind them those of their
    products with slopes. Probabilities and derivatives are stored as bf16, too, rows of 64 bytes. A
    query that sees no key has the total 0, and derivatives of 0.
    """

    def generate(context, builder, signature, arguments):
        emit = VectorEmitter(builder)
        b, rows, scale = builder, arguments[2], emit.splat(arguments[4])
        starts = [emit.pointer(arguments[at]) for at in (0, 1, 5, 6)]
        totals = emit.pointer(arguments[3])
        shares = [
            b.select(b.fcmp_ordered("==", total, ZERO), ZERO, b.fdiv(splat(1.0), total))
            for total in load_row(emit, totals)
        ]
        products = load_row(emit, emit.moved(totals, _ROW))
        means = [b.fmul(*pair) for pair in zip(products, shares, strict=True)]

        def body(_, state):
            powers, slopes, *targets = state
            found = []
            pairs = zip(load_row(emit, powers), load_row(emit, slopes), shares, means, strict=True)
            for at, (power, slope, share, mean) in enumerate(pairs):
                p = b.fmul(power, share)
                derived = b.fmul(b.fmul(p, b.fsub(slope, mean)), scale)
                found.append(derived)
                for value, target in zip((p, derived), targets, strict=True):
                    store_rounded(emit, value, emit.moved(target, 2 * WIDTH * at), 2)
            store_row(emit, found, slopes)
            return [
                *(emit.moved(each, _ROW) for each in (powers, slopes)),
                *(emit.moved(each, _LEFT_ROW) for each in targets),
            ]

        emit.loop(rows, 1, starts, body)
        return context.get_dummy_value()

    signature = [types.int64] * 4 + [types.float32] + [types.int64] * 2
    return types.void(*signature), generate


def attention_gradient(form: TileForm) -> SpecializedKernel:
    """Return the tasks, whose tiles have `form.rows` rows, or as many of them as divide a panel."""
    height = form.rows if PANEL % form.rows == 0 else 8
    product = {"HEIGHT": height, "multiply": form.multiply}
    pairs = {"pair_rows": pair_rows("f32"), "pair_columns": pair_columns("f32")}
    return attention_gradient_task.specialize(
        begin_product=form.begin,
        end_product=form.end,
        pair_rows=pairs["pair_rows"],
        round_rows=round_rows.specialize(HEIGHT=height, round_step=round_step(2)),
        block_of_queries=block_of_queries.specialize(
            pair_both=pair_both.specialize(**pairs),
            score=score.specialize(**product),
            weigh=weigh.specialize(HEIGHT=height),
            derive_queries=derive_queries.specialize(
                **product, TOGETHER=min(height, WIDTH), round_columns=round_columns(2)
            ),
            add_to_keys=add_to_keys.specialize(**product),
        ),
    )

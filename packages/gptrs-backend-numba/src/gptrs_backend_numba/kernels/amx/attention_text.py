"""The texts that make up the source of the kernel of attention on the matrix unit, in order."""

from __future__ import annotations

MEMORY = """
    use_wide_vectors()
    matrix, runs, chunk = task // G[RUNS], G[RUNS], G[CHUNK]
    run = task - matrix * runs
    panels = (columns + PANEL - 1) // PANEL
    mine = (panels - run + runs - 1) // runs
    batch = matrix // G[HEADS]
    head = matrix - batch * G[HEADS]
    keys = key + {size} * (batch * G[KB] + head * G[KH])
    values = G[VALUE] + {size} * (batch * G[VB] + head * G[VH])
    steps, blocks = (depth + STEP - 1) // STEP, (width + AMX_ROWS - 1) // AMX_ROWS
    wide = max(steps * STEP, blocks * AMX_ROWS)
    query_bytes = (steps + STEPS - 1) // STEPS * RIGHT_BYTES
    sums_bytes = 4 * PANEL * AMX_ROWS * blocks
    chunk_steps = chunk // STEP
    held = np.empty(4096 + mine * query_bytes + RIGHT_BYTES + 2 * TILE_BYTES + 8 * PANEL * KEYS
                    + mine * sums_bytes + 12 * PANEL * (mine + 1) + 12 * PANEL + 8 * PANEL * wide
                    + chunk_steps * (steps + blocks) * LEFT_BYTES, np.uint8)
    bounds = np.zeros(2 * mine, np.int64)  # of each panel: how many keys some and all queries see
    queries = (held.ctypes.data + 4095) // 4096 * 4096
    # Queries that fill half of their block leave the other half of the cache's sets to weights.
    weights = queries + mine * query_bytes + (2 * TILE_BYTES if steps <= 2 else 0)
    scores = queries + mine * query_bytes + RIGHT_BYTES + 2 * TILE_BYTES
    others = scores + 4 * PANEL * KEYS
    all_sums = others + 4 * PANEL * KEYS
    # Of each panel: seen keys, largest scores, sums of weights. In front, those of no panel.
    states = all_sums + mine * sums_bytes + 12 * PANEL
    shifts = states + 12 * PANEL * mine
    factors, scales = shifts + 4 * PANEL, shifts + 8 * PANEL
    lines = scales + 4 * PANEL
    turned = lines + 4 * PANEL * wide
    key_parts = turned + 4 * PANEL * wide
    value_parts = key_parts + chunk_steps * steps * LEFT_BYTES
    X, S = pointer(lines, np.float32), pointer(scales, np.float32)
    for i in range(FLOATS):
        S[i] = np.float32(np.float64(scale) * LOG2_E)
    Q, O = {Q}, {O}
    # 16 queries at a time, if they are evenly apart: consecutive ones, or heads of one.
    even = {direct} and (group == 1 or group % 16 == 0)
    q_step, o_step = (G[QT], G[OT]) if group == 1 else (G[QH], G[OH])
    most_of_all = np.int64(0)
"""
"""The panels of a task, and where all is in memory of its own."""

QUERIES = """
    for p in range(mine):
        first = (run + p * runs) * PANEL
        L = pointer(states + 12 * PANEL * p, np.int32)
        state = pointer(states + 12 * PANEL * p, np.float32)
        most, least = np.int64(0), size
        whole = even and first + PANEL <= columns and depth % STEP == 0
        t, g = first // group, first % group
        place = batch * G[QB] + (head * group + g) * G[QH] + t * G[QT]
        row, row_step = (query + 4 * place, 4 * q_step) if whole else (lines, 4 * wide)
        if not whole:
            for i in range(PANEL * wide):
                X[i] = 0.0
        for i in range(PANEL):
            L[i] = size
            state[PANEL + i], state[2 * PANEL + i] = -INF, 0.0
            if first + i < columns:
                seen = seen_keys(G[CAUSAL], G[GIVEN], G[AHEAD], P, t, size)
                L[i] = seen
                most, least = max(most, seen), min(least, seen)
                if not whole:
                    place = batch * G[QB] + (head * group + g) * G[QH] + t * G[QT]
                    for d in range(depth):
                        X[i * wide + d] = {q}
            g += 1
            if g == group:
                t, g = t + 1, 0
        bounds[2 * p], bounds[2 * p + 1] = most, least
        most_of_all = max(most_of_all, most)
        for half in range(2):
            if whole and half == 1 and group > 1:
                c = first + 16
                row = query + 4 * (batch * G[QB] + (head * group + c % group) * G[QH]
                                   + c // group * G[QT])
            elif half == 1:
                row += 16 * row_step
            for step in range(steps):
                place = queries + p * query_bytes + step // STEPS * RIGHT_BYTES
                place += half * BLOCK_BYTES // 2 + step % STEPS * TILE_BYTES
                for d in range(2):
                    split_queries(row + 128 * step + 64 * d, row_step, scales, place + 512 * d)
        A = pointer(all_sums + p * sums_bytes, np.float32)
        for i in range(sums_bytes // 4):
            A[i] = 0.0
"""
"""Splits queries into parts, and finds out which keys they see."""

KEYS = """
    units = np.int64(1)
    for p in range(mine):
        units += (bounds[2 * p] + KEYS - 1) // KEYS
    configure_amx()
    for begin in range(0, most_of_all, chunk):
        end = min(begin + chunk, most_of_all)
        for first in range(begin, end, STEP):
            step, count = (first - begin) // STEP, min(STEP, end - first)
            whole = {direct} and count == STEP
            for i in range(wide):
                X[i] = 0.0
            for j in range(STEP):
                row = keys + {size} * (first + j) * G[KS]
                if not whole or depth % STEP != 0:
                    K = {K}
                    for d in range(depth):
                        X[d] = {k} if j < count else np.float32(0.0)
                    row = lines
                place = key_parts + step * steps * LEFT_BYTES
                split_keys(row, place + j // 16 * TILE_BYTES + j % 16 * 64, LEFT_BYTES, steps)
            for e in range(0, blocks * AMX_ROWS, 16):
                for half in range(2):
                    row = values + {size} * ((first + half) * G[VS] + e)
                    row_step = 8 * G[VS]
                    if not whole or e + 16 > width:
                        for i in range(16):
                            V = {V}
                            for d in range(16):
                                X[16 * i + d] = 0.0
                            if 2 * i + half < count:
                                for d in range(min(16, width - e)):
                                    X[16 * i + d] = {v}
                        row, row_step = lines, 64
                    transpose_16(row, row_step, turned + 64 * half, 128)
                place = value_parts + (e // AMX_ROWS * chunk_steps + step) * LEFT_BYTES
                split_values(turned, place + e % AMX_ROWS // 16 * TILE_BYTES, 64, 16)
"""
"""For each chunk: splits keys and values into parts."""

BLOCKS = """
        # What the thread will likely read next comes to the L2 cache meanwhile, if others need it.
        follower = min(task + G[THREADS], G[TASKS] - 1) // runs
        asked = size if begin > 0 or follower == matrix else 0
        share = (size + units - 1) // units
        next_batch = follower // G[HEADS]
        next_head = follower - next_batch * G[HEADS]
        next_keys = key + {size} * (next_batch * G[KB] + next_head * G[KH])
        next_values = G[VALUE] + {size} * (next_batch * G[VB] + next_head * G[VH])
        next_queries = query + {size} * (next_batch * G[QB] + next_head * group * G[QH])
        p, at, rows = np.int64(-1), begin, np.int64(0)
        while p < mine:
            # The block that follows this one: `more` keys from `to` on, for panel n.
            n, to, more = p, at + KEYS, np.int64(0)
            if p < 0 or to >= min(end, bounds[2 * p]):
                n, to = p + 1, begin
                while n < mine and bounds[2 * n] <= begin:
                    n += 1
            if n < mine:
                more = min(KEYS, (min(end, bounds[2 * n]) - to + STEP - 1) // STEP * STEP)
            state, new = states + 12 * PANEL * p, np.int64(0)
            if p >= 0:
                if at + rows > bounds[2 * p + 1]:
                    hide_from_panel(scores, rows, state, at)
                W = pointer(scores, np.float32)
                shown, first = min(rows, size - at), (run + p * runs) * PANEL
                if G[MASKED] and G[MH] == 0 and G[MT] == 0:  # the same keys for all queries
                    place = batch * G[MB] + at * G[MS]
                    for j in range(shown):
                        if HIDDEN[place + j * G[MS]] == 0:
                            for i in range(PANEL):
                                W[j * PANEL + i] = -INF
                elif G[MASKED]:
                    for i in range(min(PANEL, columns - first)):
                        t = (first + i) // group
                        place = batch * G[MB] + (head * group + first + i - t * group) * G[MH]
                        place += t * G[MT] + at * G[MS]
                        for j in range(shown):
                            if HIDDEN[place + j * G[MS]] == 0:
                                W[j * PANEL + i] = -INF
                new = raise_peaks(scores, rows // 2, state + 4 * PANEL, state + 8 * PANEL, shifts,
                                  factors)
            totals = state + 8 * PANEL
            some = min(share, size - asked)
            ask_for_rows(next_keys + {size} * asked * G[KS], {size} * G[KS], some, {size} * depth)
            for j in range(0, more, STEP):
                left = key_parts + (to + j - begin) // STEP * steps * LEFT_BYTES
                right, place = queries + n * query_bytes, others + 4 * PANEL * j
                old, target = scores + 4 * PANEL * j, weights + 32 * j
                if j < rows:
                    score_and_weigh(left, right, min(steps, STEPS), place, old, target, shifts,
                                    totals)
                    weigh_pairs(old + 8 * PANEL * WEIGHED, target + 64 * WEIGHED,
                                STEP // 2 - WEIGHED, shifts, totals)
                else:
                    score(left, right, min(steps, STEPS), place, old, target, shifts, totals)
                for step in range(STEPS, steps, STEPS):
                    multiply_block(left + step * LEFT_BYTES, right + step // STEPS * RIGHT_BYTES,
                                   place, min(STEPS, steps - step), place, 4 * PANEL)
            if rows > more:
                weigh_pairs(scores + 4 * PANEL * more, weights + 32 * more, (rows - more) // 2,
                            shifts, totals)
            ask_for_rows(next_values + {size} * asked * G[VS], {size} * G[VS], some,
                         {size} * width)
            place = all_sums + p * sums_bytes
            if new:
                scale_panel(place, blocks * AMX_ROWS, factors)
            for block in range(blocks if p >= 0 else 0):
                left = value_parts + (block * chunk_steps + (at - begin) // STEP) * LEFT_BYTES
                multiply_block(left, weights, place, rows // STEP, place, 4 * PANEL)
                place += 4 * PANEL * AMX_ROWS
            for g in range(group):
                ask_for_rows(next_queries + {size} * (g * G[QH] + asked * G[QT]), {size} * G[QT],
                             min(some, G[T] - asked), {size} * depth)
            asked += some
            scores, others = others, scores
            p, at, rows = n, to, more
"""
"""And goes through the blocks of keys of all panels."""

RESULTS = """
    release_amx()
    for p in range(mine):
        first = (run + p * runs) * PANEL
        sums, totals = all_sums + p * sums_bytes, states + 12 * PANEL * p + 8 * PANEL
        if not are_finite(sums, sums_bytes // 4):
            call_task(G[PLAIN], query, key, out, geometry, matrix * panels + run + p * runs)
            continue
        whole = even and first + PANEL <= columns and width % 16 == 0
        for half in range(2):
            row, row_step = lines + 64 * wide * half, 4 * wide
            if whole:
                t = (first + 16 * half) // group
                line = head * group + first + 16 * half - t * group
                row = out + 4 * (batch * G[OB] + t * G[OT] + line * G[OH])
                row_step = 4 * o_step
            for e in range(0, width, 16):
                take_means(sums + 4 * PANEL * e + 64 * half, 4 * PANEL, row + 4 * e, row_step,
                           totals + 64 * half)
        for i in range(0 if whole else min(PANEL, columns - first)):
            t = (first + i) // group
            place = batch * G[OB] + t * G[OT] + (head * group + first + i - t * group) * G[OH]
            for e in range(width):
                O[place + e] = {out}
    held[0], bounds[0] = 0, 0  # known to the loops by address only
    return 0
"""
"""Divides sums by the sums of weights, and stores them."""

"""Single nodes of ONNX Runtime's own operators: what its quantizers and optimizers write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from fuzzing.onnx_nodes import Drawn, Input, NodeKind

FLAVOURS: Final = ("plain", "ties")
"""NaN and infinities have no code, and large numbers no room in sums of products."""


def runtime_kinds() -> list[NodeKind]:
    """Return all kinds of ONNX Runtime's nodes that are tried."""
    parts = (
        *(_quantized_products, _quantized_elements, _quantized_windows, _quantized_recurrent),
        *(_blocks, _activations, _fused_products, _normalized, _attention, _cross_attention),
        *(_rotary, _grouped_attention, _decoder_attention, _states, _own_forms),
    )
    kinds = [kind for part in parts for kind in part()]
    return [replace(kind, domain="com.microsoft", flavours=FLAVOURS) for kind in kinds]


def _codes(dtype: str, *shape: int) -> Drawn:
    return Drawn(dtype, shape, wide=True)


def _scale(*values: float) -> np.ndarray:
    return np.array(values[0] if len(values) == 1 else values, np.float32)


def _zero(dtype: str, value: int = 3, count: int = 0) -> np.ndarray:
    return np.array(value, dtype) if not count else (np.arange(count) - 1 + value).astype(dtype)


ONE: Final = ("uint8", "int8")
COLUMNS: Final = _scale(0.011, 0.02, 0.0071)


def _quantized_products() -> Iterator[NodeKind]:
    for a, b in (("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")):
        left, right = _codes(a, 4, 5), _codes(b, 5, 3)
        for scale, zero in ((_scale(0.013), _zero(b)), (COLUMNS, _zero(b, 3, 3))):
            given = (left, right, _scale(0.021), scale, _zero(a), zero)
            yield NodeKind("MatMulIntegerToFloat", given, {})
            yield NodeKind("MatMulIntegerToFloat", (*given, (3,)), {})
        given = (_codes(a, 2, 4, 5), right, _scale(0.021), _scale(0.5), _zero(a))
        yield NodeKind("MatMulIntegerToFloat", given, {})
    for b in ONE:
        stored = _codes(b, 5, 3)
        for scale, zero in ((_scale(0.013), _zero(b)), (COLUMNS, _zero(b, 3, 3))):
            yield NodeKind("DynamicQuantizeMatMul", ((2, 4, 5), stored, scale, zero, (3,)), {})
        yield NodeKind("DynamicQuantizeMatMul", ((4, 5), stored, _scale(0.013)), {})
    ends: tuple[tuple[Input, ...], ...] = ((), (_scale(0.7), _zero("uint8", 110)))
    for end in ends:
        for b, scale, zero in (
            ("int8", COLUMNS, _zero("int8", 1, 3)),
            ("uint8", _scale(0.02), _zero("uint8")),
        ):
            for c in (None, Drawn("int32", (4, 3)), Drawn("int32", (3,))):
                for turned in (0, 1):
                    left = _codes("uint8", *((5, 4) if turned else (4, 5)))
                    right = _codes(b, *((3, 5) if turned else (5, 3)))
                    given = (left, _scale(0.03), _zero("uint8", 120), right, scale, zero, c, *end)
                    choices = {"transA": (turned,), "transB": (turned,), "alpha": (None, 0.5)}
                    yield NodeKind("QGemm", given, choices)


def _quantized_elements() -> Iterator[NodeKind]:
    for dtype in ONE:
        end = (_scale(0.021337), _zero(dtype, 17))
        given = (_scale(0.013172), _zero(dtype, 5))
        for shapes in (((3, 5), (3, 5)), ((3, 1), (5,)), ((2, 3, 5), (1,))):
            pair = [_codes(dtype, *shape) for shape in shapes]
            second = (pair[1], _scale(0.0093), _zero(dtype, 9))
            yield NodeKind("QLinearAdd", (pair[0], *given, *second, *end), {})
            yield NodeKind("QLinearMul", (pair[0], *given, *second, *end), {})
        x = _codes(dtype, 3, 5)
        yield NodeKind("QLinearSigmoid", (x, _scale(0.031), _zero(dtype, 40), *end), {})
        yield NodeKind("QLinearLeakyRelu", (x, *given, *end), {"alpha": (None, 0.3)})
        share = (_scale(1 / 256), _zero(dtype, 0 if dtype == "uint8" else -128))
        for opset, axis in ((13, -1), (13, 1), (11, 1)):
            choices = {"opset": (opset,), "axis": (axis,)}
            yield NodeKind("QLinearSoftmax", (_codes(dtype, 2, 4, 5), *given, *share), choices)
        second = (_codes(dtype, 2, 5), _scale(0.0093), _zero(dtype, 9))
        yield NodeKind("QLinearConcat", (*end, x, *given, *second), {"axis": (0,)})
        condition, y = Drawn("bool", (3, 1)), _codes(dtype, 5)
        where = (condition, x, *given, y, _scale(0.0093), _zero(dtype, 9), *end)
        yield NodeKind("QLinearWhere", where, {})
        yield NodeKind("DequantizeLinear", (x, *given), {})
        yield NodeKind("QuantizeLinear", ((3, 5), *end), {})


def _quantized_windows() -> Iterator[NodeKind]:
    for dtype in ONE:
        given, end = (_scale(0.013172), _zero(dtype, 5)), (_scale(0.0073117), _zero(dtype, 17))
        for last in (0, 1):
            x = _codes(dtype, *((1, 5, 6, 4) if last else (1, 4, 5, 6)))
            layout = {"channels_last": (last,)}
            windows: dict[str, Any] = {"kernel_shape": ([2, 3],), "strides": (None, [2, 1])}
            pads = {"pads": (None, [1, 0, 0, 2]), "count_include_pad": (None, 1)}
            yield NodeKind("QLinearAveragePool", (x, *given, *end), {**layout, **windows, **pads})
            yield NodeKind("QLinearGlobalAveragePool", (x, *given, *end), layout)
            weight = np.random.default_rng(0).integers(-9, 9, (2, 4, 2, 2)).astype("int8")
            own = (weight, _scale(0.011, 0.02), _zero("int8", 0))
            if dtype == "uint8":
                yield NodeKind("QLinearConv", (x, *given, *own, _scale(0.1), _zero(dtype)), layout)


def _quantized_recurrent() -> Iterator[NodeKind]:
    for ways, direction in ((1, "forward"), (1, "reverse"), (2, "bidirectional")):
        for stored, many in (("uint8", False), ("int8", False), ("int8", True)):
            weights = [_codes(stored, ways, size, 12) for size in (2, 3)]
            count = (ways, 12) if many else (ways,)
            scales = [
                np.linspace(0.01, 0.02, int(np.prod(count)), dtype=np.float32).reshape(count)
            ] * 2
            zeros = [np.full(count, 120 if stored == "uint8" else 0, stored)] * 2
            # The last states of rows that end early count in the range of the codes of other rows,
            # for ONNX Runtime as 0: so lengths are tried for one row alone.
            for rows, lengths in ((2, None), (1, np.array([3], np.int32))):
                start: tuple[Input, ...] = (None,) * 5
                if lengths is not None:
                    start = ((ways, 24), lengths, *[(ways, rows, 3)] * 2, (ways, 9))
                given = ((4, rows, 2), *weights, *start, scales[0], zeros[0], scales[1], zeros[1])
                choices: dict[str, Any] = {"hidden_size": (3,), "direction": (direction,)}
                if lengths is None:
                    choices["clip"] = (None, 0.5)
                yield NodeKind("DynamicQuantizeLSTM", given, choices, outputs=3)


def _blocks() -> Iterator[NodeKind]:
    rng = np.random.default_rng(0)

    def stored(*shape: int) -> np.ndarray:
        return rng.integers(0, 256, shape).astype(np.uint8)

    for bits in (2, 4, 8):
        size = {"K": (40,), "N": (3,), "bits": (bits,), "block_size": (16,)}
        codes = stored(3, 3, 16 * bits // 8)
        scales = rng.standard_normal((3, 3)).astype(np.float32)
        packed = stored(3, -(-3 * bits // 8))
        for zeros in (None, packed, *([scales + 5] if bits < 8 else [])):
            for bias in (None, (3,)):
                given = ((2, 4, 40), codes, scales, zeros, None, bias)
                yield NodeKind("MatMulNBits", given, size)
        order = rng.integers(0, 3, 40).astype(np.int32)
        # With an order, ONNX Runtime ignores packed zero points, and reads codes as of 4 bits.
        for zeros in (None, scales + 5) if bits == 4 else ():
            yield NodeKind("MatMulNBits", ((2, 40), codes, scales, zeros, order), size)
        table, many = stored(7, 32 * bits // 8), rng.standard_normal((7, 2)).astype(np.float32)
        for zeros in (None, stored(7, -(-2 * bits // 8))):
            given = (table, Drawn("int64", (2, 3), below=7), many, zeros)
            choices = {"bits": (bits,), "block_size": (16,)}
            yield NodeKind("GatherBlockQuantized", given, choices)
    for kind in (0, 1):
        size = {"K": (20,), "N": (3,), "block_size": (16,), "quant_type": (kind,)}
        largest = Drawn("float32", (4,), least=0)
        yield NodeKind("MatMulBnb4", ((2, 4, 20), stored(30), largest), size)


def _activations() -> Iterator[NodeKind]:
    yield NodeKind("Gelu", ((3, 5),), {})
    yield NodeKind("BiasGelu", ((2, 3, 5), (5,)), {})
    yield NodeKind("FastGelu", ((2, 3, 5),), {})
    yield NodeKind("FastGelu", ((2, 3, 5), (5,)), {})
    yield NodeKind("QuickGelu", ((3, 5),), {"alpha": (None, 1.0, 0.5)})


def _fused_products() -> Iterator[NodeKind]:
    turned = {"transA": (0, 1), "transB": (0, 1), "alpha": (None, 0.5)}
    yield NodeKind("FusedMatMul", ((2, 4, 4), (2, 4, 4)), turned)
    yield NodeKind("FusedMatMul", ((3, 1, 4, 4), (2, 4, 4)), turned)
    yield NodeKind("TransposeMatMul", ((4, 4), (4, 4)), turned)
    batches = {**turned, "transBatchA": (0, 1), "transBatchB": (0, 1)}
    yield NodeKind("FusedMatMul", ((4, 4, 4), (4, 4, 4)), batches)
    yield NodeKind("FusedMatMul", ((4,), (2, 4, 3)), {"transA": (0, 1)})
    names = ("Relu", "Sigmoid", "Tanh")
    settings = {"activation": names, "alpha": (1.0, 0.5), "beta": (1.0, 2.0)}
    yield NodeKind("FusedGemm", ((3, 4), (4, 2), (2,)), settings)
    plain = {"alpha": (2.0,), "beta": (0.0,), "transB": (1,)}
    choices = {"activation": ("LeakyRelu",), "activation_alpha": (0.2,)}
    yield NodeKind("FusedGemm", ((3, 4), (2, 4)), {**plain, **choices})
    moves: dict[str, Any] = {"pads": (None, [1, 0, 0, 2]), "strides": (None, [2, 1])}
    image, weight = (1, 4, 5, 6), Drawn("float32", (2, 4, 2, 2), weight=True)
    for name, settings in (
        ("Relu", None), ("Tanh", None), ("Sigmoid", None), ("LeakyRelu", [0.2]),
        ("Clip", [-0.5, 0.7]), ("HardSigmoid", [0.3, 0.4]),
    ):  # fmt: skip
        choices = {"activation": (name,), "activation_params": (settings,)}
        yield NodeKind("FusedConv", (image, weight, (2,)), {**moves, **choices})
    yield NodeKind("FusedConv", (image, weight, None, (1, 2, 4, 5)), {"activation": ("Relu",)})
    yield NodeKind("FusedConv", (image, weight, (2,), (1, 2, 4, 5)), {})


def _normalized() -> Iterator[NodeKind]:
    scale, more = Drawn("float32", (6,), least=0), {"epsilon": (None, 0.1)}
    for skip in ((2, 3, 6), (1, 3, 6), (3, 6)):
        given = ((2, 3, 6), skip, scale)
        yield NodeKind("SkipLayerNormalization", (*given, (6,)), more)
        yield NodeKind("SkipSimplifiedLayerNormalization", given, more)
    given = ((2, 3, 6), (2, 3, 6), scale)
    yield NodeKind("SkipLayerNormalization", (*given, None, (6,)), more)
    yield NodeKind("SkipSimplifiedLayerNormalization", (*given, (6,)), more)
    ids = np.array([[6, 0, 3, 3], [1, 2, 5, 4]], np.int32)
    tables: tuple[Input, ...] = ((7, 6), (5, 6))
    ends: tuple[Input, ...] = (scale, (6,))
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1]], np.int32)
    op = "EmbedLayerNormalization"
    yield NodeKind(op, (ids, None, *tables, None, *ends, mask), more, outputs=2)
    kinds = (ids, ids % 2, *tables, (2, 6), *ends)
    yield NodeKind(op, (*kinds, mask), more, outputs=3)
    places = np.array([[3, 2, 1, 0]] * 2, np.int32)
    yield NodeKind(op, (*kinds, None, places), more, outputs=3)


def _mask(*rows: int) -> np.ndarray:
    return np.array(rows, np.int32)


KEYS: Final = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], np.int32)
SQUARE: Final = np.tril(np.ones((2, 5, 5), np.int32))


def _attention() -> Iterator[NodeKind]:
    x, weight, bias = (2, 5, 6), (6, 24), (24,)
    ways: dict[str, Any] = {"num_heads": (2,), "unidirectional": (None, 1)}
    masks = (None, _mask(3, 5), _mask(3, 5, 0, 2), KEYS, SQUARE)
    for mask in masks:
        yield NodeKind("Attention", (x, weight, bias, mask), ways)
        codes = (_codes("uint8", *x), _codes("int8", *weight), bias, _scale(0.02), _scale(0.01))
        zeros = (_zero("uint8", 120), _zero("int8", 0))
        yield NodeKind("QAttention", (*codes, mask, *zeros), ways)
    settings = {**ways, "scale": (None, 0.7), "mask_filter_value": (None, -5.0)}
    yield NodeKind("Attention", (x, weight, None, KEYS, None, (1, 2, 5, 5)), settings)
    sizes = {**ways, "qkv_hidden_sizes": ([8, 8, 4],)}
    yield NodeKind("Attention", (x, (6, 20), (20,), KEYS), sizes)
    past = (2, 2, 2, 3, 4)
    longer = np.array([[0, 1, 1, 1, 1, 1, 1, 1]] * 2, np.int32)
    for mask in (None, longer):
        yield NodeKind("Attention", (x, weight, bias, mask, past), ways, outputs=2)
        many = (_codes("uint8", *x), _codes("int8", *weight), bias, _scale(0.02), _scale(0.01))
        zeros = (_zero("uint8", 120), _zero("int8", 0))
        yield NodeKind("QAttention", (*many, mask, *zeros, past), ways, outputs=2)


def _cross_attention() -> Iterator[NodeKind]:
    ways: dict[str, Any] = {"num_heads": (2,), "scale": (None, 0.7)}
    op = "MultiHeadAttention"
    for key, value, bias in (((2, 5, 8), (2, 5, 8), 24), ((2, 5, 8), (2, 5, 4), 20)):
        for mask in (None, _mask(3, 5), KEYS, np.ones((2, 3, 5), np.int32)):
            given = ((2, 3, 8), key, value, (bias,), mask)
            yield NodeKind(op, given, ways)
            yield NodeKind(op, (*given, (2, 2, 3, 5)), ways)
    same = ((2, 5, 8), (2, 5, 8), (2, 5, 8), None, KEYS, (1, 1, 5, 5))
    yield NodeKind(op, same, {**ways, "unidirectional": (None, 1)}, outputs=3)
    yield NodeKind(op, ((2, 3, 8), (2, 2, 5, 4), (2, 2, 5, 4), (24,)), ways)
    past: tuple[Input, ...] = ((2, 2, 3, 4), (2, 2, 3, 4))
    steps = ((2, 2, 8), (2, 2, 8), (2, 2, 8), (24,))
    longer = np.array([[0, 1, 1, 1, 1]] * 2, np.int32)
    for mask in (None, longer):
        choices = {**ways, "unidirectional": (None, 1)}
        yield NodeKind(op, (*steps, mask, None, *past), choices, outputs=3)


def _rotary() -> Iterator[NodeKind]:
    places = np.array([[0, 1, 2], [4, 3, 5]], np.int64)
    tables: tuple[Input, ...] = ((8, 4), (8, 4))
    ways: dict[str, Any] = {"interleaved": (None, 1)}
    for where in (places, np.array([3], np.int64)):
        yield NodeKind("RotaryEmbedding", ((2, 3, 16), where, *tables), ways)
        yield NodeKind("RotaryEmbedding", ((2, 2, 3, 8), where, *tables), ways)
        part = {**ways, "rotary_embedding_dim": (4,), "num_heads": (2,)}
        yield NodeKind("RotaryEmbedding", ((2, 3, 16), where, (8, 2), (8, 2)), part)

    turns = np.array([[[0, 1, 2], [4, 3, 5]], [[1, 1, 7], [4, 0, 2]], [[3, 2, 2], [6, 6, 1]]])
    shares = {"mrope_section": ([1, 2, 1], [2, 1, 1]), "mrope_layout": (None, 1), **ways}
    yield NodeKind("MRotaryEmbedding", ((2, 2, 3, 8), turns, *tables), shares)
    yield NodeKind("MRotaryEmbedding", ((2, 3, 16), turns, *tables), {**shares, "num_heads": (2,)})


def _states() -> Iterator[NodeKind]:
    for rule, rates in (("linear", 0), ("gated", 1), ("delta", 2), ("gated_delta", 3)):
        for asked, heads in ((4, 2), (2, 4)):
            ways = {"q_num_heads": (asked,), "kv_num_heads": (heads,), "update_rule": (rule,)}
            three: tuple[Input, ...] = ((2, 3, 4 * asked), (2, 3, 4 * heads), (2, 3, 5 * heads))
            decay, rate = (2, 3, heads) if rates & 1 else None, (2, 3, 1) if rates & 2 else None
            given = (*three, (2, heads, 4, 5), decay, rate)
            yield NodeKind("LinearAttention", given, {**ways, "scale": (None, 0.3)}, outputs=2)
    for last, x, past in ((None, (2, 3, 7), (2, 3, 6)), (1, (2, 7, 3), (2, 6, 3))):
        ways = {"dilation": (2,), "activation": (None, "silu"), "channels_last": (last,)}
        yield NodeKind("CausalConvWithState", (x, (3, 1, 4), (3,), past), ways, outputs=2)
        yield NodeKind("CausalConvWithState", (x, (3, 1, 4)), ways, outputs=2)


def _grouped_attention() -> Iterator[NodeKind]:
    heads: dict[str, Any] = {"num_heads": (4,), "kv_num_heads": (2,)}
    tables: tuple[Input, ...] = ((16, 8), (16, 8))
    turns = {**heads, "do_rotary": (1,), "rotary_interleaved": (None, 1)}
    # Of a prompt, of one step and of several: rows of several lengths in steps alone.
    for steps, held, ends in ((5, 0, (5, 5)), (1, 6, (5, 7)), (3, 6, (9, 9)), (1, 9, (4, 8))):
        batch = 1 if steps == 3 else 2
        split: tuple[Input, ...] = ((batch, steps, 64), (batch, steps, 32), (batch, steps, 32))
        packed: tuple[Input, ...] = ((batch, steps, 128), None, None)
        past: tuple[Input, ...] = ((batch, 2, held, 16),) * 2 if held else (None, None)
        last = np.array(ends[:batch], np.int32) - 1
        counts = (last, np.array(max(ends), np.int32))
        ways = {**heads, "softcap": (None, 3.0), "local_window_size": (None, 2)}
        for given in (split, packed):
            yield NodeKind(OP, (*given, *past, *counts), {**ways, "scale": (None, 0.4)}, outputs=3)
            yield NodeKind(OP, (*given, *past, *counts, *tables), turns, outputs=3)
        bias = (batch, 4, steps, max(ends))
        yield NodeKind(OP, (*split, *past, *counts, None, None, None, bias), ways, outputs=3)
        sinks = (*split, *past, *counts, None, None, None, None, (4,))
        yield NodeKind(OP, sinks, ways, outputs=3)
        smooth = {**ways, "smooth_softmax": (1,)}
        yield NodeKind(OP, (*split, *past, *counts), smooth, outputs=3)
        if steps == 1:
            places = last.reshape(-1, 1).astype(np.int64)
            yield NodeKind(OP, (*split, *past, *counts, *tables, places), turns, outputs=3)


OP: Final = "GroupQueryAttention"


def _decoder_attention() -> Iterator[NodeKind]:
    op, ways = "DecoderMaskedMultiHeadAttention", {"num_heads": (2,), "scale": (None, 0.7)}
    query, own = (4, 1, 8), ((4, 1, 8), (4, 1, 8))
    for mask in (None, np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]] * 2, np.int32)):
        yield NodeKind(op, (query, (4, 2, 5, 4), (4, 2, 5, 4), mask), ways)
    held: tuple[Input, ...] = ((4, 2, 6, 4), (4, 2, 6, 4), np.array([3], np.int32))
    shared = {**ways, "past_present_share_buffer": (1,)}
    beams = np.array([[[1, 0, 1, 0, 0, 0], [0, 1, 0, 1, 1, 0]]] * 2, np.int32)
    wide = np.array([2], np.int32)
    for mask in (None, np.array([[1, 0, 1, 1], [0, 1, 1, 1]] * 2, np.int32)):
        for bias in (None, (1, 2, 1, 4)):
            yield NodeKind(op, (query, *own, mask, bias, *held), shared, outputs=3)
            if bias is None:
                yield NodeKind(op, (query, *own, mask, bias, *held, wide, beams), shared, outputs=3)
    yield NodeKind(op, (query, *own, None, None, *held, None, None, (24,)), shared, outputs=3)


def _own_forms() -> Iterator[NodeKind]:
    """Yield operators of the standard under other names, or for other layouts."""

    def count(*values: int) -> np.ndarray:
        return np.array(values[0] if len(values) == 1 else values, np.int64)

    yield NodeKind("Trilu", ((2, 4, 5), count(1)), {"upper": (0, 1)})
    yield NodeKind("ExpandDims", ((3, 4), np.array(-1, np.int32)), {})
    yield NodeKind("GatherND", ((3, 4, 2), np.array([[0, 1], [-1, 3]], np.int64)), {})
    modes = {"mode": (None, "reflect", "edge")}
    yield NodeKind("Pad", ((3, 4), count(1, 0, 2, 1), _scale(0.5)), modes)
    yield NodeKind("Range", tuple(_scale(each) for each in (1.0, 8.0, 2.0)), {})
    yield NodeKind("GridSample", ((1, 2, 4, 5), (1, 3, 3, 2)), {"align_corners": (0, 1)})
    yield NodeKind("UnfoldTensor", ((2, 7, 2),), {"dim": (1,), "size": (3,), "step": (None, 2)})
    yield NodeKind("CDist", ((3, 4), (5, 4)), {"metric": ("euclidean", "sqeuclidean")})
    for dtype in ONE:
        moves: dict[str, Any] = {"kernel_shape": ([2, 3],), "pads": (None, [1, 0, 0, 2])}
        yield NodeKind("NhwcMaxPool", (_codes(dtype, 1, 5, 6, 3),), moves)
    ids = np.array([[6, 0, 3, 3], [1, 2, 5, 4]], np.int32)
    tables = [_codes("uint8", *shape) for shape in ((7, 6), (5, 6), (2, 6), (6,), (6,))]
    scales = [_scale(0.02 * (i + 1)) for i in range(5)]
    zeros = [_zero("uint8", 100 + i) for i in range(5)]
    given = (ids, ids % 2, *tables, np.array([[1, 1, 0, 0], [1, 1, 1, 1]], np.int32))
    yield NodeKind("QEmbedLayerNormalization", (*given, *scales, *zeros), {}, outputs=2)

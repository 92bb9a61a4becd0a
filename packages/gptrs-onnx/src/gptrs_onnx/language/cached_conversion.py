"""A graph with its own cache, converted for steps over the pages of the runtime.

One conversion serves texts of any lengths: tokens of all texts form one row, `step.positions` says
where they stand, and what attends to the past is replaced by attention over pages. What the graph
computes of its past (masks, positions, joined keys) is not converted: it is recognized by its
results in a few trials with random numbers, whatever operators an exporter wrote it with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs.api.importers import is_symbol
from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType
from gptrs.nn import CacheSpec, LayerCache, RaggedStep
from gptrs_onnx.conversion import Conversion
from gptrs_onnx.language.attention_trial import Attention, Layout, attention_in, layout_of
from gptrs_onnx.language.decoder_graph import (
    MASK,
    PARTS,
    POSITIONS,
    SEGMENTS,
    TOKENS,
    DecoderGraph,
    Part,
    count_input,
)
from gptrs_onnx.language.row_checks import require_separate_rows
from gptrs_onnx.language.trials import Trial, UnrecognizedError
from gptrs_onnx.node import Known, Node, Value, is_symbolic, sizes
from gptrs_onnx.onnx_ir import ir

_SIZES: Final = ((3, 1), (2, 4), (5, 2), (7, 3), (6, 1))
"""Positions of the past and of the step in trials: the first three tell affine functions apart."""
_SMALL: Final = 4096
_MOST_TESTS: Final = 8
"""Values after attention that are compared with it before the search stops."""
_HIDING: Final = 1000
"""The least that a mask subtracts from a score to exclude it."""
_COUNTING: Final = frozenset({"Range", "CumSum", "Trilu", "EyeLike", "NonZero"})
"""Operators that number the tokens of a step, which is no position in a step of several texts."""

MakeCache = Callable[[int, int | None], LayerCache]
"""Returns the cache of a layer by its index, with a window."""


class Hidden(Struct, frozen=True):
    """A value that is computed from the past, and not converted.

    `parts` are the keys and values of layers in it, `queries` what of the tokens met them, `masks`
    what of sizes alone did.
    """

    parts: frozenset[tuple[int, Part]] = frozenset()
    queries: tuple[ir.Value, ...] = ()
    masks: tuple[ir.Value, ...] = ()


class Positions(Struct, frozen=True):
    """The positions of tokens, of a shape and an element type."""

    shape: tuple[int, ...]
    dtype: DType


class LayerAttention(Struct, frozen=True):
    """Attention of a layer to a query that lies in `layout`."""

    layer: int
    query: ir.Value
    layout: Layout
    found: Attention


Finding = Known | Positions | LayerAttention | None
"""The meaning of a value according to the trials; None if it remains hidden."""


class Findings:
    """Results of trials of a graph, for later conversions for steps of the same sizes."""

    def __init__(self) -> None:
        self.values: dict[ir.Value, Finding] = {}
        self.counts = set[ir.Value]()
        """Numbers of positions that operators with attention read."""


class CachedConversion(Conversion):
    """A conversion of `decoder` for a step of several texts; `cache_of` gives the cache of a layer.

    UnrecognizedError if the past is used for anything other than causal attention.
    """

    def __init__(
        self,
        decoder: DecoderGraph,
        weight: Callable[[str, ir.TensorProtocol], Tensor],
        step: RaggedStep[Tensor],
        cache_of: MakeCache,
        findings: Findings,
    ) -> None:
        super().__init__(decoder.model.functions, dict(decoder.model.opset_imports), weight)
        self.weight = weight
        self.step = step
        self.cache_of = cache_of
        self._decoder = decoder
        self._findings = findings
        self._inputs = decoder.inputs
        self._past = {self._inputs[each.past]: each for each in decoder.carried}
        self._hidden: dict[ir.Value, Hidden] = {}
        self._joined: dict[tuple[int, Part], tuple[ir.Value, ir.Value]] = {}
        """The keys or values of a layer with those of the past, and the new ones."""
        self._tests = 0
        self._windows: dict[ir.Value, int | None] = {}
        self._bind_inputs()

    @cached_property
    def trials(self) -> Sequence[Trial]:
        """Short texts of several lengths."""
        return [Trial(self, *size, seed) for seed, size in enumerate(_SIZES)]

    @cached_property
    def _far(self) -> Trial:
        """The last token of a text as long as the context."""
        return Trial(self, max(self._decoder.context_length - 1, 1), 1, len(_SIZES))

    def _bind_inputs(self) -> None:
        rows = self.step.tokens.shape[0]
        for name, value in self._inputs.items():
            if name == MASK:
                self._hidden[value] = Hidden()
            elif count_input(value, 0, 0) is not None:
                self._hidden[value] = Hidden()
                self._settle(value)
            elif value in self._past:
                each = self._past[value]
                self._hidden[value] = Hidden(frozenset({(each.layer, each.part)}))
            elif name == TOKENS:
                self.bind(value, self._of_rows(self.step.tokens, value), frozenset({name}))
            elif name in POSITIONS:
                self.bind(value, self._of_rows(self.step.positions, value), frozenset({name}))
            elif name == SEGMENTS:
                zeros = F.reshape(self.step.tokens * 0, (1, rows))
                self.bind(value, zeros, frozenset({name}))
            else:
                self.bind(value, np.ones(1, np.bool_))

    def _of_rows(self, x: Tensor, value: ir.Value) -> Tensor:
        """Return integers [N] as an input takes them, [N] or [1, N]."""
        rank = 2 if value.shape is None else len(value.shape)
        if rank not in (1, 2):
            raise UnrecognizedError(f"`{value.name}` has {rank} axes")
        return x if rank == 1 else F.reshape(x, (1, x.shape[0]))

    # Values as trials ask for them.

    @property
    def functions(self) -> dict[ir.OperatorIdentifier, ir.Function]:
        """The functions of the file."""
        return dict(self._functions)

    @property
    def opsets(self) -> dict[str, int]:
        """The operator sets of the file."""
        return dict(self._opsets)

    def given(
        self, value: ir.Value, past: int, new: int, random: np.random.Generator
    ) -> Known | None:
        """Return an input of the graph for one text; None for other values."""
        if value in self._past:
            spec = self._spec(self._past[value].layer)
            made = random.standard_normal((1, spec.n_kv_heads, past, spec.head_dim))
            return made.astype(value.dtype.numpy() if value.dtype else np.float32)
        if value is self._inputs.get(MASK):
            return np.ones((1, past + new), np.int64)
        if any(value is each for each in self._inputs.values()):
            count = count_input(value, past, new)
            if count is not None:
                return count
        if any(value is self._inputs.get(name) for name in POSITIONS):
            rank = 2 if value.shape is None else len(value.shape)
            return np.arange(past, past + new).reshape((1,) * (rank - 1) + (new,))
        return None

    def carried_shape(self, value: ir.Value, past: int, new: int) -> tuple[int, ...] | None:
        """Return the shape of keys or values, of the past or joined; None for other values."""
        joined = {whole: part for part, (whole, _) in self._joined.items()}
        if value in self._past:
            layer, positions = self._past[value].layer, past
        elif value in joined:
            layer, positions = joined[value][0], past + new
        else:
            return None
        spec = self._spec(layer)
        return 1, spec.n_kv_heads, positions, spec.head_dim

    def held(self, value: ir.Value) -> Value | None:
        """Return the result of converting a value, if it was converted."""
        found = self._values.get(value)
        return found if isinstance(found, (Tensor, np.ndarray)) else None

    def is_of_tokens(self, value: ir.Value) -> bool:
        """Return whether a value depends on tokens, and not only on their positions."""
        return bool(self.origins_of([value]) - {*POSITIONS})

    def layer_of(self, key: ir.Value, value: ir.Value) -> int:
        """Return the index of the layer whose past two values are."""
        found = [self._past.get(each) for each in (key, value)]
        layers = {each.layer for each in found if each is not None}
        if None in found or len(layers) != 1:
            raise UnrecognizedError("attention reads something other than the past of one layer")
        return self._decoder.layers.index(layers.pop())

    def require_count(self, value: ir.Value, less: int) -> None:
        """Raise UnrecognizedError unless a value is the positions of a text, less a number."""
        if value in self._findings.counts:
            return
        for trial in self.trials:
            array = trial.array(value)
            if array.size != 1 or array.item() != trial.past + trial.new - less:
                raise UnrecognizedError(f"`{value.name}` counts positions in another way")
        self._findings.counts.add(value)

    # Nodes in order.

    @override
    def _convert(self, source: ir.Node) -> None:
        dark = [each for each in source.inputs if each is not None and each in self._hidden]
        if dark:
            self._convert_hidden(source, dark)
        # They count the tokens of the step: right for one text, wrong for several in one row.
        # Hidden, they are recognized as positions or refused.
        elif source.op_type in _COUNTING and self._has_sizes_of_step(source):
            self._hide(source, Hidden())
        else:
            super()._convert(source)
            require_separate_rows(self._node(source), self._tensors(source), self._outputs(source))

    def _convert_hidden(self, source: ir.Node, dark: Sequence[ir.Value]) -> None:
        fused = FUSED.get((source.domain, source.op_type))
        if fused is not None:
            for value, found in zip(source.outputs, fused(self, source), strict=False):
                if found is None:
                    self._hidden[value] = Hidden()
                else:
                    self.bind(value, found, frozenset({TOKENS}))
            return
        if any(each.type == ir.AttributeType.GRAPH for each in source.attributes.values()):
            raise UnrecognizedError(f"a branch or loop, `{source.name}`, reads the past")
        self._note_joined(source)
        self._hide(source, self._merged(source, dark))

    def _has_sizes_of_step(self, source: ir.Node) -> bool:
        for each in source.inputs:
            held = None if each is None else self.held(each)
            if isinstance(held, Tensor):
                if any(map(is_symbol, held.shape)):
                    return True
            elif held is not None and is_symbolic(held):
                return True
        return False

    def _hide(self, source: ir.Node, hidden: Hidden) -> None:
        for value in source.outputs:
            if value.name:
                self._hidden[value] = hidden
                self._settle(value)

    def _merged(self, source: ir.Node, dark: Sequence[ir.Value]) -> Hidden:
        """Return what is in the results of a node with hidden inputs."""
        if source.op_type in ("Shape", "Size"):
            return Hidden()
        found = [self._hidden[each] for each in dark]
        parts = frozenset[tuple[int, Part]]().union(*(each.parts for each in found))
        queries = dict.fromkeys(query for each in found for query in each.queries)
        masks = dict.fromkeys(mask for each in found for mask in each.masks)
        tokens = [
            each
            for each in source.inputs
            if each is not None and isinstance(self.held(each), Tensor) and self.is_of_tokens(each)
        ]
        if not parts:
            if tokens:
                raise UnrecognizedError(f"`{source.name}` mixes sizes of the past with tokens")
            return Hidden()
        masks |= {each: None for each, own in zip(dark, found, strict=True) if not own.parts}
        new = {own for _, own in self._joined.values()}
        queries |= {each: None for each in tokens if each not in new}
        return Hidden(parts, tuple(queries), tuple(masks))

    def _note_joined(self, source: ir.Node) -> None:
        """Remember the new keys or values if a node appends them to those of the past."""
        first = source.inputs[0] if source.inputs else None
        each = None if first is None else self._past.get(first)
        if each is None or source.op_type != "Concat" or len(source.inputs) != 2:
            return
        new = source.inputs[1]
        node = self._node(source)
        if new is not None and node.integer("axis") in (2, -2) and self.held(new) is not None:
            self._joined[each.layer, each.part] = source.outputs[0], new

    # What hidden values are.

    def _settle(self, value: ir.Value) -> None:
        """Bind a hidden value that is known, positions, or the result of attention."""
        found = self._findings.values
        if value not in found:
            found[value] = self._finding(value, self._hidden[value])
        finding = found[value]
        if finding is None:
            return
        del self._hidden[value]
        if isinstance(finding, LayerAttention):
            self.bind(value, self._attended(finding), frozenset({TOKENS}))
        elif isinstance(finding, Positions):
            positions = F.reshape(self.step.positions, finding.shape)
            self.bind(value, F.cast(positions, finding.dtype), frozenset({POSITIONS[0]}))
        else:
            self.bind(value, finding)

    def _finding(self, value: ir.Value, hidden: Hidden) -> Finding:
        if not hidden.parts:
            return self._of_sizes(value)
        if hidden.queries and {part for _, part in hidden.parts} == {"key", "value"}:
            return self._attention(value, hidden)
        return None

    def _of_sizes(self, value: ir.Value) -> Known | Positions | None:
        """Return a value that is constant, sizes of the step, or the positions of tokens."""
        arrays = [trial.array(value) for trial in self.trials]
        first = arrays[0]
        if first.size > _SMALL:
            return None
        if all(each.shape == first.shape for each in arrays):
            if all(np.array_equal(each, first) for each in arrays):
                return first
            if first.dtype.kind in "iu":
                return self._affine(arrays)
        return self._positions(arrays)

    def _affine(self, arrays: Sequence[np.ndarray]) -> Known | None:
        """Return integers that are affine in the number of new tokens; None for others."""
        points = np.array([(1, past, new) for past, new in _SIZES], np.float64)
        values = np.stack([each.reshape(-1) for each in arrays]).astype(np.float64)
        # Three trials determine the function, the other two must confirm it.
        factors = np.rint(np.linalg.solve(points[:3], values[:3]))
        # Sizes of the past differ from text to text, so no step of several can have them.
        if factors[1].any() or not np.array_equal(points @ factors, values):
            return None
        rows = self.step.tokens.shape[0]
        made = [int(constant) + int(slope) * rows for constant, _, slope in factors.T]
        return sizes(made).reshape(arrays[0].shape)

    def _positions(self, arrays: Sequence[np.ndarray]) -> Positions | None:
        """Return the positions of tokens if all arrays are those, along one axis."""
        axes: set[int] = set()
        for array, (past, new) in zip(arrays, _SIZES, strict=True):
            if array.dtype.kind not in "iuf" or array.size != new:
                return None
            if not np.array_equal(array.reshape(-1), np.arange(past, past + new)):
                return None
            # With one token every axis of size 1 could be that of positions.
            if new > 1:
                axes.add(array.shape.index(new))
        if len(axes) != 1:
            return None
        shape: list[int] = [1] * arrays[0].ndim
        shape[axes.pop()] = self.step.positions.shape[0]
        return Positions(tuple(shape), Tensor.of_array(arrays[0]).dtype)

    def _attention(self, value: ir.Value, hidden: Hidden) -> LayerAttention | None:
        """Return the attention of a layer whose result a value is, if it is one."""
        (layer, *others) = {layer for layer, _ in hidden.parts}
        joined = [self._joined.get((layer, part)) for part in PARTS]
        if others or None in joined:
            raise UnrecognizedError(f"`{value.name}` is not attention over keys joined to the past")
        pair = [each for each, _ in filter(None, joined)]
        window = self._window_of(hidden.masks)
        for query in hidden.queries:
            layout = self._layout(query, layer)
            if layout is None:
                continue
            found = attention_in(value, query, pair, self.trials, layout, window)
            if found is not None:
                self._tests = 0
                return LayerAttention(layer, query, layout, found)
        # Each test runs five trials of the whole layer: without an end, a graph that is no
        # attention would be searched to its last node.
        self._tests += 1
        if self._tests > _MOST_TESTS:
            raise UnrecognizedError(f"`{value.name}` is not causal attention of the usual kind")
        return None

    def _layout(self, value: ir.Value, layer: int) -> Layout | None:
        """Return the layout of queries, keys or values of a layer; None for other values."""
        held = self.held(value)
        if not isinstance(held, Tensor):
            return None
        return layout_of(held.shape, self.step.tokens.shape[0], self._spec(layer).head_dim)

    def _spec(self, layer: int) -> CacheSpec:
        return self._decoder.specs[self._decoder.layers.index(layer)]

    def _attended(self, attention: LayerAttention) -> Tensor:
        """Return attention over pages in place of that of the graph; new keys join the pages."""
        rows = [self._rows_of(attention.query, attention.layout)]
        for part in PARTS:
            _, new = self._joined[attention.layer, part]
            layout = self._layout(new, attention.layer)
            if layout is None:
                raise UnrecognizedError(f"the new keys or values `{new.name}` have another shape")
            rows.append(self._rows_of(new, layout))
        found = attention.found
        cache = self.cache_of(self._decoder.layers.index(attention.layer), found.window)
        attended = cache.attend(*rows, scale=found.scale)
        held = self.held(attention.query)
        assert isinstance(held, Tensor)
        return F.cast(found.layout.tensor(attended), held.dtype)

    def _rows_of(self, value: ir.Value, layout: Layout) -> Tensor:
        held = self.held(value)
        assert isinstance(held, Tensor)
        return layout.rows(held)

    def _window_of(self, masks: Sequence[ir.Value]) -> int | None:
        """Return how many positions the masks of attention admit at the end of the context.

        Trials are short: a window would not show in them.
        """
        for mask in masks:
            if mask not in self._windows:
                self._windows[mask] = self._seen_far(mask)
        found = [window for mask in masks if (window := self._windows[mask]) is not None]
        return min(found, default=None)

    def _seen_far(self, mask: ir.Value) -> int | None:
        """Return how many last positions a mask admits in a text as long as the context."""
        array = self._far.array(mask).reshape(-1)
        length = self._far.past + 1
        if array.size != length:  # it is no mask, but a size
            return None
        last = array[-1]
        # Relative to the last key, which is always seen: masks are 0 and -inf, -10000 or the least
        # f32, and some exporters add a bias.
        seen = array == last if array.dtype.kind == "b" else array > last - _HIDING
        count = int(seen.sum())
        if not seen[length - count :].all():
            raise UnrecognizedError(f"`{mask.name}` hides positions between others")
        return count if count < length else None

    # The graph as a whole.

    def run_to(
        self, wanted: ir.Value, nodes: Sequence[ir.Node], graphs: Sequence[ir.Graph]
    ) -> Tensor:
        """Convert nodes of `graphs` in order; return a value as a tensor."""
        for graph in graphs:
            self._bind_initializers(graph)
        for node in nodes:
            self._convert(node)
        if wanted in self._hidden:
            raise UnrecognizedError(f"`{wanted.name}` depends on the past in an unknown way")
        found = self.held(wanted)
        if not isinstance(found, Tensor):
            raise UnrecognizedError(f"`{wanted.name}` does not depend on tokens")
        return found

    def node_of(self, source: ir.Node) -> Node:
        """Return a node with its attributes."""
        return self._node(source)

    def _tensors(self, source: ir.Node) -> list[tuple[Tensor, bool]]:
        """Return the tensors that a node reads, each with whether it has a row for each token."""
        found = [(each, self.held(each)) for each in source.inputs if each is not None]
        return [
            (held, bool(self.origins_of([each])))
            for each, held in found
            if isinstance(held, Tensor)
        ]

    def _outputs(self, source: ir.Node) -> list[Tensor]:
        found = [self.held(each) for each in source.outputs]
        return [each for each in found if isinstance(each, Tensor)]


Fused = Callable[[CachedConversion, ir.Node], Sequence[Tensor | None]]
FUSED: Final[dict[tuple[str, str], Fused]] = {}
"""Operators that attend to a past themselves; they return tensors, None for carried values."""

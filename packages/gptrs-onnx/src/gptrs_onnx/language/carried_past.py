"""Steps of a graph that takes its past and returns it extended: each text separately."""

from __future__ import annotations

from typing import Final

import numpy as np

from gptrs.api import ModelError
from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs.capture.jitting.jit import jit
from gptrs.functionals.normalization import read_vectors
from gptrs.nn import PageBuffers, RaggedStep
from gptrs.nn.page_buffers import LayerPools
from gptrs_onnx.language.decoder_graph import (
    BRANCH,
    LOGITS,
    MASK,
    POSITIONS,
    SEGMENTS,
    TOKENS,
    CarriedTensor,
    DecoderGraph,
    count_input,
)
from gptrs_onnx.model import OnnxModel
from gptrs_onnx.search import shown

_POOL: Final = ("P", None, None, None)


class CarriedPast:
    """Steps of `graph` whose keys and values lie in pages between them.

    The past of a text is copied out of its pages before each of its steps, and the graph copies it
    once more: the cost of a token grows faster with the text than that of attention. The graph
    `first`, if there is one, runs the steps without a past.
    """

    def __init__(
        self, decoder: DecoderGraph, graph: OnnxModel, first: OnnxModel | None = None
    ) -> None:
        self._decoder = decoder
        self._graph = graph
        self._first = graph if first is None else first
        self._of_part = {(each.layer, each.part): each for each in decoder.carried}
        self._is_single = BRANCH in graph.inputs or first is not None
        """Whether a step after the first one takes one token: such decoders were traced so."""

    def forward(self, tokens: np.ndarray) -> np.ndarray:
        """Return the logits f32 [B, T, V] of texts si64 [B, T]."""
        found = self._run(tokens, 0, self._no_past(len(tokens)))[LOGITS].astype(np.float32)
        if found.shape[1] != tokens.shape[1]:
            raise ModelError(
                f"`{shown(self._graph.name)}` returns logits of the last token alone",
                hint="to score texts, export it without that optimization",
            )
        return found

    def step(self, step: RaggedStep, buffers: PageBuffers) -> np.ndarray:
        """Append the tokens of each text to its pages; return the logits f32 [B, V] after them."""
        logits: list[np.ndarray] = []
        for text, (start, end) in enumerate(
            zip(step.row_starts[:-1], step.row_starts[1:], strict=True)
        ):
            tokens, slots = step.tokens[start:end], step.slots[0][start:end]
            past = int(step.lengths[text]) - len(tokens)
            table = step.page_tables[0][text]
            while True:
                count = 1 if self._is_single and past else len(tokens)
                given = self._past(buffers, table, past)
                found = self._run(tokens[None, :count], past, given)
                self._write(buffers, found, past, slots[:count])
                tokens, slots, past = tokens[count:], slots[count:], past + count
                if not len(tokens):
                    break
            logits.append(found[LOGITS][0, -1].astype(np.float32))
        return np.stack(logits)

    def _no_past(self, batch: int) -> dict[str, np.ndarray]:
        return {
            each.past: self._empty(index, each.past, batch)
            for index, layer in enumerate(self._decoder.layers)
            for each in self._pair(layer)
        }

    def _empty(self, index: int, name: str, batch: int) -> np.ndarray:
        spec = self._decoder.specs[index]
        dtype = self._graph.inputs[name].dtype.numpy
        return np.zeros((batch, spec.n_kv_heads, 0, spec.head_dim), dtype)

    def _pair(self, layer: int) -> list[CarriedTensor]:
        return [self._of_part[layer, "key"], self._of_part[layer, "value"]]

    def _past(self, buffers: PageBuffers, table: np.ndarray, past: int) -> dict[str, np.ndarray]:
        """Return the keys and values of a text, by the names of the inputs."""
        if not past:
            return self._no_past(1)
        read = _read(buffers.pools, Tensor.of_array(np.ascontiguousarray(table)))
        found: dict[str, np.ndarray] = {}
        for layer, pair in zip(self._decoder.layers, read, strict=True):
            for each, held in zip(self._pair(layer), pair, strict=True):
                dtype = self._graph.inputs[each.past].dtype.numpy
                # The last page is read whole; slots beyond the text hold what an earlier text left.
                found[each.past] = held.numpy()[:, :, :past].astype(dtype, copy=False)
        return found

    def _write(
        self,
        buffers: PageBuffers,
        outputs: dict[str, np.ndarray],
        past: int,
        slots: np.ndarray,
    ) -> None:
        rows = [
            [_rows(outputs[each.present], past, len(slots)) for each in self._pair(layer)]
            for layer in self._decoder.layers
        ]
        buffers.pools = _written(buffers.pools, rows, Tensor.of_array(np.ascontiguousarray(slots)))

    def _run(
        self, tokens: np.ndarray, past: int, carried: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the outputs of the graph for tokens [B, T] after `past` positions."""
        batch, count = tokens.shape
        places = np.arange(past, past + count, dtype=np.int64)
        made: dict[str, np.ndarray] = {
            TOKENS: tokens,
            MASK: np.ones((batch, past + count), np.int64),
            POSITIONS[0]: np.broadcast_to(places, (batch, count)),
            POSITIONS[1]: places,
            SEGMENTS: np.zeros((batch, count), np.int64),
            BRANCH: np.array([past > 0]),
        }
        made |= carried
        for name, value in self._decoder.inputs.items():
            counted = count_input(value, past, count)
            if counted is None:
                continue
            if value.shape and not isinstance(value.shape[0], int):  # one for each text
                counted = np.broadcast_to(counted, (batch, *counted.shape[1:]))
            made[name] = counted
        graph = self._graph if past else self._first
        return graph(
            **{
                name: made[name].astype(slot.dtype.numpy, copy=False)
                for name, slot in graph.inputs.items()
            }
        )


def _rows(present: np.ndarray, past: int, count: int) -> Tensor:
    """Return the new keys or values [N, K, D] of those of all positions."""
    new = present[0, :, past : past + count].transpose(1, 0, 2)
    return Tensor.of_array(np.ascontiguousarray(new, np.float32))


def _gathered(pool: Tensor, table: Tensor) -> Tensor:
    """Return the positions [1, K, W * S, D] of the pages of a text."""
    pages = F.take(pool, table)  # (W, K, S, D)
    pages = read_vectors(pages) if pool.dtype is dtypes.si8 else F.cast(pages, dtypes.f32)
    count, heads, size, width = pages.shape
    return F.reshape(F.transpose(pages, (1, 0, 2, 3)), (1, heads, count * size, width))


def _read_pools(pools: list[LayerPools], table: Tensor) -> list[LayerPools]:
    return [(_gathered(keys, table), _gathered(values, table)) for keys, values in pools]


def _write_pools(
    pools: list[LayerPools], rows: list[list[Tensor]], slots: Tensor
) -> list[LayerPools]:
    return [
        (F.update_pages(keys, key, slots), F.update_pages(values, value, slots))
        for (keys, values), (key, value) in zip(pools, rows, strict=True)
    ]


_read = jit(_read_pools, dynamic={"pools": _POOL, "table": ("W",)})
_written = jit(
    _write_pools,
    donate=["pools"],
    dynamic={"pools": _POOL, "rows": ("N", None, None), "slots": ("N",)},
)

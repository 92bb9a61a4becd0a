"""The base of encoder-decoder models: a source is encoded once, then a text is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from gptrs.capture.jitting.jit import Jitted
from gptrs.capture.tensor import Tensor
from gptrs.errors import ContextLengthError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.nn.decoder_cache import DecoderCache, DecoderState, KeysValues, WholeText
from gptrs.nn.layers import Computation, Module

_OWN = ("B", None, "C", None)
_SOURCE = ("B", None, "S", None)


class DecoderModule(Module):
    """Base class of models that decode texts from sources of any kind.

    A model defines `decode` and `logits`; the reader of its sources makes a `DecoderState` from the
    keys and values that each decoder layer sees. `context_length` limits the positions of a decoded
    text.
    """

    def __init__(self, context_length: int, vocab_size: int) -> None:
        self._context_length = context_length
        self._vocab_size = vocab_size
        axes = {"tokens": ("B", None), "own": _OWN, "source": _SOURCE, "mask": ("B", "S")}
        self._step = Jitted(self._decoded, donate=["own"], dynamic=axes)

    @property
    def context_length(self) -> int:
        """Most positions of a decoded text."""
        return self._context_length

    @property
    def vocab_size(self) -> int:
        """Number of token ids, and size of the last axis of logits."""
        return self._vocab_size

    def decode(self, tokens: Tensor, position: Tensor, caches: Sequence[DecoderCache]) -> Tensor:
        """Return the states of tokens [B, T] at the positions from `position` on, [B, T, C].

        They are the input of `logits`. Each layer calls `attend` and `attend_source` of its cache.
        """
        raise NotImplementedError

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of each vector, [..., C] -> [..., V]."""
        raise NotImplementedError

    def write(self, tokens: np.ndarray, state: DecoderState) -> np.ndarray:
        """Append tokens si64 [B, T] to the texts of `state`; return f32 [B, T, V] after each.

        ContextLengthError for texts that are too long, before any work. After another error,
        `state.lost` tells whether the sources must be read again.
        """
        length = state.length + tokens.shape[1]
        if length > self.context_length:
            raise ContextLengthError(
                f"{length} tokens do not fit into the context of {self.context_length}",
                hint="ask for fewer tokens",
            )
        state.make_room(length, self.context_length)
        given, position = Tensor.of_array(tokens), Tensor.of_array(np.array(state.length))
        mask = Tensor.of_array(state.mask)
        own, state.lost = state.own, True
        logits, state.own = self._step(given, position, own, state.source, mask)
        found = logits.numpy()
        state.lost, state.length = False, length
        return found

    def whole_logits(
        self, tokens: Tensor, sources: Sequence[KeysValues], mask: Tensor
    ) -> dict[str, Tensor]:
        """Return the logits after each token of whole texts [B, T], computed without a cache."""
        caches = [WholeText(tokens, source, mask) for source in sources]
        states = self.decode(tokens, Tensor.of_array(np.array(0)), caches)
        return {"logits": self.logits(states)}

    def _decoded(
        self,
        tokens: Tensor,
        position: Tensor,
        own: list[KeysValues],
        source: list[KeysValues],
        mask: Tensor,
    ) -> tuple[Tensor, list[KeysValues]]:
        caches = [
            DecoderCache(pair, seen, mask, position) for pair, seen in zip(own, source, strict=True)
        ]
        states = self.decode(tokens, position, caches)
        return self.logits(states), [cache.own for cache in caches]


class Seq2SeqModule(DecoderModule):
    """Base class with the capability `seq2seq`: sources are texts.

    A model also defines `read`. `source_length` is the most tokens of a source.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset({"seq2seq"})

    def __init__(self, source_length: int, context_length: int, vocab_size: int) -> None:
        super().__init__(context_length, vocab_size)
        self._source_length = source_length
        axes = {"tokens": ("B", "S"), "mask": ("B", "S")}
        self._read = Jitted(self.read, dynamic=axes)

    @property
    def source_length(self) -> int:
        """Most tokens of a source."""
        return self._source_length

    def read(self, tokens: Tensor, mask: Tensor) -> list[KeysValues]:
        """Return the keys and values of sources for each decoder layer, [B, H, S, D].

        `tokens` are [B, S], `mask`, i1 [B, S], is false at padding behind them.
        """
        raise NotImplementedError

    def computation(self) -> Computation:
        """Return the logits of whole texts, given whole sources; see `Computation`."""
        source, text = ("batch", "source"), ("batch", "target")

        def outputs(
            input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor
        ) -> dict[str, Tensor]:
            mask = attention_mask != 0
            return self.whole_logits(decoder_input_ids, self.read(input_ids, mask), mask)

        inputs: dict[str, tuple[DType, tuple[int | str, ...]]] = {
            "input_ids": (dtypes.si64, source),
            "attention_mask": (dtypes.si64, source),
            "decoder_input_ids": (dtypes.si64, text),
        }
        return Computation(outputs, inputs, {})

    def read_sources(self, tokens: np.ndarray, mask: np.ndarray) -> DecoderState:
        """Read sources si64 [B, S], where `mask`, i1 [B, S], is true; return texts without tokens.

        ContextLengthError if S is too large.
        """
        if tokens.shape[1] > self.source_length:
            raise ContextLengthError(
                f"{tokens.shape[1]} tokens do not fit into the {self.source_length} that the"
                " encoder takes",
                hint="shorten the text",
            )
        return DecoderState(self._read(Tensor.of_array(tokens), Tensor.of_array(mask)), mask)

"""The cache as a scheduler sees it: admit texts, run a step of them, fork, rewind, release."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from gptrs.functionals.dispatch.active_overrides import ACTIVE, entered
from gptrs.nn.greedy_steps import Chosen
from gptrs.plugins.capabilities import CausalLM
from gptrs_runtime.content_digest import weights_digest
from gptrs_runtime.generation.pages.page_pool import TextPages
from gptrs_runtime.generation.step_times import StepTimes
from gptrs_runtime.loaded_model import LoadedModel


class Row(NamedTuple):
    """A text of a step, its new tokens, and tokens that may follow them.

    The text keeps `tokens`. Its keys and values remain until its next step, see `keep`: the row
    begins after `after` earlier guessed tokens. One of both is not empty.
    """

    text: TextPages
    tokens: Sequence[int]
    guess: Sequence[int] = ()
    after: int = 0


class GreedyRow(NamedTuple):
    """A text of several steps: its new token, the steps that it has room for, and its ends.

    The text keeps `token`. The keys and values of the tokens after it remain until its next step,
    see `keep`.
    """

    text: TextPages
    token: int
    room: int
    ends: frozenset[int]


class TextCache:
    """Runs a model on texts and keeps what later steps need of them: here nothing.

    All tokens of a text are new in each step. A cache that keeps something overrides the rest.
    """

    chunked = False
    """Whether a text may be read in several steps."""
    short_context: int | None = None
    """Tokens after which a text is read again, in one step; see `CausalLMModule.short_context`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.times = StepTimes()
        """The measured time of steps."""

    def exclusive(self) -> AbstractContextManager[object]:
        """Scope in which no other thread uses the cache; one may enter it again."""
        return self._lock

    def require(self, positions: int, step: int) -> None:
        """CacheBudgetError if such a text would not even fit alone; see `admit`."""

    def admit(
        self,
        tokens: Sequence[int],
        positions: int,
        step: int,
        source: Sequence[int] = (),
        family: int = 0,
    ) -> TextPages | None:
        """Return a text of up to `positions` with the prefix `tokens`; None if it must wait.

        `source` are the tokens of the text that it is about, for models that read one. `family` is
        which of the models of a `FamilyCache` it is of. Up to `step` of its tokens are read per
        step. Its `length` says how many tokens are known, all but the last one at most.
        CacheBudgetError if it would not even fit alone.
        """
        return TextPages((), [], [])

    def run(self, rows: Sequence[Row]) -> np.ndarray:
        """Append tokens to texts; return logits f32 [R, V] after the last one of each.

        Those after each guessed token of a text follow.
        """
        raise NotImplementedError

    def keep(self, text: TextPages, tokens: Sequence[int]) -> None:
        """Append tokens that the last step of the text had as the first of its guess."""

    def fork(self, text: TextPages) -> TextPages | None:
        """Return another text with the same content; None if it must wait."""
        return TextPages((), [], [])

    def rewind(self, text: TextPages, length: int) -> None:
        """Forget all but the first `length` tokens, or all; CacheBudgetError without room."""

    def release(self, text: TextPages) -> None:
        """Give back the memory of a text."""

    grows = False
    """Whether texts may be admitted with less room than they will need, see `grow`."""

    def grow(self, text: TextPages, positions: int, step: int) -> bool:
        """Let a text have up to `positions`; False, and no change, without room."""
        raise NotImplementedError

    @property
    def steps_at_once(self) -> int:
        """How many steps `run_greedy` takes at most; 1 where it cannot be called."""
        return 1

    def run_greedy(self, rows: Sequence[GreedyRow], count: int) -> Chosen:
        """Append a token to each text, then the likeliest one `count` times; return these.

        No text chooses another one after one of its ends once all have come to theirs.
        """
        raise NotImplementedError


class NoCache(TextCache):
    """Generation without a key/value cache: each step reads every text again."""

    def __init__(self, lm: CausalLM) -> None:
        super().__init__()
        self._lm = lm

    @override
    def run(self, rows: Sequence[Row]) -> np.ndarray:
        return np.concatenate([self._logits(row) for row in rows])

    def _logits(self, row: Row) -> np.ndarray:
        tokens = np.array([[*row.tokens, *row.guess]], np.int64)
        return self._lm.forward(tokens)[0, -1 - len(row.guess) :]


# The identity of a model: its settings, its overrides, and every byte of its weights.


def model_identity(model: LoadedModel) -> str:
    """Return a digest, in hex, that is another one for any other model, wherever it lies.

    CheckpointError if a file of weights was changed after the model was loaded.
    """
    with entered(model.overrides):
        overrides = {name: str(choice.policy) for name, choice in ACTIVE.get().items()}
    settings = json.dumps(
        [dict(model.config), overrides, model.weight_type], sort_keys=True
    ).encode()
    if model.adapter is not None:
        settings += model.adapter.digest.encode()
    digest = hashlib.blake2b(weights_digest(model.weights), digest_size=16)
    digest.update(settings)
    return digest.hexdigest()

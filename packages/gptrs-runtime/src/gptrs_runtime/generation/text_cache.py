"""The cache interface of schedulers: admit texts, run a step, fork, rewind, release."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from typing_extensions import override

from gptrs.functionals.dispatch.active_overrides import ACTIVE, entered
from gptrs.nn.greedy_steps import Chosen
from gptrs.plugins.capabilities import CausalLM
from gptrs_runtime.content_digest import weights_digest
from gptrs_runtime.generation.pages.page_pool import TextPages
from gptrs_runtime.generation.step_times import StepTimes
from gptrs_runtime.loaded_model import LoadedModel

if TYPE_CHECKING:
    from gptrs.nn.causal_lm import Layers


class Row(NamedTuple):
    """A text in a step, its new tokens, and guesses that may follow them.

    The text keeps `tokens`. Keys and values of guesses remain until its next step, see `keep`; the
    row starts after `after` earlier guessed tokens. Tokens or guesses are not empty. `guides`, f32
    [N, C], has the vector of each token and guess for a draft head.
    """

    text: TextPages
    tokens: Sequence[int]
    guess: Sequence[int] = ()
    after: int = 0
    guides: np.ndarray | None = None


class RowStates(NamedTuple):
    """The states of the tokens of a row, and of its guesses, from a position of its text on.

    `states` has f32 [N, S] for each entry of what was wanted.
    """

    start: int
    states: Sequence[np.ndarray]


class Placed(NamedTuple):
    """Logits as of `TextCache.run`, and where the rows of the step are.

    `rows` is how many rows values of the model have; the first ones are those of the texts in turn:
    `count` from the position `start` of its text on, for each of `places`.
    """

    logits: np.ndarray
    rows: int
    places: Sequence[tuple[int, int]]


class GreedyRow(NamedTuple):
    """A text in several greedy steps: its new token, the number of steps it has room for, and its
    end tokens.

    The text keeps `token`. Keys and values of later tokens remain until its next step, see `keep`.
    """

    text: TextPages
    token: int
    room: int
    ends: frozenset[int]


class TextCache:
    """Runs a model on texts, and may keep state for later steps; this base keeps none.

    Without state, all tokens of a text are new in each step. Caches override the other methods.
    """

    chunked = False
    """Whether a prompt may be read in several steps."""
    tells_states = False
    """Whether `run_stated` is supported."""
    most_guessed: int = 1 << 62
    """Most guessed tokens of a row that can be taken back."""
    short_context: int | None = None
    """Length beyond which a text is read again in one step; see `CausalLMModule.short_context`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.times = StepTimes()
        """Measured times of steps."""

    def exclusive(self) -> AbstractContextManager[object]:
        """Scope in which no other thread uses the cache; reentrant."""
        return self._lock

    def require(self, positions: int, step: int) -> None:
        """Raise CacheBudgetError if such a text would not fit even alone; see `admit`."""

    def admit(
        self,
        tokens: Sequence[int],
        positions: int,
        step: int,
        source: Sequence[int] = (),
        family: int = 0,
    ) -> TextPages | None:
        """Return a text of up to `positions` with the prefix `tokens`; None if it must wait.

        `source` are the source tokens of an encoder-decoder. `family` is the index of its model in
        a `FamilyCache`. Up to `step` of its tokens are read per step. Its `length` is the number of
        cached tokens, at most all but the last. CacheBudgetError if it would not fit even alone.
        """
        return TextPages()

    def run(self, rows: Sequence[Row]) -> np.ndarray:
        """Append tokens to texts; return logits f32 [R, V] after the last one of each.

        The logits after each guessed token of a text follow its own.
        """
        raise NotImplementedError

    def run_placed(self, rows: Sequence[Row]) -> Placed:
        """Run without guesses; return also which rows of the step belong to which text."""
        raise NotImplementedError

    def run_stated(
        self, rows: Sequence[Row], wanted: tuple[Layers, ...]
    ) -> tuple[np.ndarray, list[RowStates]]:
        """Run; return also the states of the tokens of each row that draft heads read.

        `wanted` as of `CausalLMModule.stated_step`. A text that is read again has states from its
        start on.
        """
        raise NotImplementedError

    def keep(self, text: TextPages, tokens: Sequence[int]) -> None:
        """Append the accepted first tokens of the last step's guess."""

    def fork(self, text: TextPages) -> TextPages | None:
        """Return a copy of a text; None if it must wait."""
        return TextPages((), [], [])

    def rewind(self, text: TextPages, length: int) -> None:
        """Truncate to the first `length` tokens, or to none; CacheBudgetError without room."""

    def release(self, text: TextPages) -> None:
        """Release the memory of a text."""

    grows = False
    """Whether texts may be admitted with less room than they may need, see `grow`."""

    def grow(self, text: TextPages, positions: int, step: int) -> bool:
        """Let a text have up to `positions`; False, and no change, without room."""
        raise NotImplementedError

    @property
    def steps_at_once(self) -> int:
        """Most steps of `run_greedy`; 1 if it is not supported."""
        return 1

    def run_greedy(self, rows: Sequence[GreedyRow], count: int) -> Chosen:
        """Append a token to each text, then the likeliest one `count` times; return these.

        Stops once every text has chosen one of its end tokens.
        """
        raise NotImplementedError


class NoCache(TextCache):
    """Generation without a key/value cache: each step reads every text from its start."""

    def __init__(self, lm: CausalLM) -> None:
        super().__init__()
        self._lm = lm

    @override
    def run(self, rows: Sequence[Row]) -> np.ndarray:
        return np.concatenate([self._logits(row) for row in rows])

    def _logits(self, row: Row) -> np.ndarray:
        tokens = np.array([[*row.tokens, *row.guess]], np.int64)
        return self._lm.forward(tokens)[0, -1 - len(row.guess) :]


# The identity of a model: its settings, overrides, and every byte of its weights.


def model_identity(model: LoadedModel) -> str:
    """Return a hex digest that differs between models, independent of their location.

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

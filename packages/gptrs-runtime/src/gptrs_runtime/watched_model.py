"""Refuses what a model computed once a file of its weights was cut or written to meanwhile."""

from __future__ import annotations

import functools
import math
import time

from gptrs.checkpoint.param_source import FileSource
from gptrs.spans import span

_COMPUTING = frozenset(
    {
        *(
            "step",
            "greedy_steps",
            "adapted_step",
            "mixed_step",
            "image_vectors",
            "forward",
            "classify",
            "encode",
            "hidden_states",
        ),
        *("classify_texts", "classify_tokens", "predict_tokens", "read_sources", "hear", "write"),
        *("hear_sounds", "score_frames"),
    }
)
"""The methods that return what was computed of weights."""


_IDLE_S = 0.01
"""After so long without a call the files are looked at before the next one, too."""


class WatchedModel:
    """A model whose methods raise CheckpointError if an open file of its weights has changed.

    Weights are mapped files: what another process writes to them would silently be computed with.
    Everything else is as the model has it. It costs microseconds a call.
    It looks after each call, and before one that comes after a pause.
    """

    def __init__(self, model: object, weights: FileSource) -> None:
        self._model = model
        self._weights = weights
        self._looked = -math.inf

    def __getattr__(self, name: str) -> object:
        """Return attribute `name` of the model; a method that computes looks at the files, too."""
        found: object = getattr(self._model, name)
        if name not in _COMPUTING or not callable(found):
            return found

        @functools.wraps(found)
        def call(*args: object, **kwargs: object) -> object:
            # To read what is gone ends the process, unless the backend handles the signal.
            if time.monotonic() - self._looked > _IDLE_S:
                self._weights.require_unchanged()
            with span("model", name):
                result = found(*args, **kwargs)
            self._weights.require_unchanged()  # what it has read is what was opened
            self._looked = time.monotonic()
            return result

        self.__dict__[name] = call
        return call

"""The settings for decoding windows of speech: first tokens, and allowed next tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

import numpy as np
from msgspec.structs import replace

from gptrs.checkpoint.config_fields import Fields
from gptrs.errors import ModelError, UsageError
from gptrs.plugins.capabilities import Transcriber
from gptrs.quoting import listed, quoted
from gptrs_runtime.generation.logits_processors import suppressed
from gptrs_runtime.generation.model_settings import (
    configured_rules,
    note_ignored,
    require_known,
)
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.speech.timestamps import TimestampRules

_START_OF_PREVIOUS: Final = "prev_sot_token_id"


class WindowSettings:
    """Settings of the texts of windows, from config.json and generation_config.json.

    `rules` are the timestamp rules, None without `timestamps`. `end` ends a text, which has `most`
    positions, or `most_new` tokens behind those it begins with; `start_of_previous` begins the text
    before it. `suppression` holds what `allowed` does not. `language` is the one that `begin`
    chose.
    """

    def __init__(self, model: LoadedModel, hearer: Transcriber, *, timestamps: bool) -> None:
        self._model, self._hearer = model, hearer
        settings = {**model.config, **model.generation_config}
        fields = Fields(settings, "in generation_config.json")
        self._languages = _numbers(fields, "lang_to_id")
        self._tasks = _numbers(fields, "task_to_id")
        ends = model.eos_tokens
        if len(ends) != 1:
            raise ModelError("`eos_token_id` must be one token for a model that hears")
        (self.end,) = ends
        self._start = fields.integer("decoder_start_token_id", minimum=0)
        none = settings.get("no_timestamps_token_id")
        self.rules: TimestampRules | None = None
        self._none = None if none is None else fields.integer("no_timestamps_token_id", minimum=0)
        if timestamps and self._none is not None:
            most = fields.get("max_initial_timestamp_index")
            limit = None if most is None else fields.integer("max_initial_timestamp_index")
            self.rules = TimestampRules(self._none, self.end, limit)
        found = configured_rules(model.generation_config)
        self.token_rules = replace(found, suppress=(), begin_suppress=())
        self._never = _tokens(fields, "suppress_tokens")
        self._not_first = _tokens(fields, "begin_suppress_tokens")
        self.most = fields.integer("max_length", hearer.context_length)
        new = fields.get("max_new_tokens")
        self.most_new = None if new is None else fields.integer("max_new_tokens")
        before = self._never[-2] if len(self._never) > 1 else None
        self.start_of_previous = (
            before
            if fields.get(_START_OF_PREVIOUS) is None
            else fields.integer(_START_OF_PREVIOUS, minimum=0)
        )
        self._forced = _forced(fields)
        self._require_known_tokens()
        note_ignored(model.name, model.generation_config, hearer.vocab_size)
        self.language: str | None = None

    def _require_known_tokens(self) -> None:
        """ModelError if texts may begin with a token beyond the vocabulary."""
        named = {
            "decoder_start_token_id": [self._start],
            "forced_decoder_ids": self._forced,
            "lang_to_id": self._languages.values(),
            "task_to_id": self._tasks.values(),
            "no_timestamps_token_id": [self._none],
            _START_OF_PREVIOUS: [self.start_of_previous],
        }
        for name, tokens in named.items():
            for token in tokens:
                require_known(name, token, self._hearer.vocab_size)

    @property
    def silence(self) -> int | None:
        """The token whose probability indicates silence; None if the model has none."""
        return self._none - 1 if self._none else None

    @property
    def first_time(self) -> int:
        """The token of the time 0, one behind the vocabulary where there are no times."""
        return self._hearer.vocab_size if self.rules is None else self.rules.first

    def allowed(self, written: Sequence[int], logits: np.ndarray) -> np.ndarray:
        """Change the logits f32 [V] of the token after those that were written; return them."""
        if not written:
            suppressed(logits, self._not_first)
        suppressed(logits, self._never)
        return logits if self.rules is None else self.rules(written, logits)

    def begin(self, window: np.ndarray, language: str | None, task: str | None) -> list[int]:
        """Return the tokens that each text begins with: its language, its task, or no times."""
        found = [self._start, *self._forced]
        number = self._language(window, language, found)
        if number is not None:
            found[1:2] = [number]
            known = {token: name for name, token in self._languages.items()}
            self.language = known[number].strip("<|>")
        if self._tasks:
            wanted = self._task(task, found)
            found = [t for t in found if t not in self._tasks.values()] + [wanted]
        elif task is not None:
            raise UsageError(f"`{self._model.name}` has no tasks", hint="leave out the task")
        found = [token for token in found if token >= 0 and token != self._none]
        return found if self.rules is not None or self._none is None else [*found, self._none]

    def _language(
        self, window: np.ndarray, language: str | None, begin: Sequence[int]
    ) -> int | None:
        if not self._languages:
            if language is not None:
                raise UsageError(
                    f"`{self._model.name}` knows one language only", argument="language"
                )
            return None
        if language is not None:
            number = self._languages.get(f"<|{language.lower()}|>")
            if number is None:
                names = [name.strip("<|>") for name in self._languages]
                raise UsageError(
                    f"{quoted(language)} is not a language of `{self._model.name}`",
                    hint=f"it knows {listed(names, 12)}",
                    argument="language",
                )
            return number
        given = begin[1] if len(begin) > 1 else -1
        if given in self._languages.values():
            return given
        state = self._hearer.hear(window)
        logits = self._hearer.write(np.array([[self._start]]), state)[0, -1]
        numbers = list(self._languages.values())
        return numbers[int(np.argmax(logits[numbers]))]

    def _task(self, task: str | None, begin: Sequence[int]) -> int:
        if task is None:
            given = [token for token in begin if token in self._tasks.values()]
            task = cast("str", self._model.generation_config.get("task") or "transcribe")
            if given:
                return given[0]
        if task not in self._tasks:
            raise UsageError(
                f"{quoted(str(task))} is not a task of `{self._model.name}`",
                hint=f"it knows {listed(self._tasks, 4)}",
            )
        return self._tasks[task]


def _numbers(fields: Fields, name: str) -> dict[str, int]:
    value = fields.get(name, {})
    if not isinstance(value, dict):
        raise fields.error(name, "must be a table of tokens")
    table = cast("Mapping[str, object]", value)
    return {key: Fields(table, f"of `{name}`").integer(key, minimum=0) for key in table}


def _tokens(fields: Fields, name: str) -> list[int]:
    return list(fields.integers(name, (), minimum=0)) if fields.get(name) else []


def _forced(fields: Fields) -> list[int]:
    """Return the tokens of `forced_decoder_ids`, pairs of a position from 1 on and a token or null.

    A null becomes -1: the model decides.
    """
    name = "forced_decoder_ids"
    pairs = fields.get(name, [])
    found: list[int] = []
    for position, pair in enumerate(
        cast("list[object]", pairs) if isinstance(pairs, list) else [0]
    ):
        entry = cast("list[object]", pair) if isinstance(pair, list) else []
        token = entry[1] if len(entry) == 2 else "none"
        if not entry or entry[0] != position + 1 or not (token is None or isinstance(token, int)):
            raise fields.error(name, "must be a list of positions and tokens")
        found.append(-1 if token is None else token)
    return found

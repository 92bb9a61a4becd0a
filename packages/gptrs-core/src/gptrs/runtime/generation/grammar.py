"""Answers of a form: tokens that would leave a JSON schema, a regex or a grammar never come."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal
from weakref import WeakKeyDictionary

import numpy as np

from gptrs.capture.fork_safe_lock import ForkSafeLock
from gptrs.checkpoint.models.model_source import ModelSource
from gptrs.errors import MissingLibraryError, ModelError, UsageError
from gptrs.install_hints import install_extra
from gptrs.quoting import clipped
from gptrs.runtime.deep_stack import on_deep_stack
from gptrs.runtime.loaded_model import LoadedModel

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Form = Literal["json_schema", "regex", "lark"]

MAX_FORM_BYTES: Final = 128 << 10
_STACK_OF_BYTE: Final = 2048
"""Most of the stack that llguidance takes for a byte of a form: it follows references, and rules
that name rules, as deep as they go."""

_vocabularies: WeakKeyDictionary[ModelSource, LLTokenizer] = WeakKeyDictionary()
_vocabularies_lock = ForkSafeLock()


def _library() -> ModuleType:
    """Return llguidance; MissingLibraryError if it is not installed."""
    try:
        return importlib.import_module("llguidance")
    except ImportError as error:
        raise MissingLibraryError(
            "answers of a form need llguidance, which is not installed",
            hint=install_extra("gptrs-core", "grammar"),
        ) from error


def _vocabulary(model: LoadedModel) -> LLTokenizer:
    """Return the tokens of a model as llguidance reads them, which takes it a while at first.

    Models that differ by their adapters alone share them.
    """
    with _vocabularies_lock:
        known = _vocabularies.get(model.files)
        if known is None:
            known = _vocabularies[model.files] = _new_vocabulary(model)
        return known


def _new_vocabulary(model: LoadedModel) -> LLTokenizer:
    ends = sorted(model.eos_tokens)
    if not ends:
        raise UsageError(f"`{model.name}` has no token that ends a text, which a form needs")
    size = max(model.causal_lm().vocab_size, model.tokenizer.size)
    try:
        return _library().LLTokenizer(model.tokenizer.as_json(), n_vocab=size, eos_token=ends[0])
    except ValueError as error:
        problem = clipped(str(error), 300)
        raise ModelError(
            f"forms need another tokenizer than that of `{model.name}`: {problem}"
        ) from error


def schema_text(schema: Mapping[str, object]) -> str:
    """Return a JSON schema as text; UsageError for one that is nested too deeply to be written."""
    try:
        return json.dumps(schema)
    except RecursionError as error:
        raise UsageError("the json_schema cannot be used: it is nested too deeply") from error


def _new_matcher(tokenizer: LLTokenizer, form: Form, text: str) -> LLMatcher:
    matcher = _library().LLMatcher
    return matcher(tokenizer, getattr(matcher, f"grammar_from_{form}")(text))


class Grammar:
    """A form that texts of `model` are to have; it may serve any number of texts at once.

    `source` is a JSON schema, a regex, or a Lark grammar. UsageError for one that is malformed, has
    more than `MAX_FORM_BYTES` or uses what llguidance does not know; no file and no address that
    it names is read. MissingLibraryError where llguidance is not installed. The first grammar of a
    model reads its vocabulary, the others share that.
    """

    def __init__(self, model: LoadedModel, form: Form, source: str | Mapping[str, object]) -> None:
        self._tokenizer = _vocabulary(model)
        self._vocab_size = model.causal_lm().vocab_size
        self._ends = np.array(sorted(model.eos_tokens))
        text = source if isinstance(source, str) else schema_text(source)
        size = len(text.encode("utf-8", "replace"))
        if size > MAX_FORM_BYTES:
            raise UsageError(
                f"the {form} cannot be used: it has {size} bytes, the limit is {MAX_FORM_BYTES}"
            )
        try:
            self._matcher = on_deep_stack(
                lambda: _new_matcher(self._tokenizer, form, text), size * _STACK_OF_BYTE
            )
        except ValueError as error:
            raise UsageError(f"the {form} cannot be used: {clipped(str(error), 300)}") from error
        if self._matcher.is_error():
            problem = clipped(self._matcher.get_error(), 300)
            raise UsageError(f"the {form} cannot be used: {problem}")

    def new_processor(self, prompt_length: int) -> GrammarProcessor:
        """Return the logits processor of one text with a prompt of that many tokens."""
        return GrammarProcessor(
            self._matcher.deep_copy(), self._vocab_size, self._ends, prompt_length
        )


class GrammarProcessor:
    """Suppresses the tokens that would leave the form of one text, and its end before it is whole.

    Once nothing may follow, only the tokens that end a text may.
    """

    def __init__(
        self, matcher: LLMatcher, vocab_size: int, ends: np.ndarray, prompt_length: int
    ) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._ends = ends
        self._read = prompt_length

    def __call__(self, tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Set the logits of all other tokens to -inf."""
        for token in tokens[self._read :].tolist():
            if token not in self._ends:
                self._matcher.consume_token(token)
        self._read = tokens.size
        if self._matcher.is_error():
            raise UsageError(f"the form cannot be kept: {clipped(self._matcher.get_error(), 300)}")
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        bits = np.unpackbits(packed, bitorder="little")
        allowed = bits[: self._vocab_size].view(np.bool_)
        if self._matcher.is_stopped():
            allowed[:] = False
        may_end = self._matcher.is_stopped() or self._matcher.is_accepting()
        allowed[self._ends] = may_end
        np.copyto(logits, -np.inf, where=~allowed)
        return logits

"""Constrained decoding: masks tokens that would violate a JSON schema, a regex or a grammar."""

from __future__ import annotations

import importlib
import json
import logging
import time
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal
from weakref import WeakKeyDictionary

import numpy as np

from gptrs.errors import MissingLibraryError, ModelError, NoTokenError, UsageError
from gptrs.fork_safe_lock import ForkSafeLock
from gptrs.install_hints import install_extra
from gptrs.quoting import clipped, counted
from gptrs_runtime.capable_model import on_deep_stack
from gptrs_runtime.generation.logits_processors import bounds_of
from gptrs_runtime.generation.schema_combinations import require_few_combinations
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.sources.model_source import ModelSource

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Form = Literal["json_schema", "regex", "lark"]

_CALLED: Final[Mapping[Form, str]] = {
    "json_schema": "json_schema", "regex": "regex", "lark": "grammar",
}  # fmt: skip
"""The names of the options of forms."""
MAX_FORM_BYTES: Final = 128 << 10
MASK_SECONDS: Final = (2.0, 0.05)
"""Processor time allowed for a text's masks in an engine, initially and per further token. Schemas
take 0.1 ms per token, the hardest of 20 tried 31 ms; a highly ambiguous grammar takes hundreds."""
READ_SECONDS: Final = (0.1, 0.005)
"""The same for consuming chosen tokens, during which llguidance holds Python's lock, unlike for
masks, so every thread waits. Usually microseconds; 200 ms for such a grammar after 30 tokens."""
_STACK_OF_BYTE: Final = 2048
"""Upper bound of the stack that llguidance takes per byte of a form: it recurses along references
and nested rules."""

_GUIDANCE: Final = "x-guidance"
_SPACES: Final = r"[ \t]{0,4}|(\r?\n){1,2}[ \t]{0,64}"
"""Between the parts of JSON: a few blanks, or line breaks and an indentation."""
_NON_VERBOSE: Final = "<non-verbose/>"
_DEAD_END: Final = "NoExtensionBias"
_logger = logging.getLogger("gptrs")

_vocabularies: WeakKeyDictionary[ModelSource, LLTokenizer] = WeakKeyDictionary()
_vocabularies_lock = ForkSafeLock()


def _library() -> ModuleType:
    """Return llguidance; MissingLibraryError if it is not installed."""
    try:
        return importlib.import_module("llguidance")
    except ImportError as error:
        raise MissingLibraryError(
            "structured output needs llguidance, which is not installed",
            hint=install_extra("gptrs-runtime", "grammar"),
        ) from error


def _vocabulary(model: LoadedModel) -> LLTokenizer:
    """Return llguidance's form of a model's vocabulary, which is slow to build.

    Models that differ only in adapters share it.
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
            f"structured output does not work with the tokenizer of `{model.name}`: {problem}"
        ) from error


def schema_text(schema: Mapping[str, object]) -> str:
    """Return a JSON schema as text; UsageError if it is nested too deeply to serialize."""
    try:
        return json.dumps(schema)
    except RecursionError as error:
        raise UsageError("the json_schema cannot be used: it is nested too deeply") from error


def with_bounded_spaces(schema: str) -> str:
    """Return a JSON schema whose texts have little white space between their parts.

    llguidance allows any, and models fall into writing it to the end of the text. A schema with an
    `x-guidance` of its own stays. UsageError for a text that is not JSON: llguidance would name a
    place in a text of its own.
    """
    try:
        found = json.loads(schema)
        if isinstance(found, dict) and _GUIDANCE not in found:
            return json.dumps({**found, _GUIDANCE: {"whitespace_pattern": _SPACES}})
    except ValueError as error:
        raise UsageError(f"the json_schema cannot be used: it is not JSON: {error}") from error
    except RecursionError:  # llguidance says so
        pass
    return schema


def _as_lark(text: str) -> str:
    """Return a grammar in Lark; llama.cpp's form (GBNF) is translated."""
    if "::=" not in text:
        return text
    library = importlib.import_module("llguidance.gbnf_to_lark")
    try:
        return str(library.any_to_lark(text))
    except (ValueError, RecursionError, library.GbnfToLarkError) as error:
        problem = clipped(" ".join(str(error).split()), 300)
        raise UsageError(f"the grammar in GBNF cannot be used: {problem}") from error


def _new_matcher(tokenizer: LLTokenizer, form: Form, text: str) -> LLMatcher:
    """Return the matcher of a form after computing the first mask, which may reveal errors."""
    library = _library()
    matcher = library.LLMatcher(
        tokenizer,
        getattr(library.LLMatcher, f"grammar_from_{form}")(text),
        log_level=0,
        limits=library.LLParserLimits(verbose_errors=False),
    )
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher


def _problem(matcher: LLMatcher) -> str:
    """Return in words why a matcher is in error."""
    message = " ".join(matcher.get_error().removesuffix(_NON_VERBOSE).split())
    # llguidance signals a dead end by masking all tokens except the end token.
    return (
        "the model has no token that may come next"
        if message == _DEAD_END
        else clipped(message, 300)
    )


class Grammar:
    """A form that texts of `model` must have; serves any number of texts at once.

    `source` is a JSON schema, a regex, or a grammar in Lark or llama.cpp's GBNF. UsageError if it
    is malformed, larger than `MAX_FORM_BYTES`, combines too many alternatives of a schema, is
    unsupported by llguidance, or allows no first token of the model; files and URLs in it are never
    read. Warnings of llguidance go to the logger `gptrs`. MissingLibraryError if llguidance is not
    installed. The first grammar of a model builds its vocabulary, which the others share.
    """

    def __init__(self, model: LoadedModel, form: Form, source: str | Mapping[str, object]) -> None:
        self._tokenizer = _vocabulary(model)
        self._vocab_size = model.causal_lm().vocab_size
        ends = [token for token in sorted(model.eos_tokens) if token < self._vocab_size]
        self._ends = np.array(ends, np.int64)
        text = source if isinstance(source, str) else schema_text(source)
        called = _CALLED[form]
        size = len(text.encode("utf-8", "replace"))
        if size > MAX_FORM_BYTES:
            raise UsageError(
                f"the {called} cannot be used: it has {size} bytes, the limit is {MAX_FORM_BYTES}"
            )
        if form == "lark":
            text = _as_lark(text)
        elif form == "json_schema":
            text = with_bounded_spaces(text)
        require_few_combinations(form, text)
        try:
            self._matcher = on_deep_stack(
                lambda: _new_matcher(self._tokenizer, form, text), size * _STACK_OF_BYTE
            )
        except ValueError as error:
            raise UsageError(f"the {called} cannot be used: {clipped(str(error), 300)}") from error
        if self._matcher.is_error():
            raise UsageError(f"the {called} cannot be used: {_problem(self._matcher)}")
        for warning in self._matcher.get_grammar_warnings():
            _logger.warning("the %s: %s", called, clipped(" ".join(warning.split()), 300))

    def new_processor(self, prompt_length: int) -> GrammarProcessor:
        """Return the logits processor of one text with a prompt of that many tokens."""
        return GrammarProcessor(
            self._tokenizer, self._matcher, self._vocab_size, self._ends, prompt_length
        )


class GrammarProcessor:
    """Suppresses tokens that would violate the form, and the end of a text before it is complete.

    Once nothing may follow, only end tokens are allowed.
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        matcher: LLMatcher,
        vocab_size: int,
        ends: np.ndarray,
        prompt_length: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._fresh, self._matcher = matcher, matcher.deep_copy()
        self._vocab_size = vocab_size
        self._ends = ends
        self._begin = self._read = prompt_length
        self._prepared = -1
        """The number of tokens after which `_packed` is the next mask."""
        self._packed = b""
        self._mask_seconds = self._read_seconds = 0.0
        """Processor time of `prepare` so far, for masks and for consuming tokens."""

    @property
    def prepare_seconds(self) -> float:
        """Mean processor time of `prepare` per token so far, in seconds."""
        seconds = self._mask_seconds + self._read_seconds
        return seconds / max(1, self._read - self._begin)

    def prepare(self, tokens: np.ndarray) -> None:
        """Compute the mask of the next token; errors are raised by the call that uses it."""
        begun = time.thread_time()
        self._consume(tokens)
        consumed = time.thread_time()
        self._read_seconds += consumed - begun
        if self._overdue() is None:
            self._packed = self._matcher.compute_bitmask()
            self._mask_seconds += time.thread_time() - consumed

    def _consume(self, tokens: np.ndarray) -> None:
        new = tokens[self._read :]
        self._read = self._prepared = tokens.size
        self._matcher.consume_tokens(new[~np.isin(new, self._ends)].tolist())

    def _overdue(self) -> str | None:
        """Describe the work that took too much processor time, if any."""
        count = self._read - self._begin
        spent = ((self._read_seconds, READ_SECONDS, "reading its tokens"),
                 (self._mask_seconds, MASK_SECONDS, "its masks"))  # fmt: skip
        for seconds, (first, each), work in spent:
            if seconds > first + each * count:
                return f"{work} took {seconds:.2g} s of processor time"
        return None

    def __call__(self, tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Set the logits of tokens outside the form to -inf.

        NoTokenError if no token is left, if llguidance gives up because a form turns out to be too
        expensive as the text grows, or if `prepare` exceeded `MASK_SECONDS` or `READ_SECONDS`.
        """
        if self._prepared != tokens.size:
            self._consume(tokens)
            self._packed = self._matcher.compute_bitmask()
        overdue = self._overdue()
        if overdue is not None:
            raise self._kept_no_longer(overdue)
        packed = np.frombuffer(self._packed, np.uint8)
        # Checked after computing the mask, which on failure allows only the end.
        if self._matcher.is_error():
            raise self._kept_no_longer(_problem(self._matcher))
        bounds = bounds_of(packed)[: self._vocab_size]
        if self._matcher.is_stopped():
            bounds.fill(-np.inf)
        bounds[self._ends] = np.inf if self._matcher.is_accepting() else -np.inf
        np.minimum(logits, bounds, out=logits)
        if logits.max() == -np.inf:
            raise self._kept_no_longer("the tokens that it allows are all suppressed")
        return logits

    def _kept_no_longer(self, problem: str) -> NoTokenError:
        count = self._read - self._begin
        return NoTokenError(f"the form cannot be kept after {counted(count, 'token')}: {problem}")

    def is_whole(self, text: str) -> bool:
        """Return whether a text is of the form."""
        # Any tokenization of the text will do, including special tokens that a form names.
        plain = self._tokenizer.greedy_tokenize(text)
        for tokens in (plain, self._tokenizer.tokenize_str(text, parse_special=True)):
            matcher = self._fresh.deep_copy()
            if matcher.consume_tokens(tokens) and matcher.is_accepting():
                return True
        return False

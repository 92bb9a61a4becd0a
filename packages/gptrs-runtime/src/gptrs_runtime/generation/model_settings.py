"""Settings of a model's generation_config.json, under the names of transformers."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, Unpack, cast

from msgspec.structs import asdict

from gptrs.checkpoint.config_fields import Fields, is_integer, is_number
from gptrs.errors import ModelError, UsageError
from gptrs.quoting import listed
from gptrs_runtime.generation.keywords import SamplingFields
from gptrs_runtime.generation.logits_processors import TokenRules
from gptrs_runtime.generation.options import all_options
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.option_fields import option_fields

_logger = logging.getLogger("gptrs")

FORCED: Final = ("forced_bos_token_id", "forced_eos_token_id")
"""Settings of the token after a single one, and of the last one of the longest text."""
DEFAULT_TOP_K: Final = 50
"""Default `top_k` of transformers if generation_config.json has none."""
_FILE: Final = "generation_config.json"

_WITHOUT_EFFECT: Final[Mapping[str, tuple[object, ...]]] = {
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "num_beam_groups": (1,),
    "top_h": (),
    "penalty_alpha": (0,),
    "guidance_scale": (1,),
    "force_words_ids": (),
    "constraints": (),
    "watermarking_config": (),
    "dola_layers": (),
    "token_healing": (),
    "max_time": (),
}
"""Unsupported settings that would change the text, with the values that have no effect."""


_MARKS: Final = ("eos_token_id", "pad_token_id", "bos_token_id")
"""Settings of a token or, for the end, several that mark the ends of texts."""
_FOLLOWED: Final = re.compile(
    r"do_sample|.*repetition_penalty|.*no_repeat_ngram_size|bad_words_ids|(begin_)?suppress_tokens"
    r"|sequence_bias|exponential_decay_length_penalty|(min|max)_(new_tokens|length)|.*_token_ids?|.*_token_index"
)
"""Supported settings besides those of options, and token settings."""
_HARMLESS: Final = re.compile(
    r"_.*|transformers_version|use_cache|cache_.*|.*cache_config|return_.*|output_.*|compile_config"
    r"|disable_compile|remove_invalid_values|renormalize_logits|low_memory|prefill_chunk_size"
    r"|trust_remote_code|.*assistant.*|prompt_lookup_.*|max_matching_ngram_size"
    r"|target_lookbehind|diversity_penalty|continuous_batching_config|transformers_weights"
    r"|alignment_heads|lang_to_id|task_to_id|is_multilingual|language|task|median_filter_width"
    r"|max_initial_timestamp_index|prev_sot_token_id|forced_decoder_ids|no_speech_.*"
    r"|(compression_ratio|logprob)_threshold|condition_on_prev_tokens|chat_format"
    r"|max_cache_len|speculation_type|use_mtp|max_window_size|generation_kwargs|model_type|dtype|torch_dtype"
)
"""Settings that do not affect the text, or that transcription handles itself."""


def configured_sampling(
    settings: Mapping[str, object], **given: Unpack[SamplingFields]
) -> Sampling:
    """Return the sampling of generation_config.json, overridden by the given fields.

    Greedy unless `settings` have `do_sample`, or a temperature or truncation is given; `top_k` 0
    means no limit, as do the values that disable other truncations. UsageError for a given value
    out of range, ModelError for one in `settings`.
    """
    known = option_fields(Sampling)
    fields = asdict(_sampling_of(settings))
    explicit = {name: value for name, value in given.items() if value is not None}
    if not settings.get("do_sample") and not any(known[name].option.samples for name in explicit):
        drawn = {name for name, field in known.items() if field.option.samples}
        fields = {name: value for name, value in fields.items() if name not in drawn}
        fields["temperature"] = 0.0
    return Sampling(
        **fields | {name: known[name].or_off(value) for name, value in explicit.items()}
    )


def configured_rules(settings: Mapping[str, object]) -> TokenRules:
    """Return the rules for single tokens; ModelError for a malformed setting."""
    penalty = _number(settings, "encoder_repetition_penalty", 1.0)
    if penalty <= 0:
        raise _malformed(settings, "encoder_repetition_penalty", "above 0")
    return TokenRules(
        suppress=_tokens(settings, "suppress_tokens"),
        begin_suppress=_tokens(settings, "begin_suppress_tokens"),
        min_new_tokens=_integer(settings, "min_new_tokens") or 0,
        min_length=_integer(settings, "min_length") or 0,
        bad_words=_sequences(settings, "bad_words_ids"),
        no_repeat_ngram_size=_integer(settings, "no_repeat_ngram_size") or 0,
        biases=_biases(settings),
        encoder_repetition_penalty=penalty,
        encoder_no_repeat_ngram_size=_integer(settings, "encoder_no_repeat_ngram_size") or 0,
        forced_first=_forced(settings, FORCED[0]),
        forced_last=_forced(settings, FORCED[1]),
        length_decay=_length_decay(settings),
    )


def configured_stops(settings: Mapping[str, object]) -> tuple[str, ...]:
    """Return the stop strings; ModelError for anything but strings."""
    value = settings.get("stop_strings")
    values = [value] if isinstance(value, str) else value or []
    stops = cast("list[object]", values) if isinstance(values, list) else [value]
    if not all(isinstance(stop, str) and stop for stop in stops):
        raise _malformed(settings, "stop_strings", "a string or a list of strings")
    return tuple(cast("list[str]", stops))


def configured_max_tokens(settings: Mapping[str, object], prompt_length: int) -> int | None:
    """Return how many new tokens the model generates by default, None if unspecified.

    `max_new_tokens` counts only new tokens, `max_length` also the prompt. ModelError for a
    malformed setting, UsageError if such a prompt leaves no room.
    """
    count = _integer(settings, "max_new_tokens")
    if count:
        return count
    length = _integer(settings, "max_length")
    if not length:
        return None
    if length <= prompt_length:
        raise UsageError(
            f"the prompt has {prompt_length} tokens, and `max_length` in {_FILE} is {length}",
            hint="say how many may follow with --max-tokens",
        )
    return length - prompt_length


def note_ignored(
    name: str, settings: Mapping[str, object], vocab_size: int, supported: Sequence[str] = ()
) -> None:
    """Warn once for a model about what is ignored in its settings, and would change the text.

    That is, unsupported settings, except those in `supported`, which take effect this time, and
    tokens from `vocab_size` on: strangers' files are often those of another vocabulary. ModelError
    if such a token is forced.
    """
    ignored = tuple(key for key in ignored_settings(settings) if key not in supported)
    if ignored:
        _note(name, ignored)
    found = configured_rules(settings)
    for key, forced in zip(FORCED, (found.forced_first, found.forced_last), strict=True):
        require_known(key, max(forced, default=None), vocab_size)
    named = {
        "suppress_tokens": found.suppress,
        "begin_suppress_tokens": found.begin_suppress,
        "bad_words_ids": tuple(chain.from_iterable(found.bad_words)),
        "sequence_bias": tuple(chain.from_iterable(tokens for tokens, _ in found.biases)),
        **{key: _given_tokens(settings.get(key)) for key in _MARKS},
    }
    for key, tokens in named.items():
        if tokens and max(tokens) >= vocab_size:
            _note_token(name, key, max(tokens), vocab_size)


def require_known(name: str, token: int | None, size: int) -> None:
    """ModelError if the setting `name` is a token beyond a vocabulary of `size`."""
    if token is not None and token >= size:
        raise ModelError(
            f"`{name}` is {token}, and the vocabulary has {size}",
            hint="correct it in generation_config.json, or leave it out",
        )


def _given_tokens(value: object) -> tuple[int, ...]:
    """Return a token or the tokens of a list; what is malformed is refused by those who use it."""
    given = cast("list[object]", value) if isinstance(value, list) else [value]
    return tuple(each for each in given if is_integer(each))


def ignored_settings(settings: Mapping[str, object]) -> list[str]:
    """Return unsupported settings that would change the text, including unknown ones."""
    known = [
        key
        for key, neutral in _WITHOUT_EFFECT.items()
        if settings.get(key) not in (None, False, *neutral)
    ]
    others = [key for key in settings if key not in _WITHOUT_EFFECT and _is_unknown(key, settings)]
    return known + others


def _is_unknown(key: str, settings: Mapping[str, object]) -> bool:
    is_off = settings[key] in (None, False, "", [], {})
    is_option = any(field.option.setting == key for field in all_options().values())
    return not (is_off or is_option or _FOLLOWED.fullmatch(key) or _HARMLESS.fullmatch(key))


@lru_cache(maxsize=64)
def _note(name: str, ignored: tuple[str, ...]) -> None:
    what = "is not supported and ignored" if len(ignored) == 1 else "are not supported and ignored"
    _logger.warning("%s of `%s`: %s %s", _FILE, name, listed(ignored, 8), what)


@lru_cache(maxsize=64)
def _note_token(name: str, key: str, token: int, vocab_size: int) -> None:
    _logger.warning(
        "%s of `%s`: `%s` has tokens that are ignored, such as %d: the vocabulary has %d",
        *(_FILE, name, key, token, vocab_size),
    )


def _sampling_of(settings: Mapping[str, object]) -> Sampling:
    if settings.get("do_sample") and settings.get("top_k") is None:
        settings = {**settings, "top_k": DEFAULT_TOP_K}
    found: dict[str, Any] = {}
    for name, field in option_fields(Sampling).items():
        key = field.option.setting
        if isinstance(key, str) and settings.get(key) is not None:
            read = _integer if field.type is int else _number
            value = field.or_off(read(settings, key))
            if value is not None:
                found[name] = value
    try:
        return Sampling(**found)
    except UsageError as error:
        raise ModelError(f"{_FILE}: {error.message}") from error


def _number(settings: Mapping[str, object], name: str, default: float | None = None) -> float:
    return Fields(settings, f"in {_FILE}").number(name, default)


def _malformed(settings: Mapping[str, object], name: str, wanted: str) -> ModelError:
    return Fields(settings, f"in {_FILE}").error(name, f"must be {wanted}")


def _integer(settings: Mapping[str, object], name: str) -> int:
    return Fields(settings, f"in {_FILE}").integer(name, 0, minimum=0)


def _tokens(settings: Mapping[str, object], name: str) -> tuple[int, ...]:
    if not settings.get(name):
        return ()
    return Fields(settings, f"in {_FILE}").integers(name, (), minimum=0)


def _sequences(settings: Mapping[str, object], name: str) -> tuple[tuple[int, ...], ...]:
    """Return lists of tokens."""
    value = settings.get(name)
    found = cast("list[object]", value) if isinstance(value, list) else []
    lists = [cast("list[object]", word) for word in found if isinstance(word, list)]
    words = [_tokens({name: word}, name) for word in lists]
    if value and (len(words) != len(found) or not found or not all(words)):
        raise _malformed(settings, name, "a list of lists of tokens")
    return tuple(words)


def _forced(settings: Mapping[str, object], name: str) -> tuple[int, ...]:
    """Return the tokens that alone may come."""
    value = settings.get(name)
    if value is None or isinstance(value, list):
        return _tokens(settings, name)
    return (Fields(settings, f"in {_FILE}").integer(name, minimum=0),)


def _biases(settings: Mapping[str, object]) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Return pairs of tokens and the bias of the last one after the others."""
    name = "sequence_bias"
    value = settings.get(name)
    if not value:
        return ()
    pairs = cast("list[object]", value) if isinstance(value, list) else [value]
    found: list[tuple[tuple[int, ...], float]] = []
    for each in pairs:
        pair = cast("list[object]", each) if isinstance(each, list) else []
        tokens = _tokens({name: pair[0]}, name) if len(pair) == 2 else ()
        if not tokens or not is_number(pair[1]):
            raise _malformed(settings, name, "a list of pairs of a list of tokens and a number")
        found.append((tokens, pair[1]))
    return tuple(found)


def _length_decay(settings: Mapping[str, object]) -> tuple[int, float]:
    """Return after how many new tokens ends become likelier, and by what power."""
    name = "exponential_decay_length_penalty"
    value = settings.get(name)
    if value is None:
        return TokenRules().length_decay
    pair = cast("list[object]", value) if isinstance(value, list) else []
    if len(pair) != 2 or not is_integer(pair[0]) or not is_number(pair[1]) or pair[1] < 0:
        raise _malformed(settings, name, "a number of tokens and a factor of 0 or more")
    return pair[0], pair[1]

"""Settings of a model's generation_config.json, under the names of transformers."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, cast

from gptrs.checkpoint.config_fields import Fields
from gptrs.errors import ModelError, UsageError
from gptrs.quoting import listed
from gptrs_runtime.generation.logits_processors import Suppression
from gptrs_runtime.generation.sampling import Sampling

_logger = logging.getLogger("gptrs")

DEFAULT_TOP_K: Final = 50
"""How many tokens transformers samples among where generation_config.json does not say."""
_FILE: Final = "generation_config.json"

_WITHOUT_EFFECT: Final[Mapping[str, tuple[object, ...]]] = {
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "num_beam_groups": (1,),
    "top_h": (),
    "penalty_alpha": (0,),
    "guidance_scale": (1,),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "sequence_bias": (),
    "force_words_ids": (),
    "constraints": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "watermarking_config": (),
    "dola_layers": (),
    "token_healing": (),
    "max_time": (),
}
"""Settings that would change the text and are not supported, with the values that would not."""


_FOLLOWED: Final = re.compile(
    r"do_sample|temperature|top_[kp]|min_p|typical_p|(epsilon|eta)_cutoff|.*repetition_penalty"
    r"|.*no_repeat_ngram_size|bad_words_ids|(begin_)?suppress_tokens|(min|max)_(new_tokens|length)"
    r"|stop_strings|num_beams|length_penalty|early_stopping|.*_token_ids?|.*_token_index"
)
"""Settings that are followed, here or where texts have sources, and tokens by their names."""
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
"""Settings that change no text, or have their own place where sounds become texts."""


def configured_sampling(
    settings: Mapping[str, object],
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    typical_p: float | None = None,
    epsilon_cutoff: float | None = None,
    eta_cutoff: float | None = None,
) -> Sampling:
    """Return the sampling of generation_config.json, with the given fields in place of its own.

    Greedy unless `settings` say `do_sample`, or the temperature or a truncation of the distribution
    is given; a `top_k` of 0 is no limit. UsageError for a given value out of range, ModelError for
    one in `settings`.
    """
    base = _sampling_of(settings)
    given = (temperature, top_k, top_p, min_p, typical_p, epsilon_cutoff, eta_cutoff)
    repetition = base.repetition_penalty if repetition_penalty is None else repetition_penalty
    if not settings.get("do_sample") and all(value is None for value in given):
        base, temperature = Sampling(), 0.0
    return Sampling(
        temperature=base.temperature if temperature is None else temperature,
        top_k=base.top_k if top_k is None else top_k or None,
        top_p=base.top_p if top_p is None else top_p,
        seed=seed,
        min_p=base.min_p if min_p is None else min_p,
        repetition_penalty=repetition,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        typical_p=base.typical_p if typical_p is None else typical_p,
        epsilon_cutoff=base.epsilon_cutoff if epsilon_cutoff is None else epsilon_cutoff,
        eta_cutoff=base.eta_cutoff if eta_cutoff is None else eta_cutoff,
    )


def configured_suppression(settings: Mapping[str, object]) -> Suppression:
    """Return the tokens that must not come next; ModelError for a malformed setting."""
    return Suppression(
        suppress=_tokens(settings, "suppress_tokens"),
        begin_suppress=_tokens(settings, "begin_suppress_tokens"),
        min_new_tokens=_integer(settings, "min_new_tokens") or 0,
        min_length=_integer(settings, "min_length") or 0,
        bad_words=_sequences(settings, "bad_words_ids"),
        no_repeat_ngram_size=_integer(settings, "no_repeat_ngram_size") or 0,
    )


def configured_stops(settings: Mapping[str, object]) -> tuple[str, ...]:
    """Return the stop strings; ModelError for anything but strings."""
    value = settings.get("stop_strings")
    values = [value] if isinstance(value, str) else value or []
    stops = cast("list[object]", values) if isinstance(values, list) else [value]
    if not all(isinstance(stop, str) and stop for stop in stops):
        fields = Fields(settings, f"in {_FILE}")
        raise fields.error("stop_strings", "must be a string or a list of strings")
    return tuple(cast("list[str]", stops))


def configured_max_tokens(settings: Mapping[str, object], prompt_length: int) -> int | None:
    """Return how many new tokens the model generates by default, None where it does not say.

    `max_new_tokens` counts them alone, `max_length` the prompt, too. ModelError for a malformed
    setting, UsageError where such a prompt leaves no room.
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


def note_unsupported(
    name: str, settings: Mapping[str, object], supported: Sequence[str] = ()
) -> None:
    """Warn once for a model about ignored settings that would change the text.

    Those of `supported` have their effect this time.
    """
    ignored = tuple(key for key in ignored_settings(settings) if key not in supported)
    if ignored:
        _note(name, ignored)


def ignored_settings(settings: Mapping[str, object]) -> list[str]:
    """Return the settings that would change the text and are not followed, unknown ones too."""
    known = [
        key
        for key, neutral in _WITHOUT_EFFECT.items()
        if settings.get(key) not in (None, False, *neutral)
    ]
    others = [key for key in settings if key not in _WITHOUT_EFFECT and _is_unknown(key, settings)]
    return known + others


def _is_unknown(key: str, settings: Mapping[str, object]) -> bool:
    is_off = settings[key] in (None, False, "", [], {})
    return not (is_off or _FOLLOWED.fullmatch(key) or _HARMLESS.fullmatch(key))


@lru_cache(maxsize=64)
def _note(name: str, ignored: tuple[str, ...]) -> None:
    what = "is not supported and ignored" if len(ignored) == 1 else "are not supported and ignored"
    _logger.warning("%s of `%s`: %s %s", _FILE, name, listed(ignored, 8), what)


def _sampling_of(settings: Mapping[str, object]) -> Sampling:
    typical = _number(settings, "typical_p", 1.0)
    try:
        return Sampling(
            temperature=_number(settings, "temperature", 1.0),
            top_k=_top_k(settings),
            top_p=_number(settings, "top_p", 1.0),
            min_p=_number(settings, "min_p", 0.0) or None,
            repetition_penalty=_number(settings, "repetition_penalty", 1.0),
            typical_p=None if typical == 1 else typical,
            epsilon_cutoff=_number(settings, "epsilon_cutoff", 0.0) or None,
            eta_cutoff=_number(settings, "eta_cutoff", 0.0) or None,
        )
    except UsageError as error:
        raise ModelError(f"{_FILE}: {error.message}") from error


def _top_k(settings: Mapping[str, object]) -> int | None:
    """Return how many tokens the model samples among; 0 in the file is all of them."""
    if settings.get("top_k") is None:
        return DEFAULT_TOP_K if settings.get("do_sample") else None
    return _integer(settings, "top_k") or None


def _number(settings: Mapping[str, object], name: str, default: float) -> float:
    return Fields(settings, f"in {_FILE}").number(name, default)


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
        fields = Fields(settings, f"in {_FILE}")
        raise fields.error(name, "must be a list of lists of tokens")
    return tuple(words)

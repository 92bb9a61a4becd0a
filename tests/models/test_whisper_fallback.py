"""Doubtful windows of speech are written anew, are silent or have a prompt as in transformers."""

from __future__ import annotations

import json
import shutil
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import astuple

import gptrs
from gptrs.errors import ModelError, UsageError
from gptrs_runtime.generation.sampling import Sampler, candidates
from models import test_whisper
from models.test_whisper import sound

transformers = pytest.importorskip("transformers", reason="parity needs transformers")
torch = pytest.importorskip("torch", reason="parity needs torch")

SECONDS = 4.3
WARMER = (0.0, 0.4, 1.3)
ALL: dict[str, object] = {
    "temperature": WARMER,
    "compression_ratio_threshold": 1.1,
    "logprob_threshold": -2.0,
    "no_speech_threshold": 0.02,
    "condition_on_prev_tokens": True,
}
CASES: dict[str, dict[str, object]] = {
    "prompts": {"condition_on_prev_tokens": True},
    "repeating": {"temperature": WARMER, "compression_ratio_threshold": 0.95},
    "poor": {"temperature": WARMER, "logprob_threshold": -2.4},
    "drawn": {"temperature": 0.8, "condition_on_prev_tokens": True},
    "silent": {"logprob_threshold": -1.5, "no_speech_threshold": 0.004},
    "all": ALL,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model with random weights, in whose texts of windows there is something to doubt."""
    return test_whisper.save_whisper(tmp_path_factory.mktemp("whisper") / "m", 0)


@pytest.fixture
def same_draws(monkeypatch) -> None:
    """Draws of both sides take the same noise: the token whose logit plus noise is the largest."""
    ours, theirs = np.random.default_rng(5), np.random.default_rng(5)
    choose = Sampler.choose

    def chosen(sampler, logits):
        sampling = sampler._sampling
        if sampling.greedy:
            return choose(sampler, logits)
        tokens, weights = candidates(logits, sampling)
        scores = np.full(logits.size, -np.inf)
        with np.errstate(divide="ignore"):
            scores[np.asarray(tokens)] = np.log(weights)
        return int((scores + ours.gumbel(size=logits.size)).argmax())

    def drawn(probabilities, num_samples):
        assert num_samples == 1
        noise = torch.from_numpy(theirs.gumbel(size=probabilities.shape[-1]))
        return (probabilities.double().log() + noise).argmax(-1, keepdim=True)

    monkeypatch.setattr(Sampler, "choose", chosen)
    monkeypatch.setattr(torch, "multinomial", drawn)


reference = lru_cache(maxsize=2)(test_whisper.reference)


def their_segments(folder: Path, samples: np.ndarray, **asked: object) -> list[list[int]]:
    """The tokens of each segment, as transformers' `generate` gives them."""
    extractor = transformers.WhisperFeatureExtractor(feature_size=80)
    found = extractor(samples, sampling_rate=16000, padding="longest", return_tensors="pt")
    with torch.no_grad():
        segments = reference(folder).generate(
            found["input_features"],
            **{"language": "en", "task": "transcribe", "return_timestamps": True},
            **{"return_segments": True, "temperature": 0.0, **asked},
        )["segments"][0]
    return [each["tokens"].tolist() for each in segments]


def our_segments(
    folder: Path, backend: str, seconds: float = SECONDS, **asked: object
) -> list[list[int]]:
    """The tokens of each segment of a sound."""
    fallback = gptrs.Fallback(**asked)
    model = gptrs.load_model(folder, backend=backend)
    samples = sound(seconds)
    ours = gptrs.transcribe(model, samples, language="en", task="transcribe", fallback=fallback)
    return [list(each.token_ids) for each in ours.segments]


def configured(folder: Path, target: Path, **settings: object) -> Path:
    """A copy of the model with other settings of generation."""
    shutil.copytree(folder, target)
    given = test_whisper.GENERATION | settings
    (target / "generation_config.json").write_text(json.dumps(given))
    return target


@pytest.mark.usefixtures("same_draws")
@pytest.mark.parametrize(
    "case",
    [case if case == "all" else pytest.param(case, marks=pytest.mark.exhaustive) for case in CASES],
)
def test_segments_are_those_of_transformers(folder, backend_name, case):
    theirs = their_segments(folder, sound(SECONDS), **CASES[case])
    assert our_segments(folder, backend_name, **CASES[case]) == theirs


@pytest.mark.exhaustive
@pytest.mark.usefixtures("same_draws")
def test_settings_of_generation_config_count(folder, tmp_path):
    settings = {
        **{"condition_on_prev_tokens": True, "compression_ratio_threshold": 0.95},
        **{"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "top_k": 7, "min_new_tokens": 4},
    }
    changed = configured(folder, tmp_path / "m", **settings)
    theirs = their_segments(changed, sound(SECONDS), temperature=(0.0, 0.9))
    assert our_segments(changed, "ref", temperature=(0.0, 0.9)) == theirs
    assert our_segments(folder, "ref", temperature=(0.0, 0.9)) != theirs


@pytest.mark.exhaustive
@pytest.mark.usefixtures("same_draws")
def test_figures_are_those_of_transformers(folder, monkeypatch):
    asked = {**ALL, "temperature": 0.7, "compression_ratio_threshold": 9.0}
    kind, figures = transformers.WhisperForConditionalGeneration, []
    decide = kind._need_fallback

    def decided(self, tokens, outputs, index, processors, settings, vocab_size, temperature):
        needs, skips = decide(
            self, tokens, outputs, index, processors, settings, vocab_size, temperature
        )
        logprob = self._retrieve_avg_logprobs(outputs[index]["scores"], tokens, temperature).item()
        ratio = self._retrieve_compression_ratio(tokens, vocab_size)
        detector = next(each for each in processors if hasattr(each, "no_speech_prob"))
        figures.append((logprob, ratio, detector.no_speech_prob[index].item(), skips))
        return needs, skips

    monkeypatch.setattr(kind, "_need_fallback", decided)
    their_segments(folder, sound(SECONDS), **asked)
    model = gptrs.load_model(folder, backend="ref")
    ours = gptrs.transcribe(
        model, sound(SECONDS), language="en", task="transcribe", fallback=gptrs.Fallback(**asked)
    )
    assert len(figures) > 3
    assert np.allclose([astuple(each)[3:] for each in ours.windows], figures, rtol=1e-4)
    assert {each.temperature for each in ours.windows} == {0.7}
    assert ours.windows[0].start == 0
    assert abs(ours.windows[-1].end - SECONDS) < 1e-6


def test_a_seed_draws_the_same_tokens(folder):
    first, again, other = (
        our_segments(folder, "ref", 1.5, temperature=1.5, seed=seed) for seed in (3, 3, 4)
    )
    assert first == again != other


def test_what_is_not_supported_is_refused(folder, tmp_path):
    for asked, message in (
        ({"temperature": (0.0, -1.0)}, "temperatures are finite numbers >= 0"),
        ({"temperature": ()}, "temperatures are finite numbers >= 0"),
        ({"logprob_threshold": float("nan")}, "`logprob_threshold` must be a finite number"),
        ({"seed": -1}, "the seed must be at least 0"),
        ({"no_speech_threshold": 0.6}, "has an effect below `logprob_threshold` only"),
    ):
        with pytest.raises(UsageError, match=message):
            our_segments(folder, "ref", **asked)
    one = configured(folder, tmp_path / "a", no_timestamps_token_id=None)
    with pytest.raises(UsageError, match="no token of silence"):
        our_segments(one, "ref", no_speech_threshold=0.6, logprob_threshold=-1.0)
    wrong = configured(folder, tmp_path / "b", logprob_threshold="low")
    with pytest.raises(ModelError, match=r"`logprob_threshold` in generation_config\.json"):
        our_segments(wrong, "ref")
    for name, value in (
        ("decoder_start_token_id", 90),
        ("forced_decoder_ids", [[1, None], [2, 90]]),
        ("lang_to_id", {"<|en|>": 90}),
        ("prev_sot_token_id", 90),
    ):
        beyond = configured(folder, tmp_path / name, **{name: value})
        with pytest.raises(ModelError, match=f"`{name}` is 90, and the vocabulary has 90"):
            our_segments(beyond, "ref")


def test_suppressed_tokens_beyond_the_vocabulary_change_nothing(folder, tmp_path):
    more = {"suppress_tokens": [*test_whisper.GENERATION["suppress_tokens"], 90, 10**6]}
    changed = configured(folder, tmp_path / "m", **more)
    assert our_segments(changed, "ref") == our_segments(folder, "ref")

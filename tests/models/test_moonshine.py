"""Moonshine agrees with transformers: logits, tokens of sounds of any length."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError, UsageError
from gptrs_runtime.speech.sound_files import Sound, quiet_parts, transcribe_sounds
from gptrs_runtime.speech.timestamps import sound_form_of
from models.ctc_models import sound
from models.image_models import assert_close
from models.sound_models import CASES, save_moonshine

transformers = pytest.importorskip("transformers", reason="parity needs transformers")
torch = pytest.importorskip("torch", reason="parity needs torch")

VARIED = {"suppress_tokens": [2], "max_length": 49, "no_repeat_ngram_size": 2}
"""48 tokens, no two of them twice one behind the other."""
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 5))]


@pytest.fixture(scope="module", params=CASES)
def case(request) -> str:
    """The settings of a model."""
    return request.param


@pytest.fixture(scope="module", params=SEEDS)
def folder(request, case, tmp_path_factory) -> Path:
    """A model with random weights."""
    return save_moonshine(tmp_path_factory.mktemp("moonshine") / "m", case, request.param)


@lru_cache(maxsize=4)
def reference(folder: Path):
    """The model as transformers loads it."""
    kind = transformers.MoonshineForConditionalGeneration
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


def their_logits(folder: Path, samples: np.ndarray, text: np.ndarray) -> np.ndarray:
    """Logits f32 [B, T, V] of texts about sounds f32 [B, N]."""
    with torch.no_grad():
        return reference(folder)(
            torch.from_numpy(samples), decoder_input_ids=torch.from_numpy(text)
        ).logits.numpy()


def test_logits(folder, backend_name):
    model = gptrs.load_model(folder, backend=backend_name).sound_transcriber()
    samples = np.stack([sound(9000), sound(9000, 1)])
    text = np.random.default_rng(2).integers(0, 61, (2, 9))
    state = model.hear_sounds(samples, [9000, 9000])
    parts = [model.write(part, state) for part in (text[:, :4], text[:, 4:5], text[:, 5:])]
    assert_close(np.concatenate(parts, axis=1), their_logits(folder, samples, text))


def test_padding_changes_nothing(folder, backend_name):
    model = gptrs.load_model(folder, backend=backend_name).sound_transcriber()
    padded = np.stack([np.pad(sound(6500), (0, 2500), constant_values=0.7), sound(9000, 1)])
    text = np.random.default_rng(2).integers(0, 61, (2, 4))
    ours = model.write(text, model.hear_sounds(padded, [6500, 9000]))
    assert_close(ours[:1], their_logits(folder, sound(6500)[None], text[:1]))
    assert_close(ours[1:], their_logits(folder, sound(9000, 1)[None], text[1:]))


def their_tokens(folder: Path, samples: np.ndarray, **options: object) -> list[int]:
    """Tokens that transformers writes."""
    extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
    values = extractor(samples, sampling_rate=16000, return_tensors="pt").input_values
    with torch.no_grad():
        found = reference(folder).generate(values, **options)[0].tolist()
    assert found[0] == 3
    return found[1:-1] if found[-1] == 2 else found[1:]


def test_tokens(folder, backend_name):
    path = folder / "generation_config.json"
    settings = json.loads(path.read_text())
    model = gptrs.load_model(folder, backend=backend_name)
    samples = sound(9000)
    result = gptrs.transcribe(model, samples)
    (segment,) = result.segments
    assert list(segment.token_ids) == their_tokens(folder, samples)
    assert result.text == segment.text == model.tokenizer.decode(segment.token_ids).strip()
    assert (segment.start, segment.end, result.language) == (0.0, 0.562, None)
    try:
        path.write_text(json.dumps({**settings, **VARIED}))
        model = gptrs.load_model(folder, backend=backend_name)
        (segment,) = gptrs.transcribe(model, samples).segments
    finally:
        path.write_text(json.dumps(settings))
    wanted = their_tokens(folder, samples, **VARIED)
    assert list(segment.token_ids) == wanted
    assert len(wanted) == 48
    assert len(set(wanted)) > 8


def test_long_sounds_are_cut_where_it_is_quiet(tmp_path):
    folder = save_moonshine(tmp_path / "m")
    samples = sound(28_000)
    samples[13_000:15_000] *= 0.01
    model = gptrs.load_model(folder, backend="ref")
    form = sound_form_of(model.files)
    (_, cut), _ = parts = list(quiet_parts(Sound.of(samples), 16_000, 16_000))
    assert 13_000 < cut < 15_000
    result = transcribe_sounds(
        model, Sound.of(samples), form, timestamps=True, progress=None, part_seconds=1.0
    )
    found = [their_tokens(folder, samples[start:end]) for start, end in parts]
    assert [list(each.token_ids) for each in result.segments] == found
    assert [each.start for each in result.segments] == [0.0, round(cut / 16_000, 3)]
    whole = transcribe_sounds(
        model, Sound.of(samples), form, timestamps=False, progress=None, part_seconds=1.0
    )
    (segment,) = whole.segments
    assert (segment.text, whole.text) == (result.text, result.text)
    assert segment.token_ids == sum((each.token_ids for each in result.segments), ())


@pytest.mark.whole
@pytest.mark.parametrize("samples", [1, 100, 479, 480, 481, 5001])
@pytest.mark.parametrize("most", [480, 700])
def test_parts_cover_a_sound_once(samples, most):
    parts = list(quiet_parts(Sound.of(np.ones(samples, np.float32)), 1600, most))
    ends = [0, *(end for _, end in parts)]
    assert [start for start, _ in parts] == ends[:-1]
    assert ends[-1] == samples
    assert all(0 < end - start <= most for start, end in parts)


def test_what_is_not_supported_is_refused(tmp_path):
    folder = save_moonshine(tmp_path / "m")
    model = gptrs.load_model(folder, backend="ref")
    for asked in ({"language": "de"}, {"task": "translate"}, {"fallback": gptrs.Fallback()}):
        with pytest.raises(UsageError, match=r"writes its best tokens.* asked for"):
            gptrs.transcribe(model, sound(9000), **asked)
    with pytest.raises(UsageError, match="890 samples are too few"):
        gptrs.transcribe(model, sound(890))
    with pytest.raises(ModelError, match="890 samples are too few"):
        model.sound_transcriber().hear_sounds(sound(890)[None], [890])
    with pytest.raises(ModelError, match="cannot generate text"):
        gptrs.generate(model, [1, 2])
    config = json.loads((folder / "config.json").read_text())
    for change, message in (
        ({"encoder_num_attention_heads": 3}, "must divide the width 40"),
        ({"decoder_num_attention_heads": 4}, "decoder_num_attention_heads"),
        ({"encoder_num_key_value_heads": 1}, "encoder_num_key_value_heads"),
        ({"head_dim": 8}, "head_dim"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "of type dynamic"),
        ({"rope_parameters": {"partial_rotary_factor": 0.35}}, "must rotate pairs, got 7"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError, match=message):
            gptrs.load_model(folder, backend="ref")


def test_defaults_are_those_of_transformers():
    from gptrs_models.moonshine import read_config

    theirs = transformers.MoonshineConfig().to_dict()
    assert read_config({}) == read_config(theirs)

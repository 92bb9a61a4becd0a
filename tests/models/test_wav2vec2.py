"""Models with CTC agree with transformers: logits, texts, words and their times, long sounds."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gptrs
from gptrs.errors import ModelError, UsageError
from gptrs_runtime.speech.sound_files import Sound
from gptrs_runtime.speech.timestamps import chunks_of, sound_form_of, transcribe_frames
from models.ctc_models import CASES, save_ctc, sound
from models.image_models import assert_close

transformers = pytest.importorskip("transformers", reason="parity needs transformers")
torch = pytest.importorskip("torch", reason="parity needs torch")

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 5))]


OFTEN = ("base", "large", "hubert of batches")


def often(params, chosen):
    """The parameters, those that are not chosen for the slow tests alone."""
    slow = pytest.mark.exhaustive
    return [each if each in chosen else pytest.param(each, marks=slow) for each in params]


@pytest.fixture(scope="module", params=often(CASES, OFTEN))
def case(request) -> str:
    """A kind with its settings."""
    return request.param


@pytest.fixture(scope="module", params=SEEDS)
def folder(request, case, tmp_path_factory) -> Path:
    """A model with random weights."""
    return save_ctc(tmp_path_factory.mktemp("ctc") / "m", case, request.param)


@lru_cache(maxsize=4)
def reference(folder: Path):
    """The model as transformers loads it."""
    model = transformers.AutoModelForCTC.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def their_logits(folder: Path, samples: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Logits f32 [B, T, V] of sounds f32 [B, N]."""
    given = None if mask is None else torch.from_numpy(mask.astype(np.int64))
    with torch.no_grad():
        return reference(folder)(torch.from_numpy(samples), attention_mask=given).logits.numpy()


def test_logits(folder, backend_name):
    hearer = gptrs.load_model(folder, backend=backend_name).ctc()
    samples = np.stack([sound(1603), sound(1603, 1)])
    assert hearer.frame_samples == 20
    assert_close(hearer.score_frames(samples, [1603, 1603]), their_logits(folder, samples))


def test_padding_changes_nothing(folder, backend_name):
    hearer = gptrs.load_model(folder, backend=backend_name).ctc()
    padded = np.stack([np.pad(sound(1203), (0, 400), constant_values=0.7), sound(1603, 1)])
    ours = hearer.score_frames(padded, [1203, 1603])
    count = hearer.frame_count(1203)
    assert_close(ours[:1, :count], their_logits(folder, sound(1203)[None]))
    assert_close(ours[1:], their_logits(folder, sound(1603, 1)[None]))


def test_a_batch_with_a_mask_is_that_of_transformers(tmp_path):
    folder = save_ctc(tmp_path / "m", "large")
    hearer = gptrs.load_model(folder, backend="ref").ctc()
    samples = np.stack([np.pad(sound(1203), (0, 400)), sound(1603, 1)])
    theirs = their_logits(folder, samples, np.arange(1603) < np.array([[1203], [1603]]))
    ours, count = hearer.score_frames(samples, [1203, 1603]), hearer.frame_count(1203)
    assert_close(ours[0, :count], theirs[0, :count])
    assert_close(ours[1], theirs[1])


def test_texts_and_words(folder, backend_name):
    model = gptrs.load_model(folder, backend=backend_name)
    samples = sound(9000)
    processor = transformers.AutoProcessor.from_pretrained(folder)
    values = processor(samples, sampling_rate=16000, return_tensors="np").input_values
    best = their_logits(folder, values).argmax(-1)
    theirs = processor.batch_decode(best, output_word_offsets=True)
    result = gptrs.transcribe(model, samples)
    assert len(set(best[0].tolist())) > 4
    assert result.text == theirs.text[0] == processor.batch_decode(best)[0]
    assert [each.text for each in result.segments] == [
        each["word"] for each in theirs.word_offsets[0]
    ]
    times = [(each["start_offset"], each["end_offset"]) for each in theirs.word_offsets[0]]
    found = [(each.start, each.end) for each in result.segments]
    assert np.allclose(found, np.array(times) * 20 / 16000, atol=6e-4)
    whole = gptrs.transcribe(model, samples, timestamps=False)
    assert [each.text for each in whole.segments] == [result.text]
    assert whole.language is None


@pytest.mark.parametrize("samples", often([9000, 3199, 3201, 7200, 2401], [9000]))
def test_long_sounds_are_heard_as_the_pipeline_does(tmp_path, samples):
    folder = save_ctc(tmp_path / "m", "large")
    model = gptrs.load_model(folder, backend="ref")
    heard = transformers.pipeline("automatic-speech-recognition", model=str(folder), device="cpu")
    theirs = heard(sound(samples), chunk_length_s=0.15, return_timestamps="word")
    ours = transcribe_frames(
        model, Sound.of(sound(samples)), sound_form_of(model.files), timestamps=True, progress=None,
        chunk_seconds=0.15,
    )  # fmt: skip
    assert ours.text == theirs["text"]
    assert [each.text for each in ours.segments] == [each["text"] for each in theirs["chunks"]]
    found = [(each.start, each.end) for each in ours.segments]
    assert np.allclose(found, [each["timestamp"] for each in theirs["chunks"]], atol=6e-4)


def test_chunks_cover_a_sound_once():
    for samples in (1, 19, 2000, 48_000, 48_001, 100_000, 1_000_003):
        kept = 0
        for chunk in chunks_of(samples, 20, 120):
            kept += len(range(*chunk.kept.indices(-(-(chunk.end - chunk.start) // 20))))
        assert abs(kept - samples / 20) <= 2


@pytest.mark.parametrize(
    "settings",
    [
        {"do_lower_case": True, "replace_word_delimiter_char": "_"},
        pytest.param({"clean_up_tokenization_spaces": True}, marks=pytest.mark.exhaustive),
        {"word_delimiter_token": "E", "pad_token": "T", "unk_token": "O"},
    ],
)
def test_tokenizers(tmp_path, settings):
    folder = save_ctc(tmp_path / "m", **settings)
    processor = transformers.AutoProcessor.from_pretrained(folder)
    samples = sound(12_000, 3)
    values = processor(samples, sampling_rate=16000, return_tensors="np").input_values
    # `from_pretrained` of transformers 5 forgets `word_delimiter_token`
    given = {"pad_token": "[PAD]", **settings}
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"), **given)
    theirs = tokenizer.batch_decode(their_logits(folder, values).argmax(-1))[0]
    assert gptrs.transcribe(gptrs.load_model(folder, backend="ref"), samples).text == theirs
    for name in ("added_tokens.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["added_tokens_decoder"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert gptrs.transcribe(gptrs.load_model(folder, backend="ref"), samples).text == theirs


def test_older_files_are_read(tmp_path):
    folder = save_ctc(tmp_path / "m")
    samples = sound(3000)
    expected = gptrs.transcribe(gptrs.load_model(folder, backend="ref"), samples).text
    weights = load_file(folder / "model.safetensors")
    for old, new in (("weight_g", "original0"), ("weight_v", "original1")):
        scope = "wav2vec2.encoder.pos_conv_embed.conv."
        weights[scope + old] = weights.pop(f"{scope}parametrizations.weight.{new}")
    save_file(weights, folder / "model.safetensors")
    below = json.loads((folder / "processor_config.json").read_text())["feature_extractor"]
    (folder / "processor_config.json").unlink()
    (folder / "preprocessor_config.json").write_text(json.dumps(below))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    vocabulary = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps({"eng": vocabulary, "deu": {"X": 1}}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"target_lang": "eng"}))
    assert gptrs.transcribe(gptrs.load_model(folder, backend="ref"), samples).text == expected


def test_a_note_says_that_a_language_model_is_not_used(tmp_path, caplog):
    folder = save_ctc(tmp_path / "m")
    (folder / "alphabet.json").write_text("{}")
    with caplog.at_level("INFO", logger="gptrs"):
        gptrs.transcribe(gptrs.load_model(folder, backend="ref"), sound(3000))
    assert "language model of the folder is not used" in caplog.text


def test_what_is_not_supported_is_refused(tmp_path):
    folder = save_ctc(tmp_path / "m")
    model = gptrs.load_model(folder, backend="ref")
    for asked in ({"language": "de"}, {"task": "translate"}, {"fallback": gptrs.Fallback()}):
        with pytest.raises(UsageError, match=r"writes its best tokens.* asked for") as caught:
            gptrs.transcribe(model, sound(3000), **asked)
        assert "`transcriber`" in str(caught.value.hint)
    with pytest.raises(UsageError, match="29 samples are too few"):
        gptrs.transcribe(model, sound(29))
    with pytest.raises(ModelError, match="29 samples are too few"):
        model.ctc().score_frames(sound(29)[None], [29])
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    changed = tokenizer | {"tokenizer_class": "Wav2Vec2PhonemeCTCTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(changed))
    with pytest.raises(ModelError, match="Wav2Vec2PhonemeCTCTokenizer"):
        gptrs.transcribe(gptrs.load_model(folder, backend="ref"), sound(3000))
    (folder / "vocab.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ModelError, match=r"has no `vocab\.json`"):
        gptrs.transcribe(gptrs.load_model(folder, backend="ref"), sound(3000))
    config = json.loads((folder / "config.json").read_text())
    for change, message in (
        ({"add_adapter": True}, "add_adapter"),
        ({"architectures": ["Wav2Vec2ForXVector"]}, "Wav2Vec2ForXVector"),
        ({"conv_stride": [5, 2]}, "must have the 3 layers"),
        ({"num_conv_pos_embedding_groups": 5}, "must divide the width 48"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError, match=message):
            gptrs.load_model(folder, backend="ref")

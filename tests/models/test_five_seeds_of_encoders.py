"""Encoders of texts, images and sounds agree with transformers for five draws of weights.

On the reference backend each draw has settings of its own. Where kernels are compiled all draws
have those of the first, so that they share them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import gptrs
from models import test_clip, test_siglip2, test_whisper
from models.encoder_choices import (
    BODIES,
    CLASSIFIERS,
    CONVOLUTIONAL,
    EMBEDDERS,
    OF_WHISPER,
    PAIRS,
    SOURCES,
    TEXTS,
    Choices,
)
from models.image_models import (
    assert_close,
    images,
    save_image_model,
    save_random_model,
    torch_logits,
    torch_vectors,
)
from models.models_support import assert_greedy
from models.seq2seq_models import reference, save_seq2seq_of
from models.seq2seq_models import torch_logits as seq2seq_logits
from models.test_rotary_encoders import SIZES, agrees, save_encoder, save_new
from runtime.causal_embedders import TEXTS as EMBEDDED
from runtime.causal_embedders import embedded_by_transformers, save_embedder

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")
pytestmark = [pytest.mark.exhaustive, pytest.mark.whole]

SEEDS = range(21, 26)
COUNT = 48
"""Tokens of greedy texts."""
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "Model")


def drawn(name: str, choices: Choices, seed: int, backend: str) -> dict[str, object]:
    """Return settings of a kind, of each group those that were drawn."""
    draw = random.Random(f"{name} {seed if backend == 'ref' else SEEDS[0]}")
    found: dict[str, object] = {}
    for group in choices:
        found |= draw.choice(group)
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_encoders_of_texts(tmp_path, backend_name, name):
    for seed, part in zip(SEEDS, HEADS, strict=True):
        settings = {**SIZES, **drawn(name, TEXTS[name], seed, backend_name)}
        folder = tmp_path / str(seed)
        part = "Model" if name == "Gemma3Text" else part
        theirs = save_encoder(folder, name, part, settings, seed)
        agrees(folder, theirs, backend_name)


def test_older_files_of_gte(tmp_path):
    for seed, part in zip(SEEDS, HEADS, strict=True):
        settings = {**SIZES, **drawn("new", TEXTS["Gte"], seed, "ref")}
        theirs = save_new(tmp_path / str(seed), part, settings, seed)
        agrees(tmp_path / str(seed), theirs, "ref")


@pytest.mark.parametrize("name", EMBEDDERS)
def test_language_models_that_embed(tmp_path, backend_name, name):
    """The last token of each text, of length 1, where texts of unequal length share a batch."""
    for seed in SEEDS:
        settings = drawn(name, EMBEDDERS[name], seed, backend_name)
        folder = save_embedder(tmp_path / str(seed), f"{name}Model", settings, seed)
        model = gptrs.load_model(folder, backend=backend_name)
        wanted = embedded_by_transformers(folder, model, EMBEDDED)
        np.testing.assert_allclose(gptrs.embed(model, EMBEDDED), wanted, atol=1e-5)


@pytest.mark.parametrize("name", [*CLASSIFIERS, *CONVOLUTIONAL])
def test_classifiers_of_images(tmp_path, backend_name, name):
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        if name in CLASSIFIERS:
            settings = drawn(name, CLASSIFIERS[name], seed, backend_name)
            made = f"{name}ForImageClassification"
            save_random_model(folder, name, made, **settings, seed=seed)
        else:
            settings = drawn(name, CONVOLUTIONAL[name], seed, backend_name)
            save_image_model(folder, name, **settings, seed=seed)
        side = int(str(settings.get("image_size", 33)))
        pixels = images(2, side, side, int(str(settings.get("num_channels", 3))))
        found = gptrs.load_model(folder, backend=backend_name).forward(pixels)
        assert_close(found, torch_logits(folder, pixels))


@pytest.mark.parametrize("name", BODIES)
def test_encoders_of_images(tmp_path, backend_name, name):
    for seed in SEEDS:
        settings = drawn(name, BODIES[name], seed, backend_name)
        folder = save_random_model(
            tmp_path / str(seed), name, f"{name}Model", **settings, seed=seed
        )
        side = int(str(settings["image_size"]))
        pixels = images(2, side, side)
        wanted = torch_vectors(transformers.AutoModel.from_pretrained(folder).eval(), pixels)
        model = gptrs.load_model(folder, backend=backend_name)
        assert_close(model.image_embedder().embed_images(pixels), wanted)


@pytest.mark.parametrize("name", PAIRS)
def test_images_and_texts(tmp_path, backend_name, name):
    for seed in SEEDS:
        settings = drawn(name, PAIRS[name], seed, backend_name)
        folder = save_random_model(
            tmp_path / str(seed), name, f"{name}Model", **settings, seed=seed
        )
        theirs = test_clip.load_theirs(folder)
        tokens = np.random.default_rng(seed).integers(5, 50, (3, 12))
        tokens[:, -1] = 52  # the largest ends a text where the token that does is 2
        tokens[0, 4:] = tokens[1, -1:] = 4 if _end(settings) == 4 else 52
        pixels = images(1, 20, 20)
        given = (
            test_siglip2.patches_of(pixels[0], 16)
            if name == "Siglip2"
            else {"pixel_values": torch.from_numpy(pixels)}
        )
        with torch.no_grad():
            seen = theirs.get_image_features(**given).pooler_output.numpy()
            read = theirs.get_text_features(torch.from_numpy(tokens)).pooler_output.numpy()
        model = gptrs.load_model(folder, backend=backend_name)
        assert_close(model.image_embedder().embed_images(pixels), seen)
        assert_close(model.image_text().embed_texts(tokens), read)


def _end(settings: Mapping[str, object]) -> object:
    text = settings["text_config"]
    assert isinstance(text, dict)
    return text.get("eos_token_id")


@pytest.mark.parametrize("made", SOURCES)
def test_encoder_decoders(tmp_path, backend_name, made):
    for seed in SEEDS:
        settings = drawn(made, SOURCES[made], seed, backend_name)
        folder = save_seq2seq_of(tmp_path / str(seed), made, settings, seed)
        rng = np.random.default_rng(seed)
        source, text = rng.integers(3, 60, (2, 17)), rng.integers(3, 60, (2, 6))
        mask = np.arange(17) < [[17], [5]]
        wanted = seq2seq_logits(folder, np.where(mask, source, 1), mask, text)
        model = gptrs.load_model(folder, backend=backend_name)
        assert_close(
            model.seq2seq().write(text, model.seq2seq().read_sources(source, mask)), wanted
        )
        written = gptrs.generate(model, source[0].tolist(), max_tokens=COUNT, temperature=0)
        assert_greedy_about(folder, source[:1], list(written.token_ids))


def assert_greedy_about(folder: Path, source: np.ndarray, written: list[int]) -> None:
    """A text of at most `COUNT` tokens is greedy; its last one may be the end that is forced."""
    config = reference(folder).generation_config
    chosen = written
    if len(written) == COUNT and config.forced_eos_token_id is not None:
        assert written[-1] == config.forced_eos_token_id
        chosen = written[:-1]
    assert len(written) == COUNT or written[-1] == config.eos_token_id
    assert config.eos_token_id not in chosen[:-1]
    logits = partial(seq2seq_logits, folder, source, np.ones_like(source))
    assert_greedy(logits, [config.decoder_start_token_id], chosen, len(chosen))


def test_listeners(tmp_path, backend_name):
    for seed in SEEDS:
        settings = drawn("whisper", OF_WHISPER, seed, backend_name)
        made = "WhisperForConditionalGeneration"
        folder = save_random_model(tmp_path / str(seed), "Whisper", made, **settings, seed=seed)
        rng = np.random.default_rng(seed)
        bins = int(str(settings["num_mel_bins"]))
        features = rng.standard_normal((2, bins, 100)).astype(np.float32)
        text = rng.integers(0, 90, (2, 9))
        with torch.no_grad():
            wanted = test_whisper.reference(folder)(
                torch.from_numpy(features), decoder_input_ids=torch.from_numpy(text)
            ).logits.numpy()
        model = gptrs.load_model(folder, backend=backend_name).transcriber()
        assert_close(model.write(text, model.hear(features)), wanted)

"""A tiny directory of each kind of model, and what a backend computes with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import gptrs
from gptrs_models.text_parts import TEXT_KINDS
from gptrs_runtime.loaded_model import LoadedModel
from models import (
    more_decoders,
    test_bert_kinds,
    test_clip,
    test_convnext,
    test_convolutional_kinds,
    test_gpt_oss,
    test_llama_kinds,
    test_more_vision_kinds,
    test_recurrent_kinds,
    test_resnet,
    test_rotary_encoders,
    test_siglip2,
    test_vit,
    test_whisper,
)
from models.ctc_models import save_ctc, sound
from models.image_lm_support import save_image_lm
from models.image_models import images, save_image_model, save_random_model
from models.llama_support import VARIANTS, edit_config, save_llama
from models.models_support import save_gpt2
from models.seq2seq_models import CASES as SEQ2SEQ
from models.seq2seq_models import save_seq2seq
from models.sound_models import save_moonshine
from models.torch_mobilenet_v3 import save_mobilenet_v3

Save = Callable[[Path], object]
WORDS = 53
"""Tokens that every vocabulary here has."""
SPECIAL = 5
"""Tokens that may be special, the first ones."""
_ALL = 1000
"""More words than any vocabulary here has."""
_LLAMAS = ("mistral", "ministral", "ministral3", "qwen2", "qwen3")
"""The kinds that have a case among the variants of Llama."""


_DEEP = ("gemma2", "deepseek_v2", "deepseek_v3", "llama", "ModernBert")
"""Kinds of more than one layer: theirs are of two sorts, or one case has several alike."""


def _decoder(name: str, kind: str, settings: Mapping[str, object]) -> Save:
    """Return what saves one layer, for which XLA compiles half as long, or those of `settings`."""
    layers = name in _DEEP or any("layer" in each for each in settings)
    made = settings if layers else {**settings, "num_hidden_layers": 1}
    return partial(save_llama, kind=kind, **made)


def _encoder(kind: str, part: str, settings: Mapping[str, object]) -> Save:
    layers = {} if kind in _DEEP else {"num_hidden_layers": 1}
    made = {**test_rotary_encoders.SIZES, **layers, **settings}
    return lambda folder: save_random_model(folder, kind, f"{kind}{part}", **made)


def _internlm3(folder: Path) -> None:
    """Save a Llama under the name of a kind that transformers lacks."""
    save_llama(folder, attention_bias=False, head_dim=8, num_hidden_layers=1)
    edit_config(folder, model_type="internlm3", qkv_bias=False, bias=False)


def _refined_web(folder: Path, kind: str) -> None:
    """Save a Falcon under one of its older names, the second one with linear biases."""
    linear = {"alibi": kind == "RefinedWebModel", "num_attention_heads": 12, "hidden_size": 48}
    save_llama(
        folder, "Falcon", multi_query=False, parallel_attn=False, num_hidden_layers=1, **linear
    )
    edit_config(folder, model_type=kind, n_layer=1, n_head=12)


def _new(folder: Path) -> None:
    """Save a GTE in the form of files of before it had a name."""
    _encoder("Gte", "Model", {})(folder)
    edit_config(
        folder,
        **{"model_type": "new", "rope_parameters": None, "rope_scaling": None},
        **{"rope_theta": 10000, "pack_qkv": True, "position_embedding_type": "rope"},
        layer_norm_type="layer_norm",
    )


def _readers_of_images() -> dict[str, Save]:
    """Return what saves models of images and texts that came later."""
    both = {"text_config": test_siglip2.TEXT, "vision_config": test_siglip2.VISION}
    found: dict[str, Save] = {
        "idefics3": save_image_lm,
        "smolvlm": partial(save_image_lm, kind="SmolVLM"),
        "siglip2": partial(save_random_model, kind="Siglip2", made="Siglip2Model", **both),
    }
    found["siglip2_vision_model"] = partial(
        save_random_model, kind="Siglip2Vision", made="Siglip2VisionModel", **test_siglip2.VISION
    )
    return found


def _hearers() -> dict[str, Save]:
    """Return what saves models of speech."""
    whisper = partial(save_random_model, kind="Whisper", made="WhisperForConditionalGeneration")
    return {
        "whisper": partial(whisper, **test_whisper.SETTINGS),
        "moonshine": save_moonshine,
        "wav2vec2": save_ctc,
        **{kind: partial(save_ctc, case=kind) for kind in ("hubert", "unispeech", "unispeech-sat")},
    }


def _saves() -> dict[str, Save]:
    """Return what saves each case; a case begins with the name of its kind."""
    found: dict[str, Save] = {"gpt2": save_gpt2, "internlm3": _internlm3, "new": _new}
    found |= {kind: partial(_refined_web, kind=kind) for kind in ("RefinedWeb", "RefinedWebModel")}
    found["gpt_oss"] = test_gpt_oss.save
    first = {name: VARIANTS[name] for name in _LLAMAS}
    for name, (kind, settings) in {
        "llama": ("Llama", {}),
        **first,
        **test_llama_kinds.CASES,
        **test_recurrent_kinds.KINDS,
    }.items():
        found[name] = _decoder(name, kind, settings)
    kind, settings = more_decoders.CASES["granitemoehybrid"]
    found["granitemoehybrid"] = partial(save_llama, kind=kind, **settings)
    found |= _hearers()
    for name in SEQ2SEQ:
        found[name] = partial(save_seq2seq, case=name)
    for name, (kind, part, settings) in {
        "bert": ("Bert", "Model", {}),
        "bert of texts": ("Bert", "ForSequenceClassification", {}),
        "bert of tokens": ("Bert", "ForTokenClassification", {}),
        "bert of words": ("Bert", "ForMaskedLM", {}),
        **test_bert_kinds.CASES,
        **test_rotary_encoders.CASES,
    }.items():
        found.setdefault(name, _encoder(kind, part, settings))
    for name, (kind, settings) in test_convolutional_kinds.CASES.items():
        found[name] = partial(save_image_model, kind=kind, **settings)
    for name, (kind, settings) in test_more_vision_kinds.CLASSIFIERS.items():
        found[name] = partial(
            save_random_model, kind=kind, made=f"{kind}ForImageClassification", **settings
        )
    found["dinov3_vit"] = partial(
        save_random_model, kind="DINOv3ViT", made="DINOv3ViTModel", **test_more_vision_kinds.DINO
    )
    found |= _readers_of_images()
    found["resnet"] = partial(
        save_image_model, kind="ResNet", **test_resnet.VARIANTS["downsampled_in_1x1"]
    )
    found["mobilenet_v3"] = save_mobilenet_v3
    found["mobilenet_v2"] = partial(save_image_model, kind="MobileNetV2", depth_multiplier=0.35)
    for name in test_clip.CASES:
        found[name] = partial(test_clip.save, name=name)
    for name in test_vit.CASES:
        found[name] = partial(test_vit.save, name=name)
    for name in test_convnext.CASES:
        found[name] = partial(test_convnext.save, name=name)
    return found


SAVES = _saves()
CASES = sorted({name.split()[0]: name for name in reversed(SAVES)}.values())
"""The first case of each kind."""
ALIKE = frozenset(
    name.split()[0] for name in [*TEXT_KINDS, "gemma4", "falcon_mamba", *more_decoders.CASES]
)
"""Kinds whose programs are made of the layers of others; they differ in switches."""
WRITERS = frozenset({
    "gpt2", "llama", "gemma3_text", "gpt_oss", "mixtral", "deepseek_v2", "mamba", "mamba2", "lfm2",
    "qwen3_next", "granitemoehybrid", "bloom",
})  # fmt: skip
"""Kinds of which every kind of cache is one: they write with the program of several steps."""
HEADS = ("bert of texts", "bert of tokens", "bert of words", "gte of words", "deberta-v2 of texts")
"""Cases of encoders with a head."""


def computed(model: LoadedModel) -> dict[str, np.ndarray]:
    """Return the numbers and tokens that a model gives for inputs that are always the same."""
    found: dict[str, np.ndarray] = {}
    for capability, compute in _COMPUTE.items():
        if capability in model.capabilities:
            found |= compute(model)
    return found


def _tokens(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(SPECIAL, WORDS, shape)


def _texts_of(width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two texts of unequal lengths, padded to `width`, and where their tokens are."""
    return _tokens(2, width), np.arange(width) < np.array([[width], [width // 2]])


def _causal_lm(model: LoadedModel) -> dict[str, np.ndarray]:
    """XLA compiles one program, which reads the prompt; for `WRITERS` one that writes, too."""
    prompt = _tokens(1, 13)[0].tolist()  # longer than the windows of most kinds
    greedy = {"temperature": 0, "ignore_eos": True}
    first = gptrs.generate(model, prompt, max_tokens=1, logprobs=_ALL, **greedy)
    assert first.logprobs
    scores = np.array([logprob for _, logprob in sorted(first.logprobs[0].top)])
    if model.kind in WRITERS:
        tokens = gptrs.generate(model, prompt, max_tokens=6, **greedy).token_ids
    else:
        tokens = list(first.token_ids)
        for _ in range(2):  # a prompt of the same size, once it is padded
            tokens += gptrs.generate(model, [*prompt, *tokens], max_tokens=1, **greedy).token_ids
    return {"scores of words": scores, "greedy tokens": np.array(tokens)}


def _seq2seq(model: LoadedModel) -> dict[str, np.ndarray]:
    source, text = _texts_of(8), _tokens(2, 4)
    module = model.seq2seq()
    logits = module.write(text, module.read_sources(*source))
    written = gptrs.generate(model, source[0][0].tolist(), max_tokens=6, temperature=0)
    return {"logits": logits, "greedy tokens": np.array(written.token_ids)}


def _transcriber(model: LoadedModel) -> dict[str, np.ndarray]:
    module = model.transcriber()
    heard = np.random.default_rng(1).standard_normal((1, 80, 100)).astype(np.float32)
    return {"logits": module.write(_tokens(1, 6), module.hear(heard))}


def _sound_transcriber(model: LoadedModel) -> dict[str, np.ndarray]:
    module = model.sound_transcriber()
    state = module.hear_sounds(np.stack([sound(2900), sound(2900, 1)]), [2900, 2500])
    return {"logits": module.write(_tokens(2, 6), state)}


def _ctc(model: LoadedModel) -> dict[str, np.ndarray]:
    samples = np.stack([sound(900), sound(900, 1)])
    return {"logits": model.ctc().score_frames(samples, [900, 900])}


def _text_embedder(model: LoadedModel) -> dict[str, np.ndarray]:
    tokens, mask = _texts_of(8)
    return {"vectors": model.text_embedder().encode(tokens, mask)[mask]}


def _text_classifier(model: LoadedModel) -> dict[str, np.ndarray]:
    tokens, mask = _texts_of(8)
    segments = np.zeros_like(tokens)
    return {"classes": model.text_classifier().classify_texts(tokens, segments, mask)}


def _token_classifier(model: LoadedModel) -> dict[str, np.ndarray]:
    tokens, mask = _texts_of(8)
    return {"classes of tokens": model.token_classifier().classify_tokens(tokens, mask)[mask]}


def _masked_lm(model: LoadedModel) -> dict[str, np.ndarray]:
    tokens, mask = _texts_of(8)
    return {"words": model.masked_lm().predict_tokens(tokens, mask, np.array([1, 3, 8]))}


def _pixels(model: LoadedModel) -> np.ndarray:
    vision: Any = model.config.get("vision_config", model.config)
    size = vision.get("image_size", 20) if "patch_size" in vision else 37
    return images(2, size, size)


def _image_classifier(model: LoadedModel) -> dict[str, np.ndarray]:
    return {"logits": model.forward(_pixels(model))}


def _image_embedder(model: LoadedModel) -> dict[str, np.ndarray]:
    return {"vectors of images": model.image_embedder().embed_images(_pixels(model))}


def _image_text(model: LoadedModel) -> dict[str, np.ndarray]:
    tokens = _tokens(2, 12)
    tokens[:, -1] = 4  # the token that ends a text
    return {"vectors of texts": model.image_text().embed_texts(tokens)}


_COMPUTE: dict[str, Callable[[LoadedModel], dict[str, np.ndarray]]] = {
    "causal_lm": _causal_lm,
    "seq2seq": _seq2seq,
    "transcriber": _transcriber,
    "sound_transcriber": _sound_transcriber,
    "ctc": _ctc,
    "text_embedder": _text_embedder,
    "text_classifier": _text_classifier,
    "token_classifier": _token_classifier,
    "masked_lm": _masked_lm,
    "image_classifier": _image_classifier,
    "image_embedder": _image_embedder,
    "image_text": _image_text,
}

"""A CLIP or SigLIP with random weights and a tokenizer of words, in a directory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = ("<s>", "<pad>", "<unk>", "a", "cat", "dog", "red", "sat", "</s>")
WIDTH = 8


def save_tiny_clip(folder: Path, kind: str = "clip") -> Path:
    """Save the model, its tokenizer and the settings of its images, of 12 x 12 pixels."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(4)
    weights = {
        name: np.array(random.normal(0, 0.6, shape), np.float32)
        for name, shape in _shapes(kind == "siglip").items()
    }
    weights["logit_scale"] = np.array(np.abs(weights["logit_scale"]) + 1)
    save_file(weights, folder / "model.safetensors")
    sizes = {
        **{"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"intermediate_size": 12},
    }
    text = {
        **sizes,
        **{"vocab_size": len(WORDS), "max_position_embeddings": 6, "eos_token_id": 8},
        "projection_size": WIDTH,
    }
    vision = {**sizes, "image_size": 12, "patch_size": 6}
    config = {"model_type": kind, "text_config": text, "vision_config": vision}
    (folder / "config.json").write_text(json.dumps({**config, "projection_dim": WIDTH}))
    size = {"height": 12, "width": 12}
    form = {"size": size, "crop_size": size}
    processor = {"image_processor_type": "SiglipImageProcessor", **form, "do_center_crop": False}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>"}))
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, "<unk>"))
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 8)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def _affine(name: str, outputs: int, inputs: int = WIDTH) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}


def _shapes(siglip: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"logit_scale": (1,) if siglip else ()}
    for tower in ("text_model", "vision_model"):
        layer = f"{tower}.encoder.layers.0"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= _affine(f"{layer}.self_attn.{part}", WIDTH)
        shapes |= _affine(f"{layer}.mlp.fc1", 12) | _affine(f"{layer}.mlp.fc2", WIDTH, 12)
        shapes |= _norm(f"{layer}.layer_norm1") | _norm(f"{layer}.layer_norm2")
    text, vision = "text_model.embeddings", "vision_model.embeddings"
    shapes |= {f"{text}.token_embedding.weight": (len(WORDS), WIDTH)}
    shapes |= {f"{text}.position_embedding.weight": (6, WIDTH)}
    shapes |= _norm("text_model.final_layer_norm") | _norm("vision_model.post_layernorm")
    shapes |= {f"{vision}.patch_embedding.weight": (WIDTH, 3, 6, 6)}
    shapes |= {f"{vision}.position_embedding.weight": (4 if siglip else 5, WIDTH)}
    if not siglip:
        shapes |= {f"{vision}.class_embedding": (WIDTH,)} | _norm("vision_model.pre_layrnorm")
        return shapes | {f"{x}_projection.weight": (WIDTH, WIDTH) for x in ("text", "visual")}
    head = "vision_model.head"
    shapes |= {"logit_bias": (1,), f"{vision}.patch_embedding.bias": (WIDTH,)}
    shapes |= {f"{head}.probe": (1, 1, WIDTH), f"{head}.attention.in_proj_bias": (3 * WIDTH,)}
    shapes |= {f"{head}.attention.in_proj_weight": (3 * WIDTH, WIDTH)}
    shapes |= _affine(f"{head}.attention.out_proj", WIDTH) | _norm(f"{head}.layernorm")
    shapes |= _affine(f"{head}.mlp.fc1", 12) | _affine(f"{head}.mlp.fc2", WIDTH, 12)
    return shapes | _affine("text_model.head", WIDTH)

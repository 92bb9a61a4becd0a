"""A directory of a tiny Whisper with a tokenizer, and a sound for it."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models

WIDTH = 16
END = 8
SETTINGS = {
    "model_type": "whisper",
    "vocab_size": 70,
    "num_mel_bins": 80,
    "d_model": WIDTH,
    **{f"{part}_layers": 1 for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": 2 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 20 for part in ("encoder", "decoder")},
    "max_source_positions": 50,
    "max_target_positions": 12,
}
GENERATION = {
    "decoder_start_token_id": 9,
    "eos_token_id": END,
    "no_timestamps_token_id": 14,
    "lang_to_id": {"<|en|>": 10, "<|de|>": 11},
    "task_to_id": {"transcribe": 12, "translate": 13},
    "suppress_tokens": [9, 10, 11, 12, 13],
}


def shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of the model, each with its shape."""
    found: dict[str, tuple[int, ...]] = {
        "model.encoder.conv1.weight": (WIDTH, 80, 3),
        "model.encoder.conv2.weight": (WIDTH, WIDTH, 3),
        "model.encoder.embed_positions.weight": (50, WIDTH),
        "model.decoder.embed_positions.weight": (12, WIDTH),
        "model.decoder.embed_tokens.weight": (70, WIDTH),
        **{f"model.encoder.conv{number}.bias": (WIDTH,) for number in (1, 2)},
    }
    for part, kinds in (("encoder", ("self_attn",)), ("decoder", ("self_attn", "encoder_attn"))):
        layer = f"model.{part}.layers.0"
        for kind in kinds:
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                found[f"{layer}.{kind}.{name}.weight"] = (WIDTH, WIDTH)
                if name != "k_proj":
                    found[f"{layer}.{kind}.{name}.bias"] = (WIDTH,)
        found |= {f"{layer}.fc1.weight": (20, WIDTH), f"{layer}.fc1.bias": (20,)}
        found |= {f"{layer}.fc2.weight": (WIDTH, 20), f"{layer}.fc2.bias": (WIDTH,)}
        norms = [f"{layer}.{kind}_layer_norm" for kind in (*kinds, "final")]
        for norm in (*norms, f"model.{part}.layer_norm"):
            found |= {f"{norm}.weight": (WIDTH,), f"{norm}.bias": (WIDTH,)}
    return found


def save_tiny_whisper(folder: Path) -> Path:
    """A Whisper whose windows are a second long."""
    random = np.random.default_rng(3)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: random.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes().items()
    }
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(SETTINGS))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    words = {word: number for number, word in enumerate("abcdefgh")}
    Tokenizer(models.WordLevel(words, unk_token="h")).save(str(folder / "tokenizer.json"))
    return folder


def save_sound(path: Path, seconds: float = 2.2) -> Path:
    """A WAV file of 8 kHz."""
    at = np.arange(int(seconds * 8000)) / 8000
    samples = (np.sin(900 * at * (1 + np.sin(2 * at))) * 12000).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(samples.tobytes())
    return path


def save_wav(path: Path, samples: np.ndarray, rate: int, width: int = 2, channels: int = 1) -> Path:
    """Write samples in [-1, 1] as integers."""
    scale = 2.0 ** (8 * width - 1)
    whole = np.clip(np.round(samples * scale), -scale, scale - 1).astype(np.int64)
    whole += 128 if width == 1 else 0
    data = whole.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)
    return path

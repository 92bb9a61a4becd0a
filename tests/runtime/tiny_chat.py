"""A tiny model that claims to chat: a GPT-2 with a chat template beside its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from gptrs_runtime.load import load_model
from runtime.tiny_gpt2 import END, save_tiny_gpt2

TEMPLATE = (
    "{% for message in messages %}"
    "{{ message['role'] }}: {{ message['content'] }}{{ eos_token }}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def save_tiny_chat(folder: Path, template: object = TEMPLATE, **settings: object) -> Path:
    """Save a model with room for a conversation; `template` as tokenizer_config.json has it."""
    save_tiny_gpt2(folder, **{"n_positions": 256, **settings})
    config = {
        "eos_token": END,
        "bos_token": {"__type": "AddedToken", "content": END},
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def save_scripted_chat(
    folder: Path, answer: str, *, prompt: str, template: str, special: Sequence[str] = ()
) -> Path:
    """Save a model that answers `prompt`, as the template renders it, by `answer` and its end.

    The position alone decides the next token. `special` are special tokens more.
    """
    save_tiny_chat(folder, template, n_positions=1024, n_layer=1, vocab_size=320)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text("utf-8"))
    settings["additional_special_tokens"] = list(special)
    file.write_text(json.dumps(settings), "utf-8")
    tokenizer = load_model(folder, backend="ref").tokenizer
    tokens = [*tokenizer.encode(answer, special=False), tokenizer.number(END)]
    begin = len(tokenizer.encode(prompt, special=False)) - 1
    weights = dict(load_file(folder / "model.safetensors"))
    for name, values in weights.items():
        weights[name] = np.zeros_like(values)
    pieces = np.random.default_rng(3).normal(0, 1, (320, 32)).astype(np.float32)
    pieces /= np.linalg.norm(pieces, axis=1, keepdims=True)
    weights["transformer.wte.weight"] = pieces
    weights["transformer.wpe.weight"][begin : begin + len(tokens)] = 20 * pieces[tokens]
    weights["transformer.ln_f.weight"] = np.full(32, 50, np.float32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder

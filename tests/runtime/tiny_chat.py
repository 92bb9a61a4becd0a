"""A tiny model that claims to chat: a GPT-2 with a chat template beside its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

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

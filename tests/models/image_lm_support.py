"""A tiny language model that reads images, as transformers saves it, and what that makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from support.tiny_models import tiny

SIDE = 24
TEMPLATE = (
    "<s>{% for message in messages %}{{ message['role'] }}:{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %} {{ part['text'] }}{% endif %}{% endfor %}"
    "</s>\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
WORDS = ("what", "is", "this", "and", "that", "user", "assistant", ":", "?", "\n", "fox", "a")
MORE = tuple(f"word{number}" for number in range(30))
"""Words that nobody says."""
MARKS = ("<fake_token_around_image>", "<image>", "<global-img>")


def save_image_lm(folder: Path, kind: str = "Idefics3", seed: int = 5, **settings: Any) -> Path:
    """Save `Idefics3` or `SmolVLM` with random weights, its tokenizer, template and processor."""
    folder.mkdir(parents=True, exist_ok=True)
    places = [f"<row_{r}_col_{c}>" for r in range(1, 4) for c in range(1, 4)]
    special = ["<unk>", "<s>", "</s>", *MARKS, *places]
    vocabulary = {word: n for n, word in enumerate([*special, *WORDS, *MORE])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "removed")
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    processor = Idefics3ImageProcessorPil(
        size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE}
    )
    processor.save_pretrained(folder)
    text = {
        "vocab_size": len(vocabulary),
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 400,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": SIDE,
        "patch_size": 4,
    }
    config = getattr(transformers, f"{kind}Config")(
        text_config={"model_type": "llama", **text},
        vision_config=vision,
        image_token_id=vocabulary["<image>"],
        eos_token_id=2,
        **{"scale_factor": 2, **settings},
    )
    tiny(folder, f"{kind}ForConditionalGeneration", config, seed=seed, redrawn=(0.4, 0.5))
    return folder


def pixels(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A picture with large areas, ui8 [H, W, 3]."""
    rng = np.random.default_rng([height, width, seed])
    few = rng.integers(0, 256, (3, 3, 3), np.uint8)
    rows, columns = (np.arange(size) * 3 // size for size in (height, width))
    return few[rows][:, columns]


def reference_inputs(folder: Path, messages: list[dict], pictures: list[np.ndarray]):
    """What transformers' own processor makes of a conversation."""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="</s>", unk_token="<unk>"
    )
    made = Idefics3ImageProcessorPil.from_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    vision = config["vision_config"]
    count = (vision["image_size"] // vision["patch_size"] // config["scale_factor"]) ** 2
    processor = transformers.Idefics3Processor(made, tokenizer, image_seq_len=count)
    text = tokenizer.apply_chat_template(
        messages, chat_template=TEMPLATE, tokenize=False, add_generation_prompt=True
    )
    return processor(text=[text], images=[pictures], return_tensors="pt", add_special_tokens=False)


def reference_tokens(folder: Path, inputs, count: int) -> list[int]:
    """The tokens that transformers writes greedily."""
    model: Any = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval()
    inputs = {name: value for name, value in inputs.items() if name != "token_type_ids"}
    with torch.no_grad():
        made = model.generate(
            **inputs, max_new_tokens=count, min_new_tokens=count, do_sample=False, eos_token_id=-1
        )
    return made[0, inputs["input_ids"].shape[1] :].tolist()

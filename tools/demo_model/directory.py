"""The saved demo model: a Hugging Face directory in float16 that replaces an old one as a whole."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, GPT2LMHeadModel

from demo_model.tokenizer import END_OF_TEXT

TEMPERATURE = 0.8
TOP_K = 40


@torch.no_grad()
def round_to_float16(model: GPT2LMHeadModel) -> None:
    """Round each parameter of `model` to the nearest float16 value; it stays stored as it was."""
    for name, parameter in model.named_parameters():
        rounded = parameter.half()
        if not torch.isfinite(rounded).all():
            raise ValueError(f"`{name}` has values that float16 cannot hold; the training diverged")
        parameter.copy_(rounded)


def generation_settings(end_of_text: int) -> GenerationConfig:
    """Return how the demo model generates unless told otherwise."""
    return GenerationConfig(
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=TOP_K,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
    )


def check_target(target: Path) -> None:
    """Raise `FileExistsError` if `target` holds anything that is not a saved model."""
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() and not (target / "config.json").is_file():
        raise FileExistsError(
            f"`{target}` exists and is not a model directory (it has no `config.json`); "
            "choose another `--out`"
        )


def save_directory(target: Path, model: GPT2LMHeadModel, tokenizer: Tokenizer, card: str) -> int:
    """Save `model` as float16, `tokenizer` and `card` in `target`; return the bytes in all.

    The files are written beside `target` and moved there together: an error leaves what was there.
    """
    check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        new = Path(scratch, "new")
        new.mkdir()
        copy.deepcopy(model).half().save_pretrained(new)
        tokenizer.save(str(new / "tokenizer.json"))
        write_tokenizer_config(new / "tokenizer_config.json", model.config.n_positions)
        (new / "README.md").write_text(card, encoding="utf-8")
        for path in new.iterdir():
            path.chmod(0o644)
        size = sum(path.stat().st_size for path in new.iterdir())
        replace_directory(target, new, Path(scratch, "old"))
    return size


def replace_directory(target: Path, new: Path, old: Path) -> None:
    """Move `new` to `target`, and what was there to `old`; an error leaves `target` as it was."""
    if not target.exists():
        new.rename(target)
        return
    target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        old.rename(target)
        raise


def write_tokenizer_config(path: Path, context: int) -> None:
    """Write what transformers reads beside `tokenizer.json`: the class and the special tokens."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")

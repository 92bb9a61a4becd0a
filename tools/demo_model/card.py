"""The model card of the demo model: what it is, what it was trained on, and how good it is."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from demo_model.recipe import TEMPERATURE, TOP_K
from demo_model.tokenizer import END_OF_TEXT

TEMPLATE = """\
---
license: apache-2.0
language: code
library_name: transformers
pipeline_tag: text-generation
tags: [gpt2, python, demo]
---

# gptrs demo model

A GPT-2 of {parameters:,} parameters, trained from scratch on a CPU by `gptrs train`, in
{minutes:.0f} minutes. It exists so that gptrs has something real to run with nothing to download.
It was trained on the source text of Python's standard library alone, and so it produces
Python-looking text and nothing reliable: names, calls and claims in its output are made up. Use it
to try an engine out, never to write code.

## Example

Sampled with temperature {temperature} and top-k {top_k}, which `generation_config.json` sets;
{prompt_tokens} tokens of prompt, the rest is the model's:

````text
{sample}
````

## Model

| | |
|---|---|
| architecture | GPT-2 (`GPT2LMHeadModel`), pre-norm, `{activation}`, learned positions |
| layers, heads, width | {layers}, {heads}, {width} |
| context | {context} tokens |
| parameters | {parameters:,}; the output layer is the token embedding |
| stored as | float16 |
| tokenizer | byte-level BPE of {vocabulary:,} tokens, trained on the same text |
| special token | `{end_of_text}`, before and after each document |

Each newline is a token of its own, and the indentation of a line is split from its first word.

## Training

| | |
|---|---|
| text | the standard library of {python}, without tests, `idlelib`, `encodings` and tables |
| trained on | {train_files:,} files, {train_bytes:,} bytes, {train_tokens:,} tokens |
| held out | {held_out_files:,} files, {held_out_bytes:,} bytes, {held_out_tokens:,} tokens |
| training | {steps:,} updates, {seen:,} tokens ({passes:.1f} passes), {minutes:.1f} minutes |
| method | Muon for the blocks' matrices, AdamW for the rest; warm-up, cosine decay, no dropout |

**Held-out loss: {loss:.3f} nats per token, {bits_per_byte:.3f} bits per byte.** It is measured on
all held-out files after the weights were rounded to float16, in windows of {context} tokens that
do not overlap. Files are held out by a hash of their names.

To train it again, from the root of the repository:

```sh
{command}
```

It can be stopped and continued at any time, and ends with the same weights. Processors with other
instructions add products in another order, so that theirs differ in their last bits.

## License

The weights are under Apache-2.0, as gptrs is. The text they were trained on is Python's standard
library, copyright the Python Software Foundation, under the PSF License Version 2.
"""


@dataclass(frozen=True)
class TextSize:
    """The size of one part of the corpus."""

    files: int
    utf8_bytes: int
    tokens: int


@dataclass(frozen=True)
class Results:
    """What was measured: the loss on all held-out text in nats per token, and a sample."""

    held_out_loss: float
    sample: str
    prompt_tokens: int

    def bits_per_byte(self, held_out: TextSize) -> float:
        """Return the loss in bits per byte of the `held_out` text it was measured on."""
        bits = self.held_out_loss * (held_out.tokens - 1) / math.log(2)
        return bits / held_out.utf8_bytes


def model_card(
    config: Mapping[str, Any],
    report: Mapping[str, Any],
    train: TextSize,
    held_out: TextSize,
    results: Results,
    command: str,
) -> str:
    """Return the card, in Markdown, of a model with this config.json, trained by `command`.

    `report` is the result of `gptrs train`.
    """
    return TEMPLATE.format(
        parameters=report["trained"],
        minutes=report["seconds"] / 60,
        temperature=TEMPERATURE,
        top_k=TOP_K,
        prompt_tokens=results.prompt_tokens,
        sample=results.sample.rstrip(),
        activation=config["activation_function"],
        layers=config["n_layer"],
        heads=config["n_head"],
        width=config["n_embd"],
        context=config["n_positions"],
        vocabulary=config["vocab_size"],
        end_of_text=END_OF_TEXT,
        python=f"CPython {platform.python_version()}",
        train_files=train.files,
        train_bytes=train.utf8_bytes,
        train_tokens=train.tokens,
        held_out_files=held_out.files,
        held_out_bytes=held_out.utf8_bytes,
        held_out_tokens=held_out.tokens,
        steps=report["steps"],
        seen=report["tokens"],
        passes=report["tokens"] / train.tokens,
        loss=results.held_out_loss,
        bits_per_byte=results.bits_per_byte(held_out),
        command=command,
    )
